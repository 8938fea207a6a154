"""A log dir has a lock, lists its partitions, keeps checkpoints, and goes offline after a failure."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pybroker import core
from pybroker.errors import StartError
from pybroker.model import TopicPartition
from pybroker.replication.disks import checkpoints
from pybroker.replication.disks.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANED,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META,
    OFFSET_FILES,
    RECOVERY_POINTS,
    Meta,
    Spot,
)
from pybroker.replication.disks.lock_file import LOCK
from pybroker.replication.disks.logdirs import Held, LogDir, open_log_dirs
from pybroker.server.cluster.directories import owner
from tests.server.live import batch

ID = b"\1" * 16
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SPOT = Spot(0, 0, 100, 0, 5)


@pytest.fixture
def opened() -> Iterator[Callable[[Path], LogDir]]:
    """A function that opens log dirs, which are closed in the end."""
    taken: list[LogDir] = []

    def take(path: Path) -> LogDir:
        made = LogDir(str(path))
        taken.append(made)
        made.open()
        made.recall()
        return made

    yield take
    for log_dir in taken:
        log_dir.close()


def test_a_log_dir_has_one_user(tmp_path: Path, opened: Callable[[Path], LogDir]) -> None:
    """A second user of a log dir gets an error that names the lock, and can open it after the first closed it."""
    first = opened(tmp_path / "made" / "below")
    with pytest.raises(StartError, match=rf"another broker is using .*below \(its {LOCK} is held\)"):
        opened(tmp_path / "made" / "below")
    first.close()
    assert opened(tmp_path / "made" / "below").blank


def test_what_lies_there(tmp_path: Path, opened: Callable[[Path], LogDir]) -> None:
    """A log dir lists partitions by directory name with what their files contain, and deleted and stray directories."""
    deleted, stray = f"t-9.{'a' * 32}-delete", f"t-8.{'b' * 32}-stray"
    names = ["t-0", "t-1", "a.b_c-10", "t", "t-01", "-1", "t-", "__cluster_metadata-0", deleted, stray, "lost+found"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "t-2").touch()
    (tmp_path / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: AQEBAQEBAQEBAQEBAQEBAQ\n")
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n2\n3 0\n7 5\n")
    (tmp_path / "t-1" / "partition.metadata").write_text("what is this")
    log_dir = opened(tmp_path)
    found = dict(log_dir.partitions())
    assert list(found) == [TopicPartition("a.b_c", 10), T0, T1]
    assert (found[T0].topic_id, found[T0].leader_epoch) == (ID, 7)
    assert (found[T1].topic_id, found[T1].leader_epoch) == (None, -1)
    assert [os.path.basename(path) for path in log_dir.deleted()] == [deleted]
    assert [os.path.basename(path) for path in log_dir.set_aside()] == [stray]
    assert log_dir.in_use and not log_dir.blank


def test_whose_it_is_stays_on_record(tmp_path: Path, opened: Callable[[Path], LogDir]) -> None:
    log_dir = opened(tmp_path)
    meta = Meta("cluster", 3, "an-id")
    log_dir.claim(meta)
    assert log_dir.id == "an-id" and not log_dir.blank
    log_dir.close()
    again = opened(tmp_path)
    assert again.meta == meta and again.id == "an-id"
    again.close()
    (tmp_path / META).write_text("broker.id=many\n")
    with pytest.raises(StartError, match=rf"{META} cannot be used"):
        opened(tmp_path)


def test_log_dirs_of_different_brokers(tmp_path: Path, opened: Callable[[Path], LogDir]) -> None:
    """Log dirs without an owner belong to the owner of the others."""
    one, two, none = (opened(tmp_path / name) for name in "abc")
    one.claim(Meta("cluster", None))
    two.claim(Meta("cluster", 3))
    assert owner([none, one, two]) == owner([two, none, one]) == Meta("cluster", 3)
    assert owner([none]) == owner([]) == Meta(None, None)
    none.claim(Meta("other", 3))
    with pytest.raises(StartError, match=r"c has cluster.id other, another has cluster"):
        owner([one, two, none])


def test_a_log_dir_that_cannot_be_used_is_left_out(tmp_path: Path) -> None:
    """A log dir is opened once, however its path is written; without any usable one there is no start."""
    (tmp_path / "file").touch()
    paths = [f"{tmp_path}/a", f"{tmp_path}/b/../a", f"{tmp_path}/file"]
    log_dirs = open_log_dirs(paths)
    try:
        assert [log_dir.failure for log_dir in log_dirs] == [None, "it is not a directory"]
    finally:
        for log_dir in log_dirs:
            log_dir.close()
    with pytest.raises(StartError, match=r"no log directory can be used \(.*file: it is not a directory\)"):
        open_log_dirs(paths[2:])
    again = open_log_dirs(paths[:1])  # a failed start holds no lock
    again[0].close()


@pytest.fixture
def held(tmp_path: Path, opened: Callable[[Path], LogDir]) -> Iterator[tuple[LogDir, core.Partition, Held]]:
    """A log dir with one open log of three records, which it is given."""
    log_dir, broker = opened(tmp_path), core.LogManager()
    log_dir.core = broker
    log = broker.open(str(tmp_path), "t", 0, topic_id=ID, config={})
    log.become_leader(0, 0)
    log.append(batch(b"a", b"b", b"c"), now_ms=1)
    yield log_dir, log, lambda: ([log], {T1})
    broker.close(clean=False)


def test_what_is_recorded_is_recalled(
    held: tuple[LogDir, core.Partition, Held], tmp_path: Path, opened: Callable[[Path], LogDir]
) -> None:
    """Checkpoints have current values of open logs and earlier ones of offline logs; others are dropped."""
    log_dir, log, tell = held
    before = {T0: 9, T1: 4, TopicPartition("gone", 0): 1}
    log_dir.recorded[HIGH_WATERMARKS] = dict(before)
    log.flush()
    log_dir.record_high_watermarks(tell)
    log_dir.record_recovery_points(tell)
    log_dir.record_log_starts(tell, {log: 2})
    log_dir.record_cleaned(T1, 7, lambda: False)
    log_dir.record_cleaned(T0, 7, lambda: True)
    log_dir.record_damage(T0, frozenset({SPOT}))
    log_dir.close()
    again = opened(tmp_path)
    assert again.recorded == {
        HIGH_WATERMARKS: {T0: 3, T1: 4}, RECOVERY_POINTS: {T0: 3}, LOG_STARTS: {T0: 2}, CLEANED: {T1: 7}
    }  # fmt: skip
    assert again.damage == {T0: {SPOT}} and log.log_start_offset == 2
    again.forget({T0, TopicPartition("none", 0)})
    assert again.recorded[HIGH_WATERMARKS] == {T1: 4} and again.damage == {}
    assert checkpoints.read_offsets((tmp_path / HIGH_WATERMARKS).read_text()) == {T1: 4}


def test_a_log_start_is_raised_once_it_is_on_disk(held: tuple[LogDir, core.Partition, Held]) -> None:
    """A log start is raised after its checkpoint was written, and stays if that fails."""
    log_dir, log, tell = held
    assert log_dir.core is not None
    log_dir.core.arm("checkpoint.write", "errno", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log_dir.record_log_starts(tell, {log: 2})
    assert log.log_start_offset == 0 and log_dir.recorded[LOG_STARTS] == {}
    log_dir.record_log_starts(tell, {log: 2})
    assert log.log_start_offset == 2


@pytest.mark.parametrize("how", ["clean", "crash", "torn"])
def test_a_mark_of_a_clean_stop_counts_once(tmp_path: Path, opened: Callable[[Path], LogDir], how: str) -> None:
    """A clean-shutdown marker counts once, and not at all if the recovery points are torn."""
    log_dir = opened(tmp_path)
    log_dir.record_recovery_points(lambda: ([], set()))
    if how != "crash":
        log_dir.record_clean_stop(5)
    log_dir.close()
    if how == "torn":
        (tmp_path / RECOVERY_POINTS).write_text("0\n9\n")
    for _ in range(2):  # a life that opens no log changes nothing
        again = opened(tmp_path)
        assert again.clean is (how == "clean")
        again.close()
    again = opened(tmp_path)
    again.forget_clean_stop()
    again.close()
    assert not opened(tmp_path).clean


@pytest.mark.parametrize("held", [False, True], ids=["no partition", "a partition"])
def test_empty_checkpoints_are_as_kafka_makes_them(
    tmp_path: Path, opened: Callable[[Path], LogDir], caplog: pytest.LogCaptureFixture, held: bool
) -> None:
    """Empty checkpoints, as Kafka creates them, are read without a warning.

    Only a clean-shutdown marker without a recovery point of an existing partition is not trusted.
    """
    for name in OFFSET_FILES:
        (tmp_path / name).touch()
    (tmp_path / CLEAN_SHUTDOWN).touch()
    if held:
        (tmp_path / "t-0").mkdir()
    log_dir = opened(tmp_path)
    assert log_dir.recorded == {name: {} for name in OFFSET_FILES} and not caplog.records
    assert log_dir.clean is not held


def test_a_mark_that_is_not_believed_goes_at_once(tmp_path: Path, opened: Callable[[Path], LogDir]) -> None:
    """A clean-shutdown marker that is not trusted is removed at once, or the next start might trust it."""
    log_dir = opened(tmp_path)
    log_dir.record_clean_stop(5)
    log_dir.close()
    (tmp_path / RECOVERY_POINTS).write_text("0\n9\n")
    log_dir = opened(tmp_path)
    log_dir.record_recovery_points(lambda: ([], set()))
    log_dir.close()
    assert not opened(tmp_path).clean


def test_a_mark_that_stays_is_a_failed_disk(tmp_path: Path, opened: Callable[[Path], LogDir]) -> None:
    """A clean-shutdown marker that cannot be removed makes the log dir fail, as the next start would trust it."""
    log_dir = opened(tmp_path)
    log_dir.close()
    (tmp_path / CLEAN_SHUTDOWN).mkdir()
    log_dir = opened(tmp_path)
    assert log_dir.clean and not log_dir.failure
    with pytest.raises(IsADirectoryError):
        log_dir.forget_clean_stop()
    assert log_dir.failure is not None and "is a directory" in log_dir.failure


def test_what_cannot_be_gone(tmp_path: Path, opened: Callable[[Path], LogDir]) -> None:
    """Flushed records survive a loss of power, and within the same boot all written records do."""
    log_dir = opened(tmp_path)
    log_dir._replace(RECOVERY_POINTS, {T0: 3})
    log_dir._replace(HIGH_WATERMARKS, {T0: 5})
    log_dir._replace(LOG_STARTS, {T0: 4})
    log_dir.close()
    assert opened_once(opened, tmp_path).written(T0) == 3, "the checkpoint has no boot id"
    log_dir = opened(tmp_path)
    log_dir.record_high_watermarks(lambda: ([], {T0}))
    log_dir.close()
    assert opened_once(opened, tmp_path).written(T0) == 3, "they were not recorded again"
    log_dir = opened(tmp_path)
    log_dir.record_high_watermarks(lambda: ([], set()))
    log_dir._replace(HIGH_WATERMARKS, {T0: 5})
    log_dir.close()
    log_dir = opened(tmp_path)
    assert (log_dir.written(T0), log_dir.written(T1)) == (5, 0)
    log_dir.close()
    (tmp_path / LOCK).write_bytes(b"another boot")
    assert opened(tmp_path).written(T0) == 3


def opened_once(opened: Callable[[Path], LogDir], path: Path) -> LogDir:
    log_dir = opened(path)
    log_dir.close()
    return log_dir


def test_a_failure_is_for_good_and_told_once(
    held: tuple[LogDir, core.Partition, Held], caplog: pytest.LogCaptureFixture
) -> None:
    """A log dir's failure is permanent and reported once, with the first reason; its logs accept no more records."""
    log_dir, log, _ = held
    told: list[int] = []
    log_dir.report_to(lambda: told.append(1))
    log_dir.check()
    assert log_dir.failure is None and told == []
    log_dir.fail("the first reason")
    log_dir.fail("another")
    log_dir.check()
    assert log_dir.failure == "the first reason" and told == [1] and log.offline
    assert caplog.text.count("log dir offline") == 1


def test_a_directory_that_is_replaced_is_missed(held: tuple[LogDir, core.Partition, Held], tmp_path: Path) -> None:
    """A log dir fails if its directory is replaced by another one of the same name."""
    log_dir, _, _ = held
    aside = tmp_path.with_name("aside")
    tmp_path.rename(aside)
    tmp_path.mkdir()
    log_dir.check()
    assert log_dir.failure == "the directory was removed, or another one is in its place"
    tmp_path.rmdir()
    aside.rename(tmp_path)


def test_a_store_that_is_removed_is_missed(held: tuple[LogDir, core.Partition, Held], tmp_path: Path) -> None:
    log_dir, _, _ = held
    (tmp_path / "store").touch()
    log_dir.keep_store("store")
    log_dir.check()
    assert log_dir.failure is None
    (tmp_path / "store").unlink()
    log_dir.check()
    assert log_dir.store_removed and log_dir.failure is not None and "store was removed" in log_dir.failure
