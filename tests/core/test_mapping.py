"""A read of a mapped file that is cut, punched, written to or removed is discarded, and no process dies."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import pybroker
from pybroker.core import Columns, FileMap, LogError, PartitionBatches
from pybroker.protocol import records as slow
from pybroker.protocol.compression import decompress
from tests.core.columnar import fields
from tests.harness import ROOT, settle, until

PAGE = os.sysconf("SC_PAGESIZE")
PUNCH = 0x3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


def mapped(path: Path, position: int = 0, size: int | None = None) -> FileMap:
    settle(path)
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
        assert not found.stale
    for position, size in ((-1, 5), (0, 0), (0, -1)):
        with pytest.raises(OSError, match="Invalid argument"):
            mapped(path, position, size)


def test_a_file_that_is_removed_is_read_on(path: Path) -> None:
    """A removed file can still be read through its map, with the same bytes."""
    data, found = path.read_bytes(), mapped(path)
    path.unlink()
    assert bytes(found) == data


def test_a_file_that_was_changed_just_now_is_not_mapped(path: Path) -> None:
    """A file that was changed just now is not mapped, as another change could go unnoticed."""
    with path.open("rb") as file:

        def is_refused() -> bool:  # unless this process was held up between the change and the map
            os.utime(path)
            try:
                FileMap(file.fileno(), 0, 1)
            except OSError as problem:
                return problem.errno == errno.EBUSY
            return False

        until("a map is refused", is_refused)
        settle(path)
        found = FileMap(file.fileno(), 0, 1)
        assert not found.stale
        os.utime(path)
        assert found.stale


def test_a_file_that_is_cut_reads_as_zeros_and_says_so(path: Path) -> None:
    data, found = path.read_bytes(), mapped(path)
    os.truncate(path, 2 * PAGE + 10)
    assert bytes(found) == data[: 2 * PAGE + 10] + bytes(8 * PAGE + 90)
    assert found.stale
    whole = mapped(path)
    assert bytes(whole) == data[: 2 * PAGE + 10] and not whole.stale


def test_a_file_that_is_cut_within_the_last_page_says_so_too(path: Path) -> None:
    """A file that is cut within its last page is reported as stale, though no page is missing and no signal comes."""
    found = mapped(path)
    os.truncate(path, 10 * PAGE + 1)
    assert bytes(found)[-99:] == bytes(99)
    assert found.stale


def test_other_threads_are_mended_too(path: Path) -> None:
    """Maps of many threads survive a file that is cut and grows meanwhile."""
    data, wrong, ends = path.read_bytes(), [], threading.Event()

    def read() -> None:
        with path.open("rb") as file:
            while not ends.is_set():
                with contextlib.suppress(OSError):  # the file was changed just now
                    found = FileMap(file.fileno(), 0, len(data))
                    if bytes(found) != data and not found.stale:
                        wrong.append("zeros, and nothing said")

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        os.truncate(path, PAGE)
        with path.open("r+b") as file:
            file.write(data)
        settle(path)
    assert not wrong
    os.truncate(path, PAGE)  # for good, so that each reader notices the loss
    ends.set()
    for thread in threads:
        thread.join()
    found = mapped(path, 0, len(data))
    assert bytes(found)[PAGE:] == bytes(len(data) - PAGE) and found.stale


# -- faults of other code ----------------------------------------------------------------------------------------------

HEAD = """
import faulthandler, mmap, os, signal, sys
from pathlib import Path
from pybroker.core import FileMap
from tests.harness import settle
path = sys.argv[1]
file = open(path, "r+b")
def ours():
    settle(Path(path))
    found = FileMap(file.fileno(), 0, 8 * mmap.PAGESIZE)
    os.truncate(path, 0)
    assert bytes(found) == bytes(len(found)) and found.stale
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
    "one that was sent": ("ours(); os.kill(os.getpid(), signal.SIGBUS)", False),
    "one that was sent, and a handler": ("faulthandler.enable(); ours(); os.kill(os.getpid(), signal.SIGBUS)", True),
}  # fmt: skip


def child(path: Path, code: str) -> subprocess.CompletedProcess[str]:
    if "thread" in os.environ.get("PYBROKER_SANITIZE", ""):
        pytest.skip("ThreadSanitizer's runtime ends a process without the signal")
    env = {
        **os.environ,
        "PYTHONFAULTHANDLER": "",
        "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":handle_sigbus=0",
    }
    command = [sys.executable, "-c", HEAD + code, str(path)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ENDS)
