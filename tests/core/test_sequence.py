"""Idempotent producers follow Kafka's rules for new, duplicate and out-of-order batches."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.core import LogError, Partition, crc32c, read_snapshot
from tests.core.logs import (
    CORRUPT_MESSAGE,
    INVALID_PRODUCER_EPOCH,
    NOW,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    Home,
    batch,
    code_of,
)

PRODUCERS_MAX = 65536
LAST = 2**31 - 1


def send(partition: Partition, first: int, count: int = 1, *, pid: int = 7, epoch: int = 0, at: int = NOW) -> int:
    """Append; return the base offset (a duplicate's is its original's), or minus the error code."""
    try:
        return partition.append(batch(count, producer=(pid, epoch, first), at=at), now_ms=NOW).base_offset
    except LogError as e:
        return -e.code


def is_duplicate(partition: Partition, first: int, count: int = 1, *, pid: int = 7, epoch: int = 0) -> bool:
    end = partition.log_end_offset
    found = partition.append(batch(count, producer=(pid, epoch, first)), now_ms=NOW).duplicate
    assert found == (partition.log_end_offset == end)
    return found


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.open()
    return home


# -- the rules ---------------------------------------------------------------------------------------------------------


def test_sequences_follow_each_other(home: Home) -> None:
    """The next sequence is appended; a gap or a step back is refused and changes nothing."""
    p = home.partition
    assert [send(p, 0, 3), send(p, 3, 2), send(p, 5)] == [0, 3, 5]
    for wrong in (7, 100, LAST):
        assert send(p, wrong) == -OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(p, 6) == 6
    assert p.log_end_offset == 7


def test_an_unknown_producer_may_begin_anywhere(home: Home) -> None:
    """An unknown producer may begin at any sequence, as its earlier batches may have been deleted (KIP-360)."""
    p = home.partition
    assert send(p, 41) == 0
    assert send(p, 42) == 1
    assert send(p, 41) == 0
    assert send(p, 40) == -OUT_OF_ORDER_SEQUENCE_NUMBER


def test_after_the_last_sequence_comes_the_first(home: Home) -> None:
    """Sequence 2147483647 is followed by 0, also within a batch."""
    p = home.partition
    assert send(p, LAST - 1) == 0
    assert send(p, LAST) == 1
    assert send(p, 0) == 2
    assert is_duplicate(p, LAST)
    assert send(p, 1, pid=8) == 3
    assert send(p, LAST - 1, 5, pid=9) == 4
    assert {q[0]: q[2] for q in p.producers()} == {7: 0, 8: 1, 9: 2}
    assert is_duplicate(p, LAST - 1, 5, pid=9)
    assert send(p, 2, pid=9) == -OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(p, 3, pid=9) == 9
    p = home.reopen(clean=False)
    assert is_duplicate(p, LAST - 1, 5, pid=9)
    assert send(p, 4, pid=9) == 10
    home.crash()


def test_the_last_five_batches_are_recognised(home: Home) -> None:
    """The last five batches are recognised as duplicates with their offsets; older ones are out of order."""
    p = home.partition
    for i in range(8):
        assert send(p, 2 * i, 2) == 2 * i
    for i in range(3, 8):
        again = p.append(batch(2, producer=(7, 0, 2 * i)), now_ms=NOW)
        assert (again.duplicate, again.base_offset, again.last_offset) == (True, 2 * i, 2 * i + 1)
    for i in range(3):
        assert send(p, 2 * i, 2) == -OUT_OF_ORDER_SEQUENCE_NUMBER
    assert p.log_end_offset == 16
    assert send(p, 16) == 16


def test_part_of_a_known_batch_is_no_duplicate(home: Home) -> None:
    p = home.partition
    send(p, 0, 4)
    for first, count in ((0, 3), (1, 3), (0, 5), (3, 1), (3, 2)):
        assert send(p, first, count) == -OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one(home: Home) -> None:
    p = home.partition
    assert send(p, 0, 3, epoch=1) == 0
    assert send(p, 1, epoch=2) == -OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(p, 3, epoch=0) == -INVALID_PRODUCER_EPOCH
    assert send(p, 0, epoch=4) == 3
    assert send(p, 3, epoch=1) == -INVALID_PRODUCER_EPOCH
    assert send(p, 0, 3, epoch=1) == -INVALID_PRODUCER_EPOCH
    assert is_duplicate(p, 0, epoch=4)
    assert send(p, 1, epoch=4) == 4


def test_producers_do_not_touch_each_other(home: Home) -> None:
    p = home.partition
    for i in range(4):
        for pid in (1, 2, 3):
            assert send(p, i, pid=pid) == 3 * i + pid - 1
    assert sorted(q[:3] for q in p.producers()) == [(1, 0, 3), (2, 0, 3), (3, 0, 3)]


def test_a_duplicate_under_log_append_time_has_its_originals_time(tmp_path: Path) -> None:
    home = Home(tmp_path, {"message.timestamp.type": 1})
    p = home.open()
    data = batch(2, producer=(7, 0, 0), at=1)
    assert p.append(data, now_ms=NOW).log_append_time_ms == NOW
    again = p.append(data, now_ms=NOW + 5)
    assert (again.duplicate, again.log_append_time_ms) == (True, NOW)
    home.crash()


# -- what producer state survives --------------------------------------------------------------------------------------


def restart_clean(home: Home) -> Partition:
    return home.reopen(clean=True)


def crash(home: Home) -> Partition:
    return home.reopen(clean=False)


def flush_and_crash(home: Home) -> Partition:
    home.partition.flush()
    home.checkpoint()
    return home.reopen(clean=False)


def roll(home: Home) -> Partition:
    home.partition.roll()
    return home.partition


def roll_and_restart(home: Home) -> Partition:
    home.partition.roll()
    return home.reopen(clean=True)


def roll_flush_and_crash(home: Home) -> Partition:
    home.partition.roll()
    return flush_and_crash(home)


def truncate(home: Home) -> Partition:
    """Truncate the log by a batch of this producer and one of another."""
    end = home.partition.log_end_offset
    send(home.partition, 16, 3)
    home.partition.roll()
    send(home.partition, 0, pid=99)
    home.partition.truncate(end)
    return home.partition


EVENTS = (restart_clean, crash, flush_and_crash, roll, roll_and_restart, roll_flush_and_crash, truncate)


@pytest.mark.parametrize("event", EVENTS)
def test_the_window_survives(home: Home, event: Callable[[Home], Partition]) -> None:
    """All five batches of a producer's window keep their offsets through the event, twice, and the next is appended."""
    for i in range(8):
        send(home.partition, 2 * i, 2)
    for _ in range(2):
        p = event(home)
        for i in range(3, 8):
            again = p.append(batch(2, producer=(7, 0, 2 * i)), now_ms=NOW)
            assert (again.duplicate, again.base_offset, again.last_offset) == (True, 2 * i, 2 * i + 1)
        assert [send(p, s, 2) for s in (0, 2, 4)] == [-OUT_OF_ORDER_SEQUENCE_NUMBER] * 3
        assert send(p, 18) == -OUT_OF_ORDER_SEQUENCE_NUMBER
    assert p.producers() == [(7, 0, 15, NOW, -1, -1)]
    assert send(p, 16) == 16
    home.crash()


