"""Maps of files that are cut, punched and removed beneath their readers: an error for that read, and never a death."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest

from pybroker.core import Columns, FileMap, LogError, PartitionBatches
from pybroker.protocol import records as slow
from pybroker.protocol.compression import decompress
from tests.core.columnar import fields
from tests.harness import ROOT

PAGE = os.sysconf("SC_PAGESIZE")
KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE, UNSUPPORTED_FOR_MESSAGE_FORMAT = 56, 2, 43
PUNCH = 0x3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


def mapped(path: Path, position: int = 0, size: int | None = None) -> FileMap:
    with path.open("rb") as file:
        return FileMap(file.fileno(), position, path.stat().st_size - position if size is None else size)


def punch(path: Path, position: int, size: int) -> None:
    with path.open("r+b") as file:
        punched = ctypes.CDLL(None, use_errno=True).fallocate(
            file.fileno(), PUNCH, ctypes.c_long(position), ctypes.c_long(size)
        )
    if punched != 0:
        pytest.skip(f"this file system punches no holes: {os.strerror(ctypes.get_errno())}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(Random(1).randbytes(10 * PAGE + 100))
    return made


def test_ranges_from_any_position_on(path: Path) -> None:
    data = path.read_bytes()
    for position, size in ((0, 1), (1, PAGE), (PAGE - 1, 2), (PAGE, 3 * PAGE), (5 * PAGE + 7, 5 * PAGE + 93)):
        found = mapped(path, position, size)
        assert len(found) == size and bytes(found) == data[position : position + size]
        assert not found.lost
    for position, size in ((-1, 5), (0, 0), (0, -1)):
        with pytest.raises(OSError, match="Invalid argument"):
            mapped(path, position, size)


def test_a_file_that_is_removed_is_read_on(path: Path) -> None:
    data, found = path.read_bytes(), mapped(path)
    path.unlink()
    assert bytes(found) == data and not found.lost


def test_a_file_that_is_cut_reads_as_zeros_and_says_so(path: Path) -> None:
    data, found = path.read_bytes(), mapped(path)
    os.truncate(path, 2 * PAGE + 10)
    assert bytes(found) == data[: 2 * PAGE + 10] + bytes(8 * PAGE + 90)
    assert found.lost
    whole = mapped(path)
    assert bytes(whole) == data[: 2 * PAGE + 10] and not whole.lost


def test_a_file_that_is_cut_within_the_last_page_says_so_too(path: Path) -> None:
    """No page is gone, and the kernel does not complain."""
    found = mapped(path)
    os.truncate(path, 10 * PAGE + 1)
    assert bytes(found)[-99:] == bytes(99)
    assert found.lost


def test_other_threads_are_mended_too(path: Path) -> None:
    """Many of them, each with maps of its own that come and go while the file is cut and grows."""
    data, wrong, ends = path.read_bytes(), [], threading.Event()

    def read() -> None:
        while not ends.is_set():
            found = mapped(path, 0, len(data))
            if bytes(found) != data and not found.lost:
                wrong.append("zeros, and nothing said")

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        os.truncate(path, PAGE)
        with path.open("r+b") as file:
            file.write(data)
    os.truncate(path, PAGE)  # for good: who looks whether it lost something sees that it did
    ends.set()
    for thread in threads:
        thread.join()
    found = mapped(path, 0, len(data))
    assert bytes(found)[PAGE:] == bytes(len(data) - PAGE) and found.lost


# -- other people's faults ---------------------------------------------------------------------------------------------

HEAD = """
import faulthandler, mmap, os, signal, sys
from pybroker.core import FileMap
path = sys.argv[1]
file = open(path, "r+b")
def ours():
    found = FileMap(file.fileno(), 0, 8 * mmap.PAGESIZE)
    os.truncate(path, 0)
    assert bytes(found) == bytes(len(found)) and found.lost
    os.truncate(path, 8 * mmap.PAGESIZE)
def theirs():
    found = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    os.truncate(path, 0)
    print(found[0], flush=True)
