"""A partition's transactions in plain Python: the reference model for core's producers, watermarks and indexes.

Every question is answered by a replay of the whole history.
"""

from __future__ import annotations

from typing import NamedTuple

from pybroker.core import Partition, iter_batches
from tests.core.transactional import ABORT, COMMIT, CONTROL, TRANSACTIONAL


class Written(NamedTuple):
    """A batch of the history; `kind` is DATA, PLAIN, ABORT or COMMIT."""

    base: int
    end: int
    pid: int
    epoch: int
    sequence: int
    kind: int
    coordinator_epoch: int = -1


DATA, PLAIN = 2, 3


class Known(NamedTuple):
    """A producer after the history."""

    epoch: int
    last_sequence: int
    since: int
    coordinator_epoch: int


class Ended(NamedTuple):
    """A transaction with its marker."""

    pid: int
    first: int
    marker: int
    aborted: bool
    last_stable: int


class SlowTransactions:
    """The history of a partition, with its log start and high watermark."""

    def __init__(self) -> None:
        self.history: list[Written] = []
        self.start = self.high_watermark = 0

    @property
    def end(self) -> int:
        return self.history[-1].end if self.history else 0

    def write(self, pid: int, kind: int, count: int = 1, *, epoch: int = 0, coordinator_epoch: int = -1) -> int:
        """Add a batch; its base offset."""
        known = self.producers().get(pid)
        sequence = known.last_sequence + 1 if known and known.epoch == epoch else 0
        batch = Written(self.end, self.end + count, pid, epoch, sequence, kind, coordinator_epoch)
        self.history.append(batch)
        return batch.base

    def truncate(self, offset: int) -> None:
        gone = [b for b in self.history if b.end > offset]
        self.history = [b for b in self.history if b.end <= offset]
        if gone:
            assert self.end == gone[0].base
        self.high_watermark = min(self.high_watermark, self.end)

    def replay(self) -> tuple[dict[int, Known], list[Ended]]:
        """The producers, and the transactions that ended, in the order of their markers."""
        producers: dict[int, Known] = {}
        ended = []
        for b in self.history:
            known = producers.get(b.pid, Known(b.epoch, -1, -1, -1))
            if b.kind in (ABORT, COMMIT):
                if known.since >= 0:
                    others = [p.since for pid, p in producers.items() if pid != b.pid and p.since >= 0]
                    ended.append(Ended(b.pid, known.since, b.base, b.kind == ABORT, min([*others, b.end])))
                last = known.last_sequence if known.epoch == b.epoch else -1
                producers[b.pid] = Known(b.epoch, last, -1, b.coordinator_epoch)
            elif b.pid >= 0:
                since = b.base if b.kind == DATA and known.since < 0 else known.since
                last = b.sequence + b.end - b.base - 1
                producers[b.pid] = Known(b.epoch, last, since, known.coordinator_epoch)
        return producers, ended

    def producers(self) -> dict[int, Known]:
        return self.replay()[0]

    def last_stable(self) -> int:
        producers, ended = self.replay()
        firsts = [p.since for p in producers.values() if p.since >= 0]
        firsts += [t.first for t in ended if t.marker >= self.high_watermark]
        return max(self.start, min([*firsts, self.high_watermark]))

    def index(self) -> list[tuple[int, int, int, int]]:
        """The entries of all transaction indexes."""
        return [(t.pid, t.first, t.marker, t.last_stable) for t in self.replay()[1] if t.aborted]

    def committed(self, offset: int, stable: int) -> list[int]:
        """The offsets of the records that a reader of committed ones from `offset` on sees below `stable`."""
        aborted = [t for t in self.replay()[1] if t.aborted]
        seen: list[int] = []
        for b in self.history:
            if b.kind in (ABORT, COMMIT) or b.end > stable:
                continue
            if b.kind == DATA and any(t.pid == b.pid and t.first <= b.base < t.marker for t in aborted):
                continue
            seen += [o for o in range(b.base, b.end) if o >= offset]
        return seen


def as_java_reads(partition: Partition, offset: int, max_bytes: int) -> list[int]:
    """The offsets of the records that Java's consumer with read_committed returns, fetch by fetch."""
    seen: list[int] = []
    while True:
        found = partition.read(offset, max_bytes, isolation_level=1)
        if found.slice is None:
            assert offset == found.last_stable_offset or found.aborted_transactions == []
            return seen
        data = found.slice.tobytes()
        found.slice.close()
        begins = sorted(found.aborted_transactions, key=lambda each: each[1])
        aborting: set[int] = set()
        for at, header in iter_batches(data):
            while begins and begins[0][1] <= header.last_offset:
                aborting.add(begins.pop(0)[0])
            if header.attributes & CONTROL:
                if data[at + 61 : at + header.size][7:9] == b"\0\0" and header.count:
                    aborting.discard(header.producer_id)
            elif not (header.attributes & TRANSACTIONAL and header.producer_id in aborting) and header.count:
                seen += [o for o in range(header.base_offset, header.last_offset + 1) if o >= offset]
            last = header.last_offset
        offset = last + 1