def test_a_window_that_spans_segments_survives(tmp_path: Path) -> None:
    home = Home(tmp_path, {"segment.bytes": 200})
    p = home.open()
    for i in range(9):
        send(p, i)
        send(p, i, pid=8)
        p.append(batch(), now_ms=NOW)
    for clean in (False, True, True):
        p = home.reopen(clean=clean)
        for i in range(4, 9):
            assert send(p, i) == 3 * i
            assert send(p, i, pid=8) == 3 * i + 1
        assert send(p, 3) == -OUT_OF_ORDER_SEQUENCE_NUMBER
    assert p.log_end_offset == 27
    home.crash()


def test_a_producer_outlives_its_batches(tmp_path: Path) -> None:
    """A producer whose records retention removed stays known through its snapshot."""
    home = Home(tmp_path, {"segment.bytes": 200, "retention.bytes": 0})
    p = home.open()
    for i in range(9):
        send(p, i)
    p.enforce_retention(NOW)
    assert p.log_start_offset == 9
    for clean in (False, True):
        p = home.reopen(clean=clean)
        assert send(p, 8) == 8
        assert send(p, 10) == -OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(p, 9) == 9
    home.crash()


def test_an_append_that_failed_is_not_remembered(home: Home) -> None:
    """An append that failed is not recorded: the retry is appended, and the new epoch begins at the log end."""
    p = home.partition
    assert home.broker is not None
    p.become_leader(3, 0)
    send(p, 0)
    p.become_leader(5, 0)
    home.broker.arm("segment.write", "errno", 28, times=2)
    for pid in (7, 8):
        with pytest.raises(OSError, match="No space"):
            p.append(batch(producer=(pid, 0, 1)), now_ms=NOW)
    assert p.producers() == [(7, 0, 0, NOW, -1, -1)]
    assert p.end_offset_for_epoch(5) == (5, 1)
    assert send(p, 1) == 1
    assert p.epochs() == [(3, 0), (5, 1)]


# -- expiry and limits -------------------------------------------------------------------------------------------------


def test_a_silent_producer_is_forgotten(tmp_path: Path) -> None:
    home = Home(tmp_path, {"producer.id.expiration.ms": 1000})
    p = home.open()
    for pid, at in ((1, NOW), (2, NOW + 500), (3, NOW + 999)):
        send(p, 0, pid=pid, at=at)
    assert p.expire_producers(NOW + 1000) == 0
    assert p.expire_producers(NOW + 1501) == 2
    assert [q[0] for q in p.producers()] == [3]
    assert send(p, 0, pid=1) == 3
    assert is_duplicate(p, 0, pid=3)
    home.crash()


def test_those_that_expired_stay_so_after_a_clean_stop(tmp_path: Path) -> None:
    home = Home(tmp_path, {"producer.id.expiration.ms": 1000})
    p = home.open()
    send(p, 0, pid=1)
    p.roll()
    p.flush()
    assert p.expire_producers(NOW + 2000) == 1
    p = home.reopen(clean=True)
    assert p.producers() == []
    home.crash()


