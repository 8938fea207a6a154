"""The rules of a topic for which the broker must look at records: keys, timestamps, and the codec they are stored in.

Most topics have none of them, and their batches stay opaque. What is checked here only adds to core's own checks of a
batch, which every append passes.
"""

from typing import Any, NamedTuple, Protocol

from pybroker import core, errors
from pybroker.errors import KafkaError
from pybroker.protocol.compression import CODECS, Buffer, compress, open_batch

ATTRIBUTES = slice(21, 23)
CODEC_MASK = 0x07
NO_LIMIT = (1 << 63) - 1
ANY_TIME = -(1 << 63)
_REASONS = {
    1: (errors.INVALID_RECORD, "it cannot be read"),
    2: (errors.INVALID_RECORD, "it has no key, and the topic is compacted"),
    3: (errors.INVALID_TIMESTAMP, "its timestamp is too far from the broker's clock"),
}


class TopicSettings(Protocol):
    """What the rules need of a topic's configuration (config.TopicConfig)."""

    def __getitem__(self, name: str) -> Any: ...
    def timestamp_limits_ms(self) -> tuple[int, int]: ...


class RefusedRecord(KafkaError):
    """A record breaks a rule of its topic; `index` is its place in its batch."""

    def __init__(self, code: int, index: int, reason: str) -> None:
        super().__init__(code, f"record {index} of the batch is refused: {reason}")
        self.index = index
        self.reason = reason


class Rules(NamedTuple):
    """What a topic demands of records; `codec` is the one they are stored in, None for whatever they come in."""

    need_keys: bool
    before_ms: int
    after_ms: int
    codec: int | None
    level: int | None

    @classmethod
    def of(cls, config: TopicSettings) -> "Rules":
        before, after = config.timestamp_limits_ms()
        if config["message.timestamp.type"] == "LogAppendTime":
            before = after = NO_LIMIT  # the producer's timestamps are replaced
        named: str = config["compression.type"]
        codec = None if named == "producer" else CODECS.index("none" if named == "uncompressed" else named)
        level = config[f"compression.{named}.level"] if named in ("gzip", "lz4", "zstd") else None
        return cls("compact" in config["cleanup.policy"], before, after, codec, level)

    @property
    def looks_inside(self) -> bool:
        """Records must be seen, whatever batch they come in."""
        return self.need_keys or self.before_ms != NO_LIMIT or self.after_ms != NO_LIMIT

    def concern(self, batch: Buffer) -> bool:
        """Whether this batch must go through `apply` before it is appended."""
        return self.looks_inside or (self.codec is not None and _codec_of(batch) != self.codec)


def apply(rules: Rules, batch: Buffer, now_ms: int) -> Buffer:
    """The batch as its topic wants it stored. Takes its time: not on the event loop.

    Raises RefusedRecord, KafkaError 2, 10 or 76 where it cannot be decompressed, core.LogError where it is no batch."""
    header = core.check_batch(batch)
    if header.size != len(batch) or header.is_control:
        return batch  # core refuses it
    plain = open_batch(batch, header)
    earliest = ANY_TIME if rules.before_ms == NO_LIMIT else now_ms - rules.before_ms
    latest = NO_LIMIT if rules.after_ms == NO_LIMIT else now_ms + rules.after_ms
    verdict = core.check_records(plain, header, need_keys=rules.need_keys, timestamp_min=earliest, timestamp_max=latest)
    if verdict >= 0:
        code, reason = _REASONS[verdict & 3]
        raise RefusedRecord(code, verdict >> 2, reason)
    if rules.codec is None or rules.codec == header.codec:
        return batch
    payload = compress(rules.codec, plain, rules.level) if rules.codec else bytes(plain)
    return core.rebuild_batch(batch, payload, header.attributes & ~CODEC_MASK | rules.codec)


def _codec_of(batch: Buffer) -> int:
    return int.from_bytes(batch[ATTRIBUTES], "big") & CODEC_MASK
