"""Copies one partition into a backup: decides where the earlier copy is continued, then takes segments and batches.

    earlier copy ──the topic, or the log, is another one──> refused, unless it may be copied anew
         │ ──compacted, and older than tombstones are kept──> anew: a deletion may have been missed
         └──it continues──> sealed segments that lie here, by link or copy; the rest by Fetch, up to the high watermark
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.backup.batches import Advance, Transactions, WholeBatches, walked
from pybroker.backup.fetching import PartitionReader
from pybroker.backup.local_logs import LocalLogs, SealedSegment
from pybroker.backup.manifest import PartitionBackup, SegmentFile, topic_id_text
from pybroker.backup.segment_writer import SegmentWriter
from pybroker.backup.targets import Target
from pybroker.client.admin import Admin
from pybroker.core import BatchHeader, crc32c
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

_TRUNCATED: Final = "it was truncated, as by an unclean election"


class CopyRequest(NamedTuple):
    """A partition to copy, up to `end`, and the copy that there is of it."""

    tp: TopicPartition
    topic_id: bytes
    start: int
    end: int
    now_ms: int
    earlier: PartitionBackup | None
    earlier_topic_id: str
    tombstones_ms: int | None
    """How long a compacted topic keeps tombstones; None if it is not compacted."""
    anew: str
    """The directory for a copy that is begun anew."""
    leader: int = -1


class Discontinued(Exception):
    """The earlier copy is not the beginning of the cluster's log; the message says why."""


class CopyOptions(NamedTuple):
    """Choices for the copying of partitions."""

    anew: bool = False
    """True if a copy that does not continue is replaced."""
    links: bool = True
    """True if segments may become hard links."""


