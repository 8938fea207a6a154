"""Messages of definitions/data.py, typed: written by tools/messages.py."""

from pybroker.protocol.message import Bytes, Message, Request, Sendable, Sliced

class ProduceRequest(Request[ProduceResponse]):
    """API 0, versions 3 to 13, flexible from 9."""
    transactional_id: str | None = None  # str? v3+
    acks: int = 0  # i16
    timeout_ms: int = 0  # i32
    topic_data: list[TopicData] = ...  # {}[]

    class TopicData(Message):
        name: str = ""  # str v0-12
        topic_id: bytes = ...  # uuid v13+
        partition_data: list[PartitionData] = ...  # {}[]

        class PartitionData(Message):
            index: int = 0  # i32
            records: Bytes | Sliced | None = None  # records?

class ProduceResponse(Message):
    """API 0, versions 3 to 13, flexible from 9."""
    responses: list[Responses] = ...  # {}[]
    throttle_time_ms: int = 0  # i32 v1+
    node_endpoints: list[NodeEndpoints] = ...  # {}[] v10+ tag0

    class Responses(Message):
        name: str = ""  # str v0-12
        topic_id: bytes = ...  # uuid v13+
        partition_responses: list[PartitionResponses] = ...  # {}[]

        class PartitionResponses(Message):
            index: int = 0  # i32
            error_code: int = 0  # i16
            base_offset: int = 0  # i64
            log_append_time_ms: int = -1  # i64 v2+
            log_start_offset: int = -1  # i64 v5+
            record_errors: list[RecordErrors] = ...  # {}[] v8+
            error_message: str | None = None  # str? v8+
            current_leader: CurrentLeader | None = None  # {} v10+ tag0

            class RecordErrors(Message):
                batch_index: int = 0  # i32
                batch_index_error_message: str | None = None  # str?

            class CurrentLeader(Message):
                leader_id: int = -1  # i32
                leader_epoch: int = -1  # i32

    class NodeEndpoints(Message):
        node_id: int = 0  # i32
        host: str = ""  # str
        port: int = 0  # i32
        rack: str | None = None  # str?

class FetchRequest(Request[FetchResponse]):
    """API 1, versions 4 to 18, flexible from 12."""
    cluster_id: str | None = None  # str? v12+ tag0
    replica_id: int = -1  # i32 v0-14
    replica_state: ReplicaState | None = None  # {} v15+ tag1
    max_wait_ms: int = 0  # i32
    min_bytes: int = 0  # i32
    max_bytes: int = 2147483647  # i32 v3+
    isolation_level: int = 0  # i8 v4+
    session_id: int = 0  # i32 v7+
    session_epoch: int = -1  # i32 v7+
    topics: list[Topics] = ...  # {}[]
    forgotten_topics_data: list[ForgottenTopicsData] = ...  # {}[] v7+
    rack_id: str = ""  # str v11+

    class ReplicaState(Message):
        replica_id: int = -1  # i32
        replica_epoch: int = -1  # i64

    class Topics(Message):
        topic: str = ""  # str v0-12
        topic_id: bytes = ...  # uuid v13+
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition: int = 0  # i32
            current_leader_epoch: int = -1  # i32 v9+
            fetch_offset: int = 0  # i64
            last_fetched_epoch: int = -1  # i32 v12+
            log_start_offset: int = -1  # i64 v5+
            partition_max_bytes: int = 0  # i32
            replica_directory_id: bytes = ...  # uuid v17+ tag0
            high_watermark: int = 9223372036854775807  # i64 v18+ tag1

    class ForgottenTopicsData(Message):
        topic: str = ""  # str v7-12
        topic_id: bytes = ...  # uuid v13+
        partitions: list[int] = ...  # i32[]

class FetchResponse(Message):
    """API 1, versions 4 to 18, flexible from 12."""
    throttle_time_ms: int = 0  # i32 v1+
    error_code: int = 0  # i16 v7+
    session_id: int = 0  # i32 v7+
    responses: list[Responses] = ...  # {}[]
    node_endpoints: list[NodeEndpoints] = ...  # {}[] v16+ tag0

    class Responses(Message):
        topic: str = ""  # str v0-12
        topic_id: bytes = ...  # uuid v13+
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            error_code: int = 0  # i16
            high_watermark: int = 0  # i64
            last_stable_offset: int = -1  # i64 v4+
            log_start_offset: int = -1  # i64 v5+
            diverging_epoch: DivergingEpoch | None = None  # {} v12+ tag0
            current_leader: CurrentLeader | None = None  # {} v12+ tag1
            snapshot_id: SnapshotId | None = None  # {} v12+ tag2
            aborted_transactions: list[AbortedTransactions] | None = None  # {}[]? v4+
            preferred_read_replica: int = -1  # i32 v11+
            records: Bytes | Sendable | None = None  # records?
            readable_from: int = -1  # i64 v12+ tag9092

            class DivergingEpoch(Message):
                epoch: int = -1  # i32
                end_offset: int = -1  # i64

            class CurrentLeader(Message):
                leader_id: int = -1  # i32
                leader_epoch: int = -1  # i32

            class SnapshotId(Message):
                end_offset: int = -1  # i64
                epoch: int = -1  # i32

            class AbortedTransactions(Message):
                producer_id: int = 0  # i64
                first_offset: int = 0  # i64

    class NodeEndpoints(Message):
        node_id: int = 0  # i32
        host: str = ""  # str
        port: int = 0  # i32
        rack: str | None = None  # str?

