"""Messages of definitions/admin.py, typed: written by tools/messages.py."""

from pybroker.protocol.message import Bytes, Message, Request

class DescribeConfigsRequest(Request[DescribeConfigsResponse]):
    """API 32, versions 0 to 4, flexible from 4."""
    resources: list[Resources] = ...  # {}[]
    include_synonyms: bool = False  # bool v1+
    include_documentation: bool = False  # bool v3+

    class Resources(Message):
        resource_type: int = 0  # i8
        resource_name: str = ""  # str
        configuration_keys: list[str] | None = None  # str[]?

class DescribeConfigsResponse(Message):
    """API 32, versions 0 to 4, flexible from 4."""
    throttle_time_ms: int = 0  # i32
    results: list[Results] = ...  # {}[]

    class Results(Message):
        error_code: int = 0  # i16
        error_message: str | None = None  # str?
        resource_type: int = 0  # i8
        resource_name: str = ""  # str
        configs: list[Configs] = ...  # {}[]

        class Configs(Message):
            name: str = ""  # str
            value: str | None = None  # str?
            read_only: bool = False  # bool
            config_source: int = -1  # i8 v1+
            is_default: bool = False  # bool v0
            is_sensitive: bool = False  # bool
            synonyms: list[Synonyms] = ...  # {}[] v1+
            config_type: int = 0  # i8 v3+
            documentation: str | None = None  # str? v3+

            class Synonyms(Message):
                name: str = ""  # str
                value: str | None = None  # str?
                source: int = 0  # i8

class AlterConfigsRequest(Request[AlterConfigsResponse]):
    """API 33, versions 0 to 2, flexible from 2."""
    resources: list[Resources] = ...  # {}[]
    validate_only: bool = False  # bool

    class Resources(Message):
        resource_type: int = 0  # i8
        resource_name: str = ""  # str
        configs: list[Configs] = ...  # {}[]

        class Configs(Message):
            name: str = ""  # str
            value: str | None = None  # str?

class AlterConfigsResponse(Message):
    """API 33, versions 0 to 2, flexible from 2."""
    throttle_time_ms: int = 0  # i32
    responses: list[Responses] = ...  # {}[]

    class Responses(Message):
        error_code: int = 0  # i16
        error_message: str | None = None  # str?
        resource_type: int = 0  # i8
        resource_name: str = ""  # str

class IncrementalAlterConfigsRequest(Request[IncrementalAlterConfigsResponse]):
    """API 44, versions 0 to 1, flexible from 1."""
    resources: list[Resources] = ...  # {}[]
    validate_only: bool = False  # bool

    class Resources(Message):
        resource_type: int = 0  # i8
        resource_name: str = ""  # str
        configs: list[Configs] = ...  # {}[]

        class Configs(Message):
            name: str = ""  # str
            config_operation: int = 0  # i8
            value: str | None = None  # str?

class IncrementalAlterConfigsResponse(Message):
    """API 44, versions 0 to 1, flexible from 1."""
    throttle_time_ms: int = 0  # i32
    responses: list[Responses] = ...  # {}[]

    class Responses(Message):
        error_code: int = 0  # i16
        error_message: str | None = None  # str?
        resource_type: int = 0  # i8
        resource_name: str = ""  # str

class DescribeAclsRequest(Request[DescribeAclsResponse]):
    """API 29, versions 1 to 3, flexible from 2."""
    resource_type_filter: int = 0  # i8
    resource_name_filter: str | None = None  # str?
    pattern_type_filter: int = 3  # i8 v1+
    principal_filter: str | None = None  # str?
    host_filter: str | None = None  # str?
    operation: int = 0  # i8
    permission_type: int = 0  # i8

class DescribeAclsResponse(Message):
    """API 29, versions 1 to 3, flexible from 2."""
    throttle_time_ms: int = 0  # i32
    error_code: int = 0  # i16
    error_message: str | None = None  # str?
    resources: list[Resources] = ...  # {}[]

    class Resources(Message):
        resource_type: int = 0  # i8
        resource_name: str = ""  # str
        pattern_type: int = 3  # i8 v1+
        acls: list[Acls] = ...  # {}[]

        class Acls(Message):
            principal: str = ""  # str
            host: str = ""  # str
            operation: int = 0  # i8
            permission_type: int = 0  # i8

