"""Consumer groups: the classic protocol, and offsets.

Two tagged fields of DescribeGroupsResponse are pybroker's own: the cause of the last rebalance, and its time in
milliseconds since the epoch. Clients ignore unknown tags.
"""

MESSAGES = """
FindCoordinatorRequest 10 v0-6 flex 3+
  key:str v0-3, key_type:i8 v1+, coordinator_keys:str[] v4+

FindCoordinatorResponse 10 v0-6 flex 3+
  throttle_time_ms:i32 v1+, error_code:i16 v0-3, error_message:str? v1-3, node_id:i32 v0-3, host:str v0-3,
  port:i32 v0-3,
  coordinators:{key:str, node_id:i32, host:str, port:i32, error_code:i16, error_message:str?}[] v4+

JoinGroupRequest 11 v0-9 flex 6+
  group_id:str, session_timeout_ms:i32, rebalance_timeout_ms:i32 v1+=-1, member_id:str,
  group_instance_id:str? v5+, protocol_type:str, protocols:{name:str, metadata:bytes}[], reason:str? v8+

JoinGroupResponse 11 v0-9 flex 6+
  throttle_time_ms:i32 v2+, error_code:i16, generation_id:i32=-1, protocol_type:str? v7+,
  protocol_name:str?(7+), leader:str, skip_assignment:bool v9+, member_id:str,
  members:{member_id:str, group_instance_id:str? v5+, metadata:bytes}[]

SyncGroupRequest 14 v0-5 flex 4+
  group_id:str, generation_id:i32, member_id:str, group_instance_id:str? v3+, protocol_type:str? v5+,
  protocol_name:str? v5+, assignments:{member_id:str, assignment:bytes}[]

SyncGroupResponse 14 v0-5 flex 4+
  throttle_time_ms:i32 v1+, error_code:i16, protocol_type:str? v5+, protocol_name:str? v5+, assignment:bytes

HeartbeatRequest 12 v0-4 flex 4+
  group_id:str, generation_id:i32, member_id:str, group_instance_id:str? v3+

HeartbeatResponse 12 v0-4 flex 4+
  throttle_time_ms:i32 v1+, error_code:i16

LeaveGroupRequest 13 v0-5 flex 4+
  group_id:str, member_id:str v0-2,
  members:{member_id:str, group_instance_id:str?, reason:str? v5+}[] v3+

LeaveGroupResponse 13 v0-5 flex 4+
  throttle_time_ms:i32 v1+, error_code:i16,
  members:{member_id:str, group_instance_id:str?, error_code:i16}[] v3+

OffsetCommitRequest 8 v2-10 flex 8+
  group_id:str, generation_id_or_member_epoch:i32 v1+=-1, member_id:str v1+, group_instance_id:str? v7+,
  retention_time_ms:i64 v2-4=-1,
  topics:{
    name:str v0-9, topic_id:uuid v10+,
    partitions:{
      partition_index:i32, committed_offset:i64, committed_leader_epoch:i32 v6+=-1, commit_timestamp:i64 v1=-1,
      committed_metadata:str?
    }[]
  }[]

OffsetCommitResponse 8 v2-10 flex 8+
  throttle_time_ms:i32 v3+,
  topics:{
    name:str v0-9, topic_id:uuid v10+, partitions:{partition_index:i32, error_code:i16}[]
  }[]

OffsetFetchRequest 9 v0-10 flex 6+
  group_id:str v0-7, topics:{name:str, partition_indexes:i32[]}[]?(2-7) v0-7,
  groups:{
    group_id:str, member_id:str? v9+, member_epoch:i32 v9+=-1,
    topics:{name:str v8-9, topic_id:uuid v10+, partition_indexes:i32[]}[]?
  }[] v8+,
  require_stable:bool v7+

OffsetFetchResponse 9 v0-10 flex 6+
  throttle_time_ms:i32 v3+,
  topics:{
    name:str,
    partitions:{
      partition_index:i32, committed_offset:i64, committed_leader_epoch:i32 v5-7=-1, metadata:str?,
      error_code:i16
    }[]
  }[] v0-7,
  error_code:i16 v2-7,
  groups:{
    group_id:str,
    topics:{
      name:str v8-9, topic_id:uuid v10+,
      partitions:{
        partition_index:i32, committed_offset:i64, committed_leader_epoch:i32=-1, metadata:str?, error_code:i16
      }[]
    }[],
    error_code:i16
  }[] v8+

DescribeGroupsRequest 15 v0-6 flex 5+
  groups:str[], include_authorized_operations:bool v3+

DescribeGroupsResponse 15 v0-6 flex 5+
  throttle_time_ms:i32 v1+,
  groups:{
    error_code:i16, error_message:str? v6+, group_id:str, group_state:str, protocol_type:str, protocol_data:str,
    members:{
      member_id:str, group_instance_id:str? v4+, client_id:str, client_host:str, member_metadata:bytes,
      member_assignment:bytes
    }[],
    authorized_operations:i32 v3+=-2147483648, last_rebalance_cause:str v5+ tag9092,
    last_rebalance_ms:i64 v5+ tag9093=-1
  }[]

ConsumerGroupDescribeRequest 69 v0-1 flex 0+
  group_ids:str[], include_authorized_operations:bool

ConsumerGroupDescribeResponse 69 v0-1 flex 0+
  throttle_time_ms:i32,
  groups:{
    error_code:i16, error_message:str?, group_id:str, group_state:str, group_epoch:i32, assignment_epoch:i32,
    assignor_name:str,
    members:{
      member_id:str, instance_id:str?, rack_id:str?, member_epoch:i32, client_id:str, client_host:str,
      subscribed_topic_names:str[], subscribed_topic_regex:str?,
      assignment:{
        topic_partitions:{topic_id:uuid, topic_name:str, partitions:i32[]}[]
      },
      target_assignment:{
        topic_partitions:{topic_id:uuid, topic_name:str, partitions:i32[]}[]
      },
      member_type:i8 v1+=-1
    }[],
    authorized_operations:i32=-2147483648
  }[]

ListGroupsRequest 16 v0-5 flex 3+
  states_filter:str[] v4+, types_filter:str[] v5+

ListGroupsResponse 16 v0-5 flex 3+
  throttle_time_ms:i32 v1+, error_code:i16,
  groups:{group_id:str, protocol_type:str, group_state:str v4+, group_type:str v5+}[]

DeleteGroupsRequest 42 v0-2 flex 2+
  groups_names:str[]

DeleteGroupsResponse 42 v0-2 flex 2+
  throttle_time_ms:i32, results:{group_id:str, error_code:i16}[]

OffsetDeleteRequest 47 v0 flex none
  group_id:str,
  topics:{
    name:str, partitions:{partition_index:i32}[]
  }[]

OffsetDeleteResponse 47 v0 flex none
  error_code:i16, throttle_time_ms:i32,
  topics:{
    name:str, partitions:{partition_index:i32, error_code:i16}[]
  }[]
"""
