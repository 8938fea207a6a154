"""The options of the source and the sink, by the names of Spark's own connector (format "kafka").

Names are compared without regard to case, as in Spark. A likely typo is refused, and so is a client setting without its
`kafka.` prefix; any other unknown name is ignored, as in Spark's connector. A name with `kafka.` is for the client:
pybroker's client applies the settings that it supports, and refuses those that would change the meaning. With a
warning it ignores those that only tune Java's client, and those of the other kind of client: one set of options may
serve source and sink.
"""

import difflib
import logging
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from pybroker.client.net.list_offsets import EARLIEST, LATEST
from pybroker.client.security.settings import SECURITY, of_jaas, security_from, security_of
from pybroker.client.security.tls import ClientTls
from pybroker.client.security.token_settings import PROVIDER
from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.model import TopicPartition
from pybroker.security.login import Account
from pybroker.spark import offsets
from pybroker.spark.java_settings import OF_CONSUMERS, OF_PRODUCERS
from pybroker.spark.offsets import OffsetBound
from pybroker.spark.untyped import Told

Value = TypeVar("Value")
logger: Final = logging.getLogger(__name__)

POLL_TIMEOUT_MS: Final = 120_000
MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000
FETCH_BYTES: Final = 8 << 20
GROUP_PREFIX: Final = "spark-kafka-source"

