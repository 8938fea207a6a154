"""Tests that fork, as multiprocessing does: the broker is the parent's, and the child does not affect it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from pybroker.testing import BrokerFailed, BrokerHandle, Mode
from pybroker.testing import broker as new_broker
from pybroker.testing import cluster as new_cluster
from tests.harness import ROOT
from tests.testing.kit import KINDS, Kind

ENDS_S_MAX = 2.0


class Child:
    """A forked process that runs a function, reports the result, and lives until it is stopped."""

    def __init__(self, what: Callable[[], object] = lambda: None) -> None:
        said, say = os.pipe()
        wait, self._hold = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._hold)
            try:
                what()
                os.write(say, b"done")
            except BaseException as problem:
                os.write(say, repr(problem).encode())
            os.read(wait, 1)
            os._exit(0)
        os.close(say)
        os.close(wait)
        self.said = os.read(said, 1000).decode() or f"nothing: it ended with {os.waitpid(self.pid, 0)[1]:#x}"
        os.close(said)

    def end(self) -> None:
        os.close(self._hold)
        os.waitpid(self.pid, 0)


@pytest.fixture
def spoken_to(broker: BrokerHandle) -> Iterator[list[socket.socket]]:
    """Connections that have sent a request and stay open."""
    found: list[socket.socket] = []
    for _ in range(5):
        sock = socket.create_connection((broker.host, broker.port))
        sock.settimeout(ENDS_S_MAX)
        sock.sendall(struct.pack(">ihhih", 10, 18, 0, 1, 0))
        assert sock.recv(4096)
        found.append(sock)
    yield found
    for sock in found:
        sock.close()


def test_a_connection_of_before_a_fork_ends_at_once(broker: BrokerHandle, spoken_to: list[socket.socket]) -> None:
    """A connection from before a fork ends at once when the broker closes it, although the child has it open: its
    client sees the end, and the broker lives."""
    child = Child()
    for sock in spoken_to:
        sock.sendall(struct.pack(">ihhih", 10, 999, 0, 2, 0))  # an API that is not served
    for sock in spoken_to:
        assert sock.recv(1) == b""
    for _ in range(3):
        for sock in spoken_to:
            with contextlib.suppress(OSError):
                sock.sendall(b"x" * 10)
        broker.produce("t", "alive")
    assert len(broker.records("t")) == 3
    child.end()


def test_a_broker_restarts_while_a_child_lives(broker: BrokerHandle, spoken_to: list[socket.socket]) -> None:
    """A broker restarts while a child lives: its port and its log dirs are free at once, and its clients see the
    end."""
    broker.produce("t", "a")
    child = Child()
    broker.restart()
    for sock in spoken_to:
        assert sock.recv(1) == b""
    broker.produce("t", "b")
    broker.kill()
    broker.start()
    assert [record.value for record in broker.records("t")] == [b"a", b"b"]
    child.end()


def test_a_child_uses_the_broker_and_ends_nothing(broker: BrokerHandle) -> None:
    """A child can produce to the broker and read, but not start, stop or query it; leaving its `with` block ends
    nothing."""
    broker.produce("t", "parent")

    def child() -> None:
        broker.produce("t", "child")
        assert len(broker.records("t", count=2)) == 2
        for call in (broker.start, broker.stop, broker.restart, lambda: broker.faults.stall("JoinGroup")):
            with pytest.raises(BrokerFailed, match="made before a fork"):
                call()
        broker.kill()
        broker.close()

    forked = Child(child)
    assert forked.said == "done"
    forked.end()
    assert [record.value for record in broker.records("t")] == [b"parent", b"child"]
    broker.restart()
    assert [record.value for record in broker.records("t")] == [b"parent", b"child"]


def skip_beneath_tsan(kind: Kind) -> None:
    if kind.store == "zookeeper" and "thread" in os.environ.get("PYBROKER_SANITIZE", ""):
        pytest.skip("a ZooKeeper with small stacks does not start beneath ThreadSanitizer's runtime")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_child_uses_a_cluster_and_ends_nothing(kind: Kind) -> None:
    """A child can use a cluster as a client; neither leaving its `with` block nor a call ends anything."""
    if "address" in os.environ.get("PYBROKER_SANITIZE", ""):
        pytest.skip("AddressSanitizer's allocator may be locked by a thread that a child has not: clients have many")
    skip_beneath_tsan(kind)
    with new_cluster(2, **kind) as cluster:
        cluster.produce("t", "parent")

        def child() -> None:
            cluster.produce("t", "child")
            assert len(cluster.records("t", count=2)) == 2
            assert cluster.leader("t") in cluster.brokers
            cluster.wait_in_sync("t")
            for call in (cluster.start, cluster.stop, cluster.restart, lambda: cluster.cut_off(1)):
                with pytest.raises(BrokerFailed, match="made before a fork"):
                    call()
            cluster.kill()
            cluster.close()

        forked = Child(child)
        assert forked.said == "done"
        forked.end()
        assert [record.value for record in cluster.records("t")] == [b"parent", b"child"]
        cluster.kill(1)
        cluster.start(1)
        cluster.wait_in_sync("t")
        assert (cluster.zookeeper is None) == (cluster.store != "zookeeper")


LEAVES = """
import os, sys
from pybroker.testing import broker
with broker(mode=sys.argv[1]) as b:
    b.produce("t", "a")
    pid = os.fork()
    if pid == 0:
        sys.exit(7)  # by way of the end of the `with`, and of what runs at the end of an interpreter
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    b.produce("t", "b")
    b.restart()
    assert [record.value for record in b.records("t")] == [b"a", b"b"]
    pid = os.fork()
    if pid == 0:
        raise RuntimeError("the child fails")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    b.kill()
    b.start()
    assert len(b.records("t")) == 2
"""


CLUSTER_LEAVES = """
import os, sys
from pybroker.testing import cluster
with cluster(2, mode=sys.argv[1], store=sys.argv[2]) as c:
    c.produce("t", "a")
    pid = os.fork()
    if pid == 0:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    c.produce("t", "b")
    c.restart(1)
    c.wait_in_sync("t")
    assert [record.value for record in c.records("t")] == [b"a", b"b"]
"""


def ends_well(program: str, *arguments: str) -> None:
    command = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_child_that_ends_as_programs_do(mode: Mode) -> None:
    """A child that ends as programs do leaves the parent's `with` block and its interpreter; the parent's broker and
    data stay."""
    ends_well(LEAVES, mode)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_child_of_a_cluster_ends_as_programs_do(kind: Kind) -> None:
    """A child of a cluster that ends as programs do leaves the cluster and its ZooKeeper running."""
    skip_beneath_tsan(kind)
    ends_well(CLUSTER_LEAVES, kind["mode"], kind["store"])


def test_a_broker_of_a_childs_own() -> None:
    """A forked process can start a broker of its own."""

    def child() -> None:
        with new_broker() as broker:
            broker.produce("t", "a")
            assert len(broker.records("t")) == 1

    with new_broker() as parents:
        forked = Child(child)
        assert forked.said == "done"
        forked.end()
        parents.produce("t", "a")
