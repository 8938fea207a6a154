"""Metadata, topics, partitions, the cluster, log dirs."""

MESSAGES = """
MetadataRequest 3 v0-13 flex 9+
  topics:{topic_id:uuid v10+, name:str?(10+)}[]?(1+), allow_auto_topic_creation:bool v4+=true,
  include_cluster_authorized_operations:bool v8-10, include_topic_authorized_operations:bool v8+

MetadataResponse 3 v0-13 flex 9+
  throttle_time_ms:i32 v3+, brokers:{node_id:i32, host:str, port:i32, rack:str? v1+}[], cluster_id:str? v2+,
  controller_id:i32 v1+=-1,
  topics:{
    error_code:i16, name:str?(12+), topic_id:uuid v10+, is_internal:bool v1+,
    partitions:{
      error_code:i16, partition_index:i32, leader_id:i32, leader_epoch:i32 v7+=-1, replica_nodes:i32[],
      isr_nodes:i32[], offline_replicas:i32[] v5+
    }[],
    topic_authorized_operations:i32 v8+=-2147483648
  }[],
  cluster_authorized_operations:i32 v8-10=-2147483648, error_code:i16 v13+

DescribeClusterRequest 60 v0-2 flex 0+
  include_cluster_authorized_operations:bool, endpoint_type:i8 v1+=1, include_fenced_brokers:bool v2+

DescribeClusterResponse 60 v0-2 flex 0+
  throttle_time_ms:i32, error_code:i16, error_message:str?, endpoint_type:i8 v1+=1, cluster_id:str,
  controller_id:i32=-1,
  brokers:{broker_id:i32, host:str, port:i32, rack:str?, is_fenced:bool v2+}[],
  cluster_authorized_operations:i32=-2147483648

DescribeTopicPartitionsRequest 75 v0 flex 0+
  topics:{name:str}[], response_partition_limit:i32=2000, cursor:{topic_name:str, partition_index:i32}?

DescribeTopicPartitionsResponse 75 v0 flex 0+
  throttle_time_ms:i32,
  topics:{
    error_code:i16, name:str?, topic_id:uuid, is_internal:bool,
    partitions:{
      error_code:i16, partition_index:i32, leader_id:i32, leader_epoch:i32=-1, replica_nodes:i32[],
      isr_nodes:i32[], eligible_leader_replicas:i32[]?, last_known_elr:i32[]?, offline_replicas:i32[]
    }[],
    topic_authorized_operations:i32=-2147483648
  }[],
  next_cursor:{topic_name:str, partition_index:i32}?

CreateTopicsRequest 19 v0-7 flex 5+
  topics:{
    name:str, num_partitions:i32, replication_factor:i16, assignments:{partition_index:i32, broker_ids:i32[]}[],
    configs:{name:str, value:str?}[]
  }[],
  timeout_ms:i32=60000, validate_only:bool v1+

CreateTopicsResponse 19 v0-7 flex 5+
  throttle_time_ms:i32 v2+,
  topics:{
    name:str, topic_id:uuid v7+, error_code:i16, error_message:str?(0+) v1+,
    topic_config_error_code:i16 v5+ tag0, num_partitions:i32 v5+=-1, replication_factor:i16 v5+=-1,
    configs:{name:str, value:str?, read_only:bool, config_source:i8=-1, is_sensitive:bool}[]? v5+
  }[]

DeleteTopicsRequest 20 v0-6 flex 4+
  topics:{name:str?, topic_id:uuid}[] v6+, topic_names:str[] v0-5, timeout_ms:i32

DeleteTopicsResponse 20 v0-6 flex 4+
  throttle_time_ms:i32 v1+,
  responses:{name:str?(6+), topic_id:uuid v6+, error_code:i16, error_message:str? v5+}[]

CreatePartitionsRequest 37 v0-3 flex 2+
  topics:{
    name:str, count:i32, assignments:{broker_ids:i32[]}[]?
  }[],
  timeout_ms:i32, validate_only:bool

CreatePartitionsResponse 37 v0-3 flex 2+
  throttle_time_ms:i32, results:{name:str, error_code:i16, error_message:str?}[]

ElectLeadersRequest 43 v0-2 flex 2+
  election_type:i8 v1+, topic_partitions:{topic:str, partitions:i32[]}[]?, timeout_ms:i32=60000

ElectLeadersResponse 43 v0-2 flex 2+
  throttle_time_ms:i32, error_code:i16 v1+,
  replica_election_results:{
    topic:str,
    partition_result:{partition_id:i32, error_code:i16, error_message:str?}[]
  }[]

AlterPartitionReassignmentsRequest 45 v0-1 flex 0+
  timeout_ms:i32=60000, allow_replication_factor_change:bool v1+=true,
  topics:{
    name:str, partitions:{partition_index:i32, replicas:i32[]?}[]
  }[]

AlterPartitionReassignmentsResponse 45 v0-1 flex 0+
  throttle_time_ms:i32, allow_replication_factor_change:bool v1+=true, error_code:i16, error_message:str?,
  responses:{
    name:str,
    partitions:{partition_index:i32, error_code:i16, error_message:str?}[]
  }[]

ListPartitionReassignmentsRequest 46 v0 flex 0+
  timeout_ms:i32=60000, topics:{name:str, partition_indexes:i32[]}[]?

ListPartitionReassignmentsResponse 46 v0 flex 0+
  throttle_time_ms:i32, error_code:i16, error_message:str?,
  topics:{
    name:str,
    partitions:{partition_index:i32, replicas:i32[], adding_replicas:i32[], removing_replicas:i32[]}[]
  }[]

DescribeLogDirsRequest 35 v1-5 flex 2+
  topics:{topic:str, partitions:i32[]}[]?

DescribeLogDirsResponse 35 v1-5 flex 2+
  throttle_time_ms:i32, error_code:i16 v3+,
  results:{
    error_code:i16, log_dir:str,
    topics:{
      name:str,
      partitions:{partition_index:i32, partition_size:i64, offset_lag:i64, is_future_key:bool}[]
    }[],
    total_bytes:i64 v4+=-1, usable_bytes:i64 v4+=-1, is_cordoned:bool v5+
  }[]

AlterReplicaLogDirsRequest 34 v1-2 flex 2+
  dirs:{path:str, topics:{name:str, partitions:i32[]}[]}[]

AlterReplicaLogDirsResponse 34 v1-2 flex 2+
  throttle_time_ms:i32,
  results:{topic_name:str, partitions:{partition_index:i32, error_code:i16}[]}[]
"""
