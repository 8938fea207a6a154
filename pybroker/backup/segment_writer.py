"""Writes the batches of a partition into files of a backup, a new one at every SEGMENT_BYTES."""

from typing import Final

from pybroker.backup.batches import WholeBatches
from pybroker.backup.manifest import LastBatch, SegmentFile
from pybroker.backup.targets import Target, TargetFile
from pybroker.core import BatchHeader, crc32c

SEGMENT_BYTES: Final = 256 << 20
"""The size from which a new file is begun: what an interrupted run has finished is kept file by file."""


class SegmentWriter:
    """Writes one partition's batches. A file counts once it is finished: `files` are those."""

    def __init__(self, target: Target, directory: str, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.files: list[SegmentFile] = []
        self.last_batch: LastBatch | None = None
        """The last batch of the finished files."""
        self._target = target
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._file: TargetFile | None = None
        self._first = self._written = self._crc = 0
        self._last: BatchHeader | None = None

    def add(self, piece: WholeBatches) -> None:
        """Write whole batches. OSError."""
        if not piece.batches:
            return
        if self._file is None:
            self._first, self._written, self._crc = piece.batches[0][1].base_offset, 0, 0
            self._file = self._target.create(f"{self._directory}/{self._first:020}.log")
        self._file.write(piece.data)
        self._crc = crc32c(piece.data, self._crc)
        self._written += len(piece.data)
        self._last = piece.batches[-1][1]
        if self._written >= self._segment_bytes:
            self.finish()

    def take(self, file: SegmentFile, last: BatchHeader) -> None:
        """Count a file that is in the target already, such as a hard link, after all that was written."""
        self.finish()
        self.files.append(file)
        self.last_batch = last_of(last)

    def finish(self) -> None:
        """Make what was added durable. OSError."""
        if self._file is None or self._last is None:
            return
        self._file.commit()
        self._file = None
        self.files.append(SegmentFile(self._first, self._last.last_offset, self._written, self._crc))
        self.last_batch = last_of(self._last)

    def give_up(self) -> None:
        """Discard the file that is being written."""
        if self._file is not None:
            self._file.discard()
            self._file = None


def last_of(batch: BatchHeader) -> LastBatch:
    """Return how the next run recognizes this batch."""
    return LastBatch(batch.base_offset, batch.partition_leader_epoch, batch.crc)
