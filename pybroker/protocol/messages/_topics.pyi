"""Messages of definitions/topics.py, typed: written by tools/messages.py."""

from pybroker.protocol.message import Message, Request

class MetadataRequest(Request[MetadataResponse]):
    """API 3, versions 0 to 13, flexible from 9."""
    topics: list[Topics] | None = ...  # {}[]?(1+)
    allow_auto_topic_creation: bool = True  # bool v4+
    include_cluster_authorized_operations: bool = False  # bool v8-10
    include_topic_authorized_operations: bool = False  # bool v8+

    class Topics(Message):
        topic_id: bytes = ...  # uuid v10+
        name: str | None = ""  # str?(10+)

class MetadataResponse(Message):
    """API 3, versions 0 to 13, flexible from 9."""
    throttle_time_ms: int = 0  # i32 v3+
    brokers: list[Brokers] = ...  # {}[]
    cluster_id: str | None = None  # str? v2+
    controller_id: int = -1  # i32 v1+
    topics: list[Topics] = ...  # {}[]
    cluster_authorized_operations: int = -2147483648  # i32 v8-10
    error_code: int = 0  # i16 v13+

    class Brokers(Message):
        node_id: int = 0  # i32
        host: str = ""  # str
        port: int = 0  # i32
        rack: str | None = None  # str? v1+

    class Topics(Message):
        error_code: int = 0  # i16
        name: str | None = ""  # str?(12+)
        topic_id: bytes = ...  # uuid v10+
        is_internal: bool = False  # bool v1+
        partitions: list[Partitions] = ...  # {}[]
        topic_authorized_operations: int = -2147483648  # i32 v8+

        class Partitions(Message):
            error_code: int = 0  # i16
            partition_index: int = 0  # i32
            leader_id: int = 0  # i32
            leader_epoch: int = -1  # i32 v7+
            replica_nodes: list[int] = ...  # i32[]
            isr_nodes: list[int] = ...  # i32[]
            offline_replicas: list[int] = ...  # i32[] v5+

class DescribeClusterRequest(Request[DescribeClusterResponse]):
    """API 60, versions 0 to 2, flexible from 0."""
    include_cluster_authorized_operations: bool = False  # bool
    endpoint_type: int = 1  # i8 v1+
    include_fenced_brokers: bool = False  # bool v2+

class DescribeClusterResponse(Message):
    """API 60, versions 0 to 2, flexible from 0."""
    throttle_time_ms: int = 0  # i32
    error_code: int = 0  # i16
    error_message: str | None = None  # str?
    endpoint_type: int = 1  # i8 v1+
    cluster_id: str = ""  # str
    controller_id: int = -1  # i32
    brokers: list[Brokers] = ...  # {}[]
    cluster_authorized_operations: int = -2147483648  # i32

    class Brokers(Message):
        broker_id: int = 0  # i32
        host: str = ""  # str
        port: int = 0  # i32
        rack: str | None = None  # str?
        is_fenced: bool = False  # bool v2+

class DescribeTopicPartitionsRequest(Request[DescribeTopicPartitionsResponse]):
    """API 75, versions 0 to 0, flexible from 0."""
    topics: list[Topics] = ...  # {}[]
    response_partition_limit: int = 2000  # i32
    cursor: Cursor | None = None  # {}?

    class Topics(Message):
        name: str = ""  # str

    class Cursor(Message):
        topic_name: str = ""  # str
        partition_index: int = 0  # i32

class DescribeTopicPartitionsResponse(Message):
    """API 75, versions 0 to 0, flexible from 0."""
    throttle_time_ms: int = 0  # i32
    topics: list[Topics] = ...  # {}[]
    next_cursor: NextCursor | None = None  # {}?

    class Topics(Message):
        error_code: int = 0  # i16
        name: str | None = None  # str?
        topic_id: bytes = ...  # uuid
        is_internal: bool = False  # bool
        partitions: list[Partitions] = ...  # {}[]
        topic_authorized_operations: int = -2147483648  # i32

        class Partitions(Message):
            error_code: int = 0  # i16
            partition_index: int = 0  # i32
            leader_id: int = 0  # i32
            leader_epoch: int = -1  # i32
            replica_nodes: list[int] = ...  # i32[]
            isr_nodes: list[int] = ...  # i32[]
            eligible_leader_replicas: list[int] | None = None  # i32[]?
            last_known_elr: list[int] | None = None  # i32[]?
            offline_replicas: list[int] = ...  # i32[]

    class NextCursor(Message):
        topic_name: str = ""  # str
        partition_index: int = 0  # i32

