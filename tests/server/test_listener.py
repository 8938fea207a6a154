"""Sockets, frames and order: what the listener does with bytes, whatever they mean."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import struct

import pytest

from pybroker.server.connection import QUEUED_BYTES_MAX
from pybroker.server.listener import DESCRIPTORS_KEPT, RECEIVE_BYTES
from pybroker.server.pool import Pool
from tests.harness import eventually, looked
from tests.server.conftest import Bench


async def test_answers_come_in_the_order_of_the_requests(bench: Bench) -> None:
    """A hundred requests in one write are answered one after the other."""
    bench.start()
    client = await bench.client()
    client.send(*[f"echo:{n}" for n in range(100)])
    assert [await client.answer() for _ in range(100)] == [str(n) for n in range(100)]


async def test_a_request_that_waits_holds_those_behind_it(bench: Bench) -> None:
    """Nothing overtakes on one connection; another connection is not held up."""
    bench.start()
    client, other = await bench.client(), await bench.client()
    client.send("wait:a", "echo:b")
    await eventually("it is executed", lambda: "a" in bench.script.released)
    other.send("echo:c")
    assert await other.answer() == "c"
    assert bench.script.seen == ["wait:a", "echo:c"]
    bench.script.released["a"].set()
    assert [await client.answer(), await client.answer()] == ["a", "b"]


async def test_a_request_without_answer_does_not_disturb_the_others(bench: Bench) -> None:
    bench.start()
    client = await bench.client()
    client.send("silent:a", "echo:b", "silent:c", "echo:d")
    assert [await client.answer(), await client.answer()] == ["b", "d"]


@pytest.mark.parametrize("size", [-1, -(1 << 31), 0, (1 << 20) + 1, (1 << 31) - 1])
async def test_a_length_that_is_not_allowed_closes(bench: Bench, size: int, caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log names the client and the length; nothing is allocated by it."""
    bench.start()
    client = await bench.client()
    client.writer.write(struct.pack(">i", size) + b"abc")
    assert await client.closed()
    assert bench.pool.held_bytes == 0
    [line] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert f"a frame of {size} bytes" in line and "client=127.0.0.1:" in line


async def test_a_length_that_is_not_allowed_costs_no_answer(bench: Bench) -> None:
    """Requests before it are executed and answered, those that wait too; then the connection closes."""
    bench.start()
    client = await bench.client()
    client.send("echo:a", "news:b")
    client.writer.write(struct.pack(">i", -1) + b"abc")
    await eventually("the next is executed", lambda: "b" in bench.script.released)
    bench.script.released["b"].set()
    assert [await client.answer(), await client.answer()] == ["a", "b"]
    assert await client.closed() and bench.pool.held_bytes == 0


async def test_the_largest_frame_is_taken(bench: Bench) -> None:
    """At the limit a request is executed; one byte more closes (above)."""
    bench.start()
    client = await bench.client()
    client.send("echo:" + "y" * ((1 << 20) - 5))
    assert len(await client.answer()) == (1 << 20) - 5


async def test_a_frame_may_come_byte_by_byte(bench: Bench) -> None:
    bench.start()
    client = await bench.client()
    for byte in struct.pack(">i", 6) + b"echo:z" + struct.pack(">i", 6) + b"echo:q":
        client.writer.write(bytes([byte]))
        await client.writer.drain()
        await asyncio.sleep(0.001)
    assert [await client.answer(), await client.answer()] == ["z", "q"]


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 9])
async def test_a_frame_cut_anywhere_is_dropped_and_its_memory_given_back(bench: Bench, cut: int) -> None:
    """What came whole before the cut is executed all the same (acks=0 relies on it)."""
    listener = bench.start()
    client = await bench.client()
    client.send("silent:a")
    client.writer.write((struct.pack(">i", 6) + b"echo:z")[:cut])
    client.writer.close()
    await eventually("it was executed and closed", lambda: bench.script.seen and len(listener) == 0)
    assert bench.script.seen == ["silent:a"]
    assert bench.pool.held_bytes == 0