def test_faults_that_are_not_ours_end_as_they_would(path: Path, name: str) -> None:
    """A SIGBUS that no map of ours caused ends the process with the signal, after other handlers have run."""
    code, told = ENDS[name]
    ended = child(path, code)
    assert ended.returncode == -signal.SIGBUS, ended.stderr
    assert ("Fatal Python error: Bus error" in ended.stderr) is told, ended.stderr
    assert "AssertionError" not in ended.stderr


GOES_ON = {
    "one that was sent, and is ignored": """
signal.signal(signal.SIGBUS, signal.SIG_IGN); ours(); os.kill(os.getpid(), signal.SIGBUS)
""",
    "one that was sent to a handler of Python": """
told = []
signal.signal(signal.SIGBUS, lambda *_: told.append(1)); ours(); os.kill(os.getpid(), signal.SIGBUS)
assert told
""",
    "a handler that mends the same place twice": """
import ctypes
import errno
told = []
@ctypes.CFUNCTYPE(None, ctypes.c_int)
def mend(number):
    told.append(number)
    os.truncate(path, 8 * mmap.PAGESIZE)
ctypes.CDLL(None).signal(signal.SIGBUS, mend)
ours()
found = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
for _ in range(2):
    os.truncate(path, 0)
    assert found[0] == 0
assert told == [signal.SIGBUS] * 2
""",
    "a handler that came after the map": """
from pybroker.core import Columns, PartitionBatches
settle(Path(path))
batches = PartitionBatches(FileMap(file.fileno(), 0, 8 * mmap.PAGESIZE))
faulthandler.enable()
os.truncate(path, 0)
assert Columns(["value"]).read(batches) == 0 and batches.stale
""",
    "no more maps are allowed": """
import ctypes
import errno
library = ctypes.CDLL(None)
library.mmap.restype, library.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 4]
settle(Path(path))
found = FileMap(file.fileno(), 0, 8 * mmap.PAGESIZE)
copy = bytearray(8 * mmap.PAGESIZE)
count = 0
while library.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | count % 2 * mmap.PROT_WRITE, 0x22, -1, 0) != 2**64 - 1:
    count += 1
os.truncate(path, 0)
assert memoryview(found)[3 * mmap.PAGESIZE] == 0 and found.stale
""",
}


@pytest.mark.parametrize("name", GOES_ON)
def test_who_would_have_gone_on_goes_on(path: Path, name: str) -> None:
    """Code that would survive a SIGBUS without our handler survives with it, and our faults do not reach that code."""
    if name == "no more maps are allowed" and os.environ.get("PYBROKER_SANITIZE", ""):
        pytest.skip("a sanitizer needs its own maps")
    ended = child(path, GOES_ON[name])
    assert ended.returncode == 0, ended.stderr


def test_a_forked_child_has_the_maps_too(path: Path) -> None:
    """A forked child has its own copy of the maps: a fault there does not affect the parent."""
    code = (
        HEAD
        + """
found = FileMap(file.fileno(), 0, 8 * mmap.PAGESIZE)
pid = os.fork()
if pid == 0:
    os.truncate(path, 0)
    assert bytes(found) == bytes(len(found)) and found.stale
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert bytes(found) == bytes(len(found)) and found.stale
"""
    )
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=True, timeout=60)


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
def log(request: pytest.FixtureRequest) -> tuple[bytes, list[bytes]]:
    """Batches of some pages each in one codec, and their values."""
    random, made, values = Random(request.param), [], []
    for _ in range(8):
        batch = [random.randbytes(random.randrange(1, 900)) + b"-" * random.randrange(900) for _ in range(20)]
        record = [(len(values) + i, 0, None, value, []) for i, value in enumerate(batch)]
        made.append(slow.build_batch([each[1:] for each in record], attributes=request.param, base_offset=len(values)))
        values += batch
    return b"".join(made), values


def read(batches: PartitionBatches, most: int) -> tuple[list[bytes | None], int]:
    """Read `most` records at a time; return the values and the error code that ended the reads."""
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


def cut(path: Path, random: Random) -> None:
    os.truncate(path, random.randrange(path.stat().st_size))


