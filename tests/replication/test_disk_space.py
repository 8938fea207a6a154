"""A full log dir is logged and recorded as full, and has a reserve for operations that make room."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker import core
from pybroker.replication.disks.disk_space import HOLD_S, LOOK_S, PART_BYTES, RESERVE, RESERVE_BYTES, DiskSpace
from tests.core.logs import NOW, Home, batch_of

ALWAYS = 1 << 30


class Stage:
    """A log dir with one partition, and a clock that the test sets."""

    def __init__(self, path: Path) -> None:
        self.path, self.now_s = path, 1000.0
        self.home = Home(path)
        self.partition = self.home.open()
        assert self.home.broker is not None
        self.broker = self.home.broker
        self.space = DiskSpace(str(path), lambda: self.now_s)
        self.space.open()
        self.space.begin(self.broker)
        self.changes = 0
        self.space.report_to(self.changed)

    def changed(self) -> None:
        self.changes += 1

    def append(self) -> int:
        """Append a batch; return 0, or the errno of the refusal."""
        try:
            self.partition.append(batch_of(100), now_ms=NOW)
        except OSError as problem:
            assert problem.errno is not None
            return problem.errno
        return 0

    def fill(self, error: int = errno.ENOSPC) -> None:
        for point in ("segment.write", "disk.reserve"):
            self.broker.arm(point, "errno", error, times=ALWAYS)

    @property
    def kept(self) -> int:
        """Bytes on disk in the reserve."""
        file = self.path / RESERVE
        return file.stat().st_blocks * 512 if file.exists() else 0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    del made.partition
    made.home.stop()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM])
def test_it_is_full_until_there_is_room(stage: Stage, caplog: pytest.LogCaptureFixture, error: int) -> None:
    """A log dir that becomes full is logged once with the error, and once when there is room again."""
    caplog.set_level(logging.INFO)
    assert stage.append() == 0
    stage.fill(error)
    assert stage.append() == error
    for _ in range(5):
        stage.space.look()
        assert stage.append() == error
    assert stage.space.lack == os.strerror(error).lower()
    stage.broker.disarm()
    assert stage.append() == error, "it is not checked yet if there is room"
    stage.now_s += HOLD_S
    stage.space.look()
    assert stage.append() == 0 and not stage.space.lack
    said = [record.getMessage() for record in caplog.records]
    assert [line.split(" directory=")[0] for line in said] == ["log dir full", "log dir has room again"]
    assert f'reason="{os.strerror(error).lower()}" free_bytes=' in said[0]
    assert stage.changes == 2


def test_a_disk_that_has_room_is_not_full(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """A write that did not fit on a disk with room does not make the disk full, and is logged at intervals."""
    for _ in range(2):
        stage.broker.arm("segment.write", "errno", errno.ENOSPC)
        assert stage.append() == errno.ENOSPC
        stage.space.look()
        assert stage.append() == 0
    assert stage.changes == 0
    assert [record.getMessage().split(" directory=")[0] for record in caplog.records] == ["write did not fit"]


@pytest.mark.parametrize("error", [errno.ENFILE, errno.ENOMEM])
def test_what_the_process_lacks_is_no_lack_of_the_disk(stage: Stage, error: int) -> None:
    stage.fill(error)
    assert stage.append() == error
    stage.space.look()
    assert not stage.space.lack and stage.changes == 0
    stage.broker.disarm()
    assert stage.append() == 0


def test_it_stays_full_for_a_while(stage: Stage) -> None:
    """A full disk counts as full for HOLD_S at least, so that changing space does not move leaders often."""
    stage.fill()
    stage.append()
    stage.space.look()
    stage.broker.disarm()
    stage.now_s += HOLD_S - 0.1
    stage.space.look()
    assert stage.space.lack
    stage.fill()
    stage.now_s += 0.1
    stage.space.look()
    assert stage.space.lack
    stage.broker.disarm()
    stage.now_s += LOOK_S - 0.1
    stage.space.look()
    assert stage.space.lack
    stage.now_s += 0.1
    stage.space.look()
    assert not stage.space.lack


def test_what_is_set_aside_goes_to_what_asks_for_it(stage: Stage) -> None:
    """The reserve is given out in parts to operations that need it, and filled again when there is room."""
    assert stage.kept == RESERVE_BYTES
    stage.fill()
    stage.append()
    stage.space.look()
    assert stage.kept == RESERVE_BYTES, "nothing is given out before it is needed"
    for left in range(RESERVE_BYTES - PART_BYTES, -1, -PART_BYTES):
        assert stage.space.lacks()
        assert stage.kept == left
    assert not stage.space.lacks()
    stage.broker.disarm()
    stage.space.look(at_once=True)
    assert stage.kept == RESERVE_BYTES and not stage.space.lack


def test_a_start_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start on a full disk frees as much of the reserve as it needs, and appends are refused from the start."""
    (tmp_path / "coordination.sqlite-reserve").write_bytes(b"of an earlier version")
    first = Stage(tmp_path)
    assert not (tmp_path / "coordination.sqlite-reserve").exists()
    del first.partition
    first.home.stop()
    free = iter([0, PART_BYTES])
    disk = os.statvfs(tmp_path)

    class Full:
        f_frsize, f_blocks, f_bavail = 1, disk.f_blocks * disk.f_frsize, 0

    def full(path: object) -> Full:
        found = Full()
        found.f_bavail = next(free, 0)
        return found

    monkeypatch.setattr(os, "statvfs", full)
    space = DiskSpace(str(tmp_path))
    space.open()
    assert (tmp_path / RESERVE).stat().st_size == RESERVE_BYTES - PART_BYTES
    broker = core.LogManager()
    broker.arm("disk.reserve", "errno", errno.ENOSPC, times=ALWAYS)
    space.begin(broker)
    assert space.lack == "no space left on device"
    broker.close()
