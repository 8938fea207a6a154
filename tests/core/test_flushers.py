"""Each log dir has its own flusher: a disk that hangs delays nothing on another disk."""

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
"""Size from which no reactor closes a deleted segment's file."""


class Disks:
    """A broker with a log on each of two disks: `slow`, which can be made to hang, and `quick`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.broker = core.LogManager(flush_idle_ms=20)
        self.slow, self.quick = self.open("slow", 1), self.open("quick", 2)

    def open(self, log_dir: str, number: int) -> core.Partition:
        path = self.home / log_dir
        path.mkdir()
        config = {"segment.bytes": 4 << 20, "file.delete.delay.ms": 20}
        log = self.broker.open(str(path), "t", number, topic_id=bytes([number] * 16), config=config)
        log.become_leader(0, 0)
        return log

    def stick(self, point: str) -> None:
        """Make this file call on the slow disk hang from now on."""
        self.broker.arm(point, "sleep", STUCK_MS, times=1000, under="/slow/")

    def wait_until_stuck(self) -> None:
        until("the slow disk hangs", lambda: self.broker.sleeping > 0, PATIENCE_S)

    def close(self) -> None:
        self.broker.disarm()
        self.broker.close(clean=False)


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    made = Disks(tmp_path)
    yield made
    made.close()


def roll(log: core.Partition) -> int:
    """Append and roll, which gives the flusher a segment to seal and flush; return its end offset."""
    log.append(batch(b"x"), now_ms=1)
    log.roll()
    return log.log_end_offset


def test_a_slow_disk_delays_no_flush_of_another(disks: Disks) -> None:
    """While one log dir's flusher hangs in a sync, rolled segments on another disk are flushed."""
    disks.stick("segment.sync")
    roll(disks.slow)
    disks.wait_until_stuck()
    for _ in range(3):
        end = roll(disks.quick)
        until("the other log is flushed", lambda end=end: disks.quick.recovery_point == end, PATIENCE_S)
    assert disks.broker.sleeping and disks.slow.recovery_point == 0


def test_a_slow_disk_delays_no_removal_on_another(disks: Disks) -> None:
    """A deleted topic's files are removed while the removal of another topic's files hangs on another disk."""
    disks.stick("segment.unlink")
    disks.broker.delete(disks.slow)
    disks.wait_until_stuck()
    disks.broker.delete(disks.quick)
    until("the quick log's directory is gone", lambda: not os.listdir(disks.home / "quick"), PATIENCE_S)
    assert disks.broker.sleeping and os.listdir(disks.home / "slow")


def test_a_failed_disk_stops_no_flush_of_another(disks: Disks) -> None:
    """A log dir that goes offline during a flush does not stop the flusher of another, and the broker can close."""
    disks.broker.arm("segment.sync", "errno", errno.EIO, times=1000, under="/slow/")
    roll(disks.slow)
    until("the log dir is offline", lambda: disks.slow.offline, PATIENCE_S)
    end = roll(disks.quick)
    until("the other log is flushed", lambda: disks.quick.recovery_point == end, PATIENCE_S)


def test_flushers_end_with_the_broker(tmp_path: Path) -> None:
    """A closing broker flushes what was rolled and ends its flushers; none starts afterwards."""

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
    """The last reader of a large deleted segment does not wait while the disk frees its blocks.

    The broker does that work, also when it closes.
    """
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
    """The targets of this process's descriptors."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return found