class CreateAclsRequest(Request[CreateAclsResponse]):
    """API 30, versions 1 to 3, flexible from 2."""
    creations: list[Creations] = ...  # {}[]

    class Creations(Message):
        resource_type: int = 0  # i8
        resource_name: str = ""  # str
        resource_pattern_type: int = 3  # i8 v1+
        principal: str = ""  # str
        host: str = ""  # str
        operation: int = 0  # i8
        permission_type: int = 0  # i8

class CreateAclsResponse(Message):
    """API 30, versions 1 to 3, flexible from 2."""
    throttle_time_ms: int = 0  # i32
    results: list[Results] = ...  # {}[]

    class Results(Message):
        error_code: int = 0  # i16
        error_message: str | None = None  # str?

class DeleteAclsRequest(Request[DeleteAclsResponse]):
    """API 31, versions 1 to 3, flexible from 2."""
    filters: list[Filters] = ...  # {}[]

    class Filters(Message):
        resource_type_filter: int = 0  # i8
        resource_name_filter: str | None = None  # str?
        pattern_type_filter: int = 3  # i8 v1+
        principal_filter: str | None = None  # str?
        host_filter: str | None = None  # str?
        operation: int = 0  # i8
        permission_type: int = 0  # i8

class DeleteAclsResponse(Message):
    """API 31, versions 1 to 3, flexible from 2."""
    throttle_time_ms: int = 0  # i32
    filter_results: list[FilterResults] = ...  # {}[]

    class FilterResults(Message):
        error_code: int = 0  # i16
        error_message: str | None = None  # str?
        matching_acls: list[MatchingAcls] = ...  # {}[]

        class MatchingAcls(Message):
            error_code: int = 0  # i16
            error_message: str | None = None  # str?
            resource_type: int = 0  # i8
            resource_name: str = ""  # str
            pattern_type: int = 3  # i8 v1+
            principal: str = ""  # str
            host: str = ""  # str
            operation: int = 0  # i8
            permission_type: int = 0  # i8

class DescribeClientQuotasRequest(Request[DescribeClientQuotasResponse]):
    """API 48, versions 0 to 1, flexible from 1."""
    components: list[Components] = ...  # {}[]
    strict: bool = False  # bool

    class Components(Message):
        entity_type: str = ""  # str
        match_type: int = 0  # i8
        match: str | None = None  # str?

class DescribeClientQuotasResponse(Message):
    """API 48, versions 0 to 1, flexible from 1."""
    throttle_time_ms: int = 0  # i32
    error_code: int = 0  # i16
    error_message: str | None = None  # str?
    entries: list[Entries] | None = None  # {}[]?

    class Entries(Message):
        entity: list[Entity] = ...  # {}[]
        values: list[Values] = ...  # {}[]

        class Entity(Message):
            entity_type: str = ""  # str
            entity_name: str | None = None  # str?

        class Values(Message):
            key: str = ""  # str
            value: float = 0.0  # f64

class AlterClientQuotasRequest(Request[AlterClientQuotasResponse]):
    """API 49, versions 0 to 1, flexible from 1."""
    entries: list[Entries] = ...  # {}[]
    validate_only: bool = False  # bool

    class Entries(Message):
        entity: list[Entity] = ...  # {}[]
        ops: list[Ops] = ...  # {}[]

        class Entity(Message):
            entity_type: str = ""  # str
            entity_name: str | None = None  # str?

        class Ops(Message):
            key: str = ""  # str
            value: float = 0.0  # f64
            remove: bool = False  # bool

class AlterClientQuotasResponse(Message):
    """API 49, versions 0 to 1, flexible from 1."""
    throttle_time_ms: int = 0  # i32
    entries: list[Entries] = ...  # {}[]

    class Entries(Message):
        error_code: int = 0  # i16
        error_message: str | None = None  # str?
        entity: list[Entity] = ...  # {}[]

        class Entity(Message):
            entity_type: str = ""  # str
            entity_name: str | None = None  # str?

class DescribeUserScramCredentialsRequest(Request[DescribeUserScramCredentialsResponse]):
    """API 50, versions 0 to 0, flexible from 0."""
    users: list[Users] | None = None  # {}[]?

    class Users(Message):
        name: str = ""  # str