def hollow(path: Path, random: Random) -> None:
    punch(path, random.randrange(path.stat().st_size // PAGE) * PAGE, PAGE)


def restore(path: Path, random: Random) -> None:
    """Write other bytes for a moment, then restore the old ones."""
    data, at = path.read_bytes(), random.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), random.randbytes(100), at)
        os.ftruncate(file.fileno(), at)
        os.pwrite(file.fileno(), data[at:], at)


def go_on(path: Path, random: Random) -> None:
    """Append to the file; its old bytes stay."""
    with path.open("ab") as file:
        file.write(random.randbytes(100))


@pytest.mark.parametrize("change", [cut, hollow, restore, go_on])
@pytest.mark.parametrize("most", [3, 1000])
def test_what_was_read_of_a_file_that_changes_meanwhile_is_not_given(
    log: tuple[bytes, list[bytes]], tmp_path: Path, change: Callable[[Path, Random], None], most: int
) -> None:
    """Rows of a file that changed during the read are not returned; earlier rows stay, and next_offset is right."""
    data, values = log
    path, random = tmp_path / "log", Random(most)
    for _ in range(30):
        path.write_bytes(data)
        batches = PartitionBatches(mapped(path))
        columns = Columns(["value"], decompress=decompress)
        rows = random.choice([0, random.randrange(len(values))])
        columns.read(batches, max_records=rows)
        change(path, random)
        assert columns.read(batches, max_records=most) == 0
        assert batches.finished and batches.stale
        taken = columns.take().value
        assert taken and fields(taken) == values[:rows]
        again = PartitionBatches(data[batches.position :], start_offset=batches.next_offset)
        assert read(again, most) == (values[rows:], 0)


@pytest.mark.parametrize("codec", range(5))
def test_a_file_that_changes_all_the_time_gives_no_row_that_it_never_had(tmp_path: Path, codec: int) -> None:
    """Maps and copies of a file that another process keeps changing for moments give no row that it never had."""
    random = Random(codec)
    values = [b"%06d" % i + random.randbytes(random.randrange(100)) + b"-" * 50 for i in range(2000)]
    path = tmp_path / "t-0" / f"{0:020}.log"
    path.parent.mkdir()
    path.write_bytes(slow.build_batch([(0, None, value, []) for value in values], attributes=codec))
    writer = subprocess.Popen([sys.executable, "-c", RESTORES, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    wrong = right = 0
    while writer.poll() is None or not right:
        with contextlib.suppress(LogError):
            rows = random.choice([99, 9999])
            for batch in pybroker.read_log(path.parent, columns=["offset", "value"], batch_rows=rows):
                offsets, found = batch.column("offset").to_pylist(), batch.column("value").to_pylist()
                wrong += [values[offset] for offset in offsets] != found
                right += 1
    writer.stdout.close()
    assert writer.returncode == 0 and not wrong


RESTORES = """
import os, random, sys, time
random.seed(5)
file = os.open(sys.argv[1], os.O_RDWR)
data = os.pread(file, 1 << 30, 0)
ends = time.monotonic() + 1.5
while time.monotonic() < ends:
    at = random.randrange(61, len(data))
    n = min(random.choice([1, 4, 300, 5000]), len(data) - at)
    os.pwrite(file, random.randbytes(n), at)
    os.pwrite(file, data[at : at + n], at)
    time.sleep(random.random() * 0.03)  # now and then it looks settled
"""


TOO_MANY = """
import mmap, resource, sys
from pathlib import Path
import pybroker
from pybroker.core import FileMap
from pybroker.client.columns.segments import read_index
from tests.core.logs import NOW, Home, batch, read
from tests.harness import settle

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
settle(home.files(".log")[0])
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
    """A file that cannot be mapped, for too many maps or a file system without maps, is copied with the same result."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 17_000:
        pytest.skip("each of 16,384 maps holds a descriptor, and the limit here is lower")
    command = [sys.executable, "-c", TOO_MANY, str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "16384 Cannot allocate memory\n"


def test_objects_are_not_read_from_a_map(log: tuple[bytes, list[bytes]], tmp_path: Path) -> None:
    from pybroker.core import read_records

    path = tmp_path / "log"
    path.write_bytes(log[0])
    with pytest.raises(TypeError, match="not from a FileMap"):
        read_records(PartitionBatches(mapped(path)), "t", 0, 10, decompress)
