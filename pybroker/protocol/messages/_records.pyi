"""Messages of definitions/records.py, typed: written by tools/messages.py."""

from pybroker.protocol.message import Bytes, Message

class ConsumerProtocolSubscription(Message):
    """versions 0 to 3."""
    topics: list[str] = ...  # str[]
    user_data: Bytes | None = None  # bytes?
    owned_partitions: list[OwnedPartitions] = ...  # {}[] v1+
    generation_id: int = -1  # i32 v2+
    rack_id: str | None = None  # str? v3+

    class OwnedPartitions(Message):
        topic: str = ""  # str
        partitions: list[int] = ...  # i32[]

class ConsumerProtocolAssignment(Message):
    """versions 0 to 3."""
    assigned_partitions: list[AssignedPartitions] = ...  # {}[]
    user_data: Bytes | None = None  # bytes?

    class AssignedPartitions(Message):
        topic: str = ""  # str
        partitions: list[int] = ...  # i32[]

class OffsetCommitKey(Message):
    """versions 0 to 1."""
    group: str = ""  # str
    topic: str = ""  # str
    partition: int = 0  # i32

class OffsetCommitValue(Message):
    """versions 0 to 4, flexible from 4."""
    offset: int = 0  # i64
    leader_epoch: int = -1  # i32 v3+
    metadata: str = ""  # str
    commit_timestamp: int = 0  # i64
    expire_timestamp: int = -1  # i64 v1

class GroupMetadataKey(Message):
    """versions 2 to 2."""
    group: str = ""  # str

class GroupMetadataValue(Message):
    """versions 0 to 4, flexible from 4."""
    protocol_type: str = ""  # str
    generation: int = 0  # i32
    protocol: str | None = None  # str?
    leader: str | None = None  # str?
    current_state_timestamp: int = -1  # i64 v2+
    members: list[Members] = ...  # {}[]

    class Members(Message):
        member_id: str = ""  # str
        group_instance_id: str | None = None  # str? v3+
        client_id: str = ""  # str
        client_host: str = ""  # str
        rebalance_timeout: int = -1  # i32 v1+
        session_timeout: int = 0  # i32
        subscription: Bytes = b""  # bytes
        assignment: Bytes = b""  # bytes

class TransactionLogKey(Message):
    """versions 0 to 0."""
    transactional_id: str = ""  # str

class TransactionLogValue(Message):
    """versions 0 to 1, flexible from 1."""
    producer_id: int = 0  # i64
    producer_epoch: int = 0  # i16
    transaction_timeout_ms: int = 0  # i32
    transaction_status: int = 0  # i8
    transaction_partitions: list[TransactionPartitions] | None = None  # {}[]?
    transaction_last_update_timestamp_ms: int = 0  # i64
    transaction_start_timestamp_ms: int = 0  # i64
    previous_producer_id: int = -1  # i64 v1+ tag0
    next_producer_id: int = -1  # i64 v1+ tag1
    client_transaction_version: int = 0  # i16 v1+ tag2
    next_producer_epoch: int = -1  # i16 v1+ tag3

    class TransactionPartitions(Message):
        topic: str = ""  # str
        partition_ids: list[int] = ...  # i32[]

class TopicRecord(Message):
    """versions 0 to 0, flexible from 0."""
    name: str = ""  # str
    topic_id: bytes = ...  # uuid

class RemoveTopicRecord(Message):
    """versions 0 to 0, flexible from 0."""
    topic_id: bytes = ...  # uuid

class ConfigRecord(Message):
    """versions 0 to 0, flexible from 0."""
    resource_type: int = 0  # i8
    resource_name: str = ""  # str
    name: str = ""  # str
    value: str | None = None  # str?
