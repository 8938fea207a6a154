"""The first messages on a connection: versions and authentication."""

MESSAGES = """
ApiVersionsRequest 18 v0-4 flex 3+
  client_software_name:str v3+, client_software_version:str v3+

ApiVersionsResponse 18 v0-4 flex 3+
  error_code:i16, api_keys:{api_key:i16, min_version:i16, max_version:i16}[], throttle_time_ms:i32 v1+,
  supported_features:{name:str, min_version:i16, max_version:i16}[] v3+ tag0,
  finalized_features_epoch:i64 v3+ tag1=-1,
  finalized_features:{name:str, max_version_level:i16, min_version_level:i16}[] v3+ tag2,
  zk_migration_ready:bool v3+ tag3

SaslHandshakeRequest 17 v0-1 flex none
  mechanism:str

SaslHandshakeResponse 17 v0-1 flex none
  error_code:i16, mechanisms:str[]

SaslAuthenticateRequest 36 v0-2 flex 2+
  auth_bytes:bytes

SaslAuthenticateResponse 36 v0-2 flex 2+
  error_code:i16, error_message:str?, auth_bytes:bytes, session_lifetime_ms:i64 v1+
"""
