"""Read sealed segments as files, on executors that share a disk with the broker (option logDirs).

A partition's directory has its records in files named after their first offset. The last one is being written; the
others no longer change, but retention may remove them and compaction may replace them. So a file is read
from its open descriptor, which outlives both, where it lies, through maps that a file which gets shorter does no harm.
If anything is not as expected, the broker is asked instead: this path is only an optimization.
"""

import contextlib
import os
from base64 import urlsafe_b64decode
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from pybroker.client.columns.segments import WINDOW_BYTES, position_of, window
from pybroker.core import LogError, PartitionBatches
from pybroker.spark.options import SourceOptions
from pybroker.spark.reading.input_partitions import KafkaInputPartition

_LOG: Final = ".log"


class Segment(NamedTuple):
    """A file with the records from `base` up to `end`, the base of the next file."""

    base: int
    end: int
    path: Path


class SegmentReader:
    """Reads the part of a range that is in sealed segments; the broker serves it from `offset` on."""

    def __init__(self, options: SourceOptions, partition: KafkaInputPartition, offset: int) -> None:
        self.range = partition.range
        self.offset = offset
        self._segments = [] if options.read_committed else _sealed(options.log_dirs, partition)
        self._window_bytes = min(options.fetch_bytes, WINDOW_BYTES)
        self._file: int | None = None
        self._position = 0
        self._segment_end = 0
        self._reached = 0
        self._next_base: int | None = None
        self._batches: PartitionBatches | None = None
        self._mapped = True

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def next_batches(self) -> PartitionBatches | None:
        """Return the batches at the current offset; None at the end of the range, or of the sealed segments."""
        if self.offset >= min(self.range.end, self._segments[-1].end if self._segments else 0):
            return None
        if self.offset >= self._segment_end:
            self.close()  # or compaction merged several into one, and the file goes on
        if self._file is None and not self._open():
            return None
        assert self._file is not None, "a file is open"
        try:
            data = window(self._file, self._position, self._window_bytes, mapped=self._mapped)
        except LogError:  # a disk error
            return None
        if data is None:  # cut, damaged, or with a gap from compaction: ask the broker
            return None
        end = min(self.range.end, self._segment_end)
        self._batches = PartitionBatches(
            data, start_offset=self.offset, end_offset=end, reached=self._reached, next_base=self._next_base
        )
        return self._batches

    def go_on(self, offset: int) -> None:
        assert self._batches is not None, "there is something that was read"
        self.offset = offset
        self._position += self._batches.position
        self._reached = self._batches.reached
        self._mapped = not self._batches.stale

    def _open(self) -> bool:
        """Open the segment with the offset. False if there is none: the broker then reports why."""
        for base, end, path in self._segments:
            if base <= self.offset < end:
                try:
                    self._file = os.open(path, os.O_RDONLY)
                except OSError:
                    return False
                self._segment_end = end
                self._reached = base
                # Checked after the file is open: compaction deletes the merged segments before it renames the new one.
                self._next_base = end if path.with_name(f"{end:020}{_LOG}").exists() else None
                self._position = position_of(self._file, path.with_suffix(".index"), base, self.offset)
                return True
        return False


def _sealed(log_dirs: tuple[str, ...], partition: KafkaInputPartition) -> list[Segment]:
    """Return the segments that are no longer written, ascending."""
    for log_dir in log_dirs:
        home = Path(log_dir) / str(partition.range.tp)
        if not _is_of_topic(home, partition.leader.topic_id):
            continue
        with contextlib.suppress(OSError, ValueError):
            files = sorted((int(path.stem), path) for path in home.iterdir() if path.suffix == _LOG)
            return [Segment(base, after, path) for (base, path), (after, _) in pairwise(files)]
    return []


def _is_of_topic(home: Path, topic_id: bytes) -> bool:
    """True if the directory belongs to this topic, and not to an earlier topic of that name or another cluster's."""
    try:
        lines = (home / "partition.metadata").read_text().splitlines()
        told = dict(line.split(":", 1) for line in lines if ":" in line)["topic_id"].strip()
        return urlsafe_b64decode(told + "==") == topic_id
    except (OSError, KeyError, ValueError):
        return False
