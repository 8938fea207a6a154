"""The settings of producers and consumers: Kafka's names with underscores, its types, ranges and defaults.

Where a default is not Kafka's, its doc says why.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Required, TypedDict, TypeVar, get_type_hints

from pybroker.client.security.settings import SECURITY, WHERE, as_given, security_of, unknown
from pybroker.client.security.token_settings import PROVIDER
from pybroker.config.settings import INT_MAX, LONG_MAX, Choice, ConfigError, Range, Setting, Type, table
from pybroker.model import CODECS

COMMON: Final = (
    Setting("bootstrap_servers", Type.STRING, None, "Addresses to begin with: host:port, several by commas or a list."),
    Setting("client_id", Type.STRING, "pybroker", "What the brokers' logs and quotas call this client."),
    Setting("request_timeout_ms", Type.INT, "30000", "How long an answer may take.", Range(1, INT_MAX)),
    Setting("retry_backoff_ms", Type.LONG, "100", "The pause before the first retry; it doubles.", Range(0, LONG_MAX)),
    Setting("retry_backoff_max_ms", Type.LONG, "1000", "The longest pause before a retry.", Range(0, LONG_MAX)),
    Setting("reconnect_backoff_ms", Type.LONG, "50", "The first pause after a lost connection.", Range(0, LONG_MAX)),
    Setting("reconnect_backoff_max_ms", Type.LONG, "1000", "The longest such pause.", Range(0, LONG_MAX)),
    Setting("metadata_max_age_ms", Type.LONG, "300000", "How old metadata may grow.", Range(0, LONG_MAX)),
    *SECURITY.values(),
)

_PRODUCER: Final = (
    Setting("acks", Type.STRING, "all", "Who must have a batch first.", Choice(("all", "-1", "1", "0"))),
    Setting("enable_idempotence", Type.BOOLEAN, None, "Retries neither repeat nor reorder; on unless acks is not all."),
    Setting("compression_type", Type.STRING, "none", "The codec of batches.", Choice(CODECS)),
    Setting("compression_level", Type.INT, None, "As the codec counts levels; not set: its default."),
    Setting(
        "batch_size",
        Type.INT,
        "1000000",
        "Bytes at which a batch is sent without a wait. Kafka's 16384 makes a request of every 150 records of 100"
        " bytes; memory here grows with what is sent, and not with this.",
        Range(1, INT_MAX),
    ),
    Setting("linger_ms", Type.LONG, "5", "How long a batch may wait to grow.", Range(0, LONG_MAX)),
    Setting("buffer_memory", Type.LONG, "33554432", "Bytes of records not yet acknowledged.", Range(0, LONG_MAX)),
    Setting("max_block_ms", Type.LONG, "60000", "How long send() may wait for that, or metadata.", Range(0, LONG_MAX)),
    Setting("delivery_timeout_ms", Type.INT, "120000", "The longest from send() to an end.", Range(0, INT_MAX)),
    Setting("retries", Type.INT, str(INT_MAX), "How often a batch is sent again.", Range(0, INT_MAX)),
    Setting("max_in_flight_requests_per_connection", Type.INT, "5", "Requests under way.", Range(1, INT_MAX)),
    Setting("transactional_id", Type.STRING, None, "The name of this producer's transactions, across restarts."),
    Setting(
        "transaction_timeout_ms", Type.INT, "60000", "The coordinator aborts a transaction then.", Range(1, INT_MAX)
    ),
    Setting("max_request_size", Type.INT, "1048576", "The largest record, and request.", Range(0, INT_MAX)),
)

_CONSUMER: Final = (
    Setting("group_id", Type.STRING, None, "The group to commit for and to share topics with."),
    Setting("group_instance_id", Type.STRING, None, "A name that survives restarts: static membership (KIP-345)."),
    Setting(
        "auto_offset_reset",
        Type.STRING,
        "latest",
        "Where to start without a position, or when it is out of range.",
        Choice(("earliest", "latest", "none")),
    ),
    Setting("enable_auto_commit", Type.BOOLEAN, "true", "Commit what poll() returned, in the background."),
    Setting("auto_commit_interval_ms", Type.INT, "5000", "How often that is.", Range(0, INT_MAX)),
    Setting("max_poll_records", Type.INT, "500", "What poll() returns at most.", Range(1, INT_MAX)),
    Setting("max_poll_interval_ms", Type.INT, "300000", "Leave the group if poll() stays away.", Range(1, INT_MAX)),
    Setting("session_timeout_ms", Type.INT, "45000", "How long a member may be silent.", Range(1, INT_MAX)),
    Setting("heartbeat_interval_ms", Type.INT, "3000", "How often it is not.", Range(1, INT_MAX)),
    Setting(
        "partition_assignment_strategy",
        Type.LIST,
        "range,cooperative-sticky",
        "Assignors, the preferred one first.",
        Choice(("range", "roundrobin", "sticky", "cooperative-sticky")),
    ),
    Setting("fetch_min_bytes", Type.INT, "1", "Bytes for which a fetch waits.", Range(0, INT_MAX)),
    Setting("fetch_max_bytes", Type.INT, "52428800", "Bytes of a fetch, and of all prefetched.", Range(1, INT_MAX)),
    Setting("fetch_max_wait_ms", Type.INT, "500", "How long a fetch waits for them.", Range(0, INT_MAX)),
    Setting("max_partition_fetch_bytes", Type.INT, "1048576", "Bytes a partition in a fetch.", Range(1, INT_MAX)),
    Setting(
        "isolation_level",
        Type.STRING,
        "read_uncommitted",
        "Whether records of aborted transactions are seen.",
        Choice(("read_uncommitted", "read_committed")),
    ),
    Setting("check_crcs", Type.BOOLEAN, "true", "Check what was fetched against its CRC-32C."),
    Setting("allow_auto_create_topics", Type.BOOLEAN, "true", "A topic that is asked for may be created."),
    Setting("exclude_internal_topics", Type.BOOLEAN, "true", "A pattern does not match internal topics."),
    Setting("default_api_timeout_ms", Type.INT, "60000", "How long calls to brokers may take.", Range(0, INT_MAX)),
    Setting("client_rack", Type.STRING, "", "Where this client is; a close replica may answer (KIP-392)."),
)

PRODUCER: Final = table(*COMMON, *_PRODUCER)
CONSUMER: Final = table(*COMMON, *_CONSUMER)


# -- the same for type checkers ---------------------------------------------------------------------------------------


class SecuritySettings(TypedDict, total=False):
    """The keyword arguments of `Admin` and `AsyncAdmin`, and of the other clients too, for type checkers."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    sasl_username: str
    sasl_password: str
    sasl_tokenauth: bool
    sasl_oauth_token_provider: Callable[[], str]
    sasl_oauthbearer_token_endpoint_url: str
    sasl_oauthbearer_client_credentials_client_id: str
    sasl_oauthbearer_client_credentials_client_secret: str
    sasl_oauthbearer_scope: str
    ssl_cafile: str
    ssl_certfile: str
    ssl_keyfile: str
    ssl_password: str
    ssl_check_hostname: bool
    ssl_keystore_type: str
    ssl_keystore_location: str
    ssl_keystore_password: str
    ssl_key_password: str
    ssl_keystore_key: str
    ssl_keystore_certificate_chain: str
    ssl_truststore_type: str
    ssl_truststore_location: str
    ssl_truststore_password: str
    ssl_truststore_certificates: str
    ssl_enabled_protocols: str | Sequence[Literal["TLSv1.2", "TLSv1.3"]]
    ssl_cipher_suites: str | Sequence[str]
    ssl_endpoint_identification_algorithm: Literal["https", "HTTPS", ""]


