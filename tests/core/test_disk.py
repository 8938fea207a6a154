"""A disk that is full, fails or lies: what was acknowledged is kept, a failed write leaves nothing, and reads go on."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.core import LogError, LogManager, Partition, read_index, read_timeindex
from tests.core.crash import sent
from tests.core.logs import (
    INCONSISTENT_TOPIC_ID,
    KAFKA_STORAGE_ERROR,
    NOW,
    OFFSET_OUT_OF_RANGE,
    TOPIC_ID,
    Home,
    as_sent,
    batch,
    batch_of,
    code_of,
    read,
    read_all,
)
from tests.core.stage import STUCK_MS
from tests.harness import until

CONFIG = {"segment.bytes": 300, "index.interval.bytes": 0}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path, CONFIG)
    home.open(flush_idle_ms=1)
    yield home
    if home.broker is not None:
        home.crash()


def arm(
    home: Home, point: str, action: str = "errno", value: int = errno.ENOSPC, *, after: int = 0, times: int = 1
) -> None:
    assert home.broker is not None
    home.broker.arm(point, action, value, after=after, times=times)  # type: ignore[arg-type]


def disarm(home: Home) -> None:
    assert home.broker is not None
    home.broker.disarm()


def append(partition: Partition) -> int:
    """Append the next batch of the story, 100 bytes."""
    return partition.append(sent(partition.log_end_offset), now_ms=NOW).base_offset


def check(home: Home, end: int) -> None:
    """Check that the log holds the first `end` batches of the story, now and after a crash, and goes on."""
    for _ in range(2):
        stored = read_all(home.partition)
        assert [as_sent(stored[i : i + 100]) for i in range(0, len(stored), 100)] == [sent(i) for i in range(end)]
        assert b"".join(p.read_bytes() for p in home.files(".log")) == stored
        assert home.reopen(clean=False, flush_idle_ms=1).recovery == ""
    assert append(home.partition) == end


# -- full --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1, 3], ids=["at first", "in a segment", "at a roll"])
@pytest.mark.parametrize("point", ["segment.reserve", "segment.write", "segment.create", "roll.before", "roll.after"])
def test_on_a_full_disk_an_append_fails_and_leaves_nothing(home: Home, point: str, before: int) -> None:
    """An append on a full disk raises ENOSPC and leaves nothing; reads go on, and so do appends once there is space."""
    partition = home.partition
    for _ in range(before):
        append(partition)
    names = sorted(os.listdir(home.directory))
    held = read_all(partition)
    arm(home, point, times=1000)
    reached = before == 3 or point == "segment.write" or (point == "segment.reserve" and before == 0)
    for _ in range(3 if reached else 0):
        with pytest.raises(OSError, match="No space") as e:
            append(partition)
        assert e.value.errno == errno.ENOSPC
        assert (partition.log_end_offset, partition.offline) == (before, False)
        assert read_all(partition) == held
    disarm(home)
    if before < 3:
        assert sorted(os.listdir(home.directory)) == names
    assert append(partition) == before
    check(home, before + 1)


def test_a_roll_that_failed_leaves_no_segment_to_overlap(home: Home) -> None:
    """A failed roll leaves no segment file, which would overlap the old segment if that grows on."""
    partition = home.partition
    for _ in range(3):
        append(partition)
    arm(home, "roll.after")
    with pytest.raises(OSError, match="No space"):
        append(partition)
    partition.configure({**CONFIG, "segment.bytes": 1000})
    for _ in range(3):
        append(partition)
    assert [p.name for p in home.files(".log")] == [f"{0:020}.log"]
    check(home, 6)


def test_a_short_write_is_undone(home: Home) -> None:
    """A write that was cut short by a full disk is removed again."""
    partition = home.partition
    append(partition)
    append(partition)
    arm(home, "segment.write", "short", 37)
    with pytest.raises(OSError):
        append(partition)
    assert home.log_file().stat().st_size == 200
    assert read_all(partition) == b"".join(p.read_bytes() for p in home.files(".log"))
    assert home.reopen(clean=False).recovery == ""
    check(home, 2)


def test_space_is_reserved_anew_after_a_failed_write(home: Home) -> None:
    """Space is reserved again after a failed write, so that a full disk is noticed before a byte is written."""
    partition = home.partition
    append(partition)
    arm(home, "segment.write")
    with pytest.raises(OSError, match="No space"):
        append(partition)
    arm(home, "segment.reserve", times=2)
    with pytest.raises(OSError, match="No space"):
        append(partition)
    disarm(home)
    append(partition)
    assert home.log_file().stat().st_blocks * 512 >= 65536


@pytest.mark.parametrize("point", ["index.write", "index.sync"])
def test_on_a_full_disk_a_flush_fails_and_the_log_goes_on(home: Home, point: str) -> None:
    """A flush that fails on a full disk leaves the recovery point, and a later flush makes up for it."""
    partition = home.partition
    arm(home, point, times=1000)
    for i in range(4):
        append(partition)
        with pytest.raises(OSError, match="No space"):
            partition.flush()
        assert partition.recovery_point == 0
        assert partition.log_end_offset == i + 1
    disarm(home)
    assert partition.flush() == 4
    home.checkpoint()
    check(home, 4)


@pytest.mark.parametrize("point", ["snapshot.write", "snapshot.sync", "snapshot.rename"])
def test_a_snapshot_that_failed_is_missed_by_nobody(home: Home, point: str) -> None:
    """A producer snapshot that could not be written is replaced by an older one and the batches behind it."""
    partition = home.partition
    for _ in range(7):
        append(partition)
    partition.flush()
    arm(home, point, times=1000)
    for _ in range(6):
        append(partition)
    with contextlib.suppress(OSError):
        partition.flush()
    assert partition.flush() == 13
    home.checkpoint()
    partition = home.reopen(clean=False)
    for i in range(8, 13):
        assert partition.append(sent(i), now_ms=NOW).duplicate
    check(home, 13)


@pytest.mark.parametrize("point", ["epoch.write", "epoch.sync", "epoch.rename"])
def test_an_epoch_checkpoint_that_failed_is_written_the_next_time(home: Home, point: str) -> None:
    partition = home.partition
    path = home.directory / "leader-epoch-checkpoint"
    partition.become_leader(2, 0)
    append(partition)
    partition.flush()
    assert path.read_text() == "0\n1\n2 0\n"
    partition.become_leader(3, 0)
    append(partition)
    arm(home, point, times=2)
    for call in (partition.write_checkpoints, partition.flush):
        with pytest.raises(OSError, match="No space"):
            call()
    assert (path.read_text(), partition.recovery_point) == ("0\n1\n2 0\n", 1)
    assert partition.flush() == 2
    assert path.read_text() == "0\n2\n2 0\n3 1\n"
    assert not list(home.directory.glob("*.tmp"))


@pytest.mark.parametrize("point", ["checkpoint.write", "checkpoint.sync", "checkpoint.rename"])
def test_a_checkpoint_that_failed_leaves_the_old_one(home: Home, point: str) -> None:
    assert home.broker is not None
    path = home.path / "recovery-point-offset-checkpoint"
    home.broker.write_atomic(str(path), b"old")
    arm(home, point)
    with pytest.raises(OSError, match="No space"):
        home.broker.write_atomic(str(path), b"new")
    assert sorted(os.listdir(home.path)) == ["recovery-point-offset-checkpoint", "t-0"]
    assert path.read_bytes() == b"old"
    home.broker.write_atomic(str(path), b"new")
    assert path.read_bytes() == b"new"


def test_start_up_needs_no_free_space(tmp_path: Path) -> None:
    """A start on a full disk succeeds: opening a log after a crash writes nothing, and retention then makes room."""
    home = Home(tmp_path, {**CONFIG, "retention.bytes": 300})
    home.open(flush_idle_ms=1)
    for _ in range(10):
        append(home.partition)
    home.crash()
    os.truncate(home.log_file(9), 50)
    broker = LogManager(flush_idle_ms=1)
    for point in ("segment.reserve", "segment.write", "index.write", "snapshot.write", "epoch.write", "metadata.write"):
        broker.arm(point, "errno", errno.ENOSPC, times=10000)
    partition = home.open_in(broker)
    assert partition.log_end_offset == 9
    assert len(read_all(partition)) == 900
    with pytest.raises(OSError, match="No space"):
        append(partition)
    assert partition.enforce_retention(NOW) == 2
    broker.disarm()
    assert append(partition) == 9
    home.crash()


# -- failing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("refused", [0, 1])
def test_a_segment_that_cannot_be_removed_is_no_hole(home: Home, clean: bool, refused: int) -> None:
    """A segment that retention cannot remove stays with those behind it, and the next round tries again.

    So a start before the log start is recorded finds no gap.
    """
    partition = home.partition
    for _ in range(12):
        append(partition)
    partition.flush()
    home.checkpoint()
    partition.set_log_start(7)
    arm(home, "segment.unlink", value=errno.EPERM, after=3 * refused + 2)  # the .log is removed last
    with pytest.raises(OSError, match="not permitted"):
        partition.enforce_retention(NOW)
    kept = ["00", "03", "06", "09"][refused:]
    assert [p.stem[-2:] for p in home.files(".log")] == kept
    assert [f"{base:02}" for base, _, _ in partition.segments()] == kept
    assert as_sent(read_all(partition, 100)[:100]) == sent(7)
    partition = home.reopen(clean=clean, flush_idle_ms=1)
    assert (partition.log_start_offset, partition.log_end_offset) == (7 if clean else 3 * refused, 12)
    partition.set_log_start(7)
    assert as_sent(read_all(partition, 100)[:100]) == sent(7)
    assert partition.enforce_retention(NOW) == 2 - refused
    assert [p.stem[-2:] for p in home.files(".log")] == ["06", "09"]
    assert append(partition) == 12


def test_retention_tries_again_what_a_disk_refused(home: Home) -> None:
    """Retention removes in a later round what the disk refused, and the recorded log start stays."""
    partition = home.partition
    for _ in range(12):
        append(partition)
    partition.flush()  # so that no other sync precedes retention's
    partition.set_log_start(4)
    arm(home, "segment.unlink", value=errno.EPERM)
    with pytest.raises(OSError, match="not permitted"):
        partition.enforce_retention(NOW)
    assert partition.enforce_retention(NOW) == 1
    partition.set_log_start(7)
    arm(home, "directory.sync", value=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        partition.enforce_retention(NOW)
    assert partition.offline and partition.segments()[0][0] == 3


def test_a_failed_write_takes_the_log_dir_offline_but_reads_go_on(home: Home) -> None:
    """A write that fails with EIO takes its log dir offline; reads go on, and so do writes in other log dirs."""
    partition = home.partition
    for _ in range(2):
        append(partition)
    assert home.broker is not None
    (home.path / "elsewhere").mkdir()
    beside = home.broker.open(str(home.path), "beside", 0, topic_id=TOPIC_ID, config={})
    other = home.broker.open(str(home.path / "elsewhere"), "other", 0, topic_id=TOPIC_ID, config={})
    for one in (beside, other):
        one.become_leader(0, 0)
    arm(home, "segment.write", value=errno.EIO)
    with pytest.raises(OSError) as e:
        append(partition)
    assert e.value.errno == errno.EIO
    assert partition.offline
    assert code_of(partition.append, batch(), now_ms=NOW) == KAFKA_STORAGE_ERROR
    assert len(read_all(partition)) == 200
    assert code_of(beside.append, batch(), now_ms=NOW) == KAFKA_STORAGE_ERROR
    assert home.broker.log_dir_error(str(home.path)) == errno.EIO
    assert home.broker.log_dir_error(str(home.path / "elsewhere")) == 0
    assert other.append(batch(), now_ms=NOW).base_offset == 0
    assert not other.offline
    check(home, 2)


def test_a_write_that_cannot_be_undone_takes_the_partition_offline(home: Home) -> None:
    append(home.partition)
    arm(home, "segment.write")
    arm(home, "segment.truncate")
    with pytest.raises(OSError):
        append(home.partition)
    assert home.partition.offline
    check(home, 1)


@pytest.mark.parametrize("rolled", [False, True])
def test_a_failed_fsync_is_not_tried_again(home: Home, rolled: bool) -> None:
    """A failed fsync is not repeated, as the kernel reports it only once; the recovery point never passes it."""
    partition = home.partition
    for _ in range(2):
        append(partition)
    arm(home, "segment.sync", value=errno.EIO)
    if rolled:
        partition.roll()
    with pytest.raises((OSError, LogError)):
        partition.flush()
    assert partition.offline
    assert code_of(partition.flush) == KAFKA_STORAGE_ERROR
    assert partition.recovery_point == 0
    assert len(read_all(partition)) == 200
    with pytest.raises((OSError, LogError)):
        append(partition)
    check(home, 2)


def test_a_failed_read_fails_alone(home: Home) -> None:
    partition = home.partition
    for _ in range(5):
        append(partition)
    arm(home, "segment.read", value=errno.EIO)
    with pytest.raises(OSError) as e:
        read_all(partition)
    assert e.value.errno == errno.EIO
    assert len(read_all(partition)) == 500
    check(home, 5)


def test_a_slow_disk_holds_up_no_append_and_no_read(home: Home) -> None:
    """A slow sync delays no append and no read of its partition."""
    partition = home.partition
    for _ in range(3):
        append(partition)
    arm(home, "segment.sync", "sleep", STUCK_MS)
    assert home.broker is not None
    partition.roll()
    until("the sync sleeps", lambda broker=home.broker: broker.sleeping)
    for _ in range(20):
        append(partition)
        read_all(partition)
    assert home.broker.sleeping, "the sync ended before the appends did"
    disarm(home)


# -- lying -------------------------------------------------------------------------------------------------------------


def damage_index(path: Path, how: str) -> None:
    data = path.read_bytes()
    width = 8 if path.suffix == ".index" else 12
    entries = [data[i : i + width] for i in range(0, len(data), width)]
    changed = {
        "missing": None,
        "empty": b"",
        "cut inside an entry": data[: width + 3],
        "longer than the log": data + b"".join((10000 + i).to_bytes(width // 2, "big") * 2 for i in range(3)),
        "not monotonic": b"".join(reversed(entries)),
        "zeros": bytes(len(data)),
        "random": os.urandom(len(data)),
    }[how]
    if changed is None:
        path.unlink()
    else:
        path.write_bytes(changed)


DAMAGES = ("missing", "empty", "cut inside an entry", "longer than the log", "not monotonic", "zeros", "random")


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_bad_index_alone_is_made_anew(tmp_path: Path, how: str, suffix: str, clean: bool) -> None:
    """A bad index of a sealed or active segment is rebuilt; look-ups are right meanwhile."""
    home = Home(tmp_path, {"segment.bytes": 1000, "index.interval.bytes": 0})
    partition = home.open(flush_idle_ms=1)
    for _ in range(35):
        append(partition)
    partition.flush()
    home.checkpoint()
    home.stop()
    home.clean = clean
    logs = [p.read_bytes() for p in home.files(".log")]
    good = {p: p.read_bytes() for p in [*home.files(".index"), *home.files(".timeindex")]}
    for path in home.files(suffix):
        damage_index(path, how)
    partition = home.open(flush_idle_ms=1)
    check_look_ups(partition)
    home.stop()
    if how != "empty":  # nothing shows that it should have entries
        for path, content in good.items():
            assert path.read_bytes() == content, path
    assert [p.read_bytes() for p in home.files(".log")] == logs
    check_look_ups(home.open(flush_idle_ms=1))
    home.crash()


def check_look_ups(partition: Partition) -> None:
    for offset in range(35):
        assert as_sent(read(partition, offset, 1)) == sent(offset)
        assert partition.offset_for_timestamp(NOW + offset, bound=100) == (offset, NOW + offset, -1)
    assert [s[2] for s in partition.segments()] == [NOW + 9, NOW + 19, NOW + 29, NOW + 34]
    assert partition.max_timestamp() == (34, NOW + 34, -1)


@pytest.mark.parametrize("keep", [0, 5, 8])
def test_an_index_that_is_cut_while_it_is_used(tmp_path: Path, keep: int) -> None:
    """An index that is cut while it is in use causes no signal and no wrong answer."""
    home = Home(tmp_path, {"segment.bytes": 200_000, "index.interval.bytes": 0})
    partition = home.open()
    for i in range(1500):
        partition.append(batch_of(100, at=NOW + i), now_ms=NOW)
    partition.roll()
    partition.flush()
    assert len(read(partition, 700, 1)) == 100
    for suffix in (".index", ".timeindex"):
        os.truncate(home.log_file(0).with_suffix(suffix), keep)
    for offset in (0, 1, 700, 1499):
        data = read(partition, offset, 1)
        assert int.from_bytes(data[:8], "big") == offset
        assert partition.offset_for_timestamp(NOW + offset, bound=10000) == (offset, NOW + offset, -1)
    home.crash()


def test_a_log_that_is_cut_while_it_is_used(home: Home) -> None:
    """Reads beyond the cut of a segment fail alone; the flusher and other segments go on."""
    partition = home.partition
    for _ in range(7):
        append(partition)
    partition.flush()
    os.truncate(home.log_file(3), 50)
    for offset in (3, 4, 5):
        with pytest.raises((OSError, LogError)):
            read(partition, offset)
    assert len(read(partition, 0)) == 300
    assert len(read(partition, 6)) == 100
    assert append(partition) == 7


def test_another_topics_directory_is_refused(home: Home) -> None:
    """A directory of another topic id is refused with its files unchanged, and its owner can still open it."""
    append(home.partition)
    home.stop()
    broker = LogManager()
    with pytest.raises(LogError, match="belongs to topic id") as e:
        broker.open(str(home.path), "t", 0, topic_id=bytes(range(1, 17)), config={})
    assert e.value.code == INCONSISTENT_TOPIC_ID
    assert broker.get("t", 0) is None
    assert home.open_in(broker).log_end_offset == 1


def test_a_partition_opens_once(home: Home) -> None:
    assert home.broker is not None
    with pytest.raises(LogError, match="open already") as e:
        home.open_in(home.broker)
    assert e.value.code == KAFKA_STORAGE_ERROR


def test_offsets_out_of_range_tell_the_range(home: Home) -> None:
    append(home.partition)
    with pytest.raises(LogError, match=r"offset 5 of t-0 is outside 0 \.\. 1") as e:
        home.partition.read(5, 100)
    assert e.value.code == OFFSET_OUT_OF_RANGE


def test_kafka_finds_what_it_expects_in_an_index(home: Home) -> None:
    """An index entry has the offset of its batch's last record, as Kafka writes it."""
    partition = home.partition
    for i in range(3):
        partition.append(batch(3, at=NOW + i), now_ms=NOW)
        if i < 2:
            assert partition.segment_count == 1
    partition.roll()
    partition.flush()
    size = len(batch(3))
    assert read_index(str(home.log_file().with_suffix(".index")))[0] == (5, size)
    assert read_timeindex(str(home.log_file().with_suffix(".timeindex")))[0] == (NOW + 1, 5)