SOURCE_OPTIONS: Final = frozenset(
    (
        "assign",
        "subscribe",
        "subscribePattern",
        "startingOffsets",
        "startingOffsetsByTimestamp",
        "startingTimestamp",
        "endingOffsets",
        "endingOffsetsByTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestampStrategy",
        "failOnDataLoss",
        "includeHeaders",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "minPartitions",
        "maxRecordsPerPartition",
        "groupIdPrefix",
        "logDirs",
        "queryName",
    )
)
SINK_OPTIONS: Final = frozenset(("topic", "includeHeaders", "repeatHeaders", "queryName"))
REFUSED: Final = {
    "auto.offset.reset": "set startingOffsets",
    "key.deserializer": "keys are binary columns: cast them in Spark",
    "value.deserializer": "values are binary columns: cast them in Spark",
    "key.serializer": "keys are string or binary columns: cast them in Spark",
    "value.serializer": "values are string or binary columns: cast them in Spark",
    "enable.auto.commit": "Spark's checkpoint holds the offsets",
    "interceptor.classes": "interceptors are not supported",
    "transactional.id": "rows are written at least once, without transactions",
}
"""Client settings that are refused, and what to do instead; Spark's connector refuses most of them, too."""
NO_LIMITS: Final = ("maxBytesPerTrigger", "maxRatePerPartition", "spark.streaming.kafka.maxRatePerPartition")
"""Limits of other sources, which this source would ignore."""
SECURITY_CLIENT: Final = frozenset(
    ("sasl.jaas.config", *(name.replace("_", ".") for name in SECURITY if name != PROVIDER))
)
"""The settings for connecting to brokers, for sources and sinks alike."""
SOURCE_CLIENT: Final = SECURITY_CLIENT | frozenset(
    (
        "bootstrap.servers",
        "group.id",
        "isolation.level",
        "request.timeout.ms",
        "max.partition.fetch.bytes",
    )
)
SINK_CLIENT: Final = SECURITY_CLIENT | frozenset(
    (
        "bootstrap.servers",
        "acks",
        "batch.size",
        "buffer.memory",
        "compression.type",
        "delivery.timeout.ms",
        "enable.idempotence",
        "linger.ms",
        "max.request.size",
        "request.timeout.ms",
        "retries",
    )
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """The settings of one kind of client: those that pybroker applies, and those that only tune Java's client."""

    name: str
    client: frozenset[str]
    java: frozenset[str]


CONSUMERS: Final = _Kind("consumers", SOURCE_CLIENT, OF_CONSUMERS - SOURCE_CLIENT)
PRODUCERS: Final = _Kind("producers", SINK_CLIENT, OF_PRODUCERS - SINK_CLIENT)
CLIENT_SETTINGS: Final = frozenset().union(SOURCE_CLIENT, SINK_CLIENT, OF_CONSUMERS, OF_PRODUCERS, REFUSED)
"""All settings of Kafka's consumers and producers, except those of newer versions."""
ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
SPARK_OPTIONS: Final = frozenset(("checkpointLocation", "path"))
"""Options that Spark itself reads."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions to read: those of `topics`, of every topic that matches all of `pattern`, or `partitions`."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read or stream. Sizes are in bytes; None means the option was not given."""

    bootstrap: str
    subscription: Subscription
    start: OffsetBound
    end: OffsetBound
    timestamp_strategy: Literal["error", "latest"]
    fail_on_data_loss: bool
    include_headers: bool
    max_offsets: int | None
    min_offsets: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    group: str | None
    read_committed: bool
    fetch_bytes: int
    poll_timeout_ms: int
    offset_retries: int
    offset_retry_ms: int
    log_dirs: tuple[str, ...]
    account: Account | None
    tls: ClientTls | None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write; `client` has the producer's settings by the names of pybroker.Producer's arguments."""

    bootstrap: str
    topic: str | None
    include_headers: bool
    repeat_headers: bool
    client: Told = field(repr=False)  # may include a password


class _GivenOptions:
    """The given options, by name in lower case; each `take` parses one, and names it in errors."""

    def __init__(self, options: Mapping[str, str], known: frozenset[str], kind: _Kind, other: _Kind) -> None:
        """`known` are options; `kind` is the client used here; `other` the kind that is not."""
        self.values = {key.lower(): str(value) for key, value in options.items() if value is not None}
        self.client = {key[6:]: value for key, value in self.values.items() if key.startswith("kafka.")}
        own = kind.client | kind.java | REFUSED.keys()
        for key in self.values:
            if key.startswith("kafka."):
                continue
            if key in own:
                raise _invalid(f"{key} is a client setting: name it kafka.{key}")
            if key in CLIENT_SETTINGS:
                raise _invalid(f"{key} is a setting of {other.name} and has no effect here: remove it")
            if key in (limit.lower() for limit in NO_LIMITS):
                raise _invalid(f"{key} is not supported: use maxOffsetsPerTrigger")
            _refuse_slip(key, known | SPARK_OPTIONS)
        for key in self.client:
            if key in REFUSED:
                raise _invalid(f"kafka.{key} is not supported: {REFUSED[key]}")
            if key in kind.java:
                logger.warning("kafka.%s has no effect here: it tunes the Java client", key)
            elif key not in kind.client and key in CLIENT_SETTINGS:
                logger.warning("kafka.%s has no effect here: it is a setting of %s", key, other.name)
            elif key not in kind.client:
                _refuse_slip(key, CLIENT_SETTINGS, "kafka.")
                logger.warning("kafka.%s has no effect: no known Kafka client has this setting", key)
        self.security = _security(self.client)
        if not self.client.get("bootstrap.servers"):
            raise _invalid("option kafka.bootstrap.servers is missing: host:port, one or more, separated by commas")

    def take(self, option: str, parse: Callable[[str, str], Value], default: Value) -> Value:
        text = self.values.get(option.lower())
        return default if text is None else parse(text, option)

    def first(self, *ways: tuple[str, Callable[[str, str], Value]], default: Value) -> Value:
        """Parse the first given of several options, in the order in which Spark prefers them."""
        for option, parse in ways:
            if option.lower() in self.values:
                return parse(self.values[option.lower()], option)
        return default


def parse_source(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse the options of a batch read or a stream. Raises KafkaError(INVALID_CONFIG) with one sentence."""
    given = _GivenOptions(options, SOURCE_OPTIONS, CONSUMERS, PRODUCERS)
    start, end = _bounds(given, streaming)
    if streaming:
        for option in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if option.lower() in given.values:
                raise _invalid(f"{option} is for batch reads: a stream has no end")
    min_offsets = given.take("minOffsetsPerTrigger", _positive, None)
    max_offsets = given.take("maxOffsetsPerTrigger", _positive, None)
    if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
        raise _invalid(f"minOffsetsPerTrigger {min_offsets} is above maxOffsetsPerTrigger {max_offsets}")
    isolation = given.client.get("isolation.level", "read_uncommitted")
    log_dirs = given.values.get("logdirs", "")
    account, tls = security_of(given.security)
    return SourceOptions(
        bootstrap=given.client["bootstrap.servers"],
        subscription=_subscription(given),
        start=start,
        end=end,
        timestamp_strategy=given.take("startingOffsetsByTimestampStrategy", _strategy, "error"),
        fail_on_data_loss=given.take("failOnDataLoss", _boolean, True),
        include_headers=given.take("includeHeaders", _boolean, False),
        max_offsets=max_offsets,
        min_offsets=min_offsets,
        max_trigger_delay_ms=given.take("maxTriggerDelay", _duration_ms, MAX_TRIGGER_DELAY_MS),
        min_partitions=given.take("minPartitions", _positive, None),
        max_records_per_partition=given.take("maxRecordsPerPartition", _positive, None),
        group=_group(given),
        read_committed=_one_of(isolation, "kafka.isolation.level", ISOLATION_LEVELS) == "read_committed",
        fetch_bytes=_client_number(given, "max.partition.fetch.bytes", FETCH_BYTES),
        poll_timeout_ms=given.take("kafkaConsumer.pollTimeoutMs", _count, POLL_TIMEOUT_MS),
        offset_retries=given.take("fetchOffset.numRetries", _count, 3),
        offset_retry_ms=given.take("fetchOffset.retryIntervalMs", _count, 1000),
        log_dirs=tuple(filter(None, (part.strip() for part in log_dirs.split(",")))),
        account=account,
        tls=tls,
    )


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write. Raises KafkaError(INVALID_CONFIG) with one sentence."""
    given = _GivenOptions(options, SINK_OPTIONS, PRODUCERS, CONSUMERS)
    client = {key: value for key, value in given.client.items() if key in SINK_CLIENT - SECURITY_CLIENT}
    client.pop("bootstrap.servers")
    if client.get("acks", "all") not in ("all", "-1"):
        raise _invalid(
            f"kafka.acks is {client['acks']!r}; only acks=all is supported: remove it"
        )
    return SinkOptions(
        bootstrap=given.client["bootstrap.servers"],
        topic=given.values.get("topic"),
        include_headers=given.take("includeHeaders", _boolean, False),
        repeat_headers=given.take("repeatHeaders", _boolean, False),
        client={key.replace(".", "_"): value for key, value in client.items()} | given.security,
    )


def _security(client: Mapping[str, str]) -> dict[str, str]:
    """Return the login settings by the names of pybroker's clients. sasl.jaas.config is accepted, as in Spark's own
    source. KafkaError(INVALID_CONFIG)."""
    told = {key.replace(".", "_"): client[key] for key in SECURITY_CLIENT & client.keys()}
    text = told.pop("sasl_jaas_config", None)
    if text is not None:
        try:
            told |= of_jaas(text)
        except ValueError as problem:
            raise _invalid(f"kafka.sasl.jaas.config is not allowed: {problem}") from None
    if "security_protocol" in told:
        told["security_protocol"] = told["security_protocol"].upper()
    security_from(told)
    return told


def _subscription(given: _GivenOptions) -> Subscription:
    ways = [option for option in ("assign", "subscribe", "subscribePattern") if option.lower() in given.values]
    if len(ways) != 1:
        said = " and ".join(ways) + " are given" if ways else "none is given"
        raise _invalid(f"one of the options assign, subscribe and subscribePattern is needed: {said}")
    text = given.values[ways[0].lower()]
    if ways[0] == "assign":
        return Subscription(partitions=offsets.parse_partitions(text, "assign"))
    if ways[0] == "subscribe":
        topics = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
        if not topics:
            raise _invalid("subscribe has no topic")
        return Subscription(topics=topics)
    try:
        re.compile(text)
    except re.error as error:
        raise _invalid(f"subscribePattern {text!r} is not a regular expression: {error}") from error
    return Subscription(pattern=text)


def _bounds(given: _GivenOptions, streaming: bool) -> tuple[OffsetBound, OffsetBound]:
    """Return the start and end: one timestamp for all overrides timestamps by partition, and these override offsets."""
    start = given.first(
        ("startingTimestamp", offsets.parse_timestamp),
        ("startingOffsetsByTimestamp", offsets.parse_timestamps),
        ("startingOffsets", offsets.parse_bound),
        default=offsets.AT_LATEST if streaming else offsets.AT_EARLIEST,
    )
    end = given.first(
        ("endingTimestamp", offsets.parse_timestamp),
        ("endingOffsetsByTimestamp", offsets.parse_timestamps),
        ("endingOffsets", offsets.parse_bound),
        default=offsets.AT_LATEST,
    )
    if not streaming:
        if start.says(LATEST):
            raise _invalid("startingOffsets cannot be latest in a batch read: there would be nothing to read")
        if end.says(EARLIEST):
            raise _invalid("endingOffsets cannot be earliest: there would be nothing to read")
    return start, end


def _group(given: _GivenOptions) -> str | None:
    """The group to which a stream's start and progress are committed: as given, or named after the query."""
    if group := given.client.get("group.id"):
        return group
    if query := given.values.get("queryname"):
        return f"{given.values.get('groupidprefix', GROUP_PREFIX)}-{query}"
    return None


# -- values ------------------------------------------------------------------------------------------------------------


def _boolean(text: str, option: str) -> bool:
    return _one_of(text.strip().lower(), option, ("true", "false")) == "true"


def _strategy(text: str, option: str) -> Literal["error", "latest"]:
    return "latest" if _one_of(text.strip().lower(), option, ("error", "latest")) == "latest" else "error"


def _count(text: str, option: str) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit()) or int(stripped) > offsets.OFFSET_MAX:
        raise _invalid(f"{option} is {text!r}; it must be a whole number")
    return int(stripped)


