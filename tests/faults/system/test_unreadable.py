"""A disk that cannot read some of its blocks: a loop device whose file lost its end."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import pybroker
from pybroker.core import LogError
from tests.core.logs import NOW, Home, batch_of
from tests.harness import BrokerProcess, free_port, settle, until
from tests.wire import Wire

KAFKA_STORAGE_ERROR = 56
DISK_BYTES = 128 << 20
LEFT_BYTES = 24 << 20
BATCH_BYTES = 1_000_000


class Disk:
    """A mounted file system, and the file that holds it."""

    def __init__(self, path: Path) -> None:
        self.image, self.path = path / "image", path / "disk"

    def mount(self) -> None:
        if os.geteuid() != 0 or not (shutil.which("mkfs.ext4") and shutil.which("mount")):
            pytest.skip("mounting a file system needs root, mkfs.ext4 and mount")
        self.image.touch()
        os.truncate(self.image, DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", self.image], check=True)
        self.path.mkdir()
        mounted = subprocess.run(["mount", "-o", "loop,noatime", self.image, self.path], capture_output=True, text=True)
        if mounted.returncode != 0:
            pytest.skip(f"no loop device is available here: {mounted.stderr.strip()}")

    def break_down(self) -> None:
        """Make everything behind LEFT_BYTES unreadable, and evict it from the page cache."""
        for path in self.path.rglob("*.log"):
            settle(path)
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        subprocess.run(["sync", "-f", self.path], check=True)
        os.truncate(self.image, LEFT_BYTES)

    def unmount(self) -> None:
        if self.path.is_mount():
            subprocess.run(["umount", "--lazy", self.path], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    made.mount()
    yield made
    made.unmount()


def filled(disk: Disk) -> Home:
    """A log, as after a crash, that is larger than what the disk will be able to read."""
    home = Home(disk.path, {"segment.bytes": 200 << 20})
    partition = home.open()
    for number in range(60):
        partition.append(batch_of(BATCH_BYTES, at=NOW + number), now_ms=NOW)
    return home


def test_read_log_gives_what_can_be_read_and_the_error(disk: Disk) -> None:
    home = filled(disk)
    home.crash()
    disk.break_down()
    found = []
    with pytest.raises(LogError, match="Input/output error") as error:
        for batch in pybroker.read_log(home.directory, columns=["offset"], batch_rows=1):
            found += batch.column("offset").to_pylist()
    assert error.value.code == KAFKA_STORAGE_ERROR
    assert found == list(range(len(found))) and 0 < len(found) < 60


def test_a_start_changes_nothing(disk: Disk) -> None:
    """A block that cannot be read fails the start, and the log is not changed."""
    home = filled(disk)
    home.crash()
    disk.break_down()
    [file] = home.files(".log")
    size = file.stat().st_size
    with pytest.raises(OSError, match="Input/output error"):
        home.open()
    assert home.broker is not None
    home.broker.close(clean=False)
    home.broker = None
    assert file.stat().st_size == size and home.files(".log") == [file]


def test_a_fetch_is_told(disk: Disk) -> None:
    """A Fetch gets the records before an unreadable block, then KAFKA_STORAGE_ERROR, and the earlier records again."""
    with BrokerProcess(disk.path / "data", free_port()) as broker, Wire(broker.port) as wire:
        assert wire.create_topic("t", config={"segment.bytes": str(40 * BATCH_BYTES)}) == 0
        for number in range(60):
            assert wire.produce("t", batch_of(BATCH_BYTES, at=NOW + number)).error == 0
        until("it is on disk", lambda: broker.partition_dir("t").exists())
        disk.break_down()
        answers = [wire.fetch("t", offset) for offset in range(39)]
        codes = [answer.error for answer in answers]
        assert codes[0] == 0 and codes[-1] == KAFKA_STORAGE_ERROR and set(codes) == {0, KAFKA_STORAGE_ERROR}
        assert wire.fetch("t", 0).error == 0
