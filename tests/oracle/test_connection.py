"""The slow plane handles sockets, frames and the order of requests for any content of frames."""

from __future__ import annotations

import logging
import struct

import pytest

from tests.harness import eventually, looked
from tests.oracle.bench import Bench
from tests.oracle.connection import QUEUED_BYTES_MAX
from tests.oracle.plane import RECEIVE_BYTES
from tests.oracle.pool import Pool


async def test_answers_come_in_the_order_of_the_requests(bench: Bench) -> None:
    """A hundred requests in one write are answered in order."""
    bench.start()
    client = await bench.client()
    client.send(*[f"echo:{n}" for n in range(100)])
    assert [await client.answer() for _ in range(100)] == [str(n) for n in range(100)]


async def test_a_request_that_waits_holds_those_behind_it(bench: Bench) -> None:
    """A waiting request delays later ones of its connection, but no other connection."""
    bench.start()
    client, other = await bench.client(), await bench.client()
    client.send("wait:a", "echo:b")
    await eventually("the request is executed", lambda: "a" in bench.script.released)
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
    """A forbidden frame size closes the connection without an allocation; a log line names the client and the size."""
    bench.start()
    client = await bench.client()
    client.writer.write(struct.pack(">i", size) + b"abc")
    assert await client.closed()
    assert bench.pool.held_bytes == 0
    [line] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert f"a frame of {size} bytes" in line and "client=127.0.0.1:" in line


async def test_a_length_that_is_not_allowed_costs_no_answer(bench: Bench) -> None:
    """Requests before a frame of forbidden size are executed and answered; then the connection closes."""
    bench.start()
    client = await bench.client()
    client.send("echo:a", "news:b")
    client.writer.write(struct.pack(">i", -1) + b"abc")
    await eventually("the next request is executed", lambda: "b" in bench.script.released)
    bench.script.released["b"].set()
    assert [await client.answer(), await client.answer()] == ["a", "b"]
    assert await client.closed() and bench.pool.held_bytes == 0


async def test_the_largest_frame_is_taken(bench: Bench) -> None:
    """A request of exactly the size limit is executed."""
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
        await looked(3)
    assert [await client.answer(), await client.answer()] == ["z", "q"]


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 9])
async def test_a_frame_cut_anywhere_is_dropped_and_its_memory_given_back(bench: Bench, cut: int) -> None:
    """A frame that a disconnect cuts is dropped; complete frames before it are executed (for acks=0)."""
    listener = bench.start()
    client = await bench.client()
    client.send("silent:a")
    client.writer.write((struct.pack(">i", 6) + b"echo:z")[:cut])
    client.writer.close()
    await eventually("the connection is closed", lambda: bench.script.seen and len(listener) == 0)
    assert bench.script.seen == ["silent:a"]
    assert bench.pool.held_bytes == 0


async def test_a_wait_for_news_is_given_up_when_the_client_goes(bench: Bench) -> None:
    """A long poll is cancelled when its client disconnects, and another request runs to its end."""
    listener = bench.start()
    for verb in ("news", "wait"):
        client = await bench.client()
        client.send(f"{verb}:{verb}")
        await eventually("the request is executed", lambda verb=verb: verb in bench.script.released)
        client.writer.close()
    await eventually("the long poll is cancelled", lambda: len(listener) == 1)
    await looked()
    for event in bench.script.released.values():
        event.set()
    await eventually("the connection is closed", lambda: len(listener) == 0)
    assert bench.script.done == ["wait"]
    assert bench.pool.held_bytes == 0


async def test_memory_grows_with_bytes_received_not_with_the_length_declared(bench: Bench) -> None:
    bench.start(request_bytes_max=1 << 30)
    client = await bench.client()
    client.writer.write(struct.pack(">i", 1 << 30) + b"x" * 1000)
    await eventually("the received bytes are held", lambda: bench.pool.held_bytes >= 1004)
    await looked()
    assert bench.pool.held_bytes == 1004


async def test_a_connection_is_not_read_beyond_its_budget(bench: Bench) -> None:
    """Behind a waiting request, a connection is read up to QUEUED_BYTES_MAX; the kernel keeps the rest."""
    bench.start()
    client = await bench.client()
    client.send("wait:a")
    frame = "silent:" + "x" * 100_000
    client.send(*[frame] * 60)
    await eventually("the limit of held bytes is reached", lambda: bench.pool.held_bytes >= QUEUED_BYTES_MAX)
    await looked()
    assert bench.pool.held_bytes <= QUEUED_BYTES_MAX + RECEIVE_BYTES + 100
    bench.script.released["a"].set()
    assert await client.answer() == "a"
    client.send("echo:end")
    assert await client.answer() == "end"
    assert len(bench.script.seen) == 62


async def test_a_slow_reader_holds_up_only_itself(bench: Bench) -> None:
    """A client that does not read its answer delays only its own next request."""
    bench.start()
    slow, other = await bench.client(), await bench.client()
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
    size = 30_000_000
    slow.send(f"big:{size}", f"big:{size}")
    await eventually("the request is executed", lambda: bench.script.seen)
    for n in range(20):
        other.send(f"echo:{n}")
        assert await other.answer() == str(n)
    assert bench.script.seen.count(f"big:{size}") == 1
    slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert [len(await slow.answer()), len(await slow.answer())] == [size, size]


async def test_a_full_pool_makes_readers_wait_and_never_stands_still(bench: Bench) -> None:
    """Ten half-sent requests of 400 KB share a pool of 1 MB, and each is finished in the end."""
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
    await eventually("all requests are executed", lambda: len(bench.script.seen) == 10)
    assert bench.pool.held_bytes == 0


async def test_a_request_may_close_its_connection(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.start()
    client = await bench.client()
    client.send("echo:a", "close:malformed request: something", "echo:b")
    assert await client.answer() == "a"
    assert await client.closed()
    assert bench.script.seen[-1] != "echo:b"
    assert 'reason="malformed request: something"' in caplog.text
