"""A disk, reactor or client that stalls delays no other: slow files, unread answers, frames that never end."""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.page_cache import unwritten_bytes
from tests.core.stage import FETCH, PRODUCE, STUCK_MS, Client, Stage, batch, step_until
from tests.harness import ROOT, until

MANY = 2000
HUGE = 100 << 20
KERNEL_WRITES_S = 30  # until the kernel writes a changed page by itself: vm.dirty_expire_centisecs


class Running(Stage):
    """A stage whose reactors run in threads."""

    def step(self, turns: int = 3) -> None:
        """Do nothing, as the reactors run by themselves."""


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the limit of descriptors for both ends of many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * MANY + 200:
        pytest.skip(f"only {hard} file descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_kb() -> int:
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])


def produced(client: Client) -> int:
    part = client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0]
    assert part.error_code == 0
    return int(part.base_offset)


def test_a_stuck_flush_delays_no_produce_and_no_fetch(tmp_path: Path) -> None:
    """A flush that hangs delays no Produce and no Fetch of its partition."""
    stage = Stage(tmp_path)
    stage.log.append(batch(b"x"), now_ms=1)
    stage.broker.arm("segment.sync", "sleep", STUCK_MS)
    flush = threading.Thread(target=stage.log.flush)
    flush.start()
    client = Client(stage)
    for number in range(10):
        client.produce(batch(b"y"), number=number)
        client.fetch(0)
        stage.step()
        assert produced(client) == number + 1
        assert client.receive(FETCH, 12)[1].responses[0].partitions[0].high_watermark == number + 2
    assert flush.is_alive(), "the flush ended before the clients were answered"
    stage.broker.disarm()
    flush.join()
    stage.close()


@pytest.mark.parametrize(("point", "delay_ms"), [("segment.unlink", 0), ("segment.rename", 60_000)])
def test_old_segments_that_leave_delay_no_produce(tmp_path: Path, point: str, delay_ms: int) -> None:
    """Removing a large old segment on a slow disk delays no client of its partition."""
    stage = Stage(tmp_path)
    stage.log.configure({"segment.bytes": 1 << 10, "retention.bytes": 1, "file.delete.delay.ms": delay_ms})
    for _ in range(3):
        stage.log.append(batch(bytes(600)), now_ms=1)
    client = Client(stage)
    stage.broker.arm(point, "sleep", STUCK_MS)
    retention = threading.Thread(target=stage.log.enforce_retention, args=(1,))
    retention.start()
    until("the log begins later", lambda: stage.log.log_start_offset > 0, every_s=0.001)
    for number in range(10):
        client.produce(batch(b"y"), number=number)
        stage.step()
        assert produced(client) == number + 3
    start = stage.log.log_start_offset
    assert stage.log.offset_for_timestamp(0, bound=start + 9) is not None and stage.log.max_timestamp() is not None
    assert stage.log.read(start, 1 << 10).slice is not None
    assert stage.log.segments()[0][0] == 0 and retention.is_alive(), "the file was gone before the answers"
    stage.broker.disarm()
    retention.join()
    assert stage.log.segments()[0][0] > 0
    stage.close()


@pytest.mark.parametrize("kept", ["written on", "deleted"])
def test_what_is_appended_goes_to_the_disk_a_moment_later(tmp_path_factory: pytest.TempPathFactory, kept: str) -> None:
    """Most appended data is written out soon, long before the kernel's 30 s, so a later flush finds little to do."""
    home = tmp_path_factory.mktemp("disk")  # the other tests' logs lie in memory
    stage = Stage(home)
    path = next((home / "t-0").glob("*.log"))
    for _ in range(48):
        stage.log.append(batch(bytes(1_000_000)), now_ms=1)
    if unwritten_bytes(path) < 32 << 20:
        pytest.skip("this file system writes to disk at once, or never")
    if kept == "deleted":
        stage.broker.delete(stage.log)
    else:
        # As much as is being written may wait for the next step, so less than half waits.
        until("most of the data is written", lambda: unwritten_bytes(path) <= 24 << 20, KERNEL_WRITES_S - 5)
    stage.close()


