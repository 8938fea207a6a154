"""Compaction of a log: which records stay, at which offsets, and what readers, producers and restarts see."""

from __future__ import annotations

import contextlib
import errno
import random
import threading
from pathlib import Path

import pytest

from pybroker.core import LogError, Partition, build_batch, iter_batches
from pybroker.protocol.compression import compress
from tests.core.logs import CORRUPT_MESSAGE, NOW, Home, code_of, read, read_all
from tests.core.slow_clean import DELETE_RETENTION_MS, HORIZON, Kept, SlowClean, assert_whole, latest, one_round
from tests.harness import until

COMPACT = 2
SYNCS = 20  # directory syncs; more than one round over these few segments makes
CONFIG = {"cleanup.policy": COMPACT, "segment.bytes": 600, "index.interval.bytes": 100}
Pair = tuple[bytes | None, bytes | None]


def pairs(*records: Pair, codec: int = 0, at: int = NOW, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    """Build a batch of these keys and values."""
    pid, epoch, sequence = producer
    return build_batch(
        [(at, key, value, []) for key, value in records],
        attributes=codec,
        compress=(lambda data: compress(codec, data)) if codec else None,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def put(partition: Partition, *records: Pair, **how: int) -> int:
    return partition.append(pairs(*records, **how), now_ms=NOW).base_offset  # type: ignore[arg-type]


def opened(path: Path, **config: int) -> tuple[Home, Partition]:
    home = Home(path, {**CONFIG, **{name.replace("_", "."): value for name, value in config.items()}})
    partition = home.open(flush_idle_ms=1)
    partition.become_leader(0, 0)
    return home, partition


def seal(partition: Partition) -> None:
    """Roll and flush, so that everything but the empty active segment can be compacted."""
    partition.roll()
    partition.flush()


# -- compared with the model -------------------------------------------------------------------------------------------


class Story:
    """A log and its model, through appends, rounds and restarts."""

    def __init__(self, path: Path, seed: int, codecs: list[int]) -> None:
        self.random = random.Random(seed)
        self.codecs = codecs
        self.model = SlowClean()
        self.home, _ = opened(path, segment_bytes=self.random.choice([300, 600, 2000]))
        self.now = NOW
        self.sequences = [0, 0, 0]

    def append(self) -> None:
        chance, partition = self.random, self.home.partition
        records: list[Pair] = []
        for _ in range(chance.randint(1, 6)):
            key = None if chance.random() < 0.03 else b"key-%d" % chance.randrange(12)
            records.append((key, None if chance.random() < 0.25 else b"v" * chance.randrange(30)))
        pid = chance.randrange(3)
        at = NOW + chance.randrange(100)
        data = pairs(*records, codec=chance.choice(self.codecs), at=at, producer=(pid, 0, self.sequences[pid]))
        base = partition.append(data, now_ms=NOW).base_offset
        self.sequences[pid] += len(records)
        self.model.records += [Kept(base + i, at, key, value, base) for i, (key, value) in enumerate(records)]

    def clean(self) -> None:
        partition = self.home.partition
        partition.flush()
        self.now += self.random.choice([0, 1, DELETE_RETENTION_MS])
        done = one_round(
            partition, self.model.first_dirty, now_ms=self.now, map_bytes=self.random.choice([1, 1000, 1 << 20])
        )
        assert done is not None
        assert self.model.first_dirty <= done.first_dirty <= partition.segments()[-1][0]
        self.model.round(done.first_dirty, self.now)

    def reopen(self) -> None:
        self.home.checkpoint()
        self.home.reopen(clean=self.random.random() < 0.5, flush_idle_ms=1).become_leader(0, 0)
        assert self.home.partition.recovery == ""

    def check(self) -> None:
        assert assert_whole(self.home.partition) == self.model.records
        known = {p[0]: p[2] for p in self.home.partition.producers()}
        assert known == {pid: n - 1 for pid, n in enumerate(self.sequences) if n}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("codecs", [[0], [0, 1, 2, 3, 4]], ids=["plain", "compressed"])
def test_a_compacted_log_is_the_models(tmp_path: Path, codecs: list[int], seed: int) -> None:
    """A log and its model keep the same records and offsets, for any appends, rounds and size of the key table."""
    story = Story(tmp_path, seed, codecs)
    for _ in range(60):
        for _ in range(story.random.randrange(8)):
            story.append()
        story.random.choice([story.clean, story.clean, story.reopen])()
        story.check()
    story.home.crash()


# -- records that stay -------------------------------------------------------------------------------------------------


def test_the_active_segment_is_never_touched(tmp_path: Path) -> None:
    """A record in the active segment supersedes nothing until a round covers it."""
    home, partition = opened(tmp_path)
    put(partition, (b"a", b"1"))
    seal(partition)
    put(partition, (b"a", b"2"))
    partition.flush()
    before = read_all(partition)
    done = one_round(partition)
    assert done is not None
    assert (done.first_dirty, done.records_dropped, read_all(partition)) == (1, 0, before)
    home.crash()


def test_a_tombstone_stays_for_its_time(tmp_path: Path) -> None:
    """A tombstone stays for delete.retention.ms after the first round, which writes the delete horizon (KIP-534)."""
    home, partition = opened(tmp_path)
    put(partition, (b"a", b"1"), (b"b", b"1"))
    put(partition, (b"a", None), (b"c", b"1"), at=NOW + 5)
    seal(partition)
    at_first = one_round(partition)
    assert at_first is not None
    assert latest(assert_whole(partition)) == {b"b": b"1", b"c": b"1"}
    horizons = [h.base_timestamp for _, h in iter_batches(read_all(partition)) if h.attributes & HORIZON]
    assert horizons == [NOW + DELETE_RETENTION_MS]
    assert (2, NOW + 5, b"a", None, 2) in assert_whole(partition)
    for later, kept in ((DELETE_RETENTION_MS - 1, True), (DELETE_RETENTION_MS, False)):
        done = one_round(partition, at_first.first_dirty, now_ms=NOW + later)
        assert done is not None
        assert (b"a" in {r.key for r in assert_whole(partition)}) is kept
    assert latest(assert_whole(partition)) == {b"b": b"1", b"c": b"1"}
    home.crash()


def test_a_tombstone_may_stay_for_ever(tmp_path: Path) -> None:
    """With the largest delete.retention.ms, a tombstone's horizon is the largest 64-bit time and does not wrap."""
    home, partition = opened(tmp_path)
    put(partition, (b"a", b"1"))
    put(partition, (b"a", None), at=NOW + 5)
    seal(partition)
    first_dirty = 0
    for later in (0, 1, 1 << 60):
        done = one_round(partition, first_dirty, now_ms=NOW + later, delete_retention_ms=(1 << 63) - 1)
        assert done is not None
        first_dirty = done.first_dirty
        assert assert_whole(partition) == [(1, NOW + 5, b"a", None, 1)]
    home.crash()


def test_a_producers_last_batch_stays_as_a_header(tmp_path: Path) -> None:
    """A producer's last batch stays as an empty header, so that its sequence survives a restart without a snapshot."""
    home, partition = opened(tmp_path, segment_bytes=1 << 20)
    for sequence in range(3):
        put(partition, (b"a", b"1"), producer=(7, 2, sequence))  # type: ignore[arg-type]
    put(partition, (b"a", b"2"))
    seal(partition)
    assert one_round(partition) is not None
    headers = [h for _, h in iter_batches(read_all(partition))]
    assert [(h.base_offset, h.count, h.producer_id, h.producer_epoch, h.base_sequence) for h in headers] == [
        (2, 0, 7, 2, 2),
        (3, 1, -1, -1, -1),
    ]
    home.checkpoint()
    home.crash()
    for snapshot in home.files(".snapshot"):
        snapshot.unlink()
    home.recovery_point = 0
    partition = home.open(flush_idle_ms=1)
    partition.become_leader(0, 0)
    assert [p[:3] for p in partition.producers()] == [(7, 2, 2)]
    assert partition.append(pairs((b"a", b"1"), producer=(7, 2, 2)), now_ms=NOW).duplicate
    assert put(partition, (b"a", b"3"), producer=(7, 2, 3)) == 4  # type: ignore[arg-type]
    home.crash()


# -- layout of segments ------------------------------------------------------------------------------------------------


def test_small_segments_become_larger_ones(tmp_path: Path) -> None:
    """Neighbour segments that fit segment.bytes together are merged; none becomes larger, and indexes are right."""
    home, partition = opened(tmp_path, segment_bytes=400)
    for i in range(120):
        put(partition, (b"key-%d" % (i % 40), b"%03d" % i))
    seal(partition)
    sizes, dirty = [len(partition.segments())], 0
    for _ in range(3):
        done = one_round(partition, dirty)
        assert done is not None
        dirty = done.first_dirty
        sizes.append(len(partition.segments()))
        assert max(size for _, size, _ in partition.segments()) <= 400
    assert sizes[0] > 2 * sizes[-1]
    assert [int(p.stem) for p in home.files(".log")] == [base for base, _, _ in partition.segments()]
    assert not [p for p in home.directory.iterdir() if p.suffix in (".cleaned", ".swap", ".deleted")]
    assert latest(assert_whole(partition)) == {b"key-%d" % k: b"%03d" % (80 + k) for k in range(40)}
    assert home.reopen(clean=True).recovery == ""
    home.crash()


def test_time_lookups_find_what_is_left(tmp_path: Path) -> None:
    """Look-ups by time, and of the largest time, find only records that are left."""
    home, partition = opened(tmp_path)
    for i in range(60):
        put(partition, (b"key-%d" % (i * 7 % 13), b"v"), at=NOW + i)
    seal(partition)
    assert one_round(partition) is not None
    left = assert_whole(partition)
    for at in range(NOW - 1, NOW + 61):
        found = partition.offset_for_timestamp(at, bound=1 << 60)
        expected = next((r.offset for r in left if r.timestamp_ms >= at), None)
        assert (found and found[0]) == expected
    assert partition.max_timestamp() == (59, NOW + 59, 0)
    home.crash()


def test_a_small_table_takes_several_rounds(tmp_path: Path) -> None:
    """A round ends when its key table is full, and each round gets further than the one before."""
    home, partition = opened(tmp_path)
    for i in range(200):
        put(partition, (b"key-%d" % (i % 50), b"%d" % i))
    seal(partition)
    ends = [0]
    while ends[-1] < 200:
        done = one_round(partition, ends[-1], map_bytes=1)
        assert done is not None
        ends.append(done.first_dirty)
    assert len(ends) > 10
    assert ends == sorted(set(ends))
    assert latest(assert_whole(partition)) == {b"key-%d" % k: b"%d" % (150 + k) for k in range(50)}
    home.crash()


# -- operations during a round -----------------------------------------------------------------------------------------


def test_a_slice_outlives_the_round(tmp_path: Path) -> None:
    """A slice of a replaced segment can still be read."""
    home, partition = opened(tmp_path)
    for i in range(20):
        put(partition, (b"a", b"%d" % i))
    seal(partition)
    whole = read(partition, 0)
    piece = partition.read(0, 1 << 20).slice
    assert piece is not None
    assert one_round(partition) is not None
    assert read(partition, 0) != whole
    assert piece.tobytes() == whole
    piece.close()
    home.crash()


def test_a_round_ends_when_the_broker_stops_or_segments_go(tmp_path: Path) -> None:
    """A round that is interrupted returns None; the log stays sound, and a later round does the work."""
    home, partition = opened(tmp_path, retention_bytes=0, cleanup_policy=3)
    assert home.broker is not None
    stop_cleaning = home.broker.stop_cleaning
    results: list[object] = []

    def in_the_background() -> None:
        while True:
            with contextlib.suppress(BlockingIOError):
                results.append(one_round(partition, bytes_per_s=200))  # would take minutes
                return

    def more_comes_and_retention_goes_on() -> None:
        for i in range(10):
            put(partition, (b"key-%d" % (i % 5), b"%d" % i))
        seal(partition)
        partition.enforce_retention(NOW)

    for end in (more_comes_and_retention_goes_on, stop_cleaning):
        for i in range(100):
            put(partition, (b"key-%d" % (i % 5), b"%d" % i))
        seal(partition)
        worker = threading.Thread(target=in_the_background)
        worker.start()
        with pytest.raises(BlockingIOError):  # while one round runs, a second one is refused
            while True:
                one_round(partition, end=0)
        while worker.is_alive():
            end()
            worker.join(0.01)
    assert results == [None, None]
    assert_whole(partition)
    home.crash()


@pytest.mark.parametrize("point", ["segment.create", "clean.write", "clean.sync", "segment.rename", "index.write"])
def test_a_deletion_in_the_middle_of_a_round_is_no_failed_disk(tmp_path: Path, point: str) -> None:
    """A round whose partition is deleted meanwhile fails, and the log dir stays online."""
    home, partition = opened(tmp_path)
    broker = home.broker
    assert broker is not None
    for i in range(100):
        put(partition, (b"key-%d" % (i % 5), b"%d" % i))
    seal(partition)

    def round_that_fails() -> None:
        with contextlib.suppress(OSError, LogError):
            one_round(partition)

    broker.arm(point, "sleep", 60_000, under="t-0")
    worker = threading.Thread(target=round_that_fails)
    worker.start()
    until("the round sleeps", lambda: broker.sleeping, every_s=0.001)
    deletion = threading.Thread(target=broker.delete, args=(partition,))  # may wait for the round's lock
    deletion.start()
    deletion.join(0.1)
    broker.disarm()
    worker.join()
    deletion.join()
    assert broker.log_dir_error(str(tmp_path)) == 0
    home.crash()


@pytest.mark.parametrize("at", [0, 7, 10, 16, 20, 30, 60, 66, 70, 73])
def test_damage_is_told_and_nothing_is_replaced(tmp_path: Path, at: int) -> None:
    """A wrong CRC or an impossible offset ends the round before anything is replaced."""
    home, partition = opened(tmp_path)
    for i in range(20):
        put(partition, (b"a", b"%d" % i))
    seal(partition)
    path = home.files(".log")[1]
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 1
    path.write_bytes(damaged)
    before = {p.name: p.read_bytes() for p in home.files(".log")}
    assert code_of(one_round, partition) == CORRUPT_MESSAGE
    assert {p.name: p.read_bytes() for p in home.files(".log")} == before
    assert not home.files(".cleaned")
    home.crash()


def test_retention_leaves_an_offline_log_alone(tmp_path: Path) -> None:
    """Retention removes no file of a log that went offline in a round, when merged files are already in place.

    The listed segments are those from before the merge, and the first has the merged file's name. If retention removed
    that file as old, all records would be lost. Which sync fails varies, as the flusher may still be at work.
    """
    records = {b"key-%d" % i: b"%d" % i * 20 for i in range(40)}
    merged = tried = 0
    while merged == 0 or tried < SYNCS:
        (tmp_path / str(tried)).mkdir()
        home = Home(tmp_path / str(tried), {**CONFIG, "cleanup.policy": 3})
        partition = home.open(flush_idle_ms=60_000)
        partition.become_leader(0, 0)
        for pair in records.items():
            put(partition, pair)
        seal(partition)
        sizes = [size for _, size, _ in partition.segments()]
        partition.configure({**home.config, "segment.bytes": 1 << 20, "retention.bytes": sum(sizes[1:]) - 1})
        assert home.broker is not None
        home.broker.arm("directory.sync", "errno", errno.EIO, after=tried % SYNCS)
        with contextlib.suppress(OSError, LogError):
            one_round(partition)
        if partition.offline:
            merged += len(partition.segments()) > len(home.files(".log"))
            assert partition.enforce_retention(NOW) == 0
            home.crash()
            partition = home.open(compacted=True)
            assert latest(assert_whole(partition)) == records
        home.crash()
        tried += 1
        assert tried < 20 * SYNCS