class ListOffsetsRequest(Request[ListOffsetsResponse]):
    """API 2, versions 0 to 11, flexible from 6."""
    replica_id: int = 0  # i32
    isolation_level: int = 0  # i8 v2+
    topics: list[Topics] = ...  # {}[]
    timeout_ms: int = 0  # i32 v10+

    class Topics(Message):
        name: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            current_leader_epoch: int = -1  # i32 v4+
            timestamp: int = 0  # i64
            max_num_offsets: int = 1  # i32 v0

class ListOffsetsResponse(Message):
    """API 2, versions 0 to 11, flexible from 6."""
    throttle_time_ms: int = 0  # i32 v2+
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        name: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            error_code: int = 0  # i16
            old_style_offsets: list[int] = ...  # i64[] v0
            timestamp: int = -1  # i64 v1+
            offset: int = -1  # i64 v1+
            leader_epoch: int = -1  # i32 v4+

class OffsetForLeaderEpochRequest(Request[OffsetForLeaderEpochResponse]):
    """API 23, versions 2 to 4, flexible from 4."""
    replica_id: int = -2  # i32 v3+
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        topic: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition: int = 0  # i32
            current_leader_epoch: int = -1  # i32 v2+
            leader_epoch: int = 0  # i32

class OffsetForLeaderEpochResponse(Message):
    """API 23, versions 2 to 4, flexible from 4."""
    throttle_time_ms: int = 0  # i32 v2+
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        topic: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            error_code: int = 0  # i16
            partition: int = 0  # i32
            leader_epoch: int = -1  # i32 v1+
            end_offset: int = -1  # i64

class DeleteRecordsRequest(Request[DeleteRecordsResponse]):
    """API 21, versions 0 to 2, flexible from 2."""
    topics: list[Topics] = ...  # {}[]
    timeout_ms: int = 0  # i32

    class Topics(Message):
        name: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            offset: int = 0  # i64

class DeleteRecordsResponse(Message):
    """API 21, versions 0 to 2, flexible from 2."""
    throttle_time_ms: int = 0  # i32
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        name: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            low_watermark: int = 0  # i64
            error_code: int = 0  # i16

class InitProducerIdRequest(Request[InitProducerIdResponse]):
    """API 22, versions 0 to 6, flexible from 2."""
    transactional_id: str | None = None  # str?
    transaction_timeout_ms: int = 0  # i32
    producer_id: int = -1  # i64 v3+
    producer_epoch: int = -1  # i16 v3+
    enable2_pc: bool = False  # bool v6+
    keep_prepared_txn: bool = False  # bool v6+

class InitProducerIdResponse(Message):
    """API 22, versions 0 to 6, flexible from 2."""
    throttle_time_ms: int = 0  # i32
    error_code: int = 0  # i16
    producer_id: int = -1  # i64
    producer_epoch: int = 0  # i16
    ongoing_txn_producer_id: int = -1  # i64 v6+
    ongoing_txn_producer_epoch: int = -1  # i16 v6+

class DescribeProducersRequest(Request[DescribeProducersResponse]):
    """API 61, versions 0 to 0, flexible from 0."""
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        name: str = ""  # str
        partition_indexes: list[int] = ...  # i32[]

class DescribeProducersResponse(Message):
    """API 61, versions 0 to 0, flexible from 0."""
    throttle_time_ms: int = 0  # i32
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        name: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            error_code: int = 0  # i16
            error_message: str | None = None  # str?
            active_producers: list[ActiveProducers] = ...  # {}[]

            class ActiveProducers(Message):
                producer_id: int = 0  # i64
                producer_epoch: int = 0  # i32
                last_sequence: int = -1  # i32
                last_timestamp: int = -1  # i64
                coordinator_epoch: int = 0  # i32
                current_txn_start_offset: int = -1  # i64
