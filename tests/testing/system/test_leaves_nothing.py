"""No thread, descriptor, process or file stays behind, however the test, or the test run, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.testing import BrokerHandle, ClusterHandle, Mode, cluster, datadir
from pybroker.testing import broker as new_broker
from pybroker.testing.datadir import PREFIX, SWEEP_AGE_S, DataDir
from tests.harness import ROOT, until
from tests.testing.kit import KINDS, Kind


def descriptors() -> set[str]:
    """The open descriptors of this process, by kind and name."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return found


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def use(broker: BrokerHandle) -> None:
    """Use a broker as a test does, and leave more open than a test should."""
    broker.create_topic("t", partitions=3)
    broker.produce("t", "a")
    broker.kill()
    broker.start()
    broker.faults.stall("JoinGroup")
    broker.restart()
    broker.records("t")


@pytest.mark.alone
@pytest.mark.usefixtures("uncollected")
def test_threads_descriptors_processes_and_files_go(mode: Mode) -> None:
    """Threads, descriptors, processes and files are gone after close()."""
    with new_broker(mode=mode) as broker:  # modules and caches are loaded only once
        use(broker)
    threads, files, processes = set(threading.enumerate()), descriptors(), children()
    with new_broker(mode=mode) as broker:
        use(broker)
        assert os.path.isdir(broker.data_dir)
    broker.close()  # a second close() does nothing
    assert not os.path.exists(broker.data_dir)
    assert set(threading.enumerate()) <= threads
    assert descriptors() <= files
    assert children() <= processes


@pytest.mark.alone
@pytest.mark.usefixtures("uncollected")
def test_a_start_that_fails_leaves_nothing(mode: Mode) -> None:
    """A start that fails leaves nothing, and neither does a broker that never started."""
    with contextlib.suppress(Exception):
        BrokerHandle(mode=mode, settings={"num.partitions": 0})
    threads, files, processes = set(threading.enumerate()), descriptors(), children()
    with contextlib.suppress(Exception):
        BrokerHandle(mode=mode, settings={"num.partitions": 0})
    assert set(threading.enumerate()) <= threads
    assert descriptors() <= files
    assert children() <= processes


def use_cluster(cluster: ClusterHandle) -> None:
    """Use a cluster as a test does, and leave it running."""
    topic = cluster.create_topic("t")
    cluster.produce(topic, "a")
    cluster.kill(cluster.leader(topic))
    cluster.wait_in_sync(topic)
    cluster.cut_off(cluster.leader(topic))
    if cluster.mode == "subprocess":
        cluster.pause()


@pytest.mark.alone
@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nothing_of_a_cluster_stays(kind: Kind) -> None:
    """A cluster leaves nothing, also with a dead broker, one that is cut off, and all paused."""
    with cluster(**kind) as running:
        use_cluster(running)
    threads, files, processes = set(threading.enumerate()), descriptors(), children()
    with cluster(**kind) as running:
        use_cluster(running)
        directory = running._members.directory
        assert os.path.isdir(directory)
    running.close()  # a second close() does nothing
    assert not os.path.exists(directory)
    until("its threads have ended", lambda: set(threading.enumerate()) <= threads)
    with contextlib.suppress(AssertionError):  # the sets show which descriptors differ
        until("its descriptors are closed", lambda: descriptors() <= files)
    assert descriptors() - files == set()
    assert children() <= processes


CLUSTER = """
import os, sys, time
import pybroker.testing
cluster = pybroker.testing.cluster(mode={mode!r}, store="zookeeper")
cluster.produce("t", "a")
lives = cluster._members.lives.values()
print(*(getattr(life, "pid", -1) for life in lives), *(s.pid for s in cluster.zookeeper.servers), flush=True)
{then}
"""


@pytest.mark.parametrize("then", ["", "raise KeyboardInterrupt", "os.kill(os.getpid(), 9)"])
def test_a_program_that_does_not_close_its_cluster(tmp_path: Path, mode: Mode, then: str) -> None:
    """A program that does not close its cluster leaves no broker and no ZooKeeper, however it ends; the files go with
    the last process."""
    code = CLUSTER.format(mode=mode, then=then)
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.wait(60)
    assert len(pids) == 4
    until("its processes are gone", lambda: all(pid < 0 or gone(pid) for pid in pids))
    if mode == "subprocess" or "kill" not in then:
        until("its files are gone", lambda: list(tmp_path.iterdir()) == [])


PROGRAM = """
import os, sys, time
import pybroker.testing
broker = pybroker.testing.BrokerHandle(mode={mode!r})
broker.produce("t", "a")
print(getattr(broker._life, "pid", -1), flush=True)
{then}
"""


@pytest.fixture
def program(tmp_path: Path, mode: Mode) -> Callable[[str], subprocess.Popen[str]]:
    """Start a program that has a broker and does not close it; its files are in tmp_path."""

    def start(then: str) -> subprocess.Popen[str]:
        code = PROGRAM.format(mode=mode, then=then)
        env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)

    return start


def broker_pid(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def gone(pid: int) -> bool:
    """True if the process does not exist, or only waits for its parent to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("then", ["", "sys.exit(3)", "raise KeyboardInterrupt"])
def test_a_program_that_forgets_to_close(
    program: Callable[[str], subprocess.Popen[str]], tmp_path: Path, then: str
) -> None:
    """A program that forgets to close its broker ends without an error, and the broker's process and files are removed
    at its exit."""
    with program(then) as process:
        pid = broker_pid(process)
        code = process.wait(30)
    assert code == {"": 0, "sys.exit(3)": 3}.get(then, -signal.SIGINT)
    assert list(tmp_path.iterdir()) == []
    assert pid < 0 or gone(pid)


def test_a_program_that_is_killed(
    program: Callable[[str], subprocess.Popen[str]], tmp_path: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is killed leaves nothing: a broker's own process notices and cleans up; other leftovers are
    removed by the next test run."""
    with program("time.sleep(600)") as process:
        pid = broker_pid(process)
        process.kill()
        process.wait(30)
    if mode == "subprocess":
        until("the broker's process is gone", lambda: gone(pid))
    else:
        (left,) = tmp_path.iterdir()
        os.utime(left, (0, 0))
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr(datadir.tempfile, "tempdir", None)
        DataDir().remove()
    assert list(tmp_path.iterdir()) == []


def test_only_what_nobody_uses_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only unused directories are swept; those in use, young, or of another name stay."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(datadir.tempfile, "tempdir", None)
    used = DataDir()
    young, old, other = tmp_path / f"{PREFIX}young", tmp_path / f"{PREFIX}old", tmp_path / "other"
    for path in (young, old, other):
        path.mkdir()
    for path in (Path(used.path), old, other):
        os.utime(path, (0, time.time() - SWEEP_AGE_S - 1))
    DataDir().remove()
    assert set(tmp_path.iterdir()) == {Path(used.path), young, other}
    used.remove()
