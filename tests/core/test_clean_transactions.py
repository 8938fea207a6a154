"""Compaction of transactions: aborted records go, markers go last, and no reader of committed records sees a change."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pybroker.core import Cleaned, Partition, build_batch, iter_batches, walk_records
from tests.core.logs import NOW, read_all
from tests.core.slow_clean import DELETE_RETENTION_MS, one_round
from tests.core.test_clean import opened, put
from tests.core.test_transaction_index import index_of
from tests.core.test_transactions import end
from tests.core.transactional import ABORT, COMMIT, CONTROL, TRANSACTIONAL
from tests.harness import until

HORIZON = 0x40
Shown = tuple[int, int, int, int]


def tx(partition: Partition, pid: int, sequence: int, *records: tuple[bytes, bytes | None], epoch: int = 0) -> int:
    """Append records to the producer's transaction; the base offset."""
    data = build_batch(
        [(NOW, key, value, []) for key, value in records],
        attributes=TRANSACTIONAL, producer_id=pid, producer_epoch=epoch, base_sequence=sequence,
    )  # fmt: skip
    return partition.append(data, now_ms=NOW, guard=partition.verify(pid, epoch, sequence)).base_offset


def clean(partition: Partition, now_ms: int = NOW, first_dirty: int = 0, *, map_bytes: int = 1 << 20) -> int:
    """Flush, and run one round over all segments but the active one, once they are sealed; the next round's begin."""
    rounds: list[Cleaned | None] = []

    def ran() -> bool:
        partition.flush()
        rounds.append(one_round(partition, first_dirty, now_ms=now_ms, map_bytes=map_bytes))
        return rounds[-1] is not None

    until("a round runs", ran)
    assert rounds[-1] is not None
    return rounds[-1].first_dirty


def shown(partition: Partition) -> list[Shown]:
    """(base offset, last offset, count, attributes without the codec) of each batch."""
    return [
        (h.base_offset, h.last_offset, h.count, h.attributes & 0x70) for _, h in iter_batches(read_all(partition))
    ]


def test_markers_go_after_their_data_and_their_horizon(tmp_path: Path) -> None:
    """The first round removes the records; the next one finds nothing of the transactions, stamps both markers with the
    delete horizon and leaves no index; the first one behind the horizon drops them. So does Kafka 3.9.1."""
    home, p = opened(tmp_path)
    tx(p, 7, 0, (b"a", b"1"))
    end(p, 7, COMMIT)
    tx(p, 8, 0, (b"b", b"1"))
    end(p, 8, ABORT)
    put(p, (b"a", b"2"))
    p.roll()
    tx(p, 7, 1, (b"c", b"1"))
    tx(p, 8, 1, (b"c", b"2"))
    ahead = shown(p)[-2:]
    marker, plain = TRANSACTIONAL | CONTROL, (4, 4, 1, 0)
    clean(p)
    assert shown(p) == [(1, 1, 1, marker), (3, 3, 1, marker), plain, *ahead]
    assert index_of(home) == [(8, 2, 3, 4)]
    clean(p, NOW + 1)
    stamped = [(1, 1, 1, marker | HORIZON), (3, 3, 1, marker | HORIZON)]
    assert shown(p) == [*stamped, plain, *ahead]
    data = read_all(p)
    horizons = [int.from_bytes(data[at + 27 : at + 35], "big") for at, h in iter_batches(data) if h.is_control]
    assert horizons == [NOW + 1 + DELETE_RETENTION_MS] * 2
    markers = [(data[at + 61 : at + h.size], h) for at, h in iter_batches(data) if h.is_control]
    times = [t for plain, h in markers for _, t, *_ in walk_records(plain, h)]
    assert times == [NOW] * 2
    assert not list(home.directory.glob("*.txnindex*"))
    clean(p, NOW + DELETE_RETENTION_MS)
    assert shown(p) == [*stamped, plain, *ahead]
    clean(p, NOW + 1 + DELETE_RETENTION_MS)
    assert shown(p) == [plain, *ahead]
    assert home.reopen(clean=False).last_stable_offset == 5
    home.crash()


