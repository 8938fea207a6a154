"""Messages of definitions/brokers.py, typed: written by tools/messages.py."""

from pybroker.protocol.message import Message, Request

class LeaderAndIsrRequest(Request[LeaderAndIsrResponse]):
    """API 4, versions 0 to 7, flexible from 4."""
    controller_id: int = 0  # i32
    is_k_raft_controller: bool = False  # bool v7+
    controller_epoch: int = 0  # i32
    broker_epoch: int = -1  # i64 v2+
    type: int = 0  # i8 v5+
    ungrouped_partition_states: list[UngroupedPartitionStates] = ...  # {}[] v0-1
    topic_states: list[TopicStates] = ...  # {}[] v2+
    live_leaders: list[LiveLeaders] = ...  # {}[]
    asked_about: list[AskedAbout] = ...  # {}[] v7+ tag9092

    class UngroupedPartitionStates(Message):
        topic_name: str = ""  # str
        partition_index: int = 0  # i32
        controller_epoch: int = 0  # i32
        leader: int = 0  # i32
        leader_epoch: int = 0  # i32
        isr: list[int] = ...  # i32[]
        partition_epoch: int = 0  # i32
        replicas: list[int] = ...  # i32[]
        adding_replicas: list[int] = ...  # i32[] v3+
        removing_replicas: list[int] = ...  # i32[] v3+
        is_new: bool = False  # bool v1+
        leader_recovery_state: int = 0  # i8 v6+

    class TopicStates(Message):
        topic_name: str = ""  # str
        topic_id: bytes = ...  # uuid v5+
        partition_states: list[PartitionStates] = ...  # {}[]

        class PartitionStates(Message):
            topic_name: str = ""  # str v0-1
            partition_index: int = 0  # i32
            controller_epoch: int = 0  # i32
            leader: int = 0  # i32
            leader_epoch: int = 0  # i32
            isr: list[int] = ...  # i32[]
            partition_epoch: int = 0  # i32
            replicas: list[int] = ...  # i32[]
            adding_replicas: list[int] = ...  # i32[] v3+
            removing_replicas: list[int] = ...  # i32[] v3+
            is_new: bool = False  # bool v1+
            leader_recovery_state: int = 0  # i8 v6+

    class LiveLeaders(Message):
        broker_id: int = 0  # i32
        host_name: str = ""  # str
        port: int = 0  # i32

    class AskedAbout(Message):
        topic_id: bytes = ...  # uuid
        topic_name: str = ""  # str
        partition_indexes: list[int] = ...  # i32[]

class LeaderAndIsrResponse(Message):
    """API 4, versions 0 to 7, flexible from 4."""
    error_code: int = 0  # i16
    partition_errors: list[PartitionErrors] = ...  # {}[] v0-4
    topics: list[Topics] = ...  # {}[] v5+
    known: list[Known] = ...  # {}[] v7+ tag9092
    latest_broker_epoch: int = -1  # i64 v7+ tag9093

    class PartitionErrors(Message):
        topic_name: str = ""  # str
        partition_index: int = 0  # i32
        error_code: int = 0  # i16

    class Topics(Message):
        topic_id: bytes = ...  # uuid
        partition_errors: list[PartitionErrors] = ...  # {}[]

        class PartitionErrors(Message):
            topic_name: str = ""  # str v0-4
            partition_index: int = 0  # i32
            error_code: int = 0  # i16

    class Known(Message):
        topic_name: str = ""  # str
        partition_index: int = 0  # i32
        leader_epoch: int = 0  # i32
        partition_epoch: int = 0  # i32
        leader: int = 0  # i32
        isr: list[int] = ...  # i32[]
        log_epoch: int = 0  # i32
        log_end: int = 0  # i64
        power_lost: bool = False  # bool v7+ tag9094

class StopReplicaRequest(Request[StopReplicaResponse]):
    """API 5, versions 0 to 4, flexible from 2."""
    controller_id: int = 0  # i32
    is_k_raft_controller: bool = False  # bool v4+
    controller_epoch: int = 0  # i32
    broker_epoch: int = -1  # i64 v1+
    delete_partitions: bool = False  # bool v0-2
    ungrouped_partitions: list[UngroupedPartitions] = ...  # {}[] v0
    topics: list[Topics] = ...  # {}[] v1-2
    topic_states: list[TopicStates] = ...  # {}[] v3+

    class UngroupedPartitions(Message):
        topic_name: str = ""  # str
        partition_index: int = 0  # i32

    class Topics(Message):
        name: str = ""  # str
        partition_indexes: list[int] = ...  # i32[]

    class TopicStates(Message):
        topic_name: str = ""  # str
        partition_states: list[PartitionStates] = ...  # {}[]

        class PartitionStates(Message):
            partition_index: int = 0  # i32
            leader_epoch: int = -1  # i32
            delete_partition: bool = False  # bool

