"""The messages between brokers and the controller in ZooKeeper mode.

The tagged fields from 9092 on are pybroker's own: LeaderAndIsr asks about replicas, and the response has the broker's
state of these and of refused ones. Kafka ignores unknown tags.
"""

MESSAGES = """
LeaderAndIsrRequest 4 v0-7 flex 4+
  controller_id:i32, is_k_raft_controller:bool v7+, controller_epoch:i32, broker_epoch:i64 v2+=-1, type:i8 v5+,
  ungrouped_partition_states:{
    topic_name:str, partition_index:i32, controller_epoch:i32, leader:i32, leader_epoch:i32, isr:i32[],
    partition_epoch:i32, replicas:i32[], adding_replicas:i32[] v3+, removing_replicas:i32[] v3+,
    is_new:bool v1+, leader_recovery_state:i8 v6+
  }[] v0-1,
  topic_states:{
    topic_name:str, topic_id:uuid v5+,
    partition_states:{
      topic_name:str v0-1, partition_index:i32, controller_epoch:i32, leader:i32, leader_epoch:i32, isr:i32[],
      partition_epoch:i32, replicas:i32[], adding_replicas:i32[] v3+, removing_replicas:i32[] v3+,
      is_new:bool v1+, leader_recovery_state:i8 v6+
    }[]
  }[] v2+,
  live_leaders:{broker_id:i32, host_name:str, port:i32}[],
  asked_about:{topic_id:uuid, topic_name:str, partition_indexes:i32[]}[] v7+ tag9092

LeaderAndIsrResponse 4 v0-7 flex 4+
  error_code:i16,
  partition_errors:{topic_name:str, partition_index:i32, error_code:i16}[] v0-4,
  topics:{
    topic_id:uuid,
    partition_errors:{topic_name:str v0-4, partition_index:i32, error_code:i16}[]
  }[] v5+,
  known:{
    topic_name:str, partition_index:i32, leader_epoch:i32, partition_epoch:i32, leader:i32, isr:i32[],
    log_epoch:i32, log_end:i64, power_lost:bool v7+ tag9094
  }[] v7+ tag9092,
  latest_broker_epoch:i64 v7+ tag9093=-1

StopReplicaRequest 5 v0-4 flex 2+
  controller_id:i32, is_k_raft_controller:bool v4+, controller_epoch:i32, broker_epoch:i64 v1+=-1,
  delete_partitions:bool v0-2,
  ungrouped_partitions:{topic_name:str, partition_index:i32}[] v0,
  topics:{name:str, partition_indexes:i32[]}[] v1-2,
  topic_states:{
    topic_name:str,
    partition_states:{partition_index:i32, leader_epoch:i32=-1, delete_partition:bool}[]
  }[] v3+

StopReplicaResponse 5 v0-4 flex 2+
  error_code:i16,
  partition_errors:{topic_name:str, partition_index:i32, error_code:i16}[]

UpdateMetadataRequest 6 v0-8 flex 6+
  controller_id:i32, is_k_raft_controller:bool v8+, type:i8 v8+ tag0, controller_epoch:i32,
  broker_epoch:i64 v5+=-1,
  ungrouped_partition_states:{
    topic_name:str, partition_index:i32, controller_epoch:i32, leader:i32, leader_epoch:i32, isr:i32[],
    zk_version:i32, replicas:i32[], offline_replicas:i32[] v4+
  }[] v0-4,
  topic_states:{
    topic_name:str, topic_id:uuid v7+,
    partition_states:{
      topic_name:str v0-4, partition_index:i32, controller_epoch:i32, leader:i32, leader_epoch:i32, isr:i32[],
      zk_version:i32, replicas:i32[], offline_replicas:i32[] v4+
    }[]
  }[] v5+,
  live_brokers:{
    id:i32, v0_host:str v0, v0_port:i32 v0,
    endpoints:{port:i32, host:str, listener:str v3+, security_protocol:i16}[] v1+,
    rack:str?(0+) v2+
  }[]

UpdateMetadataResponse 6 v0-8 flex 6+
  error_code:i16

ControlledShutdownRequest 7 v0-3 flex 3+
  broker_id:i32, broker_epoch:i64 v2+=-1

ControlledShutdownResponse 7 v0-3 flex 3+
  error_code:i16, remaining_partitions:{topic_name:str, partition_index:i32}[]

AlterPartitionRequest 56 v0-3 flex 0+
  broker_id:i32, broker_epoch:i64=-1,
  topics:{
    topic_name:str v0-1, topic_id:uuid v2+,
    partitions:{
      partition_index:i32, leader_epoch:i32, new_isr:i32[] v0-2,
      new_isr_with_epochs:{broker_id:i32, broker_epoch:i64=-1}[] v3+,
      leader_recovery_state:i8 v1+, partition_epoch:i32
    }[]
  }[]

AlterPartitionResponse 56 v0-3 flex 0+
  throttle_time_ms:i32, error_code:i16,
  topics:{
    topic_name:str v0-1, topic_id:uuid v2+,
    partitions:{
      partition_index:i32, error_code:i16, leader_id:i32, leader_epoch:i32, isr:i32[],
      leader_recovery_state:i8 v1+, partition_epoch:i32
    }[]
  }[]

AllocateProducerIdsRequest 67 v0 flex 0+
  broker_id:i32, broker_epoch:i64=-1

AllocateProducerIdsResponse 67 v0 flex 0+
  throttle_time_ms:i32, error_code:i16, producer_id_start:i64, producer_id_len:i32
"""