def test_the_last_batch_of_a_producer_stays_empty_with_its_marker(tmp_path: Path) -> None:
    """Three transactions on one key, each its producer's last, leave their headers, all markers and the index entry, as
    in Kafka 3.9.1."""
    home, p = opened(tmp_path)
    tx(p, 10, 0, (b"k", b"1"), (b"k", b"2"))
    end(p, 10, COMMIT)
    tx(p, 11, 0, (b"k", b"3"), (b"k", b"4"))
    end(p, 11, ABORT)
    tx(p, 12, 0, (b"k", b"5"))
    end(p, 12, COMMIT)
    put(p, (b"k", b"6"))
    p.roll()
    for now_ms in (NOW, NOW + 1, NOW + 3 * DELETE_RETENTION_MS):
        clean(p, now_ms)
        marker = TRANSACTIONAL | CONTROL
        assert shown(p) == [
            (0, 1, 0, TRANSACTIONAL), (2, 2, 1, marker), (3, 4, 0, TRANSACTIONAL), (5, 5, 1, marker),
            (6, 6, 0, TRANSACTIONAL), (7, 7, 1, marker), (8, 8, 1, 0),
        ]  # fmt: skip
        assert index_of(home) == [(11, 3, 5, 6)]
    before = sorted(p.producers())
    p = home.reopen(clean=False)
    assert sorted(p.producers()) == before
    p.flush()
    assert index_of(home) == [(11, 3, 5, 6)]
    home.crash()


def test_a_producer_known_by_its_marker_keeps_it(tmp_path: Path) -> None:
    """The marker of a new epoch stays, in the end as a header: later markers of the producer are judged by its
    epoch."""
    home, p = opened(tmp_path)
    tx(p, 7, 0, (b"a", b"1"))
    end(p, 7, ABORT, epoch=3)
    put(p, (b"b", b"1"))
    p.roll()
    for now_ms in (NOW, NOW + 1, NOW + 3 * DELETE_RETENTION_MS):
        clean(p, now_ms)
    assert shown(p) == [(1, 1, 0, TRANSACTIONAL | CONTROL), (2, 2, 1, 0)]
    home.crash()


def test_keys_like_those_of_markers_do_not_matter(tmp_path: Path) -> None:
    """Records whose keys are the bytes of markers' keys supersede no marker, and markers no record (fault 35)."""
    home, p = opened(tmp_path)
    keys = [bytes(4), bytes((0, 0, 0, 1))]
    put(p, *[(key, b"1") for key in keys])
    for pid in (7, 8, 9):
        tx(p, pid, 0, (b"x%d" % pid, b"1"))
        end(p, pid, ABORT if pid == 8 else COMMIT)
    p.roll()
    tx(p, 7, 1, *[(key, b"2") for key in keys])
    end(p, 7, COMMIT)
    p.roll()
    clean(p)
    assert [h for h in shown(p) if h[3] & CONTROL] == [
        (offset, offset, 1, TRANSACTIONAL | CONTROL) for offset in (3, 5, 7, 10)
    ]
    assert committed(p) == {keys[0]: b"2", keys[1]: b"2", b"x7": b"1", b"x9": b"1"}
    home.crash()


@pytest.mark.parametrize("map_bytes", [1, 1 << 20])
def test_a_transaction_over_many_segments(tmp_path: Path, map_bytes: int) -> None:
    """Aborted records in segments without a marker go too, also if the key map is full in the middle of one, and never
    come back (fault 35); the entry lands beside the marker (fault 36)."""
    home, p = opened(tmp_path, segment_bytes=250)
    for i in range(12):
        tx(p, 7, i, (b"k%d" % (i % 3), b"aborted"))
        tx(p, 8, i, (b"k%d" % (i % 3), b"committed %d" % i))
    end(p, 8, COMMIT)
    end(p, 7, ABORT)
    put(p, (b"z", b"1"))
    p.roll()
    expected = {b"k0": b"committed 9", b"k1": b"committed 10", b"k2": b"committed 11", b"z": b"1"}
    dirty = 0
    for turn in range(30):
        assert committed(p) == expected
        dirty = clean(p, NOW + turn * DELETE_RETENTION_MS, dirty, map_bytes=map_bytes)
        entries = [entry for path in home.files(".txnindex") for entry in index_of(home, int(path.stem))]
        assert entries == [(7, 0, 25, 26)]
        p = home.reopen(clean=turn % 2 == 0, flush_idle_ms=1)
    home.crash()


