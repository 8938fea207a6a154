"""An error while a log is opened is not taken for damage: the start fails, and the next one finds all records."""

import errno
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from pybroker.core import LogManager, bad_spots
from tests.core.logs import NOW, Home, assert_same, batch
from tests.core.slow_log import SlowLog
from tests.harness import until

Limits = AbstractContextManager[None]


def rolled(path: Path, count: int, every: int, size: int) -> Home:
    """A log after a crash: one record a batch, and a new segment every few batches."""
    home = Home(path)
    partition = home.open()
    for number in range(count):
        partition.append(batch(1, size=size, at=NOW + number), now_ms=NOW)
        if number % every == every - 1:
            partition.roll()
    home.crash()
    return home


def test_a_page_that_cannot_be_read_is_no_damage(tmp_path: Path) -> None:
    """A page that cannot be read fails the start; nothing is cut, marked or removed because of that."""
    home = rolled(tmp_path, 40, 10, 2000)
    files = home.files(".log")
    kept = {path: path.read_bytes() for path in files}
    broker = LogManager()
    broker.arm("segment.read", "sleep", 300, after=1, under=files[1].name)
    thread = threading.Thread(target=cut_when, args=(broker, files[1]))
    thread.start()
    with pytest.raises(OSError, match="Input/output error"):
        home.open_in(broker)
    thread.join()
    broker.close()
    assert [path for path in home.files(".log") if path != files[1]] == [path for path in files if path != files[1]]
    assert all(path.read_bytes() == kept[path] for path in files if path != files[1])
    assert files[1].stat().st_size == 4096


def cut_when(broker: LogManager, path: Path) -> None:
    """Cut the file while the broker sleeps in a failpoint, between reading its size and its content."""
    until("the broker sleeps", lambda: broker.sleeping > 0, every_s=0.001)
    os.truncate(path, 4096)


def torn_with_sound_ones_behind(path: Path) -> Home:
    """A log whose first segment of three ends within a batch, with acknowledged segments behind that bad spot."""
    home = rolled(path, 18, 6, 9000)
    first = home.files(".log")[0]
    os.truncate(first, first.stat().st_size - 100)
    return home


def test_no_read_that_fails_makes_a_sound_segment_a_bad_one(tmp_path: Path) -> None:
    """A failing read during a start, whichever it is, fails the start and changes no file; the next start succeeds."""
    home = torn_with_sound_ones_behind(tmp_path)
    kept = {path: path.read_bytes() for path in home.files(".log")}
    for fine in range(100):
        broker = LogManager()
        broker.arm("segment.read", "errno", errno.EIO, after=fine, times=1, under=".log")
        try:
            home.open_in(broker)
        except OSError as problem:
            assert problem.errno == errno.EIO
        else:
            break
        finally:
            broker.close(clean=False)
        assert {path: path.read_bytes() for path in home.files(".log")} == kept
    assert fine > 6, "each segment is read more than once"
    assert len(home.files(".log")) == 4
    partition = home.open()
    assert (partition.log_start_offset, partition.log_end_offset) == (0, 18)
    assert bad_spots(partition) == [(0, 45360, 54332, 5, 6)]
    home.crash()


def test_no_map_is_left_behind_a_start(tmp_path: Path) -> None:
    """A start leaves no map of a segment file, though its scan maps several segments."""
    home = torn_with_sound_ones_behind(tmp_path)
    for path in home.files(".log")[1:3]:
        content = bytearray(path.read_bytes())
        content[100::9000] = bytes(255 - byte for byte in content[100::9000])
        path.write_bytes(content)
    for _ in range(3):
        home.open()
        assert not [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
        home.crash()


# -- the files beside the segments -------------------------------------------------------------------------------------


def with_producers_and_epochs(path: Path, *, clean: bool) -> tuple[Home, SlowLog]:
    """Write two producers and three leader epochs over three segments; the last was flushed and recorded."""
    home, model = Home(path), SlowLog()
    partition = home.open()
    for number in range(12):
        epoch = number // 4
        partition.become_leader(epoch, 0)
        data = batch(1, size=900, at=NOW + number, producer=(7 + number % 2, 0, number // 2))
        assert partition.append(data, now_ms=NOW).base_offset == model.append(data, epoch)
        if number % 4 == 3 and number < 11:
            partition.roll()
    partition.flush()
    home.checkpoint()
    home.reopen(clean=True)
    if clean:
        home.stop()
    else:
        home.crash()
    return home, model


def opens(home: Home, model: SlowLog, broker: LogManager, trouble: int, within: Limits | None = None) -> bool:
    """True if the log opens with all its data; if it fails, check that the error is `trouble` and no file changed."""
    kept = {path: path.read_bytes() for path in home.directory.iterdir()}
    try:
        with within or nullcontext():
            partition = home.open_in(broker)
    except OSError as problem:
        assert problem.errno == trouble
        assert {path: path.read_bytes() for path in home.directory.iterdir()} == kept
        return False
    assert_same(partition, model)
    return True


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("trouble", [errno.EIO, errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", ".snapshot", "index", ".log"])
def test_a_file_that_cannot_be_read_is_not_taken_for_one_that_is_torn(
    tmp_path: Path, name: str, trouble: int, clean: bool
) -> None:
    """A start with a failing read, whichever it is, opens the log with every epoch and producer, or not at all."""
    home, model = with_producers_and_epochs(tmp_path, clean=clean)
    opened = False
    for fine in range(100):
        broker = LogManager()
        broker.arm("segment.read", "errno", trouble, after=fine, times=1, under=name)
        opened = opens(home, model, broker, trouble)
        broker.close(clean=False)
        if opened:
            break
    assert opened
    assert_same(home.open(), model)
    home.crash()


@contextmanager
def descriptors(left: int) -> Iterator[None]:
    """Limit this process to `left` more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    holes = [os.open(os.devnull, os.O_RDONLY)]
    while holes[-1] < highest:
        holes.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (holes[-1] + 1 + left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for hole in holes:
            os.close(hole)


@pytest.mark.parametrize("clean", [True, False])
def test_a_descriptor_too_few_loses_nothing(tmp_path: Path, clean: bool) -> None:
    """A start without enough descriptors opens the log with every epoch and producer, or not at all."""
    home, model = with_producers_and_epochs(tmp_path, clean=clean)
    for left in range(30):
        broker = LogManager()
        opened = opens(home, model, broker, errno.EMFILE, descriptors(left))
        broker.close(clean=False)
        if opened:
            break
    assert opened and left > 1