class PartitionCopy:
    """The copy of one partition: `state()` is what it has, at any moment."""

    def __init__(
        self, wanted: CopyRequest, target: Target, logs: LocalLogs, options: CopyOptions, advance: Advance,
        stopped: Callable[[], bool],
    ) -> None:
        self.wanted = wanted
        self.warnings: list[str] = []
        self.linked_bytes = 0
        self._target = target
        self._logs = logs
        self._options = options
        self._advance = advance
        self._stopped = stopped
        self._base = wanted.earlier
        self._missing = list(self._base.missing) if self._base else []
        self._position = self._start = 0
        self._begin()

    def _begin(self) -> None:
        """Continue the earlier copy, or begin one where the log begins."""
        base, wanted = self._base, self.wanted
        self._start = base.start_offset if base else wanted.start
        self._position = base.end_offset if base else wanted.start
        directory = base.directory if base else wanted.anew
        self._directory = directory
        self._transactions = Transactions(*((base.aborted, base.open) if base else ()))
        self._writer = SegmentWriter(self._target, directory)
        self._mark(self._position)

    def _mark(self, end: int) -> None:
        """Note that all before `end` is in finished files: that is what `state()` has from now on."""
        base, writer, wanted = self._base, self._writer, self.wanted
        taken_ms = wanted.now_ms if base is None or end >= wanted.end else base.taken_ms
        self._state = PartitionBackup(
            wanted.tp.partition, self._directory, self._start, end, taken_ms,
            writer.last_batch or (base.last_batch if base else None), (*(base.files if base else ()), *writer.files),
            tuple(self._missing), tuple(self._transactions.aborted), self._transactions.open,
        )  # fmt: skip

    @property
    def is_anew(self) -> bool:
        """True if nothing of an earlier copy is in `state()`."""
        return self._base is None

    def state(self) -> PartitionBackup:
        """The copy as far as its files are finished."""
        return self._state

    def run(self, admin: Admin) -> None:
        """Copy up to the end. Discontinued, KafkaError, OSError; `state()` is valid afterwards all the same."""
        reader = PartitionReader(admin, self.wanted.tp, self.wanted.topic_id, self.wanted.leader)
        try:
            self._check_continues(reader)
        except Discontinued as why:
            if not self._options.anew:
                raise
            self._anew(str(why))
        self._target.keep_only(self._directory, [file.name for file in self._base.files] if self._base else [])
        try:
            while self._position < self.wanted.end and not self._stopped():
                self._pass_deleted(self.wanted.start)
                if not self._take_sealed(reader):
                    self._fetch(reader)
            if not self._stopped():
                self._finish()
        finally:
            self._writer.give_up()

    def _anew(self, why: str) -> None:
        tp = self.wanted.tp
        self.warnings.append(f"{tp} was copied anew: {why}")
        self._base, self._missing = None, []
        self._begin()

    # -- the earlier copy ----------------------------------------------------------------------------------------------

    def _check_continues(self, reader: PartitionReader) -> None:
        """Raise Discontinued unless the log begins with the earlier copy."""
        base, wanted = self._base, self.wanted
        if base is None:
            return
        topic_id = wanted.topic_id.hex()
        if wanted.earlier_topic_id != topic_id:
            now, was = topic_id_text(wanted.topic_id), topic_id_text(bytes.fromhex(wanted.earlier_topic_id))
            raise Discontinued(f"topic {wanted.tp.topic} was created again since: its id is {now}, not {was}")
        if wanted.end < base.end_offset:
            raise Discontinued(f"the log ends at {wanted.end}, the backup at {base.end_offset}: {_TRUNCATED}")
        if base.last_batch is None or base.end_offset == 0:
            return
        if wanted.tombstones_ms is not None and wanted.now_ms - base.taken_ms >= wanted.tombstones_ms:
            if base.end_offset < wanted.end:
                why = "it is compacted, and its last backup is older than delete.retention.ms: a tombstone may be gone"
                self._anew(why)
            return
        self._check_last_batch(reader, base)

    def _check_last_batch(self, reader: PartitionReader, base: PartitionBackup) -> None:
        """Compare the last batch with the log: by its leader epoch, and by its CRC if it is still there."""
        last = base.last_batch
        assert last is not None
        differs = f"the log differs from the backup at offset {last.base_offset}: {_TRUNCATED}"
        if last.leader_epoch >= 0:
            epoch, end = reader.epoch_end(last.leader_epoch)
            if 0 <= epoch != last.leader_epoch or 0 <= end <= last.base_offset:
                raise Discontinued(f"{differs}; leader epoch {last.leader_epoch} has no record there")
        if last.base_offset < self.wanted.start or self.wanted.tombstones_ms is not None:
            return  # deleted, or perhaps written anew by compaction
        piece = next(reader.pieces(last.base_offset, base.end_offset), None)
        if piece is None:
            raise Discontinued(f"{differs}; it has no batch there")
        found = piece.batches[0][1]
        if (found.base_offset, found.crc) != (last.base_offset, last.crc32c):
            raise Discontinued(f"{differs}; the batch there has CRC {found.crc:#010x}, not {last.crc32c:#010x}")

    # -- new records ---------------------------------------------------------------------------------------------------

    def _pass_deleted(self, start: int) -> None:
        """Note the records that the cluster deleted before they could be copied."""
        if self._position >= start:
            return
        if self._position > self._start:
            self._missing.append((self._position, start))
            self.warnings.append(
                f"{self.wanted.tp}: the records from {self._position} to {start - 1} were deleted by retention before "
                "this run could copy them"
            )
        else:
            self._start = start
        self._position = start

    def _fetch(self, reader: PartitionReader) -> None:
        """Fetch up to the next sealed segment that lies here, or to the end."""
        until = min((s.base for s in self._sealed(reader) if s.base > self._position), default=self.wanted.end)
        try:
            for piece in reader.pieces(self._position, min(until, self.wanted.end)):
                files = len(self._writer.files)
                self._writer.add(piece)
                self._note(piece)
                if len(self._writer.files) > files:
                    self._mark(self._position)
                if self._stopped():
                    return
            self._position = max(self._position, min(until, self.wanted.end))
        except KafkaError as error:
            if error.code != errors.OFFSET_OUT_OF_RANGE:
                raise
            self._pass_out_of_range(reader, error)

    def _pass_out_of_range(self, reader: PartitionReader, error: KafkaError) -> None:
        """Go on where the log begins now, if it was cut at the front."""
        start = reader.start_offset()
        if start <= self._position:
            raise error
        self._finish()
        self._pass_deleted(min(start, self.wanted.end))

    def _note(self, piece: WholeBatches) -> None:
        self._transactions.note(piece)
        after = piece.batches[-1][1].last_offset + 1
        self._advance(after - self._position, len(piece.data))
        self._position = after

    def _finish(self) -> None:
        """Finish the file that is being written."""
        self._writer.finish()
        self._mark(self._position)

    # -- sealed segments -----------------------------------------------------------------------------------------------

    def _sealed(self, reader: PartitionReader) -> list[SealedSegment]:
        """The sealed segments that lie here, below the end, if a broker on this machine leads the partition."""
        leader = reader.leader if reader.leader >= 0 else reader.find_leader()
        found = self._logs.sealed(leader, self.wanted.tp, self.wanted.topic_id)
        return [segment for segment in found if segment.next_base <= self.wanted.end]

    def _take_sealed(self, reader: PartitionReader) -> bool:
        """Take the sealed segments from here on; False if there is none."""
        taken = False
        for segment in self._sealed(reader):
            if segment.base == self._position and not self._stopped() and self._take(segment, reader):
                taken = True
        return taken

    def _take(self, segment: SealedSegment, reader: PartitionReader) -> bool:
        """Link or copy a segment; False if it is gone, or no longer ends before the next one.

        Compaction removes the segments that it has merged before it renames the new one: while the next segment is
        there, an opened file ends before it."""
        self._finish()
        name = f"{self._directory}/{segment.path.name}"
        try:
            linked = self._options.links and self._target.link(segment.path, name)
            source = segment.path.open("rb", buffering=0) if not linked else None
        except FileNotFoundError:
            return False
        size = os.fstat(source.fileno()).st_size if source is not None else self._target.size(name) or 0
        with contextlib.closing(source or self._target.open(name)) as opened:
            if segment not in self._sealed(reader):
                if linked:
                    self._target.remove([name])
                return False
            self._read_sealed(walked(opened, size, str(segment.path)), segment, name if linked else None)
        self._position = max(self._position, segment.next_base)
        self._mark(self._position)
        return True

    def _read_sealed(self, found: Iterator[WholeBatches], segment: SealedSegment, link: str | None) -> None:
        """Check a segment to its end, and write it; or, as a hard link, only count it."""
        crc = size = 0
        last: BatchHeader | None = None
        for piece in found:
            last = piece.batches[-1][1]
            if link is None:
                self._writer.add(piece)
            else:
                crc = crc32c(piece.data, crc)
                size += len(piece.data)
            self._note(piece)
        if link is None:
            self._writer.finish()
        elif last is None:
            self._target.remove([link])
        else:
            self._writer.take(SegmentFile(segment.base, last.last_offset, size, crc), last)
            self.linked_bytes += size
