"""Messages of definitions/connection.py, typed: written by tools/messages.py."""

from pybroker.protocol.message import Bytes, Message, Request

class ApiVersionsRequest(Request[ApiVersionsResponse]):
    """API 18, versions 0 to 4, flexible from 3."""
    client_software_name: str = ""  # str v3+
    client_software_version: str = ""  # str v3+

class ApiVersionsResponse(Message):
    """API 18, versions 0 to 4, flexible from 3."""
    error_code: int = 0  # i16
    api_keys: list[ApiKeys] = ...  # {}[]
    throttle_time_ms: int = 0  # i32 v1+
    supported_features: list[SupportedFeatures] = ...  # {}[] v3+ tag0
    finalized_features_epoch: int = -1  # i64 v3+ tag1
    finalized_features: list[FinalizedFeatures] = ...  # {}[] v3+ tag2
    zk_migration_ready: bool = False  # bool v3+ tag3

    class ApiKeys(Message):
        api_key: int = 0  # i16
        min_version: int = 0  # i16
        max_version: int = 0  # i16

    class SupportedFeatures(Message):
        name: str = ""  # str
        min_version: int = 0  # i16
        max_version: int = 0  # i16

    class FinalizedFeatures(Message):
        name: str = ""  # str
        max_version_level: int = 0  # i16
        min_version_level: int = 0  # i16

class SaslHandshakeRequest(Request[SaslHandshakeResponse]):
    """API 17, versions 0 to 1."""
    mechanism: str = ""  # str

class SaslHandshakeResponse(Message):
    """API 17, versions 0 to 1."""
    error_code: int = 0  # i16
    mechanisms: list[str] = ...  # str[]

class SaslAuthenticateRequest(Request[SaslAuthenticateResponse]):
    """API 36, versions 0 to 2, flexible from 2."""
    auth_bytes: Bytes = b""  # bytes

class SaslAuthenticateResponse(Message):
    """API 36, versions 0 to 2, flexible from 2."""
    error_code: int = 0  # i16
    error_message: str | None = None  # str?
    auth_bytes: Bytes = b""  # bytes
    session_lifetime_ms: int = 0  # i64 v1+
