"""A log in plain Python: batches in a list. The reference model for core's log and its recovery."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from tests.core import slow_batch
from tests.core.slow_batch import HEADER, Batch, Refused

WINDOW = 5
SEQUENCES = 2**31


class Stored(NamedTuple):
    """A batch as stored in the log."""

    header: Batch
    data: bytes

    @property
    def base(self) -> int:
        return self.header.base_offset

    @property
    def end(self) -> int:
        return self.header.base_offset + self.header.last_offset_delta + 1


@lru_cache(maxsize=10000)
def parse(data: bytes) -> Stored:
    """The batch at the start of data; raise Refused unless it is complete and sound."""
    header = slow_batch.parse(data)
    return Stored(header, data[: header.batch_length + 12])


def stamp(data: bytes, base: int, epoch: int) -> bytes:
    """Set base offset and leader epoch, which the CRC does not cover."""
    return base.to_bytes(8, "big") + data[8:12] + epoch.to_bytes(4, "big", signed=True) + data[16:]


def stamp_time(data: bytes, now_ms: int) -> bytes:
    """The batch as LogAppendTime stores it."""
    header = Batch(*HEADER.unpack_from(data))
    return slow_batch.seal(header._replace(attributes=header.attributes | 8, max_timestamp=now_ms), data[HEADER.size :])


def recover(segments: Sequence[tuple[int, bytes]], epoch_max: int) -> list[Stored]:
    """The batches that a scan of (base offset, file bytes) keeps, up to the first that cannot belong to the log."""
    kept: list[Stored] = []
    expected, epoch = segments[0][0], -1
    for base, data in segments:
        if base != expected:
            return kept
        at = 0
        while at < len(data):
            try:
                batch = parse(data[at : at + 12 + max(0, int.from_bytes(data[at + 8 : at + 12], "big", signed=True))])
            except Refused:
                return kept
            if batch.base != expected or not epoch <= batch.header.partition_leader_epoch <= epoch_max:
                return kept
            kept.append(batch)
            expected, epoch, at = batch.end, batch.header.partition_leader_epoch, at + len(batch.data)
    return kept


class SlowLog:
    """The batches from `start` on. Every query looks at each batch."""

    def __init__(self, batches: Iterable[Stored] = (), start: int = 0) -> None:
        self.batches = list(batches)
        self.start = start
        self.end = self.batches[-1].end if self.batches else start

    def append(self, data: bytes, epoch: int = 0, append_time_ms: int | None = None) -> int:
        if append_time_ms is not None:
            data = stamp_time(data, append_time_ms)
        self.batches.append(parse(stamp(data, self.end, epoch)))
        base, self.end = self.end, self.batches[-1].end
        return base

    def read(
        self,
        offset: int,
        max_bytes: int,
        rolls: Sequence[int] = (),
        *,
        minimum_one: bool = True,
        bound: int = 1 << 62,
    ) -> bytes:
        """Whole batches from that with offset to that with `bound`; an answer ends where its segment ends."""
        out, before = b"", 0
        for batch in self.batches:
            before, begins = batch.end, range(before, batch.base + 1)
            if batch.end <= offset:
                continue
            if batch.end > bound:
                break
            if out and (len(out) + len(batch.data) > max_bytes or any(roll in begins for roll in rolls)):
                break
            if not out and len(batch.data) > max_bytes and not minimum_one:
                break
            out += batch.data
        return out

    def truncate(self, offset: int) -> None:
        """Remove each batch that ends behind offset; an end below the log start leaves the log empty at its start."""
        gone = [b for b in self.batches if b.end > offset]
        self.batches = [b for b in self.batches if b.end <= offset]
        self.end = min([self.end, offset, *(b.base for b in gone)])
        if self.end < self.start:
            self.batches, self.end = [], self.start

    def delete_before(self, offset: int) -> None:
        self.start = max(self.start, offset)

    def drop_segments_before(self, base: int) -> None:
        """Remove whole segments as retention does; the log start moves to the first segment left."""
        self.batches = [b for b in self.batches if b.base >= base]
        self.delete_before(base)

    def find_time(self, timestamp_ms: int, bound: int) -> int | None:
        """The base offset of the first visible batch that reaches timestamp_ms."""
        for batch in self.batches:
            if batch.end > self.start and batch.header.max_timestamp >= timestamp_ms:
                return batch.base if batch.base < bound else None
        return None

    def largest(self) -> tuple[int, int] | None:
        """(base offset, timestamp) of the first batch with the largest timestamp."""
        stamped = [b for b in self.batches if b.end > self.start and b.header.max_timestamp >= 0]
        best = max(stamped, key=lambda b: b.header.max_timestamp, default=None)
        return best and (best.base, best.header.max_timestamp)

    def epochs(self) -> list[tuple[int, int]]:
        """(leader epoch, first offset), from the batches."""
        out: list[tuple[int, int]] = []
        for batch in self.batches:
            if batch.header.partition_leader_epoch > (out[-1][0] if out else -1):
                out.append((batch.header.partition_leader_epoch, batch.base))
        return out

    def windows(self) -> dict[int, list[Stored]]:
        """The last five batches of each producer in its newest epoch."""
        out: dict[int, list[Stored]] = {}
        for batch in self.batches:
            if batch.header.producer_id >= 0:
                window = out.setdefault(batch.header.producer_id, [])
                if window and window[-1].header.producer_epoch != batch.header.producer_epoch:
                    window.clear()
                window.append(batch)
                del window[:-WINDOW]
        return out