class DescribeUserScramCredentialsResponse(Message):
    """API 50, versions 0 to 0, flexible from 0."""
    throttle_time_ms: int = 0  # i32
    error_code: int = 0  # i16
    error_message: str | None = None  # str?
    results: list[Results] = ...  # {}[]

    class Results(Message):
        user: str = ""  # str
        error_code: int = 0  # i16
        error_message: str | None = None  # str?
        credential_infos: list[CredentialInfos] = ...  # {}[]

        class CredentialInfos(Message):
            mechanism: int = 0  # i8
            iterations: int = 0  # i32

class AlterUserScramCredentialsRequest(Request[AlterUserScramCredentialsResponse]):
    """API 51, versions 0 to 0, flexible from 0."""
    deletions: list[Deletions] = ...  # {}[]
    upsertions: list[Upsertions] = ...  # {}[]

    class Deletions(Message):
        name: str = ""  # str
        mechanism: int = 0  # i8

    class Upsertions(Message):
        name: str = ""  # str
        mechanism: int = 0  # i8
        iterations: int = 0  # i32
        salt: Bytes = b""  # bytes
        salted_password: Bytes = b""  # bytes

class AlterUserScramCredentialsResponse(Message):
    """API 51, versions 0 to 0, flexible from 0."""
    throttle_time_ms: int = 0  # i32
    results: list[Results] = ...  # {}[]

    class Results(Message):
        user: str = ""  # str
        error_code: int = 0  # i16
        error_message: str | None = None  # str?

class CreateDelegationTokenRequest(Request[CreateDelegationTokenResponse]):
    """API 38, versions 1 to 3, flexible from 2."""
    owner_principal_type: str | None = None  # str?(3+) v3+
    owner_principal_name: str | None = None  # str?(3+) v3+
    renewers: list[Renewers] = ...  # {}[]
    max_lifetime_ms: int = 0  # i64

    class Renewers(Message):
        principal_type: str = ""  # str
        principal_name: str = ""  # str

class CreateDelegationTokenResponse(Message):
    """API 38, versions 1 to 3, flexible from 2."""
    error_code: int = 0  # i16
    principal_type: str = ""  # str
    principal_name: str = ""  # str
    token_requester_principal_type: str = ""  # str v3+
    token_requester_principal_name: str = ""  # str v3+
    issue_timestamp_ms: int = 0  # i64
    expiry_timestamp_ms: int = 0  # i64
    max_timestamp_ms: int = 0  # i64
    token_id: str = ""  # str
    hmac: Bytes = b""  # bytes
    throttle_time_ms: int = 0  # i32

class RenewDelegationTokenRequest(Request[RenewDelegationTokenResponse]):
    """API 39, versions 1 to 2, flexible from 2."""
    hmac: Bytes = b""  # bytes
    renew_period_ms: int = 0  # i64

class RenewDelegationTokenResponse(Message):
    """API 39, versions 1 to 2, flexible from 2."""
    error_code: int = 0  # i16
    expiry_timestamp_ms: int = 0  # i64
    throttle_time_ms: int = 0  # i32

class ExpireDelegationTokenRequest(Request[ExpireDelegationTokenResponse]):
    """API 40, versions 1 to 2, flexible from 2."""
    hmac: Bytes = b""  # bytes
    expiry_time_period_ms: int = 0  # i64

class ExpireDelegationTokenResponse(Message):
    """API 40, versions 1 to 2, flexible from 2."""
    error_code: int = 0  # i16
    expiry_timestamp_ms: int = 0  # i64
    throttle_time_ms: int = 0  # i32

class DescribeDelegationTokenRequest(Request[DescribeDelegationTokenResponse]):
    """API 41, versions 1 to 3, flexible from 2."""
    owners: list[Owners] | None = None  # {}[]?

    class Owners(Message):
        principal_type: str = ""  # str
        principal_name: str = ""  # str

class DescribeDelegationTokenResponse(Message):
    """API 41, versions 1 to 3, flexible from 2."""
    error_code: int = 0  # i16
    tokens: list[Tokens] = ...  # {}[]
    throttle_time_ms: int = 0  # i32

    class Tokens(Message):
        principal_type: str = ""  # str
        principal_name: str = ""  # str
        token_requester_principal_type: str = ""  # str v3+
        token_requester_principal_name: str = ""  # str v3+
        issue_timestamp: int = 0  # i64
        expiry_timestamp: int = 0  # i64
        max_timestamp: int = 0  # i64
        token_id: str = ""  # str
        hmac: Bytes = b""  # bytes
        renewers: list[Renewers] = ...  # {}[]

        class Renewers(Message):
            principal_type: str = ""  # str
            principal_name: str = ""  # str