# -- any history -------------------------------------------------------------------------------------------------------


def committed(partition: Partition) -> dict[bytes, bytes]:
    """The last value of each key, as a reader of committed records sees it from the log's start."""
    held: dict[bytes, bytes] = {}
    offset = partition.log_start_offset
    while True:
        found = partition.read(offset, 300, isolation_level=1)
        if found.slice is None:
            return held
        data = found.slice.tobytes()
        found.slice.close()
        begins = sorted(found.aborted_transactions, key=lambda each: each[1])
        aborting: set[int] = set()
        for at, header in iter_batches(data):
            while begins and begins[0][1] <= header.last_offset:
                aborting.add(begins.pop(0)[0])
            offset = header.last_offset + 1
            records = list(walk_records(data[at + 61 : at + header.size], header)) if header.count else []
            if header.is_control:
                if records and records[0][2] == bytes(4):
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                for _, _, key, value, _ in records:
                    held[key] = value
                    if value is None:
                        del held[key]


@pytest.mark.parametrize("seed", range(12))
def test_a_compacted_log_shows_the_same_committed_records(tmp_path: Path, seed: int) -> None:
    """After any transactions, rounds and restarts a reader of committed records sees the last committed value of each
    key, and nothing of an aborted transaction (fault 35)."""
    story = Story(tmp_path, seed)
    for _ in range(150):
        story.random.choice([story.write] * 6 + [story.end] * 4 + [story.plain] * 2 + [story.clean, story.reopen])()
        story.check()
    story.home.crash()


class Story:
    """A log of transactions, and what of them is committed."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.home, _ = opened(path, segment_bytes=self.random.choice([200, 500, 2000]))
        self.records: list[tuple[int, int, bytes, bytes | None]] = []  # offset, producer or -1, key, value
        self.undecided: dict[int, int] = {}  # producer: first offset
        self.gone: set[int] = set()  # offsets of aborted records
        self.sequences = [0] * 4
        self.now, self.dirty, self.serial = NOW, 0, 0

    @property
    def partition(self) -> Partition:
        return self.home.partition

    def some(self) -> list[tuple[bytes, bytes | None]]:
        out: list[tuple[bytes, bytes | None]] = []
        for _ in range(self.random.randint(1, 3)):
            self.serial += 1
            value = None if self.random.random() < 0.15 else b"%d" % self.serial
            out.append((b"key-%d" % self.random.randrange(6), value))
        return out

    def write(self) -> None:
        pid, records = self.random.randrange(4), self.some()
        base = tx(self.partition, pid, self.sequences[pid], *records)
        self.sequences[pid] += len(records)
        self.undecided.setdefault(pid, base)
        self.records += [(base + i, pid, key, value) for i, (key, value) in enumerate(records)]

    def plain(self) -> None:
        records = self.some()
        base = put(self.partition, *records)
        self.records += [(base + i, -1, key, value) for i, (key, value) in enumerate(records)]

    def end(self) -> None:
        pid, kind = self.random.randrange(4), self.random.choice([ABORT, COMMIT])
        end(self.partition, pid, kind)
        first = self.undecided.pop(pid, None)
        if first is not None and kind == ABORT:
            self.gone |= {o for o, who, *_ in self.records if who == pid and o >= first}

    def clean(self) -> None:
        self.partition.roll()
        self.partition.flush()
        self.now += self.random.choice([0, 1, 2 * DELETE_RETENTION_MS])
        map_bytes = self.random.choice([1, 200, 1 << 20])
        self.dirty = clean(self.partition, self.now, self.dirty, map_bytes=map_bytes)

    def reopen(self) -> None:
        self.home.checkpoint()
        self.home.reopen(clean=self.random.random() < 0.5, flush_idle_ms=1, compacted=True)

    def check(self) -> None:
        stable = self.partition.last_stable_offset
        assert stable == min([*self.undecided.values(), self.partition.log_end_offset])
        held: dict[bytes, bytes] = {}
        for offset, _, key, value in self.records:
            if offset < stable and offset not in self.gone:
                held.pop(key, None)
                if value is not None:
                    held[key] = value
        assert committed(self.partition) == held
