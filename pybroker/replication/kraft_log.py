"""The settings of topics, as the metadata log of an earlier Kafka (KRaft) in the same log dirs has them.

    __cluster_metadata-0/<offset>-<epoch>.checkpoint    a snapshot: all records that hold at that offset
    __cluster_metadata-0/<base offset>.log              segments: what came since, as in any other log

A record's value is a frame version (1), the number of a record type and its version, each an unsigned varint, and the
record in Kafka's flexible encoding (metadata/src/main/resources/common/metadata). Three types are read:

    2 TopicRecord         name compact string, topic id 16 bytes
    9 RemoveTopicRecord   topic id 16 bytes
    4 ConfigRecord        resource type int8 (2: topic), resource name, name: compact strings, value: nullable one

What cannot be read to its end is not used at all: settings that are out of date may delete records.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pybroker import core
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.protocol.compression import BATCH_HEADER_BYTES
from pybroker.protocol.wire import ProtocolError, uvarint

log = logging.getLogger(__name__)

DIRECTORY: Final = "__cluster_metadata-0"
FILE_BYTES_MAX: Final = 1 << 30
"""A larger file is refused: Kafka rolls this log, and takes a snapshot, long before."""
FRAME_VERSION: Final = 1
TOPIC, CONFIG, REMOVE_TOPIC = 2, 4, 9
OF_TOPICS: Final = 2
CONTROL, COMPRESSED = 0x20, 0x07
"""Bits of a batch's attributes."""
_SNAPSHOT = re.compile(r"([0-9]{20})-[0-9]{10}\.checkpoint")
_SEGMENT = re.compile(r"([0-9]{20})\.log")


def topic_settings(log_dirs: Iterable[str]) -> Mapping[bytes, Mapping[str, str]]:
    """The own settings of each topic, by topic id; empty where there is no such log, or, with a warning, none that can
    be read."""
    for log_dir in log_dirs:
        path = os.path.join(log_dir, DIRECTORY)
        try:
            if os.path.isdir(path):
                return _read(path)
        except (OSError, KafkaError, core.LogError, ProtocolError, LookupError, ValueError) as problem:
            event(log, logging.WARNING, "metadata log of Kafka not used", directory=path, reason=problem)
    return {}


def _read(path: str) -> Mapping[bytes, Mapping[str, str]]:
    """Raises OSError, LogError, ProtocolError, LookupError, ValueError."""
    names = sorted(os.listdir(path))
    snapshots = [match for name in names if (match := _SNAPSHOT.fullmatch(name))]
    segments = [match for name in names if (match := _SEGMENT.fullmatch(name))]
    image, at = _Image(), 0
    if snapshots:
        for _, value in _records(os.path.join(path, snapshots[-1][0])):
            image.replay(value)
        at = int(snapshots[-1][1])
    following = [int(match[1]) for match in segments[1:]]
    for match, end in zip(segments, [*following, None], strict=True):
        if end is not None and end <= at:
            continue
        if int(match[1]) > at:
            raise ValueError(f"the offsets {at} to {int(match[1]) - 1} are missing")
        for offset, value in _records(os.path.join(path, match[0])):
            if offset >= at:
                image.replay(value)
        at = at if end is None else end
    return image.settings()


def _records(path: str) -> Iterator[tuple[int, bytes]]:
    """(offset, value) of each record that is no control record. Raises OSError, LogError, ValueError."""
    with open(path, "rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"{os.path.basename(path)} has more than {FILE_BYTES_MAX} bytes")
    view = memoryview(data)
    for position, header in core.iter_batches(data):
        if header.attributes & CONTROL:
            continue
        if header.attributes & COMPRESSED:
            raise ValueError(f"a batch at offset {header.base_offset} is compressed")
        payload = view[position + BATCH_HEADER_BYTES : position + header.size]
        for offset, _, _, value, _ in core.walk_records(payload, header):
            if value is not None:
                yield offset, value


class _Image:
    """Topics and their settings, as far as the records go that were replayed."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._settings: dict[str, dict[str, str]] = {}

    def settings(self) -> Mapping[bytes, Mapping[str, str]]:
        return {topic_id: self._settings.get(name, {}) for topic_id, name in self._names.items()}

    def replay(self, value: bytes) -> None:
        """Raises ProtocolError, LookupError, ValueError."""
        frame, at = _number(value, 0)
        if frame != FRAME_VERSION:
            raise ValueError(f"a record has the frame version {frame}, not {FRAME_VERSION}")
        kind, at = _number(value, at)
        _, at = _number(value, at)
        if kind == TOPIC:
            name, at = _string(value, at)
            self._names[_id(value, at)] = name or ""
        elif kind == REMOVE_TOPIC:
            self._settings.pop(self._names.pop(_id(value, at), ""), None)
        elif kind == CONFIG and value[at] == OF_TOPICS:
            resource, at = _string(value, at + 1)
            name, at = _string(value, at)
            text, at = _string(value, at)
            own = self._settings.setdefault(resource or "", {})
            if text is None:
                own.pop(name or "", None)
            else:
                own[name or ""] = text


def _number(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    return (first, at + 1) if first < 0x80 else uvarint(data, at + 1, first)


def _string(data: bytes, at: int) -> tuple[str | None, int]:
    """A compact string, None for null, and where it ends. Raises IndexError where it runs over the end."""
    size, at = _number(data, at)
    if size == 0:
        return None, at
    end = at + size - 1
    if end > len(data):
        raise IndexError("a string runs over the end of its record")
    return data[at:end].decode(), end


def _id(data: bytes, at: int) -> bytes:
    if at + 16 > len(data):
        raise IndexError("a topic id runs over the end of its record")
    return data[at : at + 16]
