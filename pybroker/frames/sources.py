"""The records of one topic as Arrow batches: fetched from brokers, or read out of a log directory."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, cast

import numpy as np
import pyarrow as pa

from pybroker import errors
from pybroker.client.columns.read_log import read_log
from pybroker.client.columns.segments import BATCH_ROWS, LogFiles, read_index
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.settings import ConsumerSettings, FetchSettings, RequestSettings
from pybroker.core import Columns
from pybroker.errors import KafkaError
from pybroker.frames.ranges import OffsetSource, Ranges
from pybroker.model import TopicPartition
from pybroker.protocol.compression import decompress_stored

METADATA: Final = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "headers")
"""What Kafka has of each record beside its value."""
RAW: Final = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")

_DEFAULTS: Final[ConsumerSettings] = {  # type: ignore[typeddict-item]  # without bootstrap_servers
    "auto_offset_reset": "none",
    "allow_auto_create_topics": False,
    "max_partition_fetch_bytes": 8 << 20,
}
_REFUSED: Final = ("group_id", "group_instance_id", "enable_auto_commit", "auto_offset_reset")
_IDLE_MS: Final = 500
_CONTACT_MS: Final = 5000
"""How long the first request waits for a broker, unless default_api_timeout_ms is given."""
_CHECKPOINT: Final = "log-start-offset-checkpoint"

class ReadSettings(RequestSettings, FetchSettings, total=False):
    """The settings of a Consumer that a read takes, for type checkers."""


Servers = str | Sequence[str]
LogDirs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class RecordSource(OffsetSource, Protocol):
    """A topic's offsets, and its records; only one thread uses it at a time."""

    def batches(self, ranges: Ranges, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """The records of the ranges, with `partition` and these columns; those of a partition in their order."""

    def close(self) -> None: ...


def all_settings(servers: Servers | None, settings: ReadSettings) -> dict[str, object]:
    """The settings of a Consumer, with the addresses if there are any."""
    return {**settings} if servers is None else {"bootstrap_servers": servers, **settings}


def open_source(topic: str, log_dir: LogDirs | None, settings: Mapping[str, object]) -> RecordSource:
    """The source that a caller named. ValueError for both or neither of brokers and a log directory."""
    if log_dir is None:
        if not settings.get("bootstrap_servers"):
            raise ValueError("where the topic is: give bootstrap_servers, or log_dir to read files")
        return BrokerTopic(topic, settings)
    if settings:
        raise ValueError(f"log_dir reads files, without a broker: {', '.join(settings)} would have no effect")
    return LogDirTopic(topic, log_dir)


class BrokerTopic:
    """A topic that is fetched from brokers, by a consumer without a group."""

    def __init__(self, topic: str, settings: Mapping[str, object]) -> None:
        for name in _REFUSED:
            if name in settings:
                raise ValueError(f"{name} is a setting of groups: start says where reading begins, and nothing commits")
        self.topic = topic
        self._consumer = Consumer(**cast(ConsumerSettings, {**_DEFAULTS, **settings}))
        self._patience_s = float(str(settings.get("default_api_timeout_ms", 60_000))) / 1000
        self._contact_ms = None if "default_api_timeout_ms" in settings else _CONTACT_MS

    def close(self) -> None:
        self._consumer.close()

    def partitions(self) -> list[int]:
        return sorted(self._consumer.partitions_for(self.topic, timeout_ms=self._contact_ms))

    def _tps(self, partitions: Iterable[int]) -> list[TopicPartition]:
        return [TopicPartition(self.topic, partition) for partition in partitions]

    def first_offsets(self, partitions: Sequence[int]) -> dict[int, int]:
        return {tp.partition: at for tp, at in self._consumer.beginning_offsets(self._tps(partitions)).items()}

    def end_offsets(self, partitions: Sequence[int]) -> dict[int, int]:
        return {tp.partition: at for tp, at in self._consumer.end_offsets(self._tps(partitions)).items()}

    def offsets_at(self, times_ms: Mapping[int, int]) -> dict[int, int | None]:
        asked: dict[tuple[str, int], int] = {TopicPartition(self.topic, p): at for p, at in times_ms.items()}
        found = self._consumer.offsets_for_times(asked)
        return {tp.partition: None if at is None else at.offset for tp, at in found.items()}

    def batches(self, ranges: Ranges, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
        ends = {TopicPartition(self.topic, p): end for p, (start, end) in ranges.items() if start < end}
        names = list(dict.fromkeys([*columns, "offset"]))
        self._consumer.assign(ends)
        for tp in ends:
            self._consumer.seek(tp, ranges[tp.partition][0])
        moved_s = time.monotonic()
        while ends:
            batch = self._consumer.poll_arrow(_IDLE_MS, columns=names)
            done = [tp for tp, end in ends.items() if self._consumer.position(tp) >= end]
            if batch.num_rows:
                moved_s = time.monotonic()
                batch = _before(batch, {tp.partition: ranges[tp.partition][1] for tp in done})
            elif not done and time.monotonic() - moved_s > self._patience_s:
                left = ", ".join(str(tp) for tp in ends)
                words = f"nothing was read for {self._patience_s:g} s, and the end is not reached in {left}"
                raise KafkaError(errors.REQUEST_TIMED_OUT, words)
            for tp in done:
                del ends[tp]
            if done and ends:
                self._consumer.pause(*done)
            if batch.num_rows:
                yield batch


def _before(batch: pa.RecordBatch, ends: Mapping[int, int]) -> pa.RecordBatch:
    """The rows that lie before the ends of their partitions."""
    if not ends:
        return batch
    partitions, offsets = batch.column("partition").to_numpy(), batch.column("offset").to_numpy()
    beyond = np.zeros(batch.num_rows, bool)
    for partition, end in ends.items():
        beyond |= (partitions == partition) & (offsets >= end)
    return batch.filter(pa.array(~beyond)) if beyond.any() else batch


class LogDirTopic:
    """A topic whose partitions are directories of one log dir, or several; no broker is asked."""

    def __init__(self, topic: str, log_dirs: LogDirs) -> None:
        given = [log_dirs] if isinstance(log_dirs, str | os.PathLike) else list(log_dirs)
        self._homes = [Path(each) for each in given]
        name = re.compile(rf"{re.escape(topic)}-(\d{{1,9}})")
        self._paths: dict[int, Path] = {}
        for home in self._homes:
            for path in sorted(home.iterdir()):
                found = name.fullmatch(path.name)
                if found and path.is_dir():
                    self._paths.setdefault(int(found[1]), path)
        if not self._paths:
            where = " or ".join(map(str, self._homes))
            raise FileNotFoundError(f"{where} has no directory of a partition of {topic!r}, such as {topic}-0")
        self._topic = topic

    def close(self) -> None:
        """Nothing is open between two batches."""

    def partitions(self) -> list[int]:
        return sorted(self._paths)

    def first_offsets(self, partitions: Sequence[int]) -> dict[int, int]:
        deleted = self._deleted()
        return {p: max(LogFiles(self._paths[p]).segments()[0], deleted.get(p, 0)) for p in partitions}

    def _deleted(self) -> dict[int, int]:
        """The first offsets of partitions whose earlier records were deleted (DeleteRecords)."""
        found: dict[int, int] = {}
        for home in self._homes:
            with contextlib.suppress(OSError, ValueError):
                for line in (home / _CHECKPOINT).read_text().splitlines()[2:]:
                    topic, partition, offset = line.split(" ")
                    if topic == self._topic:
                        found[int(partition)] = int(offset)
        return found

    def end_offsets(self, partitions: Sequence[int]) -> dict[int, int]:
        return {p: _end_offset(LogFiles(self._paths[p])) for p in partitions}

    def offsets_at(self, times_ms: Mapping[int, int]) -> dict[int, int | None]:
        return {p: LogFiles(self._paths[p]).offset_for_time(at) for p, at in times_ms.items()}

    def batches(self, ranges: Ranges, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
        names = [name for name in RAW if name in {"topic", "partition", "offset", *columns}]
        for partition, (start, end) in ranges.items():
            if start < end:
                path = self._paths[partition]
                yield from read_log(path, start_offset=start, end_offset=end, columns=names)


def _end_offset(log: LogFiles) -> int:
    """The offset after the last record of a partition's directory: the last segment is read from its last index entry
    on."""
    base = start = log.segments()[-1]
    with contextlib.suppress(OSError):
        entries = read_index(log.path / f"{base:020}.index")
        start += int(entries["offset"][-1]) if len(entries) else 0
    end, passed = base, Columns(["offset"], decompress=decompress_stored)
    for batches in log.batches(start):
        while not batches.finished:
            passed.read(batches, max_records=BATCH_ROWS)
            passed.take()
        end = max(end, batches.next_offset)
    return end
