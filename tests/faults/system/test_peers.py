"""Slow, silent or many clients take bounded memory, and others are served as before."""

from __future__ import annotations

import itertools
import os
import resource
import socket
import statistics
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.faults.system.test_frames import assert_serves, resident_kb
from tests.harness import BrokerProcess, cpu_s, until
from tests.wire import API_VERSIONS, FETCH, Wire, array, batch, string

Start = Callable[..., BrokerProcess]
MIB = 1 << 20


def open_files(broker: BrokerProcess) -> int:
    assert broker.process is not None
    return len(os.listdir(f"/proc/{broker.process.pid}/fd"))


def latency_s(broker: BrokerProcess, topic: str, times: int = 31) -> float:
    """The median time of some produces and fetches by a well-behaved client; each must be answered."""
    taken = []
    with Wire(broker.port) as w:
        for _ in range(times):
            started = time.monotonic()
            produced = w.produce(topic, batch([b"x"]))
            assert produced.error == 0
            assert w.fetch(topic, produced.base_offset, max_wait_ms=0).error == 0
            taken.append(time.monotonic() - started)
    return statistics.median(taken)


def assert_unmoved(broker: BrokerProcess, topic: str, before_s: float) -> None:
    """Check that a well-behaved client is about as fast as before. (A stalled broker takes seconds.)"""
    assert latency_s(broker, topic) < max(20 * before_s, 0.1)


def test_lengths_that_are_only_promised(start_broker: Start, topic: str) -> None:
    """Five hundred clients that announce 90 MiB and send ten bytes take memory for what they sent."""
    broker = start_broker(sets={"socket.listen.backlog.size": 1024})
    with Wire(broker.port) as w, ExitStack() as stack:
        assert w.create_topic(topic) == 0
        files, before_kb, before_s = open_files(broker), resident_kb(broker), latency_s(broker, topic)
        for _ in range(500):
            peer = stack.enter_context(Wire(broker.port))
            peer.send(struct.pack(">i", 90 * MIB) + b"\0\0\0\7\0\0\0\1\0\0")
        assert_unmoved(broker, topic, before_s)
        assert resident_kb(broker) - before_kb < 30_000
        assert open_files(broker) >= files + 500
    until("the connections are closed", lambda: open_files(broker) < files + 10)


def test_clients_that_leave_in_the_middle_of_a_frame(broker: BrokerProcess) -> None:
    """A client that disconnects within a frame is freed at once and not after the idle time."""
    files = open_files(broker)
    for cut in (0, 2, 4, 9, 14):
        for before, half_close in itertools.product((0, 1), (False, True)):
            for _ in range(10):
                with Wire(broker.port) as w:
                    whole = w.frame(API_VERSIONS, 0, b"")
                    w.send(whole * before + whole[:cut])
                    if half_close:
                        w.socket.shutdown(socket.SHUT_WR)
                    if before:
                        w.receive()
            until(f"the connections cut at {cut} are closed", lambda: open_files(broker) < files + 5, timeout_s=30)
    assert_serves(broker)


