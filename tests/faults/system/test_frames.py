"""A broker answers or closes the connection on frames that no client sends, and never crashes or hangs."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import BrokerProcess
from tests.wire import FETCH, PRODUCE, Wire, array, batch, string

REQUEST_BYTES_MAX = 1 << 20
MUTANTS = 400


@pytest.fixture
def small(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker whose largest request is 1 MiB."""
    return start_broker(sets={"socket.request.max.bytes": REQUEST_BYTES_MAX})


def resident_kb(broker: BrokerProcess) -> int:
    assert broker.process is not None
    return int(Path(f"/proc/{broker.process.pid}/status").read_text().split("VmRSS:")[1].split()[0])


def assert_serves(broker: BrokerProcess) -> None:
    """Check that another client is answered meanwhile."""
    with Wire(broker.port) as w:
        assert w.api_versions()


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 1, REQUEST_BYTES_MAX + 1, 2**31 - 1])
def test_a_length_that_cannot_be_closes_the_connection(small: BrokerProcess, length: int) -> None:
    """A frame size that is negative, zero, too small or too large closes the connection without an allocation."""
    before_kb = resident_kb(small)
    for _ in range(20):
        with Wire(small.port) as w:
            w.send(struct.pack(">i", length) + b"\0" * 8)
            assert w.is_closed()
    assert resident_kb(small) - before_kb < 20_000
    assert_serves(small)


def test_the_largest_request_is_taken(small: BrokerProcess, topic: str) -> None:
    """A frame of exactly socket.request.max.bytes is executed; one byte more closes the connection."""
    with Wire(small.port) as w:
        assert w.create_topic(topic, config={"max.message.bytes": "2000000"}) == 0
        overhead = len(w.produce_frame(topic, b"")) - 4 + len(batch([b""])) + 8
        fits = b"v" * (REQUEST_BYTES_MAX - overhead)
        while len(w.produce_frame(topic, batch([fits]))) - 4 < REQUEST_BYTES_MAX:
            fits += b"v"
        frame = w.produce_frame(topic, batch([fits]))
        assert len(frame) - 4 == REQUEST_BYTES_MAX
        w.send(frame)
        assert w.produced()[:2] == (0, 0)
        with contextlib.suppress(ConnectionError):  # the size closes the connection before all of it is sent
            w.send(w.produce_frame(topic, batch([fits + b"v"])))
        assert w.is_closed()
    assert_serves(small)


@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\xff" * 64,
        random.Random(1).randbytes(4096),
    ],
    ids=["http", "tls", "ssh", "ones", "random"],
)
def test_other_protocols_are_turned_away(shared_broker: BrokerProcess, hello: bytes) -> None:
    """Bytes of another protocol close the connection, at an impossible size or at the end of the stream."""
    with Wire(shared_broker.port) as w:
        w.send(hello)
        w.socket.shutdown(socket.SHUT_WR)
        assert w.is_closed()
    assert_serves(shared_broker)


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 12, 13, 40, -1])
def test_a_frame_cut_anywhere_is_forgotten(shared_broker: BrokerProcess, topic: str, cut: int) -> None:
    """A Produce that is cut when its client disconnects appends nothing."""
    with Wire(shared_broker.port) as w:
        assert w.create_topic(topic) == 0
        frame = w.produce_frame(topic, batch([b"x" * 100]))
    with Wire(shared_broker.port) as w:
        w.send(frame[:cut])
        w.socket.shutdown(socket.SHUT_WR)
        assert w.is_closed()
    with Wire(shared_broker.port) as w:
        assert w.list_offset(topic, -1)[2] == 0


def test_requests_byte_by_byte(shared_broker: BrokerProcess, topic: str) -> None:
    """A request that arrives byte by byte is executed when it is complete."""
    with Wire(shared_broker.port) as w:
        assert w.create_topic(topic) == 0
        for byte in w.produce_frame(topic, batch([b"slow"])):
            w.send(bytes([byte]))
        assert w.produced()[:2] == (0, 0)


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """Change bytes of the frame after its api key and version; its size stays right."""
    content = bytearray(frame[4:])
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(4, len(content))
        spoil = rng.choice(
            [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", rng.randbytes(1), rng.randbytes(8)]
        )
        content[at : at + len(spoil)] = spoil
    if rng.random() < 0.3:
        del content[rng.randrange(8, len(content)) :]
    return struct.pack(">i", len(content)) + bytes(content)


def test_frames_that_never_end_leave_no_memory_behind(start_broker: Callable[..., BrokerProcess]) -> None:
    """Memory of clients that disconnect within large requests is freed, round after round."""
    broker = start_broker()
    rng = random.Random(1)
    before_kb = resident_kb(broker)
    for _ in range(4):
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Wire(broker.port)) for _ in range(40)]
            for part in range(4):  # some of each in turn, so that their buffers grow side by side
                for w in clients:
                    w.send((struct.pack(">i", 50 << 20) if part == 0 else b"") + bytes(rng.randrange(2 << 20)))
            for w in clients:
                w.socket.shutdown(socket.SHUT_WR)
            for w in clients:
                assert w.is_closed()
    assert resident_kb(broker) - before_kb < 30_000
    assert_serves(broker)


@pytest.mark.parametrize("api", [PRODUCE, FETCH])
def test_mutated_produce_and_fetch(start_broker: Callable[..., BrokerProcess], topic: str, api: int) -> None:
    """Each of hundreds of mutated Produce and Fetch requests ends, and the log holds whole batches."""
    broker = start_broker()
    rng = random.Random(api)
    with Wire(broker.port) as w:
        assert w.create_topic(topic) == 0
        records = batch([b"one", b"two", b"three"])
        assert w.produce(topic, records).error == 0
        if api == PRODUCE:
            frame = w.produce_frame(topic, records)
        else:
            asked = array([string(topic) + array([struct.pack(">iiqqi", 0, -1, 0, -1, 1 << 20)])])
            frame = w.frame(FETCH, 10, struct.pack(">iiiibii", -1, 0, 0, 1 << 20, 0, 0, -1) + asked + array([]))
    for _ in range(MUTANTS):
        with Wire(broker.port) as w, contextlib.suppress(ConnectionError):
            w.send(mutated(frame, rng))
            w.socket.shutdown(socket.SHUT_WR)  # so that acks=0 and long waits end
            while w.socket.recv(1 << 16):
                pass
    assert broker.running
    assert_serves(broker)
    with Wire(broker.port) as w:
        for found in w.fetch_all(topic):
            assert found.count == found.last_offset_delta + 1
    assert not [line for line in broker.output().splitlines() if "Traceback" in line]