class CreateTopicsRequest(Request[CreateTopicsResponse]):
    """API 19, versions 0 to 7, flexible from 5."""
    topics: list[Topics] = ...  # {}[]
    timeout_ms: int = 60000  # i32
    validate_only: bool = False  # bool v1+

    class Topics(Message):
        name: str = ""  # str
        num_partitions: int = 0  # i32
        replication_factor: int = 0  # i16
        assignments: list[Assignments] = ...  # {}[]
        configs: list[Configs] = ...  # {}[]

        class Assignments(Message):
            partition_index: int = 0  # i32
            broker_ids: list[int] = ...  # i32[]

        class Configs(Message):
            name: str = ""  # str
            value: str | None = None  # str?

class CreateTopicsResponse(Message):
    """API 19, versions 0 to 7, flexible from 5."""
    throttle_time_ms: int = 0  # i32 v2+
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        name: str = ""  # str
        topic_id: bytes = ...  # uuid v7+
        error_code: int = 0  # i16
        error_message: str | None = None  # str? v1+
        topic_config_error_code: int = 0  # i16 v5+ tag0
        num_partitions: int = -1  # i32 v5+
        replication_factor: int = -1  # i16 v5+
        configs: list[Configs] | None = None  # {}[]? v5+

        class Configs(Message):
            name: str = ""  # str
            value: str | None = None  # str?
            read_only: bool = False  # bool
            config_source: int = -1  # i8
            is_sensitive: bool = False  # bool

class DeleteTopicsRequest(Request[DeleteTopicsResponse]):
    """API 20, versions 0 to 6, flexible from 4."""
    topics: list[Topics] = ...  # {}[] v6+
    topic_names: list[str] = ...  # str[] v0-5
    timeout_ms: int = 0  # i32

    class Topics(Message):
        name: str | None = None  # str?
        topic_id: bytes = ...  # uuid

class DeleteTopicsResponse(Message):
    """API 20, versions 0 to 6, flexible from 4."""
    throttle_time_ms: int = 0  # i32 v1+
    responses: list[Responses] = ...  # {}[]

    class Responses(Message):
        name: str | None = ""  # str?(6+)
        topic_id: bytes = ...  # uuid v6+
        error_code: int = 0  # i16
        error_message: str | None = None  # str? v5+

class CreatePartitionsRequest(Request[CreatePartitionsResponse]):
    """API 37, versions 0 to 3, flexible from 2."""
    topics: list[Topics] = ...  # {}[]
    timeout_ms: int = 0  # i32
    validate_only: bool = False  # bool

    class Topics(Message):
        name: str = ""  # str
        count: int = 0  # i32
        assignments: list[Assignments] | None = None  # {}[]?

        class Assignments(Message):
            broker_ids: list[int] = ...  # i32[]

class CreatePartitionsResponse(Message):
    """API 37, versions 0 to 3, flexible from 2."""
    throttle_time_ms: int = 0  # i32
    results: list[Results] = ...  # {}[]

    class Results(Message):
        name: str = ""  # str
        error_code: int = 0  # i16
        error_message: str | None = None  # str?

class ElectLeadersRequest(Request[ElectLeadersResponse]):
    """API 43, versions 0 to 2, flexible from 2."""
    election_type: int = 0  # i8 v1+
    topic_partitions: list[TopicPartitions] | None = None  # {}[]?
    timeout_ms: int = 60000  # i32

    class TopicPartitions(Message):
        topic: str = ""  # str
        partitions: list[int] = ...  # i32[]