def test_slow_writers(broker: BrokerProcess, topic: str) -> None:
    """A hundred clients that stop within 1 MiB keep their bytes, others are served, and then all of them finish."""
    with ExitStack() as stack, Wire(broker.port) as w:
        assert w.create_topic(topic, config={"max.message.bytes": str(2 * MIB)}) == 0
        before_kb, before_s = resident_kb(broker), latency_s(broker, topic)
        peers = [stack.enter_context(Wire(broker.port)) for _ in range(100)]
        big = batch([b"v" * MIB])
        frames = [peer.produce_frame(topic, big) for peer in peers]
        for peer, frame in zip(peers, frames, strict=True):
            peer.send(frame[: MIB // 2])
        assert_unmoved(broker, topic, before_s)
        assert resident_kb(broker) - before_kb < 150_000
        for peer, frame in zip(peers, frames, strict=True):
            peer.send(frame[MIB // 2 :])
        assert all(peer.produced().error == 0 for peer in peers)


def test_slow_readers(broker: BrokerProcess, topic: str) -> None:
    """Fifty clients that ask for 20 MiB repeatedly and read nothing cost little memory and delay no other."""
    with ExitStack() as stack, Wire(broker.port) as w:
        assert w.create_topic(topic, config={"max.message.bytes": str(2 * MIB)}) == 0
        for _ in range(20):
            assert w.produce(topic, batch([b"v" * MIB])).error == 0
        before_kb, before_s = resident_kb(broker), latency_s(broker, topic)
        asked = array([string(topic) + array([struct.pack(">iiqqi", 0, -1, 0, -1, 50 * MIB)])])
        body = struct.pack(">iiiibii", -1, 500, 1, 50 * MIB, 0, 0, -1) + asked + array([])
        peers = [stack.enter_context(Wire(broker.port)) for _ in range(50)]
        for peer in peers:
            for _ in range(5):
                peer.send(peer.frame(FETCH, 10, body))
        assert_unmoved(broker, topic, before_s)
        assert resident_kb(broker) - before_kb < 100_000
        assert len(peers[0].receive()) > 20 * MIB  # its answer is there when it reads


def test_ten_thousand_idle_connections(start_broker: Start, descriptors: int, topic: str) -> None:
    """Ten thousand idle connections cost little memory and no latency, and closing them frees what they held."""
    if descriptors < 10_500:
        pytest.skip(f"only {descriptors} file descriptors are allowed here")
    broker = start_broker(sets={"socket.listen.backlog.size": 4096})
    with ExitStack() as stack, Wire(broker.port) as w:
        assert w.create_topic(topic) == 0
        files, before_kb, before_s = open_files(broker), resident_kb(broker), latency_s(broker, topic)
        for _ in range(10_000):
            stack.enter_context(Wire(broker.port))
        until("all connections are accepted", lambda: open_files(broker) >= files + 10_000)
        assert_unmoved(broker, topic, before_s)
        assert (resident_kb(broker) - before_kb) / 10_000 < 8, "KiB a connection"
    until("the connections are closed", lambda: open_files(broker) < files + 10)


def test_idle_connections_are_closed_in_the_end(start_broker: Start, topic: str) -> None:
    """connections.max.idle.ms closes a silent client and one that stopped within a request, but no parked Fetch."""
    broker = start_broker(sets={"connections.max.idle.ms": 1000})
    with Wire(broker.port) as w:
        assert w.create_topic(topic) == 0
    with Wire(broker.port) as silent, Wire(broker.port) as stopped:
        stopped.send(stopped.produce_frame(topic, batch([b"x"]))[:20])
        with Wire(broker.port) as waiting:
            assert waiting.fetch(topic, 0, max_wait_ms=3_000).error == 0  # three idle times
        assert silent.is_closed()
        assert stopped.is_closed()


def test_without_file_descriptors(start_broker: Start, topic: str) -> None:
    """A broker without descriptors stops accepting and goes on writing; with fewer clients it accepts again."""
    broker = start_broker(sets={"socket.listen.backlog.size": 1024})
    assert broker.process is not None
    with Wire(broker.port) as w, ExitStack() as stack:
        assert w.create_topic(topic, config={"segment.bytes": "2000"}) == 0
        soft, hard = resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (open_files(broker) + 60, hard))
        for _ in range(100):
            stack.enter_context(Wire(broker.port))  # the kernel's backlog takes what the broker does not accept
        spent = cpu_s(broker.process.pid)
        started = time.monotonic()
        for n in range(100):  # rolls at least ten times: logs keep their descriptors
            assert w.produce(topic, batch([b"v" * 200]))[:2] == (0, n)
        until("a second has passed", lambda: time.monotonic() - started > 1)
        assert cpu_s(broker.process.pid) - spent < 0.7 * (time.monotonic() - started), "the broker spins"
        stack.close()
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert_serves(broker)
