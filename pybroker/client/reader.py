"""Takes what was fetched, in order, and moves positions past what it hands out. For the consumer's thread."""

import sys
from collections.abc import Callable
from typing import Final

from pybroker import core
from pybroker.client import damaged
from pybroker.client.damaged import DamagedRecords
from pybroker.client.fetcher import Chunk, Fetcher
from pybroker.client.positions import Place, Positions
from pybroker.core import Columns, PartitionBatches, Record
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol.compression import decompress_stored

POLL_BYTES: Final = 8 << 20
"""As fetched. More comes in while columns are read: a poll that took all of it would end with the topic."""
COLUMN_BYTES: Final = 64 << 20
"""Of keys, values and headers, but for the last batch of them: what was fetched may have been compressed very well."""


class Reader:
    """The chunk that is being read, and the way to the next."""

    def __init__(self, fetcher: Fetcher, positions: Positions, *, check_crcs: bool) -> None:
        self._fetcher = fetcher
        self._positions = positions
        self._check_crcs = check_crcs
        self._open: tuple[Chunk, PartitionBatches] | None = None
        self._data = memoryview(b"")
        """What the batches are of: the open chunk, without bad batches that held nothing wanted."""

    def close(self) -> None:
        """Let go of what was fetched. The garbage collector may take it apart in any order later, and complain of a
        memoryview that something still reads."""
        self._open, self._data = None, memoryview(b"")
        self._fetcher.chunks.clear()

    def records(self, most: int) -> list[Record]:
        """Up to so many records of what is there."""
        taken: list[Record] = []

        def read(chunk: Chunk, batches: PartitionBatches, left: int) -> int:
            found = core.read_records(batches, *chunk.asked.place.tp, left, decompress_stored)
            taken.extend(found)
            return len(found)

        self._read(read, most)
        return taken

    def columns(self, columns: Columns, most: int | None, tag: Callable[[TopicPartition], object]) -> None:
        """Add what is there to columns: so many rows, or what takes POLL_BYTES, at most COLUMN_BYTES of either; `tag`
        makes the tag of a partition's rows."""

        def read(chunk: Chunk, batches: PartitionBatches, left: int) -> int:
            return columns.read(batches, max_records=left, max_bytes=COLUMN_BYTES, tag=tag(chunk.asked.place.tp))

        if most is None:
            self._read(read, sys.maxsize, POLL_BYTES)
        else:
            self._read(read, most)

    def waits(self, place: Place) -> bool:
        """Whether something that was fetched for a place has not been read yet."""
        fetched = [*self._fetcher.chunks] if self._open is None else [self._open[0], *self._fetcher.chunks]
        return any(chunk.asked.place is place and self._wanted(chunk) for chunk in fetched)

    def _read(
        self, read: Callable[[Chunk, PartitionBatches, int], int], most: int, bytes_enough: int = sys.maxsize
    ) -> None:
        """Read chunk after chunk. A batch that does not parse stops its partition, with an error for the next call."""
        count = size = 0
        while count < most and (size < bytes_enough or not count) and (self._open or self._next()):
            assert self._open is not None
            chunk, batches = self._open
            place = chunk.asked.place
            if not self._wanted(chunk):
                self._end(chunk)
                continue
            try:
                count += read(chunk, batches, most - count)
            except core.LogError as error:
                if not self._pass_by(chunk, batches, error):
                    return
                continue
            place.epoch = chunk.epoch_before(batches.next_offset)  # first: who sees the position takes it for complete
            place.position = batches.next_offset
            if batches.finished:
                size += len(chunk.data)
                self._end(chunk)
            elif count < most:
                return  # the columns are as long as they can be

    def _pass_by(self, chunk: Chunk, batches: PartitionBatches, error: core.LogError) -> bool:
        """Go on behind a bad batch that held nothing wanted, and answer True; else stop its partition, with the error.

        A bad batch that is not the first in its chunk is fetched once more before the error is raised: those behind it,
        which show where sound records go on, come with it then."""
        place, offset, last = chunk.asked.place, batches.next_offset, -1
        if error.code in damaged.KINDS:
            rest = self._data[batches.position :]
            sound, last = damaged.sound_behind(rest, offset), damaged.last_offset(rest)
            if sound is not None and sound[1] <= offset:  # its header said that the offset is in it, and it is not
                before = self._data[: batches.position]  # passed once more, for the sake of its transactions
                self._begin(chunk, memoryview(b"".join((before, rest[sound[0] :]))), offset)
                return True
            again = sound is None and batches.position > 0 and last >= offset
            beyond = sound[1] if sound is not None else last + 1 if offset <= last < place.high_watermark else None
            why: KafkaError = DamagedRecords(error.code, place.tp, offset, beyond, str(error))
        else:
            again, why = False, KafkaError(error.code, f"{place.tp}: {error}")
        place.move(offset, chunk.epoch_before(offset))
        place.error = None if again else why
        self._end(chunk)
        return False

    def _begin(self, chunk: Chunk, data: memoryview, start: int) -> None:
        self._data = data
        batches = PartitionBatches(
            data, start_offset=start, aborted=chunk.aborted, check_crc=self._check_crcs, reached=0, alone=True
        )
        self._open = chunk, batches

    def _next(self) -> bool:
        """Open the next chunk that is of use; False if there is none."""
        chunks = self._fetcher.chunks
        while chunks:
            chunk = chunks.popleft()
            if self._wanted(chunk):
                self._begin(chunk, chunk.data, chunk.asked.place.position)
                return True
            self._fetcher.taken(chunk)
        return False

    def _wanted(self, chunk: Chunk) -> bool:
        """Whether the consumer still stands where it was fetched for."""
        return not chunk.asked.stale and self._positions.holds(chunk.asked.place)

    def _end(self, chunk: Chunk) -> None:
        self._open, self._data = None, memoryview(b"")
        self._fetcher.taken(chunk)