class RequestSettings(SecuritySettings, total=False):
    """The keyword arguments of a client whose brokers are named in another way, for type checkers."""

    client_id: str
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    metadata_max_age_ms: int


class _CommonSettings(RequestSettings, total=False):
    bootstrap_servers: Required[str | Sequence[str]]


class ProducerSettings(_CommonSettings, total=False):
    """The keyword arguments of `Producer` and `AsyncProducer`, for type checkers."""

    acks: Literal["all", "-1", "1", "0", -1, 1, 0]
    enable_idempotence: bool
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    compression_level: int
    batch_size: int
    linger_ms: int
    buffer_memory: int
    max_block_ms: int
    delivery_timeout_ms: int
    retries: int
    max_in_flight_requests_per_connection: int
    max_request_size: int
    transactional_id: str
    transaction_timeout_ms: int


Assignor = Literal["range", "roundrobin", "sticky", "cooperative-sticky"]


class FetchSettings(TypedDict, total=False):
    """The settings of a Consumer that do not concern its group, its positions or poll()."""

    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    max_partition_fetch_bytes: int
    isolation_level: Literal["read_uncommitted", "read_committed"]
    check_crcs: bool
    allow_auto_create_topics: bool
    default_api_timeout_ms: int
    client_rack: str


class ConsumerSettings(_CommonSettings, FetchSettings, total=False):
    """The keyword arguments of `Consumer` and `AsyncConsumer`, for type checkers."""

    group_id: str | None
    group_instance_id: str | None
    auto_offset_reset: Literal["earliest", "latest", "none"]
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    max_poll_records: int
    max_poll_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    partition_assignment_strategy: str | Sequence[Assignor]
    exclude_internal_topics: bool


