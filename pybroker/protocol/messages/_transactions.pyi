"""Messages of definitions/transactions.py, typed: written by tools/messages.py."""

from pybroker.protocol.message import Message, Request

class AddPartitionsToTxnRequest(Request[AddPartitionsToTxnResponse]):
    """API 24, versions 0 to 5, flexible from 3."""
    transactions: list[Transactions] = ...  # {}[] v4+
    v3_and_below_transactional_id: str = ""  # str v0-3
    v3_and_below_producer_id: int = 0  # i64 v0-3
    v3_and_below_producer_epoch: int = 0  # i16 v0-3
    v3_and_below_topics: list[V3AndBelowTopics] = ...  # {}[] v0-3

    class Transactions(Message):
        transactional_id: str = ""  # str
        producer_id: int = 0  # i64
        producer_epoch: int = 0  # i16
        verify_only: bool = False  # bool
        topics: list[Topics] = ...  # {}[]

        class Topics(Message):
            name: str = ""  # str
            partitions: list[int] = ...  # i32[]

    class V3AndBelowTopics(Message):
        name: str = ""  # str
        partitions: list[int] = ...  # i32[]

class AddPartitionsToTxnResponse(Message):
    """API 24, versions 0 to 5, flexible from 3."""
    throttle_time_ms: int = 0  # i32
    error_code: int = 0  # i16 v4+
    results_by_transaction: list[ResultsByTransaction] = ...  # {}[] v4+
    results_by_topic_v3_and_below: list[ResultsByTopicV3AndBelow] = ...  # {}[] v0-3

    class ResultsByTransaction(Message):
        transactional_id: str = ""  # str
        topic_results: list[TopicResults] = ...  # {}[]

        class TopicResults(Message):
            name: str = ""  # str
            results_by_partition: list[ResultsByPartition] = ...  # {}[]

            class ResultsByPartition(Message):
                partition_index: int = 0  # i32
                partition_error_code: int = 0  # i16

    class ResultsByTopicV3AndBelow(Message):
        name: str = ""  # str
        results_by_partition: list[ResultsByPartition] = ...  # {}[]

        class ResultsByPartition(Message):
            partition_index: int = 0  # i32
            partition_error_code: int = 0  # i16

class AddOffsetsToTxnRequest(Request[AddOffsetsToTxnResponse]):
    """API 25, versions 0 to 4, flexible from 3."""
    transactional_id: str = ""  # str
    producer_id: int = 0  # i64
    producer_epoch: int = 0  # i16
    group_id: str = ""  # str

class AddOffsetsToTxnResponse(Message):
    """API 25, versions 0 to 4, flexible from 3."""
    throttle_time_ms: int = 0  # i32
    error_code: int = 0  # i16

class EndTxnRequest(Request[EndTxnResponse]):
    """API 26, versions 0 to 5, flexible from 3."""
    transactional_id: str = ""  # str
    producer_id: int = 0  # i64
    producer_epoch: int = 0  # i16
    committed: bool = False  # bool

class EndTxnResponse(Message):
    """API 26, versions 0 to 5, flexible from 3."""
    throttle_time_ms: int = 0  # i32
    error_code: int = 0  # i16
    producer_id: int = -1  # i64 v5+
    producer_epoch: int = -1  # i16 v5+

class WriteTxnMarkersRequest(Request[WriteTxnMarkersResponse]):
    """API 27, versions 1 to 2, flexible from 1."""
    markers: list[Markers] = ...  # {}[]

    class Markers(Message):
        producer_id: int = 0  # i64
        producer_epoch: int = 0  # i16
        transaction_result: bool = False  # bool
        topics: list[Topics] = ...  # {}[]
        coordinator_epoch: int = 0  # i32
        transaction_version: int = 0  # i8 v2+

        class Topics(Message):
            name: str = ""  # str
            partition_indexes: list[int] = ...  # i32[]

class WriteTxnMarkersResponse(Message):
    """API 27, versions 1 to 2, flexible from 1."""
    markers: list[Markers] = ...  # {}[]

    class Markers(Message):
        producer_id: int = 0  # i64
        topics: list[Topics] = ...  # {}[]

        class Topics(Message):
            name: str = ""  # str
            partitions: list[Partitions] = ...  # {}[]

            class Partitions(Message):
                partition_index: int = 0  # i32
                error_code: int = 0  # i16

class TxnOffsetCommitRequest(Request[TxnOffsetCommitResponse]):
    """API 28, versions 0 to 5, flexible from 3."""
    transactional_id: str = ""  # str
    group_id: str = ""  # str
    producer_id: int = 0  # i64
    producer_epoch: int = 0  # i16
    generation_id: int = -1  # i32 v3+
    member_id: str = ""  # str v3+
    group_instance_id: str | None = None  # str? v3+
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        name: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            committed_offset: int = 0  # i64
            committed_leader_epoch: int = -1  # i32 v2+
            committed_metadata: str | None = None  # str?

class TxnOffsetCommitResponse(Message):
    """API 28, versions 0 to 5, flexible from 3."""
    throttle_time_ms: int = 0  # i32
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        name: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            error_code: int = 0  # i16

class DescribeTransactionsRequest(Request[DescribeTransactionsResponse]):
    """API 65, versions 0 to 0, flexible from 0."""
    transactional_ids: list[str] = ...  # str[]

class DescribeTransactionsResponse(Message):
    """API 65, versions 0 to 0, flexible from 0."""
    throttle_time_ms: int = 0  # i32
    transaction_states: list[TransactionStates] = ...  # {}[]

    class TransactionStates(Message):
        error_code: int = 0  # i16
        transactional_id: str = ""  # str
        transaction_state: str = ""  # str
        transaction_timeout_ms: int = 0  # i32
        transaction_start_time_ms: int = 0  # i64
        producer_id: int = 0  # i64
        producer_epoch: int = 0  # i16
        topics: list[Topics] = ...  # {}[]

        class Topics(Message):
            topic: str = ""  # str
            partitions: list[int] = ...  # i32[]

class ListTransactionsRequest(Request[ListTransactionsResponse]):
    """API 66, versions 0 to 2, flexible from 0."""
    state_filters: list[str] = ...  # str[]
    producer_id_filters: list[int] = ...  # i64[]
    duration_filter: int = -1  # i64 v1+
    transactional_id_pattern: str | None = None  # str? v2+

class ListTransactionsResponse(Message):
    """API 66, versions 0 to 2, flexible from 0."""
    throttle_time_ms: int = 0  # i32
    error_code: int = 0  # i16
    unknown_state_filters: list[str] = ...  # str[]
    transaction_states: list[TransactionStates] = ...  # {}[]

    class TransactionStates(Message):
        transactional_id: str = ""  # str
        producer_id: int = 0  # i64
        transaction_state: str = ""  # str