class ElectLeadersResponse(Message):
    """API 43, versions 0 to 2, flexible from 2."""
    throttle_time_ms: int = 0  # i32
    error_code: int = 0  # i16 v1+
    replica_election_results: list[ReplicaElectionResults] = ...  # {}[]

    class ReplicaElectionResults(Message):
        topic: str = ""  # str
        partition_result: list[PartitionResult] = ...  # {}[]

        class PartitionResult(Message):
            partition_id: int = 0  # i32
            error_code: int = 0  # i16
            error_message: str | None = None  # str?

class AlterPartitionReassignmentsRequest(Request[AlterPartitionReassignmentsResponse]):
    """API 45, versions 0 to 1, flexible from 0."""
    timeout_ms: int = 60000  # i32
    allow_replication_factor_change: bool = True  # bool v1+
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        name: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            replicas: list[int] | None = None  # i32[]?

class AlterPartitionReassignmentsResponse(Message):
    """API 45, versions 0 to 1, flexible from 0."""
    throttle_time_ms: int = 0  # i32
    allow_replication_factor_change: bool = True  # bool v1+
    error_code: int = 0  # i16
    error_message: str | None = None  # str?
    responses: list[Responses] = ...  # {}[]

    class Responses(Message):
        name: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            error_code: int = 0  # i16
            error_message: str | None = None  # str?

class ListPartitionReassignmentsRequest(Request[ListPartitionReassignmentsResponse]):
    """API 46, versions 0 to 0, flexible from 0."""
    timeout_ms: int = 60000  # i32
    topics: list[Topics] | None = None  # {}[]?

    class Topics(Message):
        name: str = ""  # str
        partition_indexes: list[int] = ...  # i32[]

class ListPartitionReassignmentsResponse(Message):
    """API 46, versions 0 to 0, flexible from 0."""
    throttle_time_ms: int = 0  # i32
    error_code: int = 0  # i16
    error_message: str | None = None  # str?
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        name: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            replicas: list[int] = ...  # i32[]
            adding_replicas: list[int] = ...  # i32[]
            removing_replicas: list[int] = ...  # i32[]

class DescribeLogDirsRequest(Request[DescribeLogDirsResponse]):
    """API 35, versions 1 to 5, flexible from 2."""
    topics: list[Topics] | None = None  # {}[]?

    class Topics(Message):
        topic: str = ""  # str
        partitions: list[int] = ...  # i32[]

class DescribeLogDirsResponse(Message):
    """API 35, versions 1 to 5, flexible from 2."""
    throttle_time_ms: int = 0  # i32
    error_code: int = 0  # i16 v3+
    results: list[Results] = ...  # {}[]

    class Results(Message):
        error_code: int = 0  # i16
        log_dir: str = ""  # str
        topics: list[Topics] = ...  # {}[]
        total_bytes: int = -1  # i64 v4+
        usable_bytes: int = -1  # i64 v4+
        is_cordoned: bool = False  # bool v5+

        class Topics(Message):
            name: str = ""  # str
            partitions: list[Partitions] = ...  # {}[]

            class Partitions(Message):
                partition_index: int = 0  # i32
                partition_size: int = 0  # i64
                offset_lag: int = 0  # i64
                is_future_key: bool = False  # bool

class AlterReplicaLogDirsRequest(Request[AlterReplicaLogDirsResponse]):
    """API 34, versions 1 to 2, flexible from 2."""
    dirs: list[Dirs] = ...  # {}[]

    class Dirs(Message):
        path: str = ""  # str
        topics: list[Topics] = ...  # {}[]

        class Topics(Message):
            name: str = ""  # str
            partitions: list[int] = ...  # i32[]

class AlterReplicaLogDirsResponse(Message):
    """API 34, versions 1 to 2, flexible from 2."""
    throttle_time_ms: int = 0  # i32
    results: list[Results] = ...  # {}[]

    class Results(Message):
        topic_name: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            error_code: int = 0  # i16
