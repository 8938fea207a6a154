"""Configs, ACLs, quotas and SCRAM credentials."""

MESSAGES = """
DescribeConfigsRequest 32 v0-4 flex 4+
  resources:{resource_type:i8, resource_name:str, configuration_keys:str[]?}[],
  include_synonyms:bool v1+, include_documentation:bool v3+

DescribeConfigsResponse 32 v0-4 flex 4+
  throttle_time_ms:i32,
  results:{
    error_code:i16, error_message:str?, resource_type:i8, resource_name:str,
    configs:{
      name:str, value:str?, read_only:bool, config_source:i8 v1+=-1, is_default:bool v0, is_sensitive:bool,
      synonyms:{name:str, value:str?(0+), source:i8}[] v1+, config_type:i8 v3+, documentation:str?(0+) v3+
    }[]
  }[]

AlterConfigsRequest 33 v0-2 flex 2+
  resources:{
    resource_type:i8, resource_name:str, configs:{name:str, value:str?}[]
  }[],
  validate_only:bool

AlterConfigsResponse 33 v0-2 flex 2+
  throttle_time_ms:i32,
  responses:{error_code:i16, error_message:str?, resource_type:i8, resource_name:str}[]

IncrementalAlterConfigsRequest 44 v0-1 flex 1+
  resources:{
    resource_type:i8, resource_name:str, configs:{name:str, config_operation:i8, value:str?}[]
  }[],
  validate_only:bool

IncrementalAlterConfigsResponse 44 v0-1 flex 1+
  throttle_time_ms:i32,
  responses:{error_code:i16, error_message:str?, resource_type:i8, resource_name:str}[]

DescribeAclsRequest 29 v1-3 flex 2+
  resource_type_filter:i8, resource_name_filter:str?, pattern_type_filter:i8 v1+=3, principal_filter:str?,
  host_filter:str?, operation:i8, permission_type:i8

DescribeAclsResponse 29 v1-3 flex 2+
  throttle_time_ms:i32, error_code:i16, error_message:str?,
  resources:{
    resource_type:i8, resource_name:str, pattern_type:i8 v1+=3,
    acls:{principal:str, host:str, operation:i8, permission_type:i8}[]
  }[]

CreateAclsRequest 30 v1-3 flex 2+
  creations:{
    resource_type:i8, resource_name:str, resource_pattern_type:i8 v1+=3, principal:str, host:str, operation:i8,
    permission_type:i8
  }[]

CreateAclsResponse 30 v1-3 flex 2+
  throttle_time_ms:i32, results:{error_code:i16, error_message:str?}[]

DeleteAclsRequest 31 v1-3 flex 2+
  filters:{
    resource_type_filter:i8, resource_name_filter:str?, pattern_type_filter:i8 v1+=3, principal_filter:str?,
    host_filter:str?, operation:i8, permission_type:i8
  }[]

DeleteAclsResponse 31 v1-3 flex 2+
  throttle_time_ms:i32,
  filter_results:{
    error_code:i16, error_message:str?,
    matching_acls:{
      error_code:i16, error_message:str?, resource_type:i8, resource_name:str, pattern_type:i8 v1+=3,
      principal:str, host:str, operation:i8, permission_type:i8
    }[]
  }[]

DescribeClientQuotasRequest 48 v0-1 flex 1+
  components:{entity_type:str, match_type:i8, match:str?}[], strict:bool

DescribeClientQuotasResponse 48 v0-1 flex 1+
  throttle_time_ms:i32, error_code:i16, error_message:str?,
  entries:{
    entity:{entity_type:str, entity_name:str?}[], values:{key:str, value:f64}[]
  }[]?

AlterClientQuotasRequest 49 v0-1 flex 1+
  entries:{
    entity:{entity_type:str, entity_name:str?}[], ops:{key:str, value:f64, remove:bool}[]
  }[],
  validate_only:bool

AlterClientQuotasResponse 49 v0-1 flex 1+
  throttle_time_ms:i32,
  entries:{
    error_code:i16, error_message:str?, entity:{entity_type:str, entity_name:str?}[]
  }[]

DescribeUserScramCredentialsRequest 50 v0 flex 0+
  users:{name:str}[]?

DescribeUserScramCredentialsResponse 50 v0 flex 0+
  throttle_time_ms:i32, error_code:i16, error_message:str?,
  results:{
    user:str, error_code:i16, error_message:str?, credential_infos:{mechanism:i8, iterations:i32}[]
  }[]

AlterUserScramCredentialsRequest 51 v0 flex 0+
  deletions:{name:str, mechanism:i8}[],
  upsertions:{name:str, mechanism:i8, iterations:i32, salt:bytes, salted_password:bytes}[]

AlterUserScramCredentialsResponse 51 v0 flex 0+
  throttle_time_ms:i32, results:{user:str, error_code:i16, error_message:str?}[]

CreateDelegationTokenRequest 38 v1-3 flex 2+
  owner_principal_type:str?(3+) v3+, owner_principal_name:str?(3+) v3+,
  renewers:{principal_type:str, principal_name:str}[], max_lifetime_ms:i64

CreateDelegationTokenResponse 38 v1-3 flex 2+
  error_code:i16, principal_type:str, principal_name:str, token_requester_principal_type:str v3+,
  token_requester_principal_name:str v3+, issue_timestamp_ms:i64, expiry_timestamp_ms:i64, max_timestamp_ms:i64,
  token_id:str, hmac:bytes, throttle_time_ms:i32

RenewDelegationTokenRequest 39 v1-2 flex 2+
  hmac:bytes, renew_period_ms:i64

RenewDelegationTokenResponse 39 v1-2 flex 2+
  error_code:i16, expiry_timestamp_ms:i64, throttle_time_ms:i32

ExpireDelegationTokenRequest 40 v1-2 flex 2+
  hmac:bytes, expiry_time_period_ms:i64

ExpireDelegationTokenResponse 40 v1-2 flex 2+
  error_code:i16, expiry_timestamp_ms:i64, throttle_time_ms:i32

DescribeDelegationTokenRequest 41 v1-3 flex 2+
  owners:{principal_type:str, principal_name:str}[]?

DescribeDelegationTokenResponse 41 v1-3 flex 2+
  error_code:i16,
  tokens:{
    principal_type:str, principal_name:str, token_requester_principal_type:str v3+,
    token_requester_principal_name:str v3+, issue_timestamp:i64, expiry_timestamp:i64, max_timestamp:i64, token_id:str,
    hmac:bytes, renewers:{principal_type:str, principal_name:str}[]
  }[],
  throttle_time_ms:i32
"""