async def test_a_wait_for_news_is_given_up_when_the_client_goes(bench: Bench) -> None:
    """A parked fetch dies with its client, another request runs to its end."""
    listener = bench.start()
    for verb in ("news", "wait"):
        client = await bench.client()
        client.send(f"{verb}:{verb}")
        await eventually("it is executed", lambda verb=verb: verb in bench.script.released)
        client.writer.close()
    await eventually("the fetch is given up", lambda: len(listener) == 1)
    await looked()
    for event in bench.script.released.values():
        event.set()
    await eventually("it is closed", lambda: len(listener) == 0)
    assert bench.script.done == ["wait"]
    assert bench.pool.held_bytes == 0


async def test_memory_grows_with_bytes_received_not_with_the_length_declared(bench: Bench) -> None:
    bench.start(request_bytes_max=1 << 30)
    client = await bench.client()
    client.writer.write(struct.pack(">i", 1 << 30) + b"x" * 1000)
    await eventually("what came is held", lambda: bench.pool.held_bytes >= 1004)
    await looked()
    assert bench.pool.held_bytes == 1004


async def test_a_connection_is_not_read_beyond_its_budget(bench: Bench) -> None:
    """Behind a request that waits, a megabyte is taken; the rest stays in the kernel until it ends."""
    bench.start()
    client = await bench.client()
    client.send("wait:a")
    frame = "silent:" + "x" * 100_000
    client.send(*[frame] * 60)
    await eventually("as much is held as may be", lambda: bench.pool.held_bytes >= QUEUED_BYTES_MAX)
    await looked()
    assert bench.pool.held_bytes <= QUEUED_BYTES_MAX + RECEIVE_BYTES + 100
    bench.script.released["a"].set()
    assert await client.answer() == "a"
    client.send("echo:end")
    assert await client.answer() == "end"
    assert len(bench.script.seen) == 62


async def test_a_slow_reader_holds_up_only_itself(bench: Bench) -> None:
    """With an answer stuck in its socket, a connection's next request is not begun, and others are served."""
    bench.start()
    slow, other = await bench.client(), await bench.client()
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
    size = 30_000_000
    slow.send(f"big:{size}", f"big:{size}")
    await eventually("it is executed", lambda: bench.script.seen)
    for n in range(20):
        other.send(f"echo:{n}")
        assert await other.answer() == str(n)
    assert bench.script.seen.count(f"big:{size}") == 1
    slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert [len(await slow.answer()), len(await slow.answer())] == [size, size]


async def test_a_full_pool_makes_readers_wait_and_never_stands_still(bench: Bench) -> None:
    """Ten half-sent requests of 400 KB share room for one megabyte: each is finished in the end."""
    bench.start(pool=Pool(1_000_000))
    clients = [await bench.client() for _ in range(10)]
    body = b"silent:" + b"x" * 400_000
    frame = struct.pack(">i", len(body)) + body
    for client in clients:
        client.writer.write(frame[:150_000])
    await eventually("the frame is held", lambda: bench.pool.held_bytes >= 1_000_000)
    await looked()
    assert bench.pool.held_bytes <= 1_000_000 + RECEIVE_BYTES
    for client in clients:
        client.writer.write(frame[150_000:])
    await eventually("all are executed", lambda: len(bench.script.seen) == 10)
    assert bench.pool.held_bytes == 0


async def test_an_idle_connection_is_closed(bench: Bench) -> None:
    """Of two that were silent for as long, one speaks before the listener looks: that one stays."""
    listener = bench.start(idle_seconds_max=60)
    idle, busy = await bench.client(), await bench.client()
    await eventually("both are there", lambda: len(listener) == 2)
    assert listener._timer is not None
    listener._timer.cancel()  # here the test is the clock
    for connection in listener._connections:
        connection.last_active -= 61
    busy.send("echo:here")
    assert await busy.answer() == "here"
    listener._tend()
    assert await idle.closed()
    busy.send("echo:still here")
    assert await busy.answer() == "still here"


