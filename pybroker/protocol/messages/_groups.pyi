"""Messages of definitions/groups.py, typed: written by tools/messages.py."""

from pybroker.protocol.message import Bytes, Message, Request

class FindCoordinatorRequest(Request[FindCoordinatorResponse]):
    """API 10, versions 0 to 6, flexible from 3."""
    key: str = ""  # str v0-3
    key_type: int = 0  # i8 v1+
    coordinator_keys: list[str] = ...  # str[] v4+

class FindCoordinatorResponse(Message):
    """API 10, versions 0 to 6, flexible from 3."""
    throttle_time_ms: int = 0  # i32 v1+
    error_code: int = 0  # i16 v0-3
    error_message: str | None = None  # str? v1-3
    node_id: int = 0  # i32 v0-3
    host: str = ""  # str v0-3
    port: int = 0  # i32 v0-3
    coordinators: list[Coordinators] = ...  # {}[] v4+

    class Coordinators(Message):
        key: str = ""  # str
        node_id: int = 0  # i32
        host: str = ""  # str
        port: int = 0  # i32
        error_code: int = 0  # i16
        error_message: str | None = None  # str?

class JoinGroupRequest(Request[JoinGroupResponse]):
    """API 11, versions 0 to 9, flexible from 6."""
    group_id: str = ""  # str
    session_timeout_ms: int = 0  # i32
    rebalance_timeout_ms: int = -1  # i32 v1+
    member_id: str = ""  # str
    group_instance_id: str | None = None  # str? v5+
    protocol_type: str = ""  # str
    protocols: list[Protocols] = ...  # {}[]
    reason: str | None = None  # str? v8+

    class Protocols(Message):
        name: str = ""  # str
        metadata: Bytes = b""  # bytes

class JoinGroupResponse(Message):
    """API 11, versions 0 to 9, flexible from 6."""
    throttle_time_ms: int = 0  # i32 v2+
    error_code: int = 0  # i16
    generation_id: int = -1  # i32
    protocol_type: str | None = None  # str? v7+
    protocol_name: str | None = ""  # str?(7+)
    leader: str = ""  # str
    skip_assignment: bool = False  # bool v9+
    member_id: str = ""  # str
    members: list[Members] = ...  # {}[]

    class Members(Message):
        member_id: str = ""  # str
        group_instance_id: str | None = None  # str? v5+
        metadata: Bytes = b""  # bytes

class SyncGroupRequest(Request[SyncGroupResponse]):
    """API 14, versions 0 to 5, flexible from 4."""
    group_id: str = ""  # str
    generation_id: int = 0  # i32
    member_id: str = ""  # str
    group_instance_id: str | None = None  # str? v3+
    protocol_type: str | None = None  # str? v5+
    protocol_name: str | None = None  # str? v5+
    assignments: list[Assignments] = ...  # {}[]

    class Assignments(Message):
        member_id: str = ""  # str
        assignment: Bytes = b""  # bytes

class SyncGroupResponse(Message):
    """API 14, versions 0 to 5, flexible from 4."""
    throttle_time_ms: int = 0  # i32 v1+
    error_code: int = 0  # i16
    protocol_type: str | None = None  # str? v5+
    protocol_name: str | None = None  # str? v5+
    assignment: Bytes = b""  # bytes

class HeartbeatRequest(Request[HeartbeatResponse]):
    """API 12, versions 0 to 4, flexible from 4."""
    group_id: str = ""  # str
    generation_id: int = 0  # i32
    member_id: str = ""  # str
    group_instance_id: str | None = None  # str? v3+

class HeartbeatResponse(Message):
    """API 12, versions 0 to 4, flexible from 4."""
    throttle_time_ms: int = 0  # i32 v1+
    error_code: int = 0  # i16

class LeaveGroupRequest(Request[LeaveGroupResponse]):
    """API 13, versions 0 to 5, flexible from 4."""
    group_id: str = ""  # str
    member_id: str = ""  # str v0-2
    members: list[Members] = ...  # {}[] v3+

    class Members(Message):
        member_id: str = ""  # str
        group_instance_id: str | None = None  # str?
        reason: str | None = None  # str? v5+

