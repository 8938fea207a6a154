"""The settings of topics in the metadata log (KRaft) that an earlier Kafka left in the same log dirs.

    __cluster_metadata-0/<offset>-<epoch>.checkpoint    a snapshot: all records that hold at that offset
    __cluster_metadata-0/<base offset>.log              segments: the later records, as in any other log

A record's value is a frame version (1), the number of a record type and its version, each an unsigned varint, and the
record (metadata/src/main/resources/common/metadata), of which three types are read.

A log that cannot be read to its end is not used at all: outdated settings could delete records.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pybroker import core
from pybroker.config.topic import TOPIC
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.compression import BATCH_HEADER_BYTES
from pybroker.protocol.wire import ProtocolError, uvarint

log = logging.getLogger(__name__)

DIRECTORY: Final = "__cluster_metadata-0"
FILE_BYTES_MAX: Final = 1 << 30
"""A larger file is refused: Kafka rolls this log and takes a snapshot much earlier."""
FRAME_VERSION: Final = 1
KINDS: Final[Mapping[int, Any]] = {2: m.TopicRecord, 4: m.ConfigRecord, 9: m.RemoveTopicRecord}
OF_TOPICS, OF_BROKERS = 2, 4
"""Resource types. The name of a broker is its id, or empty for the defaults of all brokers."""
LOG_OVERHEAD_BYTES: Final = 12
"""Size of the base offset and the length of a batch."""
CONTROL, COMPRESSED = 0x20, 0x07
"""Bits of a batch's attributes."""
_SNAPSHOT = re.compile(r"([0-9]{20})-[0-9]{10}\.checkpoint")
_SEGMENT = re.compile(r"([0-9]{20})\.log")


def topic_settings(log_dirs: Iterable[str], broker_id: int) -> Mapping[bytes, Mapping[str, str]]:
    """The settings of each topic, by topic id: its own, else the dynamic defaults of the cluster and this broker.

    Empty if there is no such log; also, with a warning, if it cannot be read."""
    for log_dir in log_dirs:
        path = os.path.join(log_dir, DIRECTORY)
        try:
            if os.path.isdir(path):
                return _read(path, broker_id)
        except (OSError, KafkaError, core.LogError, ProtocolError, LookupError, ValueError) as problem:
            event(log, logging.WARNING, "metadata log of Kafka not used", directory=path, reason=problem)
    return {}


def _read(path: str, broker_id: int) -> Mapping[bytes, Mapping[str, str]]:
    """Read the metadata log in `path`. Raises OSError, LogError, ProtocolError, LookupError, ValueError."""
    names = sorted(os.listdir(path))
    snapshots = [match for name in names if (match := _SNAPSHOT.fullmatch(name))]
    segments = [match for name in names if (match := _SEGMENT.fullmatch(name))]
    image, at = _Image(), 0
    if snapshots:
        for _, value in _records(os.path.join(path, snapshots[-1][0]), 0, has_footer=True):
            image.replay(value)
        at = int(snapshots[-1][1])
    if not segments:
        raise ValueError("it has no segment")
    following = [int(match[1]) for match in segments[1:]]
    for match, end in zip(segments, [*following, None], strict=True):
        if end is not None and end <= at:
            continue
        if int(match[1]) > at:
            raise ValueError(f"the offsets {at} to {int(match[1]) - 1} are missing")
        for offset, value in _records(os.path.join(path, match[0]), int(match[1]), end):
            if offset >= at:
                image.replay(value)
        at = at if end is None else end
    return image.settings(broker_id)


def _records(
    path: str, base: int, end: int | None = None, *, has_footer: bool = False
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, value) of each record of a file, except control records. The file must begin at `base`, have all
    offsets up to `end`, and end with a control record if it has a footer (KIP-630). A truncated last batch is an error:
    it looks like one with a wrong length. Raises OSError, LogError, ValueError."""
    if not os.path.isfile(path):
        raise ValueError(f"{os.path.basename(path)} is not a file")
    with open(path, "rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"{os.path.basename(path)} has more than {FILE_BYTES_MAX} bytes")
    view, at, reached, is_control = memoryview(data), 0, base, False
    while any(view[at : at + LOG_OVERHEAD_BYTES]):
        header = core.check_batch(data, at)
        if header.base_offset != reached:
            raise ValueError(f"offset {header.base_offset} follows offset {reached - 1}")
        if header.attributes & COMPRESSED:
            raise ValueError(f"a batch at offset {header.base_offset} is compressed")
        payload, is_control = view[at + BATCH_HEADER_BYTES : at + header.size], bool(header.attributes & CONTROL)
        for offset, _, _, value, _ in () if is_control else core.walk_records(payload, header):
            if value is not None:
                yield offset, value
        at, reached = at + header.size, header.last_offset + 1
    if any(view[at:]) or end not in (None, reached) or (has_footer and not is_control):
        raise ValueError(f"{os.path.basename(path)} is cut or damaged after offset {reached - 1}")


class _Image:
    """Topics and their settings, as of the records replayed so far."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._settings: dict[tuple[int, str], dict[str, str]] = {}  # by resource type and name

    def settings(self, broker_id: int) -> Mapping[bytes, Mapping[str, str]]:
        brokers = {**self._settings.get((OF_BROKERS, ""), {}), **self._settings.get((OF_BROKERS, str(broker_id)), {})}
        defaults = _of_a_topic(brokers)
        return {
            topic_id: {**defaults, **self._settings.get((OF_TOPICS, name), {})}
            for topic_id, name in self._names.items()
        }

    def replay(self, value: bytes) -> None:
        """Apply one record. Raises ProtocolError, LookupError, ValueError."""
        frame, at = _number(value, 0)
        if frame != FRAME_VERSION:
            raise ValueError(f"a record has the frame version {frame}, not {FRAME_VERSION}")
        number, at = _number(value, at)
        _, at = _number(value, at)
        if number not in KINDS:
            return
        kind = KINDS[number]
        record, _ = codec.decode(kind, 0, value, at)
        if kind is m.TopicRecord:
            self._names[bytes(record.topic_id)] = record.name
        elif kind is m.RemoveTopicRecord:
            self._settings.pop((OF_TOPICS, self._names.pop(bytes(record.topic_id), "")), None)
        elif record.resource_type in (OF_TOPICS, OF_BROKERS):
            own = self._settings.setdefault((record.resource_type, record.resource_name), {})
            if record.value is None:
                own.pop(record.name, None)
            else:
                own[record.name] = record.value


def _of_a_topic(brokers: Mapping[str, str]) -> dict[str, str]:
    """Convert broker settings to the topic settings that they are defaults of. Raises ValueError."""
    found = {}
    for setting in TOPIC.values():
        for name, factor in setting.synonyms:
            if name in brokers:
                found[setting.name] = brokers[name] if factor == 1 else str(max(-1, int(brokers[name]) * factor))
                break
    return found


def _number(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    return (first, at + 1) if first < 0x80 else uvarint(data, at + 1, first)