def test_a_stuck_write_stalls_its_own_reactor_alone(tmp_path: Path) -> None:
    """A hanging append stalls its own reactor; the other one writes elsewhere and reads even the stalled partition."""
    stage = Running(tmp_path, reactors=2)
    stuck, free = Client(stage), Client(stage)  # reactors take connections in turn
    stage.broker.arm("append.after", "sleep", STUCK_MS)
    stage.plane.start()
    stuck.produce(batch(b"x"))
    until("the record is appended", lambda: stage.log.log_end_offset > 0, every_s=0.001)
    free.fetch(0)
    assert free.receive(FETCH, 12)[1].responses[0].partitions[0].high_watermark == 1
    for number in range(100):
        free.produce(batch(b"y"), partition=1)
        assert produced(free) == number
    assert stuck.quiet(), "the append ended before the clients were answered"
    stage.broker.disarm()
    assert produced(stuck) == 0
    stage.close()


def test_two_thousand_connections_at_once(tmp_path: Path, many_files: None) -> None:
    """Two thousand connections that send in the same turn, twice, are all answered, each append with its own offset."""
    stage = Running(tmp_path)
    clients = [Client(stage) for _ in range(MANY)]
    for round_ in range(2):
        for client in clients:
            client.produce(batch(b"x"), number=round_)
        for _ in range(40):
            stage.plane.step(0)
        assert len({produced(client) for client in clients}) == MANY
    assert stage.log.log_end_offset == 2 * MANY
    assert stage.plane.stats()[0]["Produce"]["requests"] == 2 * MANY
    stage.close()


def test_a_huge_frame_that_comes_byte_by_byte(tmp_path: Path) -> None:
    """A frame that announces 100 MB and arrives byte by byte takes memory for what arrived, and others are served."""
    stage = Stage(tmp_path, frame_bytes_max=HUGE)
    slow = [Client(stage) for _ in range(20)]
    fast = Client(stage)
    stage.step()
    before_kb = resident_kb()
    for client in slow:
        client.sock.sendall(struct.pack(">i", HUGE))
    for number in range(200):
        for client in slow:
            client.sock.sendall(b"\0")
        stage.step(1)
        fast.produce(batch(b"x"), number=number)
        stage.step(1)
        assert produced(fast) == number
    assert resident_kb() - before_kb < 10 << 10
    stage.close()


def test_who_never_reads_is_closed_in_the_end(tmp_path: Path) -> None:
    """A client that never reads its answers is closed after the idle time, and its memory is freed."""
    stage = Stage(tmp_path, idle_ms=1500)
    for _ in range(20):
        stage.log.append(batch(bytes(100_000)), now_ms=1)
    reader = Client(stage)
    for number in range(20):
        reader.fetch(0, number=number)
    step_until(stage, lambda: not stage.plane.stats()[0]["connections"], 100)
    ((kind, key, _, _),) = stage.plane.take()
    assert (kind, key) == ("closed", reader.id)
    stage.close()


WITHOUT_DESCRIPTORS = """
import contextlib, os, resource, sys
from pybroker import core
broker, taken, left = core.LogManager(), [os.dup(0)], int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1 + left, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
with contextlib.suppress(OSError):
    while True:
        taken.append(os.dup(0))
for _ in range(left):
    os.close(taken.pop())
try:
    core.Plane(broker)
except OSError as refusal:
    assert "Too many open files" in str(refusal)
else:
    sys.exit("a plane was made")
for descriptor in taken:
    os.close(descriptor)  # a sanitizer has a report to open as the process ends
"""


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_plane_without_descriptors_is_none(left: int) -> None:
    """A plane that lacks one of its three descriptors raises an error instead of running without events.

    The test runs in its own process, where no other thread closes a descriptor.
    """
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS, str(left)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
