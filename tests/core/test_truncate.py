"""A truncated log ends at a batch boundary, and nothing of the removed tail is found again."""

import threading
from pathlib import Path

import pytest

from pybroker.core import LogError
from tests.core.logs import (
    KAFKA_STORAGE_ERROR,
    NOW,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    Home,
    batch,
    batch_of,
    code_of,
    read_all,
)
from tests.core.stage import STUCK_MS
from tests.harness import until


def test_a_cut_inside_a_batch_takes_the_whole_batch(tmp_path: Path) -> None:
    """A truncation within a batch removes the whole batch, as the next start would take the gap for damage."""
    home = Home(tmp_path)
    partition = home.open()
    for _ in range(3):
        partition.append(batch(4), now_ms=NOW)
    partition.truncate(6)
    assert (partition.log_end_offset, partition.high_watermark) == (4, 4)
    assert partition.append(batch(2), now_ms=NOW).base_offset == 4
    partition = home.reopen(clean=False)
    assert (partition.log_end_offset, partition.recovery) == (6, "")
    home.crash()


def test_a_cut_of_the_batch_that_holds_the_log_start_leaves_an_empty_log_there(tmp_path: Path) -> None:
    """A truncation of the batch with the log start leaves an empty log there; later appends survive a crash."""
    home = Home(tmp_path, {"segment.bytes": 300})
    partition = home.open()
    for _ in range(5):
        partition.append(batch(4), now_ms=NOW)
    partition.set_log_start(14)
    home.checkpoint()
    partition.truncate(15)
    assert (partition.log_start_offset, partition.log_end_offset) == (14, 14)
    assert [s[0] for s in partition.segments()] == [14]
    assert partition.append(batch(2), now_ms=NOW).base_offset == 14
    for clean in (False, True):
        partition = home.reopen(clean=clean)
        assert (partition.log_start_offset, partition.log_end_offset, partition.recovery) == (14, 16, "")
    home.crash()


def test_below_the_log_start_nothing_is_cut(tmp_path: Path) -> None:
    home = Home(tmp_path)
    partition = home.open()
    partition.append(batch(4), now_ms=NOW)
    partition.set_log_start(2)
    assert code_of(partition.truncate, 1) == OFFSET_OUT_OF_RANGE
    partition.truncate(4)
    partition.truncate(100)
    assert partition.log_end_offset == 4
    home.crash()


def test_slices_of_before_are_void(tmp_path: Path) -> None:
    """A slice from before a truncation is refused, as its bytes may have changed; a later read works."""
    home = Home(tmp_path)
    partition = home.open()
    for _ in range(3):
        partition.append(batch_of(100, fill=b"a"), now_ms=NOW)
    before = partition.read(0, 1000).slice
    assert before is not None
    partition.truncate(1)
    for _ in range(3):
        partition.append(batch_of(100, fill=b"b"), now_ms=NOW)
    for use in (before.tobytes, lambda: before.send(1)):
        with pytest.raises(LogError, match="truncated") as e:
            use()
        assert e.value.code == KAFKA_STORAGE_ERROR
    before.close()
    assert len(read_all(partition)) == 400
    home.crash()


@pytest.mark.parametrize("clean", [True, False])
def test_the_indexes_forget_what_was_cut(tmp_path: Path, clean: bool) -> None:
    """Index entries of a truncated tail with the largest timestamp are not found, even after a stop."""
    home = Home(tmp_path, {"index.interval.bytes": 0})
    partition = home.open()
    for i in range(10):
        partition.append(batch_of(100, at=NOW + i), now_ms=NOW)
    partition.roll()
    partition.append(batch_of(100, at=NOW + 20), now_ms=NOW)
    partition.flush()
    partition.truncate(5)
    for again in range(2):
        assert partition.segments() == [(0, 500, NOW + 4)]
        assert partition.max_timestamp() == (4, NOW + 4, -1)
        assert partition.offset_for_timestamp(NOW + 5, bound=100) is None
        if not again:
            home.recovery_point = partition.recovery_point
            partition = home.reopen(clean=clean)
            assert partition.recovery == ""
    partition.append(batch_of(100, at=NOW), now_ms=NOW)
    partition.roll()
    assert partition.max_timestamp() == (4, NOW + 4, -1)
    home.crash()