class StopReplicaResponse(Message):
    """API 5, versions 0 to 4, flexible from 2."""
    error_code: int = 0  # i16
    partition_errors: list[PartitionErrors] = ...  # {}[]

    class PartitionErrors(Message):
        topic_name: str = ""  # str
        partition_index: int = 0  # i32
        error_code: int = 0  # i16

class UpdateMetadataRequest(Request[UpdateMetadataResponse]):
    """API 6, versions 0 to 8, flexible from 6."""
    controller_id: int = 0  # i32
    is_k_raft_controller: bool = False  # bool v8+
    type: int = 0  # i8 v8+ tag0
    controller_epoch: int = 0  # i32
    broker_epoch: int = -1  # i64 v5+
    ungrouped_partition_states: list[UngroupedPartitionStates] = ...  # {}[] v0-4
    topic_states: list[TopicStates] = ...  # {}[] v5+
    live_brokers: list[LiveBrokers] = ...  # {}[]

    class UngroupedPartitionStates(Message):
        topic_name: str = ""  # str
        partition_index: int = 0  # i32
        controller_epoch: int = 0  # i32
        leader: int = 0  # i32
        leader_epoch: int = 0  # i32
        isr: list[int] = ...  # i32[]
        zk_version: int = 0  # i32
        replicas: list[int] = ...  # i32[]
        offline_replicas: list[int] = ...  # i32[] v4+

    class TopicStates(Message):
        topic_name: str = ""  # str
        topic_id: bytes = ...  # uuid v7+
        partition_states: list[PartitionStates] = ...  # {}[]

        class PartitionStates(Message):
            topic_name: str = ""  # str v0-4
            partition_index: int = 0  # i32
            controller_epoch: int = 0  # i32
            leader: int = 0  # i32
            leader_epoch: int = 0  # i32
            isr: list[int] = ...  # i32[]
            zk_version: int = 0  # i32
            replicas: list[int] = ...  # i32[]
            offline_replicas: list[int] = ...  # i32[] v4+

    class LiveBrokers(Message):
        id: int = 0  # i32
        v0_host: str = ""  # str v0
        v0_port: int = 0  # i32 v0
        endpoints: list[Endpoints] = ...  # {}[] v1+
        rack: str | None = None  # str? v2+

        class Endpoints(Message):
            port: int = 0  # i32
            host: str = ""  # str
            listener: str = ""  # str v3+
            security_protocol: int = 0  # i16

class UpdateMetadataResponse(Message):
    """API 6, versions 0 to 8, flexible from 6."""
    error_code: int = 0  # i16

class ControlledShutdownRequest(Request[ControlledShutdownResponse]):
    """API 7, versions 0 to 3, flexible from 3."""
    broker_id: int = 0  # i32
    broker_epoch: int = -1  # i64 v2+

class ControlledShutdownResponse(Message):
    """API 7, versions 0 to 3, flexible from 3."""
    error_code: int = 0  # i16
    remaining_partitions: list[RemainingPartitions] = ...  # {}[]

    class RemainingPartitions(Message):
        topic_name: str = ""  # str
        partition_index: int = 0  # i32

class AlterPartitionRequest(Request[AlterPartitionResponse]):
    """API 56, versions 0 to 3, flexible from 0."""
    broker_id: int = 0  # i32
    broker_epoch: int = -1  # i64
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        topic_name: str = ""  # str v0-1
        topic_id: bytes = ...  # uuid v2+
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            leader_epoch: int = 0  # i32
            new_isr: list[int] = ...  # i32[] v0-2
            new_isr_with_epochs: list[NewIsrWithEpochs] = ...  # {}[] v3+
            leader_recovery_state: int = 0  # i8 v1+
            partition_epoch: int = 0  # i32

            class NewIsrWithEpochs(Message):
                broker_id: int = 0  # i32
                broker_epoch: int = -1  # i64

class AlterPartitionResponse(Message):
    """API 56, versions 0 to 3, flexible from 0."""
    throttle_time_ms: int = 0  # i32
    error_code: int = 0  # i16
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        topic_name: str = ""  # str v0-1
        topic_id: bytes = ...  # uuid v2+
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            error_code: int = 0  # i16
            leader_id: int = 0  # i32
            leader_epoch: int = 0  # i32
            isr: list[int] = ...  # i32[]
            leader_recovery_state: int = 0  # i8 v1+
            partition_epoch: int = 0  # i32

class AllocateProducerIdsRequest(Request[AllocateProducerIdsResponse]):
    """API 67, versions 0 to 0, flexible from 0."""
    broker_id: int = 0  # i32
    broker_epoch: int = -1  # i64

class AllocateProducerIdsResponse(Message):
    """API 67, versions 0 to 0, flexible from 0."""
    throttle_time_ms: int = 0  # i32
    error_code: int = 0  # i16
    producer_id_start: int = 0  # i64
    producer_id_len: int = 0  # i32
