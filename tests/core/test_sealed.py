"""Sealed segments: which files they keep open, and how they are searched."""

import contextlib
import errno
import os
import time
from pathlib import Path

import pytest

from pybroker.core import LogError, Partition, check_batch
from tests.core.logs import NOW, Home, batch, read, read_all
from tests.harness import until

SEGMENTS = 40


def held(partition: Partition) -> list[str]:
    """The names of this partition's open files."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own descriptor, or one closed since
            found.append(Path("/proc/self/fd", fd).readlink())
    return sorted(path.name for path in found if str(path.parent) == partition.directory)


def test_a_flush_leaves_no_sealed_segment_open_and_a_read_its_data_file_alone(tmp_path: Path) -> None:
    """A flushed sealed segment has no open file, and a read opens only its .log."""
    data = batch(4, size=100)
    home = Home(tmp_path, {"segment.bytes": 4 * len(data), "index.interval.bytes": 1})
    partition = home.open()
    for _ in range(4 * SEGMENTS):
        partition.append(data, now_ms=NOW)
    partition.flush()
    active = f"{16 * (SEGMENTS - 1):020}.log"
    until = time.monotonic() + 5
    while held(partition) != [active] and time.monotonic() < until:
        time.sleep(0.01)  # files of the seals are closed once no reader can be in them
    assert held(partition) == [active]
    assert len(read_all(partition)) == 4 * SEGMENTS * len(data)
    assert partition.offset_for_timestamp(NOW, bound=partition.log_end_offset) is not None
    assert held(partition) == [f"{16 * i:020}.log" for i in range(SEGMENTS)]
    home.crash()


def test_what_nobody_reads_is_closed_again(tmp_path: Path) -> None:
    """A sealed segment without reads is closed at the second check; slices stay readable, and a read opens it again."""
    data = batch(4, size=100)
    home = Home(tmp_path, {"segment.bytes": 4 * len(data)})
    partition = home.open(flush_idle_ms=1)
    assert home.broker is not None
    for _ in range(4 * SEGMENTS):
        partition.append(data, now_ms=NOW)
    partition.flush()
    whole = read_all(partition)
    piece = partition.read(0, 1).slice
    assert piece is not None
    home.broker.close_idle_files()
    read(partition, 16, 1)
    home.broker.close_idle_files()
    active, used = f"{16 * (SEGMENTS - 1):020}.log", f"{16:020}.log"
    expected = sorted([f"{0:020}.log", used, active])
    until = time.monotonic() + 30
    while held(partition) != expected and time.monotonic() < until:
        time.sleep(0.01)
    assert held(partition) == expected
    assert whole.startswith(piece.tobytes())
    piece.close()
    assert read_all(partition) == whole
    home.crash()


@pytest.mark.parametrize("batches", [511, 512, 513, 514, 1500])
def test_a_large_index_is_searched_in_its_file_as_a_small_one_on_the_heap(tmp_path: Path, batches: int) -> None:
    """A large index is searched in its file with the same results as a small one on the heap."""
    home = Home(tmp_path, {"index.interval.bytes": 1})
    partition = home.open()
    for i in range(batches):
        partition.append(batch(1, at=NOW + 2 * i), now_ms=NOW)
    partition.roll()
    partition = home.reopen(clean=True)
    assert (partition.segment_count, partition.log_end_offset) == (2, batches)
    for i in range(batches):
        assert check_batch(read(partition, i, 1)).base_offset == i
        found = partition.offset_for_timestamp(NOW + 2 * i - 1, bound=batches)
        assert found is not None and found[:2] == (i, NOW + 2 * i)
    assert partition.offset_for_timestamp(NOW + 2 * batches, bound=batches) is None
    home.crash()


def mapped(partition: Partition) -> list[str]:
    """The names of this partition's mapped files."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({Path(line.split()[-1]).name for line in lines if f"{partition.directory}/" in line})


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("size", [0, 2000, 5000, 8000])
def test_a_large_index_that_is_cut_beneath_its_map(tmp_path: Path, suffix: str, size: int) -> None:
    """Offsets and times are found though a mapped index was cut; the index is rewritten, the old map closed."""
    home = Home(tmp_path, {"index.interval.bytes": 1})
    partition = home.open(flush_idle_ms=10)
    assert home.broker is not None
    for number in range(1501):
        partition.append(batch(1, at=NOW + 2 * number), now_ms=NOW)
    partition.roll()
    partition.flush()

    def look(number: int) -> None:
        assert check_batch(read(partition, number, 1)).base_offset == number
        found = partition.offset_for_timestamp(NOW + 2 * number, bound=1501)
        assert found is not None and found[0] == number

    [index, *_] = home.files(suffix)
    before = index.read_bytes()
    look(700)
    assert mapped(partition) == [f"{0:020}.index", f"{0:020}.timeindex"]
    until("the flusher released its files", lambda: held(partition) == [f"{0:020}.log", f"{1501:020}.log"])
    os.truncate(index, size)
    for number in range(0, 1501, 7):
        look(number)
    until("the index is complete again", lambda: index.read_bytes() == before)
    made = index.stat().st_ino
    for number in range(0, 1501, 7):
        look(number)
    time.sleep(0.05)  # some turns of the flusher
    assert index.stat().st_ino == made, "it was rewritten for the loss of an earlier map"
    home.broker.close_idle_files()
    home.broker.close_idle_files()
    until("nothing is mapped", lambda: mapped(partition) == [])
    look(1499)
    home.crash()