"""
ENDS = {
    "no handler": ("ours(); theirs()", False),
    "a handler before ours": ("faulthandler.enable(); ours(); theirs()", True),
    "a handler after ours": ("ours(); faulthandler.enable(); ours(); theirs()", True),
    "a handler twice": (
        "faulthandler.enable(); ours(); faulthandler.disable(); faulthandler.enable(); ours(); theirs()", True
    ),
    "one of Python": ("signal.signal(signal.SIGBUS, lambda *_: None); ours(); theirs()", False),
    "one that was sent": ("ours(); os.kill(os.getpid(), signal.SIGBUS)", False),
    "one that was sent, and a handler": ("faulthandler.enable(); ours(); os.kill(os.getpid(), signal.SIGBUS)", True),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_faults_that_are_not_ours_end_as_they_would(path: Path, name: str) -> None:
    """The process ends by the signal, and a handler of others has its say."""
    if "thread" in os.environ.get("PYBROKER_SANITIZE", ""):
        pytest.skip("ThreadSanitizer's runtime has a say of its own, and ends a process without the signal")
    code, told = ENDS[name]
    env = {
        **os.environ,
        "PYTHONFAULTHANDLER": "",
        "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":handle_sigbus=0",
    }
    command = [sys.executable, "-c", HEAD + code, str(path)]
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGBUS, ended.stderr
    assert ("Fatal Python error: Bus error" in ended.stderr) is told, ended.stderr
    assert "AssertionError" not in ended.stderr


def test_a_forked_child_has_the_maps_too(path: Path) -> None:
    """And what happens to them there is its own."""
    code = (
        HEAD
        + """
found = FileMap(file.fileno(), 0, 8 * mmap.PAGESIZE)
pid = os.fork()
if pid == 0:
    os.truncate(path, 0)
    assert bytes(found) == bytes(len(found)) and found.lost
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert bytes(found) == bytes(len(found)) and found.lost
"""
    )
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=True, timeout=60)


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
def log(request: pytest.FixtureRequest) -> tuple[bytes, list[bytes]]:
    """Batches of some pages each with a codec, and the values in them."""
    random, made, values = Random(request.param), [], []
    for _ in range(8):
        batch = [random.randbytes(random.randrange(1, 900)) + b"-" * random.randrange(900) for _ in range(20)]
        record = [(len(values) + i, 0, None, value, []) for i, value in enumerate(batch)]
        made.append(slow.build_batch([each[1:] for each in record], attributes=request.param, base_offset=len(values)))
        values += batch
    return b"".join(made), values


def read(batches: PartitionBatches, most: int) -> tuple[list[bytes | None], int]:
    """The values that come, so many at a time, and the code of the error that ends them."""
    columns, found = Columns(["value"], decompress=decompress), []
    try:
        while not batches.finished:
            columns.read(batches, max_records=most)
            value = columns.take().value
            assert value
            found += fields(value)
    except LogError as error:
        value = columns.take().value
        assert value
        return found + fields(value), error.code
    return found, 0


def test_batches_of_a_map_are_those_in_memory(log: tuple[bytes, list[bytes]], tmp_path: Path) -> None:
    data, values = log
    path = tmp_path / "log"
    path.write_bytes(b"before" + data)
    for most in (1, 7, 1000):
        assert read(PartitionBatches(mapped(path, 6)), most) == (values, 0)


@pytest.mark.parametrize("most", [3, 1000])
def test_whatever_comes_of_a_file_that_is_cut_is_right(
    log: tuple[bytes, list[bytes]], tmp_path: Path, most: int
) -> None:
    """Cut at any place, before it is read or in the middle: the rows before it come, then the error, or the end."""
    data, values = log
    path, random, codes = tmp_path / "log", Random(most), set()
    for _ in range(150):
        path.write_bytes(data)
        batches = PartitionBatches(mapped(path))
        columns = Columns(["value"], decompress=decompress)
        began = random.choice([0, random.randrange(len(values))])
        columns.read(batches, max_records=began)
        taken = columns.take().value
        assert taken
        os.truncate(path, random.randrange(len(data)))
        found, code = read(batches, most)
        found = fields(taken) + found
        assert found == values[: len(found)] and code in (0, KAFKA_STORAGE_ERROR)
        codes.add(code)
    assert KAFKA_STORAGE_ERROR in codes


def test_whatever_comes_of_a_file_with_a_hole_is_right(log: tuple[bytes, list[bytes]], tmp_path: Path) -> None:
    """A page of zeros fails the CRC of its batch, also where half of that batch was read before."""
    data, values = log
    path, random = tmp_path / "log", Random(5)
    for _ in range(100):
        path.write_bytes(data)
        batches = PartitionBatches(mapped(path), reserved=True)
        columns = Columns(["value"], decompress=decompress)
        columns.read(batches, max_records=random.randrange(len(values)))
        taken = columns.take().value
        assert taken
        punch(path, random.randrange(len(data) // PAGE) * PAGE, PAGE)
        found, code = read(batches, 1000)
        found = fields(taken) + found
        assert found == values[: len(found)] and code in (0, CORRUPT_MESSAGE, UNSUPPORTED_FOR_MESSAGE_FORMAT)


def test_a_sound_batch_in_the_place_of_another_is_not_read_on(tmp_path: Path) -> None:
    """A log that was cut and written again: half of the one batch and half of the other are no batch."""
    one, other = (slow.build_batch([(0, None, each * 50, [])] * 20, base_offset=7) for each in (b"a", b"b"))
    assert len(one) == len(other)
    path = tmp_path / "log"
    path.write_bytes(one)
    batches = PartitionBatches(mapped(path))
    columns = Columns(["value"])
    assert columns.read(batches, max_records=8) == 8
    with path.open("r+b") as file:
        file.write(other)
    assert read(batches, 1000) == ([], KAFKA_STORAGE_ERROR)
    taken = columns.take().value
    assert taken and fields(taken) == [b"a" * 50] * 8


TOO_MANY = """
import mmap, resource, sys
from pathlib import Path
import pybroker
from pybroker.core import FileMap
from pybroker.client.segments import read_index
from tests.core.logs import NOW, Home, batch, read

limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
home = Home(Path(sys.argv[1]), {"index.interval.bytes": 1})
partition = home.open()
for number in range(600):
    partition.append(batch(1, at=NOW + number), now_ms=NOW)
partition.roll()
partition.flush()
partition.append(batch(1, at=NOW + 600), now_ms=NOW)
home.crash()
file = home.files(".log")[0].open("rb")
held = []
try:
    while len(held) < 20_000:
        held.append(FileMap(file.fileno(), 0, 1))
except OSError as problem:
    print(len(held), problem.strerror)
partition = home.open()
assert partition.log_end_offset == 601 and partition.recovery == "", partition.recovery
for number in range(0, 600, 7):
    assert read(partition, number, 1)
    assert partition.offset_for_timestamp(NOW + number, bound=601)[0] == number
assert sum(each.num_rows for each in pybroker.read_log(home.directory)) == 601
assert len(read_index(home.files(".index")[0])) == 599
home.crash()
"""


def test_where_nothing_can_be_mapped_files_are_copied(tmp_path: Path) -> None:
    """There are too many maps, or the file system has none: what is read is the same."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 17_000:
        pytest.skip("each of 16,384 maps holds a descriptor, and so many are not allowed here")
    command = [sys.executable, "-c", TOO_MANY, str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "16384 Cannot allocate memory\n"


def test_objects_are_not_read_from_a_map(log: tuple[bytes, list[bytes]], tmp_path: Path) -> None:
    from pybroker.core import read_records

    path = tmp_path / "log"
    path.write_bytes(log[0])
    with pytest.raises(TypeError, match="not from a map"):
        read_records(PartitionBatches(mapped(path)), "t", 0, 10, decompress)
