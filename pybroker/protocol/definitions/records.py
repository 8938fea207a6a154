"""Data in opaque bytes of clients, coordinators and KRaft controllers: the consumer protocol, and records of internal
topics."""

MESSAGES = """
ConsumerProtocolSubscription v0-3 flex none
  topics:str[], user_data:bytes?, owned_partitions:{topic:str, partitions:i32[]}[] v1+,
  generation_id:i32 v2+=-1, rack_id:str? v3+

ConsumerProtocolAssignment v0-3 flex none
  assigned_partitions:{topic:str, partitions:i32[]}[], user_data:bytes?

OffsetCommitKey v0-1 flex none
  group:str, topic:str, partition:i32

OffsetCommitValue v0-4 flex 4+
  offset:i64, leader_epoch:i32 v3+=-1, metadata:str, commit_timestamp:i64, expire_timestamp:i64 v1=-1

GroupMetadataKey v2 flex none
  group:str

GroupMetadataValue v0-4 flex 4+
  protocol_type:str, generation:i32, protocol:str?, leader:str?, current_state_timestamp:i64 v2+=-1,
  members:{
    member_id:str, group_instance_id:str? v3+, client_id:str, client_host:str, rebalance_timeout:i32 v1+=-1,
    session_timeout:i32, subscription:bytes, assignment:bytes
  }[]

TransactionLogKey v0 flex none
  transactional_id:str

TransactionLogValue v0-1 flex 1+
  producer_id:i64, producer_epoch:i16, transaction_timeout_ms:i32, transaction_status:i8,
  transaction_partitions:{topic:str, partition_ids:i32[]}[]?, transaction_last_update_timestamp_ms:i64,
  transaction_start_timestamp_ms:i64, previous_producer_id:i64 v1+ tag0=-1, next_producer_id:i64 v1+ tag1=-1,
  client_transaction_version:i16 v1+ tag2, next_producer_epoch:i16 v1+ tag3=-1

TopicRecord v0 flex 0+
  name:str, topic_id:uuid

RemoveTopicRecord v0 flex 0+
  topic_id:uuid

ConfigRecord v0 flex 0+
  resource_type:i8, resource_name:str, name:str, value:str?
"""