def test_a_segment_that_is_looked_into_again_and_again_is_mapped(tmp_path: Path) -> None:
    """A segment that is looked up often is mapped with the same results; data lost beneath its map is a read error."""
    home = Home(tmp_path, {"index.interval.bytes": 1})
    partition = home.open()
    assert home.broker is not None
    for number in range(300):
        partition.append(batch(1, size=100, at=NOW + number), now_ms=NOW)
    partition.roll()
    partition.flush()
    log = f"{0:020}.log"
    for number in range(5):
        assert check_batch(read(partition, number, 1)).base_offset == number
    assert log not in mapped(partition)

    def is_mapped() -> bool:
        for number in range(300):
            assert check_batch(read(partition, number, 1)).base_offset == number
        return log in mapped(partition)

    until("the segment is mapped", is_mapped)
    [sealed, _] = home.files(".log")
    size = sealed.stat().st_size
    os.truncate(sealed, size // 2)
    with pytest.raises(LogError):
        read(partition, 250, 1)
    assert check_batch(read(partition, 3, 1)).base_offset == 3
    home.broker.arm("segment.read", "errno", errno.EIO, times=1000)
    with pytest.raises(OSError, match="Input/output error"):
        read(partition, 3, 1)
    home.broker.disarm()
    home.crash()


def test_a_log_that_is_cut_back_into_a_mapped_segment(tmp_path: Path) -> None:
    """A log that is truncated into a mapped segment and appended to is read as it is now."""
    home = Home(tmp_path, {"index.interval.bytes": 1})
    partition = home.open()
    for number in range(300):
        partition.append(batch(1, size=100, at=NOW + number), now_ms=NOW)
    partition.roll()

    def is_mapped() -> bool:
        for number in range(300):
            read(partition, number, 1)
        return f"{0:020}.log" in mapped(partition)

    until("the first segment is sealed, and mapped", is_mapped)
    partition.truncate(100)
    for number in range(100, 400):
        partition.append(batch(1, size=3 * number % 170, at=NOW + number), now_ms=NOW)
        if number == 250:
            partition.roll()
    for number in range(400):
        found = read(partition, number, 1)
        assert check_batch(found).base_offset == number
        assert len(found) == len(batch(1, size=100 if number < 100 else 3 * number % 170, at=NOW + number))
    home.crash()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_lost_index_is_written_anew_once_somebody_misses_it(tmp_path: Path, suffix: str) -> None:
    """A look-up that misses an index wakes the flusher, which rewrites it without an append."""
    home = Home(tmp_path, {"index.interval.bytes": 1})
    partition = home.open(flush_idle_ms=10)
    for i in range(20):
        partition.append(batch(1, at=NOW + i), now_ms=NOW)
    partition.roll()
    partition.flush()
    [lost, *_] = home.files(suffix)
    before = lost.read_bytes()
    lost.unlink()
    if suffix == ".index":
        assert check_batch(read(partition, 13, 1)).base_offset == 13
    else:
        assert partition.offset_for_timestamp(NOW + 13, bound=20) == (13, NOW + 13, -1)
    until_exists(lost)
    assert lost.read_bytes() == before
    home.crash()


def until_exists(path: Path) -> None:
    deadline = time.monotonic() + 5
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} was not written"
        time.sleep(0.005)
