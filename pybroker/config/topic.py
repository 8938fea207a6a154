"""A topic's configuration: its own settings over the broker's defaults for topics."""

from collections.abc import Mapping
from typing import Any

from .broker import BrokerConfig, default_of
from .settings import LONG_MAX, ConfigError, DescribedConfig, Setting, Source, Synonym, Value, as_text, shown
from .topic_settings import DURABILITY, RECORDS, RETENTION, SEGMENTS, TIERS

CHAPTERS: dict[str, dict[str, Setting]] = {
    "Records": RECORDS,
    "Segments": SEGMENTS,
    "Retention and compaction": RETENTION,
    "Durability": DURABILITY,
    "Tiered storage": TIERS,
}
TOPIC: dict[str, Setting] = {name: setting for chapter in CHAPTERS.values() for name, setting in chapter.items()}

CORE_NAMES = (
    "segment.bytes",
    "segment.ms",
    "segment.jitter.ms",
    "segment.index.bytes",
    "index.interval.bytes",
    "retention.ms",
    "retention.bytes",
    "max.message.bytes",
    "file.delete.delay.ms",
    "flush.messages",
)
"""Settings that are passed to core unchanged."""
COMPACTION_LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")
CLEANUP_BITS = {"delete": 1, "compact": 2}


class TopicConfig:
    """A topic's settings, typed: `config["retention.ms"]`. `overrides` are the topic's own, as given."""

    def __init__(self, broker: BrokerConfig, overrides: Mapping[str, str | None], *, stored: bool = False) -> None:
        """Raises ConfigError if a name is unknown or a value not allowed.

        `stored`: the overrides were valid when they were stored, so that the topic must be served in any case: invalid
        ones are left out, and `problems` has a sentence for each."""
        self.overrides: dict[str, str] = {}
        self.problems: list[str] = []
        self._broker = broker
        self._values: dict[str, Value] = {name: self._default(setting) for name, setting in TOPIC.items()}
        for name, text in overrides.items():
            try:
                self._take(name, text)
            except ConfigError as problem:
                if not stored:
                    raise
                self.problems.append(problem.message)
        self._throttled: dict[str, frozenset[tuple[int, int]]] = {}
        low, high = (self[name] for name in COMPACTION_LAGS)
        if low > high:
            sentence = f"min.compaction.lag.ms = {low} is above max.compaction.lag.ms = {high}"
            if not stored:
                raise ConfigError(sentence)
            self.problems.append(sentence)
            for name in COMPACTION_LAGS:
                self.overrides.pop(name, None)
                self._values[name] = self._default(TOPIC[name])

    def _take(self, name: str, text: str | None) -> None:
        if name not in TOPIC:
            import difflib  # only needed for unknown names

            near = difflib.get_close_matches(name, TOPIC, n=1, cutoff=0.8)
            raise ConfigError(f"{shown(name)} is no setting of a topic{f'; did you mean {near[0]}?' if near else ''}")
        if text is None:
            raise ConfigError(f"{name} has no value; it takes {TOPIC[name].allowed}")
        self._values[name] = TOPIC[name].parse(text, "the topic's own")
        self.overrides[name] = text

    def __getitem__(self, name: str) -> Any:
        """The value: bool, int, float, str or, for lists, a tuple of str. Raises KeyError if unknown."""
        return self._values[name]

    def core(self) -> dict[str, int]:
        """The settings that core.LogManager.open and Partition.configure take, as integers."""
        numbers: dict[str, int] = {name: self[name] for name in CORE_NAMES}
        numbers["max.message.bytes"] = max(1, numbers["max.message.bytes"])  # for core 0 means no limit
        numbers["message.timestamp.type"] = int(self["message.timestamp.type"] == "LogAppendTime")
        numbers["cleanup.policy"] = sum(CLEANUP_BITS[word] for word in set(self["cleanup.policy"]))
        if "compact" in self["cleanup.policy"]:  # the active segment is not compacted (KIP-354)
            numbers["segment.ms"] = min(numbers["segment.ms"], self["max.compaction.lag.ms"])
        numbers["producer.id.expiration.ms"] = self._broker["producer.id.expiration.ms"]
        return numbers

    def throttles(self, role: str, partition: int, broker: int) -> bool:
        """True if a replica is listed as throttled in this role, "leader" or "follower"."""
        name = f"{role}.replication.throttled.replicas"
        listed: tuple[str, ...] = self[name]
        if not listed or listed == ("*",):
            return bool(listed)
        if name not in self._throttled:  # parsed once, as a topic may have many replicas on a long list
            pairs = (each.split(":") for each in listed if each)
            self._throttled[name] = frozenset((int(index), int(holder)) for index, holder in pairs)
        return (partition, broker) in self._throttled[name]

    def timestamp_limits_ms(self) -> tuple[int, int]:
        """Milliseconds by which a producer's timestamp may be (before, after) the broker's clock (KIP-937); 2^63-1 for
        no limit."""
        older: int = self["message.timestamp.difference.max.ms"]
        before: int = self["message.timestamp.before.max.ms"]
        after: int = self["message.timestamp.after.max.ms"]
        return older if before == LONG_MAX else before, older if after == LONG_MAX else after

    def entries(self) -> list[DescribedConfig]:
        """Every setting of this topic as DescribeConfigs returns it."""
        return [self._entry(setting) for setting in TOPIC.values()]

    def _default(self, setting: Setting) -> Value:
        for name, factor in setting.synonyms:
            value = self._broker[name]
            if value is not None:
                return -1 if value == -1 else value * factor if factor != 1 else value
        return default_of(setting)

    def _entry(self, setting: Setting) -> DescribedConfig:
        value = as_text(self[setting.name])
        synonyms = self._broker.synonyms(setting.synonyms[0][0]) if setting.synonyms else []
        if setting.name in self.overrides:
            synonyms.insert(0, Synonym(setting.name, value, Source.DYNAMIC_TOPIC))
        return DescribedConfig(
            setting.name,
            value,
            synonyms[0].source if synonyms else Source.DEFAULT,
            False,
            setting.sensitive,
            setting.type,
            setting.doc,
            tuple(synonyms),
        )