def test_a_producer_too_many_makes_a_silent_one_go(tmp_path: Path) -> None:
    """At the limit all producers are known; one more replaces a silent one, so memory and snapshot stay bounded."""
    home = Home(tmp_path, {"segment.bytes": 1 << 30})
    p = home.open()
    for pid in range(PRODUCERS_MAX):
        send(p, 0, pid=pid, at=NOW + pid)
    assert len(p.producers()) == PRODUCERS_MAX
    assert send(p, 1, pid=0, at=NOW + PRODUCERS_MAX) == PRODUCERS_MAX
    assert len(p.producers()) == PRODUCERS_MAX
    assert send(p, 0, pid=PRODUCERS_MAX, at=NOW + PRODUCERS_MAX) == PRODUCERS_MAX + 1
    known = {q[0] for q in p.producers()}
    assert len(known) == PRODUCERS_MAX
    assert PRODUCERS_MAX in known
    assert p.highest_producer_id == PRODUCERS_MAX
    p = home.reopen(clean=True)
    assert len(p.producers()) == PRODUCERS_MAX
    assert os.path.getsize(home.files(".snapshot")[-1]) == 10 + 46 * PRODUCERS_MAX
    home.crash()


def test_the_highest_producer_id_is_known_again(home: Home) -> None:
    p = home.partition
    assert p.highest_producer_id == -1
    send(p, 0, pid=40)
    send(p, 0, pid=2**62)
    send(p, 0, pid=41)
    for clean in (False, True):
        p = home.reopen(clean=clean)
        assert p.highest_producer_id == 2**62
    home.crash()


# -- snapshots ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_kafkas(home: Home) -> None:
    """A snapshot has Kafka's format: version, CRC, and an entry for each producer's newest batch."""
    p = home.partition
    send(p, 5, 3, pid=7, epoch=2, at=NOW + 9)
    p.append(batch(), now_ms=NOW)
    home.stop()
    (path,) = home.files(".snapshot")
    assert path.name == f"{4:020}.snapshot"
    assert read_snapshot(str(path)) == [(7, 2, 7, 2, 2, NOW + 9, -1, -1)]
    data = path.read_bytes()
    assert data == struct.pack(">hI", 1, crc32c(data[6:])) + data[6:]
    assert data[6:] == struct.pack(">iqhiqiqiq", 1, 7, 2, 7, 2, 2, NOW + 9, -1, -1)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("torn", ["cut", "flipped", "empty", "missing"])
def test_a_torn_snapshot_is_passed_over(tmp_path: Path, torn: str, clean: bool) -> None:
    """A torn snapshot is replaced by an older one or the batches, and no producer is forgotten.

    Only a log without any snapshot after a clean stop has no producers.
    """
    home = Home(tmp_path, {"segment.bytes": 400})
    p = home.open()
    for i in range(12):
        send(p, i)
        send(p, i, pid=8)
    p.flush()
    home.checkpoint()
    home.stop()
    home.clean = clean
    snapshots = home.files(".snapshot")
    assert len(snapshots) > 1
    if clean and torn == "missing":
        del snapshots[0]
    while snapshots:
        damage(snapshots.pop(), torn)
        p = home.open()
        for i in range(7, 12):
            assert send(p, i, pid=8) == 2 * i + 1
        assert send(p, 12) == 24
        p.truncate(24)
        home.recovery_point = min(home.recovery_point, p.recovery_point)
        home.crash()
        home.clean = clean
        snapshots = home.files(".snapshot")[: len(snapshots)]


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:-1], "flipped": data[:-9] + b"\x55" + data[-8:], "empty": b""}[how])
        assert code_of(read_snapshot, str(path)) == CORRUPT_MESSAGE


def test_few_snapshots_are_kept(tmp_path: Path) -> None:
    home = Home(tmp_path, {"segment.bytes": 200})
    p = home.open()
    for i in range(40):
        send(p, i)
    p.flush()
    assert len(home.files(".log")) == 20
    assert len(home.files(".snapshot")) <= 4
    home.crash()


def test_a_producer_whose_batches_retention_removed_is_known_after_a_crash(tmp_path: Path) -> None:
    """A producer whose last batch retention removed is known after a crash through the newest snapshot alone."""
    home = Home(tmp_path, {"segment.bytes": 1000, "retention.bytes": 8000, "file.delete.delay.ms": 0})
    home.open(flush_idle_ms=1)
    assert send(home.partition, 0, pid=1) == 0
    for n in range(200):
        send(home.partition, n, pid=2)
    home.partition.flush()
    assert home.partition.enforce_retention(NOW) > 0
    assert home.partition.segment_count > 5
    assert is_duplicate(home.partition, 0, pid=1)
    home.reopen(clean=False)
    assert is_duplicate(home.partition, 0, pid=1)
    assert [is_duplicate(home.partition, n, pid=2) for n in (199, 195, 200)] == [True, True, False]