class LeaveGroupResponse(Message):
    """API 13, versions 0 to 5, flexible from 4."""
    throttle_time_ms: int = 0  # i32 v1+
    error_code: int = 0  # i16
    members: list[Members] = ...  # {}[] v3+

    class Members(Message):
        member_id: str = ""  # str
        group_instance_id: str | None = None  # str?
        error_code: int = 0  # i16

class OffsetCommitRequest(Request[OffsetCommitResponse]):
    """API 8, versions 2 to 10, flexible from 8."""
    group_id: str = ""  # str
    generation_id_or_member_epoch: int = -1  # i32 v1+
    member_id: str = ""  # str v1+
    group_instance_id: str | None = None  # str? v7+
    retention_time_ms: int = -1  # i64 v2-4
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        name: str = ""  # str v0-9
        topic_id: bytes = ...  # uuid v10+
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            committed_offset: int = 0  # i64
            committed_leader_epoch: int = -1  # i32 v6+
            commit_timestamp: int = -1  # i64 v1
            committed_metadata: str | None = None  # str?

class OffsetCommitResponse(Message):
    """API 8, versions 2 to 10, flexible from 8."""
    throttle_time_ms: int = 0  # i32 v3+
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        name: str = ""  # str v0-9
        topic_id: bytes = ...  # uuid v10+
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            error_code: int = 0  # i16

class OffsetFetchRequest(Request[OffsetFetchResponse]):
    """API 9, versions 0 to 10, flexible from 6."""
    group_id: str = ""  # str v0-7
    topics: list[Topics] | None = ...  # {}[]?(2-7) v0-7
    groups: list[Groups] = ...  # {}[] v8+
    require_stable: bool = False  # bool v7+

    class Topics(Message):
        name: str = ""  # str
        partition_indexes: list[int] = ...  # i32[]

    class Groups(Message):
        group_id: str = ""  # str
        member_id: str | None = None  # str? v9+
        member_epoch: int = -1  # i32 v9+
        topics: list[Topics] | None = None  # {}[]?

        class Topics(Message):
            name: str = ""  # str v8-9
            topic_id: bytes = ...  # uuid v10+
            partition_indexes: list[int] = ...  # i32[]

class OffsetFetchResponse(Message):
    """API 9, versions 0 to 10, flexible from 6."""
    throttle_time_ms: int = 0  # i32 v3+
    topics: list[Topics] = ...  # {}[] v0-7
    error_code: int = 0  # i16 v2-7
    groups: list[Groups] = ...  # {}[] v8+

    class Topics(Message):
        name: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            committed_offset: int = 0  # i64
            committed_leader_epoch: int = -1  # i32 v5-7
            metadata: str | None = None  # str?
            error_code: int = 0  # i16

    class Groups(Message):
        group_id: str = ""  # str
        topics: list[Topics] = ...  # {}[]
        error_code: int = 0  # i16

        class Topics(Message):
            name: str = ""  # str v8-9
            topic_id: bytes = ...  # uuid v10+
            partitions: list[Partitions] = ...  # {}[]

            class Partitions(Message):
                partition_index: int = 0  # i32
                committed_offset: int = 0  # i64
                committed_leader_epoch: int = -1  # i32
                metadata: str | None = None  # str?
                error_code: int = 0  # i16

class DescribeGroupsRequest(Request[DescribeGroupsResponse]):
    """API 15, versions 0 to 6, flexible from 5."""
    groups: list[str] = ...  # str[]
    include_authorized_operations: bool = False  # bool v3+

class DescribeGroupsResponse(Message):
    """API 15, versions 0 to 6, flexible from 5."""
    throttle_time_ms: int = 0  # i32 v1+
    groups: list[Groups] = ...  # {}[]

    class Groups(Message):
        error_code: int = 0  # i16
        error_message: str | None = None  # str? v6+
        group_id: str = ""  # str
        group_state: str = ""  # str
        protocol_type: str = ""  # str
        protocol_data: str = ""  # str
        members: list[Members] = ...  # {}[]
        authorized_operations: int = -2147483648  # i32 v3+
        last_rebalance_cause: str = ""  # str v5+ tag9092
        last_rebalance_ms: int = -1  # i64 v5+ tag9093

        class Members(Message):
            member_id: str = ""  # str
            group_instance_id: str | None = None  # str? v4+
            client_id: str = ""  # str
            client_host: str = ""  # str
            member_metadata: Bytes = b""  # bytes
            member_assignment: Bytes = b""  # bytes