def _positive(text: str, option: str) -> int | None:
    number = _count(text, option)
    if number == 0:
        raise _invalid(f"{option} is 0; it must be above 0")
    return number


def _client_number(given: _GivenOptions, key: str, default: int) -> int:
    return _positive(given.client[key], f"kafka.{key}") or default if key in given.client else default


_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(text: str, option: str) -> int:
    """Parse `15m`, `30s`, `500ms`, `2h`, as Spark writes times; a bare number is milliseconds."""
    found = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", text.strip().lower())
    unit = _UNITS_MS.get(found[2] or "ms") if found else None
    if found is None or unit is None:
        raise _invalid(f"{option} is {text!r}; it must be a time such as 15m, 30s or 500ms")
    return int(found[1]) * unit


def _one_of(text: str, option: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise _invalid(f"{option} is {text!r}; it can be {' or '.join(allowed)}")
    return text


def _refuse_slip(key: str, known: Set[str], prefix: str = "") -> None:
    by_lower = {name.lower(): name for name in known}
    if key not in by_lower and (near := difflib.get_close_matches(key, by_lower, 1, cutoff=0.8)):
        raise _invalid(f"unknown option {prefix}{key}: did you mean {prefix}{by_lower[near[0]]}?")


def _invalid(why: str) -> KafkaError:
    return KafkaError(INVALID_CONFIG, why)