def test_a_snapshot_of_the_future_is_forgotten(tmp_path: Path) -> None:
    """A snapshot that a roll left to write is dropped when its batches are truncated first."""
    home, other = Home(tmp_path), Home(tmp_path, topic="other")
    partition = home.open()
    broker = home.broker
    assert broker is not None
    partition.append(batch(1), now_ms=NOW)
    partition.append(batch(9, producer=(3, 0, 0)), now_ms=NOW)
    busy = other.open_in(broker)
    busy.append(batch(), now_ms=NOW)
    broker.arm("segment.sync", "sleep", 300)
    busy.roll()
    partition.roll()
    partition.truncate(1)
    assert partition.producers() == []
    partition.append(batch(9), now_ms=NOW)
    partition.roll()
    partition.append(batch(9), now_ms=NOW)
    assert partition.flush() == 19
    home.checkpoint()
    partition = home.reopen(clean=False)
    assert partition.producers() == []
    assert not partition.append(batch(1, producer=(3, 0, 0)), now_ms=NOW).duplicate
    home.crash()


def test_a_deleted_partition_touches_its_successor_no_more(tmp_path: Path) -> None:
    """A deleted partition's handle does not reach the files of a topic recreated under its name."""
    home = Home(tmp_path, {"segment.bytes": 200, "retention.bytes": 0})
    old = home.open()
    broker = home.broker
    assert broker is not None
    for _ in range(6):
        old.append(batch_of(100, fill=b"o"), now_ms=NOW)
    old.become_leader(1, 0)
    broker.delete(old)
    new = home.open_in(broker)
    for _ in range(6):
        new.append(batch_of(100, fill=b"n"), now_ms=NOW)
    new.flush()
    held = read_all(new)
    names = sorted(p.name for p in home.directory.iterdir())
    for call, args in (
        (old.append, None), (old.truncate, (1,)), (old.enforce_retention, (NOW,)), (old.set_log_start, (3,)),
        (old.roll, ()), (old.flush, ()), (old.write_checkpoints, ()), (old.read, (0, 100)), (old.segments, ()),
        (old.max_timestamp, ()),
    ):  # fmt: skip
        code = code_of(call, batch(), now_ms=NOW) if args is None else code_of(call, *args)
        assert code in (0, UNKNOWN_TOPIC_OR_PARTITION), call
    assert code_of(old.read, 0, 100) == code_of(old.truncate, 1) == UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(broker.delete, old) == UNKNOWN_TOPIC_OR_PARTITION
    assert sorted(p.name for p in home.directory.iterdir()) == names
    assert read_all(new) == held
    assert read_all(home.reopen(clean=False)) == held
    home.crash()


def test_a_name_is_taken_until_its_directory_is_gone(tmp_path: Path) -> None:
    """A partition name cannot be opened until the deleted directory is renamed, or the new one would be removed."""
    home = Home(tmp_path)
    old = home.open()
    broker = home.broker
    assert broker is not None
    broker.arm("partition.rename", "sleep", STUCK_MS)
    deleting = threading.Thread(target=broker.delete, args=(old,))
    deleting.start()
    until("the partition is deleted", lambda: broker.get("t", 0) is None, every_s=0.001)
    assert broker.partitions() == []
    assert code_of(home.open_in, broker) == KAFKA_STORAGE_ERROR
    broker.disarm()
    deleting.join()
    assert home.open_in(broker).append(batch(), now_ms=NOW).base_offset == 0
    assert home.reopen(clean=False).log_end_offset == 1
    home.crash()