class ConsumerGroupDescribeRequest(Request[ConsumerGroupDescribeResponse]):
    """API 69, versions 0 to 1, flexible from 0."""
    group_ids: list[str] = ...  # str[]
    include_authorized_operations: bool = False  # bool

class ConsumerGroupDescribeResponse(Message):
    """API 69, versions 0 to 1, flexible from 0."""
    throttle_time_ms: int = 0  # i32
    groups: list[Groups] = ...  # {}[]

    class Groups(Message):
        error_code: int = 0  # i16
        error_message: str | None = None  # str?
        group_id: str = ""  # str
        group_state: str = ""  # str
        group_epoch: int = 0  # i32
        assignment_epoch: int = 0  # i32
        assignor_name: str = ""  # str
        members: list[Members] = ...  # {}[]
        authorized_operations: int = -2147483648  # i32

        class Members(Message):
            member_id: str = ""  # str
            instance_id: str | None = None  # str?
            rack_id: str | None = None  # str?
            member_epoch: int = 0  # i32
            client_id: str = ""  # str
            client_host: str = ""  # str
            subscribed_topic_names: list[str] = ...  # str[]
            subscribed_topic_regex: str | None = None  # str?
            assignment: Assignment  # {}
            target_assignment: TargetAssignment  # {}
            member_type: int = -1  # i8 v1+

            class Assignment(Message):
                topic_partitions: list[TopicPartitions] = ...  # {}[]

                class TopicPartitions(Message):
                    topic_id: bytes = ...  # uuid
                    topic_name: str = ""  # str
                    partitions: list[int] = ...  # i32[]

            class TargetAssignment(Message):
                topic_partitions: list[TopicPartitions] = ...  # {}[]

                class TopicPartitions(Message):
                    topic_id: bytes = ...  # uuid
                    topic_name: str = ""  # str
                    partitions: list[int] = ...  # i32[]

class ListGroupsRequest(Request[ListGroupsResponse]):
    """API 16, versions 0 to 5, flexible from 3."""
    states_filter: list[str] = ...  # str[] v4+
    types_filter: list[str] = ...  # str[] v5+

class ListGroupsResponse(Message):
    """API 16, versions 0 to 5, flexible from 3."""
    throttle_time_ms: int = 0  # i32 v1+
    error_code: int = 0  # i16
    groups: list[Groups] = ...  # {}[]

    class Groups(Message):
        group_id: str = ""  # str
        protocol_type: str = ""  # str
        group_state: str = ""  # str v4+
        group_type: str = ""  # str v5+

class DeleteGroupsRequest(Request[DeleteGroupsResponse]):
    """API 42, versions 0 to 2, flexible from 2."""
    groups_names: list[str] = ...  # str[]

class DeleteGroupsResponse(Message):
    """API 42, versions 0 to 2, flexible from 2."""
    throttle_time_ms: int = 0  # i32
    results: list[Results] = ...  # {}[]

    class Results(Message):
        group_id: str = ""  # str
        error_code: int = 0  # i16

class OffsetDeleteRequest(Request[OffsetDeleteResponse]):
    """API 47, versions 0 to 0."""
    group_id: str = ""  # str
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        name: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32

class OffsetDeleteResponse(Message):
    """API 47, versions 0 to 0."""
    error_code: int = 0  # i16
    throttle_time_ms: int = 0  # i32
    topics: list[Topics] = ...  # {}[]

    class Topics(Message):
        name: str = ""  # str
        partitions: list[Partitions] = ...  # {}[]

        class Partitions(Message):
            partition_index: int = 0  # i32
            error_code: int = 0  # i16
