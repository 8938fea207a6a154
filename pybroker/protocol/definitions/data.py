"""Producing, fetching and finding offsets.

The tagged field 9092 of a Fetch response is pybroker's own: with CORRUPT_MESSAGE, the offset after the damage, or the
fetch offset while the broker does not know where the damage ends.
"""

MESSAGES = """
ProduceRequest 0 v3-13 flex 9+
  transactional_id:str? v3+, acks:i16, timeout_ms:i32,
  topic_data:{
    name:str v0-12, topic_id:uuid v13+, partition_data:{index:i32, records:records?}[]
  }[]

ProduceResponse 0 v3-13 flex 9+
  responses:{
    name:str v0-12, topic_id:uuid v13+,
    partition_responses:{
      index:i32, error_code:i16, base_offset:i64, log_append_time_ms:i64 v2+=-1, log_start_offset:i64 v5+=-1,
      record_errors:{batch_index:i32, batch_index_error_message:str?}[] v8+,
      error_message:str? v8+,
      current_leader:{leader_id:i32=-1, leader_epoch:i32=-1} v10+ tag0
    }[]
  }[],
  throttle_time_ms:i32 v1+,
  node_endpoints:{node_id:i32, host:str, port:i32, rack:str?}[] v10+ tag0

FetchRequest 1 v4-18 flex 12+
  cluster_id:str? v12+ tag0, replica_id:i32 v0-14=-1,
  replica_state:{replica_id:i32=-1, replica_epoch:i64=-1} v15+ tag1,
  max_wait_ms:i32, min_bytes:i32, max_bytes:i32 v3+=0x7fffffff, isolation_level:i8 v4+, session_id:i32 v7+,
  session_epoch:i32 v7+=-1,
  topics:{
    topic:str v0-12, topic_id:uuid v13+,
    partitions:{
      partition:i32, current_leader_epoch:i32 v9+=-1, fetch_offset:i64, last_fetched_epoch:i32 v12+=-1,
      log_start_offset:i64 v5+=-1, partition_max_bytes:i32, replica_directory_id:uuid v17+ tag0,
      high_watermark:i64 v18+ tag1=9223372036854775807
    }[]
  }[],
  forgotten_topics_data:{topic:str v7-12, topic_id:uuid v13+, partitions:i32[]}[] v7+,
  rack_id:str v11+

FetchResponse 1 v4-18 flex 12+
  throttle_time_ms:i32 v1+, error_code:i16 v7+, session_id:i32 v7+,
  responses:{
    topic:str v0-12, topic_id:uuid v13+,
    partitions:{
      partition_index:i32, error_code:i16, high_watermark:i64, last_stable_offset:i64 v4+=-1,
      log_start_offset:i64 v5+=-1, diverging_epoch:{epoch:i32=-1, end_offset:i64=-1} v12+ tag0,
      current_leader:{leader_id:i32=-1, leader_epoch:i32=-1} v12+ tag1,
      snapshot_id:{end_offset:i64=-1, epoch:i32=-1} v12+ tag2,
      aborted_transactions:{producer_id:i64, first_offset:i64}[]? v4+,
      preferred_read_replica:i32 v11+=-1, records:records?, readable_from:i64 v12+ tag9092=-1
    }[]
  }[],
  node_endpoints:{node_id:i32, host:str, port:i32, rack:str?}[] v16+ tag0

ListOffsetsRequest 2 v0-11 flex 6+
  replica_id:i32, isolation_level:i8 v2+,
  topics:{
    name:str,
    partitions:{partition_index:i32, current_leader_epoch:i32 v4+=-1, timestamp:i64, max_num_offsets:i32 v0=1}[]
  }[],
  timeout_ms:i32 v10+

ListOffsetsResponse 2 v0-11 flex 6+
  throttle_time_ms:i32 v2+,
  topics:{
    name:str,
    partitions:{
      partition_index:i32, error_code:i16, old_style_offsets:i64[] v0, timestamp:i64 v1+=-1, offset:i64 v1+=-1,
      leader_epoch:i32 v4+=-1
    }[]
  }[]

OffsetForLeaderEpochRequest 23 v2-4 flex 4+
  replica_id:i32 v3+=-2,
  topics:{
    topic:str,
    partitions:{partition:i32, current_leader_epoch:i32 v2+=-1, leader_epoch:i32}[]
  }[]

OffsetForLeaderEpochResponse 23 v2-4 flex 4+
  throttle_time_ms:i32 v2+,
  topics:{
    topic:str,
    partitions:{error_code:i16, partition:i32, leader_epoch:i32 v1+=-1, end_offset:i64=-1}[]
  }[]

DeleteRecordsRequest 21 v0-2 flex 2+
  topics:{
    name:str, partitions:{partition_index:i32, offset:i64}[]
  }[],
  timeout_ms:i32

DeleteRecordsResponse 21 v0-2 flex 2+
  throttle_time_ms:i32,
  topics:{
    name:str,
    partitions:{partition_index:i32, low_watermark:i64, error_code:i16}[]
  }[]

InitProducerIdRequest 22 v0-6 flex 2+
  transactional_id:str?, transaction_timeout_ms:i32, producer_id:i64 v3+=-1, producer_epoch:i16 v3+=-1,
  enable2_pc:bool v6+, keep_prepared_txn:bool v6+

InitProducerIdResponse 22 v0-6 flex 2+
  throttle_time_ms:i32, error_code:i16, producer_id:i64=-1, producer_epoch:i16,
  ongoing_txn_producer_id:i64 v6+=-1, ongoing_txn_producer_epoch:i16 v6+=-1

DescribeProducersRequest 61 v0 flex 0+
  topics:{name:str, partition_indexes:i32[]}[]

DescribeProducersResponse 61 v0 flex 0+
  throttle_time_ms:i32,
  topics:{
    name:str,
    partitions:{
      partition_index:i32, error_code:i16, error_message:str?,
      active_producers:{
        producer_id:i64, producer_epoch:i32, last_sequence:i32=-1, last_timestamp:i64=-1, coordinator_epoch:i32,
        current_txn_start_offset:i64=-1
      }[]
    }[]
  }[]
"""
