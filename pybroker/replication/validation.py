"""A topic's rules for records: they must be readable, have keys, valid timestamps; and the codec to store them in.

Kafka's LogValidator. Core walks uncompressed records at every append. This module has the slower checks, and those that
only some topics require: the inside of compressed batches (`record.validation`), keys, timestamps, the topic's codec.
"""

from typing import Any, Final, NamedTuple, NoReturn, Protocol

from pybroker import core, errors
from pybroker.errors import KafkaError
from pybroker.model import CODECS
from pybroker.protocol.compression import BATCH_HEADER_BYTES, LZ4, Buffer, compress, open_batch

ATTRIBUTES = slice(21, 23)
CODEC_MASK = 0x07
NO_LIMIT = (1 << 63) - 1
ANY_TIME = -(1 << 63)
ZSTD: Final = CODECS.index("zstd")
LZ4_FLAGS_AT: Final = 61 + 4
LZ4_INDEPENDENT: Final = 0x20
MALFORMED, NO_KEY, TIMESTAMP = 1, 2, 3
"""Reasons of core.check_records."""
SHOWN = 3
"""An error message shows at most this many bad records; record_errors in the answer has them all."""


class TopicSettings(Protocol):
    """The part of a topic's configuration (config.TopicConfig) that the rules use."""

    def __getitem__(self, name: str) -> Any: ...
    def timestamp_limits_ms(self) -> tuple[int, int]: ...


class RecordFault(NamedTuple):
    """The error of one record; `batch_index` is its index in its batch."""

    batch_index: int
    message: str


class RefusedRecords(KafkaError):
    """Records break rules of their topic, and their batch is refused; `faults` are the errors for the answer."""

    def __init__(self, code: int, count: int, faults: list[RecordFault]) -> None:
        if code == errors.INVALID_TIMESTAMP:
            message = "One or more records have been rejected due to invalid timestamp"
        else:
            first = ", ".join(f"RecordError(batchIndex={f.batch_index}, message={f.message!r})" for f in faults[:SHOWN])
            message = (
                f"One or more records have been rejected due to {count} record errors in total, and only showing the "
                f"first three errors at most: [{first}]"
            )
        super().__init__(code, message)
        self.faults = faults


class RecordRules(NamedTuple):
    """A topic's rules for records. `codec`: the codec to store them in, None for the producer's. `envelope`: compressed
    batches are accepted without reading their records."""

    envelope: bool
    need_keys: bool
    before_ms: int
    after_ms: int
    codec: int | None
    level: int | None

    @classmethod
    def of(cls, config: TopicSettings) -> "RecordRules":
        before, after = config.timestamp_limits_ms()
        if config["message.timestamp.type"] == "LogAppendTime":
            before = after = NO_LIMIT  # the producer's timestamps are replaced
        named: str = config["compression.type"]
        codec = None if named == "producer" else CODECS.index("none" if named == "uncompressed" else named)
        level = config[f"compression.{named}.level"] if named in ("gzip", "lz4", "zstd") else None
        envelope = config["record.validation"] == "envelope"
        return cls(envelope, "compact" in config["cleanup.policy"], before, after, codec, level)

    @property
    def looks_inside(self) -> bool:
        """True if the records of every batch must be checked."""
        return self.need_keys or self.before_ms != NO_LIMIT or self.after_ms != NO_LIMIT

    def concern(self, batch: Buffer) -> bool:
        """True if this batch must go through `apply` before it is appended."""
        codec = _codec_of(batch)
        if self.looks_inside or (self.codec is not None and codec != self.codec):
            return True
        return bool(codec) and not self.envelope


def apply(rules: RecordRules, batch: Buffer, now_ms: int, where: object) -> Buffer:
    """Check a batch, and return it as its topic stores it; `where` is the partition, for messages. Blocks: not for the
    event loop's thread.

    Raises RefusedRecords; MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE or INVALID_RECORD if the records cannot be
    decompressed or read; core.LogError if it is not a batch."""
    header = core.check_batch(batch)
    if header.size != len(batch) or header.is_control or header.codec >= len(CODECS):
        return batch  # core refuses it
    plain = _open(batch, header)
    earliest = ANY_TIME if rules.before_ms == NO_LIMIT else now_ms - rules.before_ms
    latest = NO_LIMIT if rules.after_ms == NO_LIMIT else now_ms + rules.after_ms
    count, faults = core.check_records(
        plain, header, need_keys=rules.need_keys, timestamp_min=earliest, timestamp_max=latest
    )
    if count:
        _refuse(header, count, faults, where, f"[{earliest}, {latest}]")
    if rules.codec is None or rules.codec == header.codec:
        return batch
    payload = compress(rules.codec, plain, rules.level) if rules.codec else bytes(plain)
    return core.rebuild_batch(batch, payload, header.attributes & ~CODEC_MASK | rules.codec)


def _open(batch: Buffer, header: core.BatchHeader) -> Buffer:
    """Decompress the records. Raises INVALID_RECORD for bad ones: the CRC is right, and after CORRUPT_MESSAGE a client
    would send them again."""
    try:
        plain = open_batch(batch, header, strict=True)
    except KafkaError as problem:
        if problem.code != errors.CORRUPT_MESSAGE:
            raise
        raise KafkaError(errors.INVALID_RECORD, problem.message) from None
    if header.codec == LZ4 and not batch[LZ4_FLAGS_AT] & LZ4_INDEPENDENT:
        raise KafkaError(errors.INVALID_RECORD, "its lz4 frame has linked blocks, which Java clients cannot read")
    if header.codec == ZSTD:
        frames = memoryview(batch)[BATCH_HEADER_BYTES : header.size]
        if not core.zstd_frames_are_strict(frames, len(plain)):
            raise KafkaError(errors.INVALID_RECORD, "its zstd frame cannot be read by every zstd library")
    return plain


def _refuse(
    header: core.BatchHeader, count: int, faults: list[tuple[int, int, int]], where: object, times: str
) -> NoReturn:
    index, reason, _ = faults[0]
    if reason == MALFORMED:
        what = f"record {index} of {header.count} cannot be read"
        if index == header.count:
            what = f"bytes follow the last of {header.count} records"
        raise KafkaError(errors.INVALID_RECORD, f"{where}: {what}")
    late = any(reason == TIMESTAMP for _, reason, _ in faults)
    told = [
        RecordFault(
            index,
            f"Compacted topic cannot accept message without key in topic partition {where}"
            if reason == NO_KEY
            else f"Timestamp {timestamp} of message with offset {index} is out of range. "
            f"The timestamp should be within {times}",
        )
        for index, reason, timestamp in faults
    ]
    raise RefusedRecords(errors.INVALID_TIMESTAMP if late else errors.INVALID_RECORD, count, told)


def _codec_of(batch: Buffer) -> int:
    return int.from_bytes(batch[ATTRIBUTES], "big") & CODEC_MASK
