"""Record batches that pass by: whole ones out of a stream of bytes, checked one by one; the transactions in them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from pybroker.backup.manifest import AbortedTransaction, OpenTransaction, SegmentFile, damaged
from pybroker.core import BatchHeader, LogError, crc32c, iter_batches
from pybroker.protocol import records

READ_BYTES: Final = 4 << 20
"""Bytes that are read at once."""
BATCH_BYTES_MAX: Final = 256 << 20
"""The largest batch that is read: no request to a broker is larger."""
_LENGTH_END: Final = 12
_ABORT: Final = records.MARKERS.index("ABORT")


class WholeBatches(NamedTuple):
    """Whole batches one after the other, and their headers with their positions in `data`."""

    data: memoryview
    batches: Sequence[tuple[int, BatchHeader]]


class Stream(Protocol):
    """A file that is read from its beginning to its end."""

    def read(self, size: int = -1, /) -> bytes: ...


def checked(data: memoryview, where: str) -> WholeBatches:
    """Return the whole batches at the start of `data`, their CRCs checked. KafkaError(CORRUPT_MESSAGE) with `where`."""
    try:
        batches = list(iter_batches(data))
    except LogError as error:
        raise damaged(f"{where}: {error}") from error
    size = batches[-1][0] + batches[-1][1].size if batches else 0
    return WholeBatches(data[:size], batches)


def walked(stream: Stream, size: int, where: str) -> Iterator[WholeBatches]:
    """Yield the batches of `size` bytes, each checked: its CRC, and that offsets only rise. KafkaError(CORRUPT_MESSAGE)
    also if a batch is cut; OSError."""
    read, last, rest = 0, -1, b""
    while read < size:
        more = stream.read(min(READ_BYTES + _missing(rest, where), size - read))
        if not more:
            raise damaged(f"{where} has {read} bytes, and {size} are expected")
        read += len(more)
        data = rest + more if rest else more
        piece = checked(memoryview(data), f"{where}, in the bytes before {read}")
        for _, batch in piece.batches:
            if batch.base_offset <= last:
                raise damaged(f"{where}: a batch of offset {batch.base_offset} follows offset {last}")
            last = batch.last_offset
        rest = data[len(piece.data) :]
        if piece.batches:
            yield piece
    if rest:
        raise damaged(f"{where} ends in the middle of a batch: {len(rest)} bytes are left")


def pieces(stream: Stream, file: SegmentFile, where: str) -> Iterator[WholeBatches]:
    """Yield the batches of a file of a backup, checked, and compare its size, its CRC and its offsets with the
    manifest's. KafkaError(CORRUPT_MESSAGE) if something is not right; OSError."""
    crc, first, last = 0, -1, -1
    for piece in walked(stream, file.size, where):
        first = piece.batches[0][1].base_offset if first < 0 else first
        last = piece.batches[-1][1].last_offset
        if first < file.base_offset or last > file.last_offset:
            break
        crc = crc32c(piece.data, crc)
        yield piece
    if first < file.base_offset or last != file.last_offset:
        told = f"the manifest says {file.base_offset} to {file.last_offset}"
        raise damaged(f"{where} has offsets from {first} to {last}, {told}")
    if stream.read(1):
        raise damaged(f"{where} has more than the {file.size} bytes that the manifest says")
    if crc != file.crc32c:
        raise damaged(f"{where} has CRC {crc:#010x}, the manifest says {file.crc32c:#010x}")


def _missing(rest: bytes, where: str) -> int:
    """The bytes that a batch cut off at the end of `rest` still needs. KafkaError(CORRUPT_MESSAGE) for a length that no
    batch has."""
    if len(rest) < _LENGTH_END:
        return 0
    size = int.from_bytes(rest[8:_LENGTH_END], "big") + _LENGTH_END
    if size > BATCH_BYTES_MAX:
        raise damaged(f"{where} has a batch of {size} bytes, and {BATCH_BYTES_MAX} are possible")
    return max(0, size - len(rest))


class Transactions:
    """The transactions of a partition, as its batches pass in their order."""

    def __init__(self, aborted: Sequence[AbortedTransaction] = (), begun: Sequence[OpenTransaction] = ()) -> None:
        self.aborted = list(aborted)
        self._open = {each.producer_id: each.first_offset for each in begun}

    @property
    def open(self) -> tuple[OpenTransaction, ...]:
        return tuple(OpenTransaction(*each) for each in sorted(self._open.items()))

    def note(self, piece: WholeBatches) -> None:
        """Note the batches of a piece."""
        for position, batch in piece.batches:
            if not batch.is_transactional:
                continue
            if not batch.is_control:
                self._open.setdefault(batch.producer_id, batch.base_offset)
                continue
            first = self._open.pop(batch.producer_id, None)
            if first is not None and _aborts(piece.data[position : position + batch.size]):
                self.aborted.append(AbortedTransaction(batch.producer_id, first, batch.last_offset))


def _aborts(batch: memoryview) -> bool:
    """True if a control batch is the marker of an aborted transaction."""
    marker = next(records.read_batch(batch, check_crc=False).records(), None)
    return marker is not None and records.read_marker(marker)[0] == _ABORT


class Fates:
    """The records of a partition that were never committed: aborted, or without a marker where the backup ends."""

    def __init__(self, aborted: Sequence[AbortedTransaction], begun: Sequence[OpenTransaction]) -> None:
        self._left_out: dict[int, list[tuple[int, int | None]]] = {}
        for gone in aborted:
            self._left_out.setdefault(gone.producer_id, []).append((gone.first_offset, gone.last_offset))
        for each in begun:
            self._left_out.setdefault(each.producer_id, []).append((each.first_offset, None))
        for ranges in self._left_out.values():
            ranges.sort(key=lambda pair: pair[0], reverse=True)  # those that are next at the end

    def committed(self, batch: BatchHeader) -> bool:
        """True unless the batch belongs to a transaction that was not committed. Ask in the order of offsets."""
        if not batch.is_transactional:
            return True
        ranges = self._left_out.get(batch.producer_id, [])
        while ranges and ranges[-1][1] is not None and ranges[-1][1] < batch.base_offset:
            ranges.pop()
        return not ranges or batch.base_offset < ranges[-1][0]


Advance = Callable[[int, int], object]
"""(records, bytes): called as work goes on, from any thread."""
