"""Each log dir has a flusher of its own: what stands still on one disk delays nothing on another one."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker import core
from tests.core.stage import STUCK_MS, batch
from tests.harness import until

PATIENCE_S = 20
LARGE = 2 << 20
"""Bytes of a segment that no reactor closes when its last name is gone."""


class Disks:
    """A broker with a log on each of two disks: `slow`, which can be made to stand still, and `quick`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.broker = core.Broker(flush_idle_ms=20)
        self.slow, self.quick = self.open("slow", 1), self.open("quick", 2)

    def open(self, log_dir: str, number: int) -> core.Partition:
        path = self.home / log_dir
        path.mkdir()
        config = {"segment.bytes": 4 << 20, "file.delete.delay.ms": 20}
        log = self.broker.open(str(path), "t", number, topic_id=bytes([number] * 16), config=config)
        log.become_leader(0, 0)
        return log

    def stick(self, point: str) -> None:
        """Whatever comes to this file call on the slow disk stands still from now on."""
        self.broker.arm(point, "sleep", STUCK_MS, times=1000, under="/slow/")

    def wait_until_stuck(self) -> None:
        until("the slow disk stands still", lambda: self.broker.sleeping > 0, PATIENCE_S)

    def close(self) -> None:
        self.broker.disarm()
        self.broker.close(clean=False)


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    made = Disks(tmp_path)
    yield made
    made.close()


def roll(log: core.Partition) -> int:
    """Append and roll; the flusher has a segment to seal and to flush then, up to this offset."""
    log.append(batch(b"x"), now_ms=1)
    log.roll()
    return log.log_end_offset


def test_a_slow_disk_delays_no_flush_of_another(disks: Disks) -> None:
    """The flusher of one log dir stands in a sync: what rolls leave on another disk is flushed all the same."""
    disks.stick("segment.sync")
    roll(disks.slow)
    disks.wait_until_stuck()
    for _ in range(3):
        end = roll(disks.quick)
        until("the other log is flushed", lambda end=end: disks.quick.recovery_point == end, PATIENCE_S)
    assert disks.broker.sleeping and disks.slow.recovery_point == 0


def test_a_slow_disk_delays_no_removal_on_another(disks: Disks) -> None:
    """The files of a deleted topic go while another disk takes its time over those of another."""
    disks.stick("segment.unlink")
    disks.broker.delete(disks.slow)
    disks.wait_until_stuck()
    disks.broker.delete(disks.quick)
    until("its directory is gone", lambda: not os.listdir(disks.home / "quick"), PATIENCE_S)
    assert disks.broker.sleeping and os.listdir(disks.home / "slow")


def test_a_failed_disk_stops_no_flush_of_another(disks: Disks) -> None:
    """One log dir goes offline while its flusher is at work; the other goes on, and the broker ends."""
    disks.broker.arm("segment.sync", "errno", errno.EIO, times=1000, under="/slow/")
    roll(disks.slow)
    until("the log dir is offline", lambda: disks.slow.offline, PATIENCE_S)
    end = roll(disks.quick)
    until("the other log is flushed", lambda: disks.quick.recovery_point == end, PATIENCE_S)


def test_flushers_end_with_the_broker(tmp_path: Path) -> None:
    """What rolls left is flushed first; then no thread is left, and none begins any more."""

    def flushers() -> int:
        return sum(thread.name == "pybroker-flusher" for thread in threading.enumerate())

    before = flushers()
    disks = Disks(tmp_path)
    ends = [roll(log) for log in (disks.slow, disks.quick)]
    assert flushers() == before + 2
    disks.broker.close()
    assert flushers() == before
    assert [log.recovery_point for log in (disks.slow, disks.quick)] == ends
    assert disks.broker.log_dir_error(str(tmp_path / "slow")) == 0 and flushers() == before


def test_the_last_hold_on_a_large_file_without_a_name(disks: Disks) -> None:
    """A fetch was sending from a segment that was deleted meanwhile. Once it is done, the disk gives back the blocks:
    whoever let go last does not wait for that, and neither does the broker's end forget it."""
    log = disks.slow
    for _ in range(3):
        log.append(batch(bytes(LARGE // 3)), now_ms=1)
    log.roll()
    log.append(batch(b"x"), now_ms=1)
    log.flush()
    held = log.read(0, 1 << 20).slice
    assert held is not None
    log.configure({"segment.bytes": 4 << 20, "file.delete.delay.ms": 0, "retention.bytes": 1})
    assert log.enforce_retention(1) == 1
    path = os.path.join(log.directory, f"{0:020}.log (deleted)")
    until("the segment itself is gone", lambda: open_files().count(path) == 1, PATIENCE_S)
    disks.stick("segment.close")
    held.close()
    disks.wait_until_stuck()
    assert path in open_files()
    disks.broker.disarm()
    until("the file is closed", lambda: path not in open_files(), PATIENCE_S)


def open_files() -> list[str]:
    """What the descriptors of this process name."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # the descriptor of the list itself
            continue
    return found