async def test_max_connections_makes_further_ones_wait(bench: Bench) -> None:
    listener = bench.start(connections_max=2)
    first, second = await bench.client(), await bench.client()
    third = await bench.client()  # the kernel accepts, the broker not yet
    third.send("echo:3")
    first.send("echo:1")
    assert await first.answer() == "1"
    await looked()
    assert len(listener) == 2 and bench.script.seen == ["echo:1"]
    first.writer.close()
    assert await third.answer() == "3"
    second.send("echo:2")
    assert await second.answer() == "2"


async def test_max_connections_per_ip_closes_further_ones(bench: Bench) -> None:
    listener = bench.start(connections_per_ip_max=1)
    first = await bench.client()
    first.send("echo:1")
    assert await first.answer() == "1"
    second = await bench.client()
    assert await second.closed()
    assert len(listener) == 1


@pytest.mark.parametrize("left", [0, DESCRIPTORS_KEPT], ids=["none left", "the rest is kept for the logs"])
async def test_without_descriptors_accepting_pauses_without_a_busy_loop(bench: Bench, left: int) -> None:
    """Connections stop being taken while descriptors are short, CPU time stays low, and it goes on afterwards: with
    those that waited, too."""
    bench.start()
    first = await bench.client()
    first.send("echo:1")
    assert await first.answer() == "1"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    late = socket.socket()
    late.setblocking(False)
    lowest = os.dup(0)
    os.close(lowest)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + left, hard))
        with pytest.raises(BlockingIOError):
            late.connect(("127.0.0.1", bench.listener.port))  # type: ignore[union-attr]
        before = os.times().user + os.times().system
        await asyncio.sleep(1.2)
        assert os.times().user + os.times().system - before < 0.3
        first.send("echo:2")
        assert await first.answer() == "2"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    reader, writer = await asyncio.open_connection(sock=late)
    writer.write(struct.pack(">i", 6) + b"echo:z")
    assert await asyncio.wait_for(reader.readexactly(5), 5) == struct.pack(">i", 1) + b"z"
    writer.close()


async def test_a_request_may_close_its_connection(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.start()
    client = await bench.client()
    client.send("echo:a", "close:malformed request: something", "echo:b")
    assert await client.answer() == "a"
    assert await client.closed()
    assert bench.script.seen[-1] != "echo:b"
    assert 'reason="malformed request: something"' in caplog.text


async def test_closing_lets_running_requests_end(bench: Bench) -> None:
    """The running request is answered, what waits behind it is not begun, an idle connection is closed at once."""
    listener = bench.start()
    client, idle = await bench.client(), await bench.client()
    client.send("wait:a", "echo:b")
    await eventually("it is executed", lambda: "a" in bench.script.released)
    closing = asyncio.create_task(listener.close(5))
    assert await idle.closed()
    assert not closing.done()
    bench.script.released["a"].set()
    assert await client.answer() == "a"
    assert await client.closed()
    await asyncio.wait_for(closing, 1)
    assert bench.script.seen == ["wait:a"]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", listener.port)


async def test_idle_connections_cost_little(bench: Bench) -> None:
    """Three thousand idle connections: a few KiB each, and the next request is answered at once."""
    listener = bench.start(connections_max=20_000, connections_per_ip_max=20_000, backlog=4096)
    sockets = []
    before = _resident_bytes()
    for _ in range(3000):
        s = socket.socket()
        s.setblocking(False)
        with pytest.raises(BlockingIOError):
            s.connect(("127.0.0.1", listener.port))
        sockets.append(s)
    await eventually("all are there", lambda: len(listener) == 3000)
    each = (_resident_bytes() - before) / 3000
    client = await bench.client()
    client.send("echo:quick")
    assert await client.answer() == "quick"
    for s in sockets:
        s.close()
    await eventually("one is left", lambda: len(listener) == 1)
    assert each < 4096, f"{each:.0f} bytes a connection, its client's end included"


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
