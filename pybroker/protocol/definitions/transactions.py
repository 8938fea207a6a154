"""Transactions."""

MESSAGES = """
AddPartitionsToTxnRequest 24 v0-5 flex 3+
  transactions:{
    transactional_id:str, producer_id:i64, producer_epoch:i16, verify_only:bool,
    topics:{name:str, partitions:i32[]}[]
  }[] v4+,
  v3_and_below_transactional_id:str v0-3, v3_and_below_producer_id:i64 v0-3,
  v3_and_below_producer_epoch:i16 v0-3, v3_and_below_topics:{name:str, partitions:i32[]}[] v0-3

AddPartitionsToTxnResponse 24 v0-5 flex 3+
  throttle_time_ms:i32, error_code:i16 v4+,
  results_by_transaction:{
    transactional_id:str,
    topic_results:{
      name:str,
      results_by_partition:{partition_index:i32, partition_error_code:i16}[]
    }[]
  }[] v4+,
  results_by_topic_v3_and_below:{
    name:str,
    results_by_partition:{partition_index:i32, partition_error_code:i16}[]
  }[] v0-3

AddOffsetsToTxnRequest 25 v0-4 flex 3+
  transactional_id:str, producer_id:i64, producer_epoch:i16, group_id:str

AddOffsetsToTxnResponse 25 v0-4 flex 3+
  throttle_time_ms:i32, error_code:i16

EndTxnRequest 26 v0-5 flex 3+
  transactional_id:str, producer_id:i64, producer_epoch:i16, committed:bool

EndTxnResponse 26 v0-5 flex 3+
  throttle_time_ms:i32, error_code:i16, producer_id:i64 v5+=-1, producer_epoch:i16 v5+=-1

WriteTxnMarkersRequest 27 v1-2 flex 1+
  markers:{
    producer_id:i64, producer_epoch:i16, transaction_result:bool, topics:{name:str, partition_indexes:i32[]}[],
    coordinator_epoch:i32, transaction_version:i8 v2+
  }[]

WriteTxnMarkersResponse 27 v1-2 flex 1+
  markers:{
    producer_id:i64,
    topics:{
      name:str, partitions:{partition_index:i32, error_code:i16}[]
    }[]
  }[]

TxnOffsetCommitRequest 28 v0-5 flex 3+
  transactional_id:str, group_id:str, producer_id:i64, producer_epoch:i16, generation_id:i32 v3+=-1,
  member_id:str v3+, group_instance_id:str? v3+,
  topics:{
    name:str,
    partitions:{
      partition_index:i32, committed_offset:i64, committed_leader_epoch:i32 v2+=-1, committed_metadata:str?
    }[]
  }[]

TxnOffsetCommitResponse 28 v0-5 flex 3+
  throttle_time_ms:i32,
  topics:{
    name:str, partitions:{partition_index:i32, error_code:i16}[]
  }[]

DescribeTransactionsRequest 65 v0 flex 0+
  transactional_ids:str[]

DescribeTransactionsResponse 65 v0 flex 0+
  throttle_time_ms:i32,
  transaction_states:{
    error_code:i16, transactional_id:str, transaction_state:str, transaction_timeout_ms:i32,
    transaction_start_time_ms:i64, producer_id:i64, producer_epoch:i16, topics:{topic:str, partitions:i32[]}[]
  }[]

ListTransactionsRequest 66 v0-2 flex 0+
  state_filters:str[], producer_id_filters:i64[], duration_filter:i64 v1+=-1, transactional_id_pattern:str? v2+

ListTransactionsResponse 66 v0-2 flex 0+
  throttle_time_ms:i32, error_code:i16, unknown_state_filters:str[],
  transaction_states:{transactional_id:str, producer_id:i64, transaction_state:str}[]
"""
