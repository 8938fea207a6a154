"""Returns fetched records in order, and moves positions past them. For the consumer's thread."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from pybroker import core, fork_safety
from pybroker.client.consuming import damaged_records
from pybroker.client.consuming.damaged_records import DamagedRecords
from pybroker.client.consuming.fetcher import Chunk, ConsumerFetcher
from pybroker.client.consuming.positions import Place, Positions
from pybroker.client.serialization.errors import DeserializationError
from pybroker.client.serialization.fields import Decoder
from pybroker.core import Columns, PartitionBatches, Record, RecordSteps
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol.compression import decompress_stored

POLL_BYTES: Final = 8 << 20
"""Bytes as fetched for one poll. More comes in while columns are read: without a limit a poll would read the topic."""
COLUMN_BYTES: Final = 64 << 20
"""Bytes of keys, values and headers, decompressed; the last batch may exceed it."""


class TakenFrom(NamedTuple):
    """The position in a place before a read, to go back to if the records are not returned."""

    place: Place
    position: int
    epoch: int
    generation: int
    """Of the place at the end of the read: a later one means that it was moved since."""


class FetchCollector:
    """The chunk that is being read, and the way to the next."""

    def __init__(
        self, fetcher: ConsumerFetcher, positions: Positions, *, check_crcs: bool, decoder: Decoder | None = None
    ) -> None:
        self.decoder = decoder
        self._fetcher = fetcher
        self._positions = positions
        self._check_crcs = check_crcs
        self._open: tuple[Chunk, PartitionBatches] | None = None
        self._steps: tuple[RecordSteps, Chunk] | None = None
        """The iterator over the open chunk, whose place has not moved past the records that it returned."""
        self.taken_from: list[TakenFrom] = []
        """Where the last read began, by place."""
        self._data = memoryview(b"")
        """The bytes of the batches: the open chunk, without bad batches that held nothing wanted."""
        fork_safety.tell(self)

    def close(self) -> None:
        """Drop what was fetched now, as the garbage collector could release a memoryview before its readers."""
        self._close_chunk()
        self._fetcher.chunks.clear()

    def records(self, most: int) -> list[Record[object, object]]:
        """Up to `most` of the records that were fetched."""
        taken: list[Record[object, object]] = []

        def read(chunk: Chunk, batches: PartitionBatches, left: int) -> int:
            found = core.read_records(batches, *chunk.asked.place.tp, left, decompress_stored)
            taken.extend(found if self.decoder is None else self._decoded(self.decoder, chunk, found))
            return len(found)

        try:
            self._read(read, most)
        except BaseException:  # KeyboardInterrupt in a deserializer: none of the records is returned
            self._go_back(self.taken_from)
            raise
        return taken

    def _decoded(self, decoder: Decoder, chunk: Chunk, found: list[Record]) -> Iterator[Record[object, object]]:
        """Yield the records deserialized; at one that is not, stop its partition there, with the error."""
        for record in found:
            try:
                yield decoder.decoded(record)
            except DeserializationError as error:
                place = chunk.asked.place
                place.move(record.offset, chunk.epoch_before(record.offset))
                place.error = error
                return

    # -- iteration -----------------------------------------------------------------------------------------------------

    def at_hand(self, lease_s: float) -> RecordSteps | None:
        """An iterator over what is left of the open chunk, None if there is none; it ends after `lease_s` seconds.

        The place of the chunk moves past the records that it returned at the next `settle`."""
        self.settle()
        if self._open is None or not self._wanted(self._open[0]):
            return None
        chunk, batches = self._open
        steps = RecordSteps(batches, *chunk.asked.place.tp, decompress_stored, lease_s)
        self._steps = steps, chunk
        return steps

    def take(self) -> Record | None:
        """The next record of `at_hand`, None if it has ended."""
        return None if self._steps is None else self._steps[0].take()

    def ready(self) -> bool:
        """Open a chunk that is not read to its end, unless one is open; False if there is none."""
        while self._open or self._next():
            assert self._open is not None
            chunk, batches = self._open
            if self._wanted(chunk) and not batches.finished:
                return True
            self._end(chunk)
        return False

    def settle(self) -> None:
        """End the iterator of `at_hand`, and move its place past the last record that it returned."""
        stepping, self._steps = self._steps, None
        if stepping is None:
            return
        steps, chunk = stepping  # its own chunk: another thread may have opened the next one meanwhile
        offset = steps.stop()
        if self._wanted(chunk):
            self._advance(chunk, offset)

    def _advance(self, chunk: Chunk, offset: int) -> None:
        """Move the place of a chunk on to an offset, never back: with asyncio, lag() settles on another thread."""
        place = chunk.asked.place
        with place.lock:
            if offset > place.position and not chunk.asked.stale:
                place.epoch = chunk.epoch_before(offset)  # first: readers of the position expect both
                place.position = offset

    def forked(self) -> None:
        """End iteration in a forked child: the next step raises there."""
        if self._steps is not None:
            self._steps[0].stop()

    def refuse(self, record: Record) -> None:
        """Go back to a record of `at_hand` that was not deserialized, or not returned."""
        self.settle()
        if self._open is not None and self._wanted(self._open[0]):
            chunk = self._open[0]
            if chunk.asked.place.tp == (record.topic, record.partition):
                chunk.asked.place.move(record.offset, chunk.epoch_before(record.offset))

    def put_back(self, taken_from: Iterable[TakenFrom]) -> None:
        """Go back to where a read began, as its records were not returned; places that were moved since stay."""
        self.settle()
        self._go_back([each for each in taken_from if each.generation == each.place.generation])

    def _go_back(self, taken_from: Sequence[TakenFrom]) -> None:
        for place, position, epoch, _ in reversed(taken_from):
            if self._positions.holds(place):
                place.move(position, epoch)

    def columns(self, columns: Columns, most: int | None, tag: Callable[[TopicPartition], object]) -> None:
        """Add fetched records to `columns`: `most` rows, or POLL_BYTES as fetched; COLUMN_BYTES at most in either case.
        `tag` makes the tag of a partition's rows."""

        def read(chunk: Chunk, batches: PartitionBatches, left: int) -> int:
            return columns.read(batches, max_records=left, max_bytes=COLUMN_BYTES, tag=tag(chunk.asked.place.tp))

        if most is None:
            self._read(read, sys.maxsize, POLL_BYTES)
        else:
            self._read(read, most)

    # -- chunks --------------------------------------------------------------------------------------------------------

    def waits(self, place: Place) -> bool:
        """True if something that was fetched for a place has not been read yet."""
        fetched = [*self._fetcher.chunks] if self._open is None else [self._open[0], *self._fetcher.chunks]
        return any(chunk.asked.place is place and self._wanted(chunk) for chunk in fetched)

    def _read(
        self, read: Callable[[Chunk, PartitionBatches, int], int], most: int, bytes_enough: int = sys.maxsize
    ) -> None:
        """Read chunk after chunk. A batch that does not parse stops its partition, with an error for the next call."""
        self.taken_from = []
        try:
            self._read_chunks(read, most, bytes_enough)
        finally:
            self.taken_from = [each._replace(generation=each.place.generation) for each in self.taken_from]

    def _read_chunks(self, read: Callable[[Chunk, PartitionBatches, int], int], most: int, bytes_enough: int) -> None:
        count = size = 0
        while count < most and (size < bytes_enough or not count) and (self._open or self._next()):
            assert self._open is not None
            chunk, batches = self._open
            if not self._wanted(chunk):
                self._end(chunk)
                continue
            place = chunk.asked.place
            self.taken_from.append(TakenFrom(place, place.position, place.epoch, place.generation))
            try:
                count += read(chunk, batches, most - count)
            except core.LogError as error:
                if not self._pass_by(chunk, batches, error):
                    return
                continue
            if chunk.asked.stale:  # a record was not deserialized
                self._end(chunk)
                return
            self._advance(chunk, batches.next_offset)
            if batches.finished:
                size += len(chunk.data)
                self._end(chunk)
            elif count < most:
                return  # the columns are as long as they can be

    def _pass_by(self, chunk: Chunk, batches: PartitionBatches, error: core.LogError) -> bool:
        """Continue after a bad batch that held nothing wanted, and return True; else stop its partition with the error.

        A bad batch that is not the first in its chunk is fetched once more before the error is raised: those behind it,
        which show where sound records go on, come with it then."""
        place, offset, last = chunk.asked.place, batches.next_offset, -1
        if error.code in damaged_records.KINDS:
            rest = self._data[batches.position :]
            sound, last = damaged_records.sound_behind(rest, offset), damaged_records.last_offset(rest)
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
        self._close_chunk()
        self._data = data
        batches = PartitionBatches(
            data, start_offset=start, aborted=chunk.aborted, check_crc=self._check_crcs, reached=0, alone=True
        )
        self._open = chunk, batches

    def _next(self) -> bool:
        """Open the next chunk that is still wanted; False if there is none."""
        chunks = self._fetcher.chunks
        while chunks:
            chunk = chunks.popleft()
            if self._wanted(chunk):
                self._begin(chunk, chunk.data, chunk.asked.place.position)
                return True
            self._fetcher.taken(chunk)
        return False

    def _wanted(self, chunk: Chunk) -> bool:
        """True if the place has not moved since the fetch, and is still assigned."""
        return not chunk.asked.stale and self._positions.holds(chunk.asked.place)

    def _end(self, chunk: Chunk) -> None:
        self._close_chunk()
        self._fetcher.taken(chunk)

    def _close_chunk(self) -> None:
        if self._steps is not None:
            self._steps[0].stop()
        self._open, self._steps, self._data = None, None, memoryview(b"")