Client = TypeVar("Client", bound=type)


def signed(known: Mapping[str, Setting], typed: type) -> Callable[[Client], Client]:
    """Decorate a client: its signature has each setting by name, type and default, as IPython and help() show it."""

    def decorate(client: Client) -> Client:
        own = inspect.signature(client).parameters.values()
        positional = [p for p in own if p.kind is not p.VAR_KEYWORD and p.kind is not p.KEYWORD_ONLY]
        named = [p for p in own if p.kind is p.KEYWORD_ONLY]
        hints = get_type_hints(typed)
        for name, setting in known.items():
            default = inspect.Parameter.empty if name == "bootstrap_servers" else _default(setting)
            kind, annotation = inspect.Parameter.KEYWORD_ONLY, hints[name]
            named.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
        setattr(client, "__signature__", inspect.Signature([*positional, *named]))  # noqa: B010
        return client

    return decorate


def _default(setting: Setting) -> object:
    return None if setting.default is None else setting.parse(setting.default, WHERE)


class Settings:
    """The values of a table, given ones over defaults, each as attribute of its name; ConfigError in one sentence."""

    def __init__(self, kind: str, known: Mapping[str, Setting], given: Mapping[str, object]) -> None:
        for name in given:
            if name not in known:
                raise ConfigError(unknown(kind, known, name))
        for name, setting in known.items():
            value = given.get(name)
            if name == PROVIDER:
                self.sasl_oauth_token_provider = value
                continue
            if value is not None and not isinstance(value, str | list | tuple) and _is_text(setting):
                raise ConfigError(f"{name} is text, not {value!r}")
            text = setting.default if value is None else as_given(value)
            setattr(self, name, None if text is None else setting.parse(text, WHERE))
        if not self.bootstrap_servers:
            raise ConfigError(f"a {kind} needs bootstrap_servers: host:port of a broker")
        self.account, self.tls = security_of({name: getattr(self, name) for name in SECURITY})

    def __getattr__(self, name: str) -> Any:  # for type checkers: every setting is an attribute
        raise AttributeError(name)


def _is_text(setting: Setting) -> bool:
    """Any text at all, and not one of some words, which a number may be (acks=1)."""
    return setting.type is Type.STRING and setting.valid is None
