"""A listening socket: how many clients it accepts, when it pauses, and how it closes."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct

import pytest

from pybroker.server.network.listener import DESCRIPTORS_KEPT
from tests.harness import eventually, looked
from tests.oracle.bench import Bench


async def test_an_idle_connection_is_closed(bench: Bench) -> None:
    """The busy one of two connections, both silent until the idle check, sends data and stays open."""
    listener = bench.start(idle_seconds_max=60)
    idle, busy = await bench.client(), await bench.client()
    await eventually("both are there", lambda: len(listener) == 2)
    assert listener._timer is not None
    listener._timer.cancel()  # the test runs the check itself
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
    third = await bench.client()  # accepted by the kernel, not by the broker yet
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
    """Accepting pauses while file descriptors are short, at low CPU time, and then resumes with the waiting
    connections."""
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
    assert await asyncio.wait_for(reader.readexactly(5), 30) == struct.pack(">i", 1) + b"z"
    writer.close()


async def test_closing_lets_running_requests_end(bench: Bench) -> None:
    """The running request is answered, queued ones are dropped, and an idle connection is closed at once."""
    listener = bench.start()
    client, idle = await bench.client(), await bench.client()
    client.send("wait:a", "echo:b")
    await eventually("it is executed", lambda: "a" in bench.script.released)
    closing = asyncio.create_task(bench.stop(5))
    assert await idle.closed()
    assert not closing.done()
    bench.script.released["a"].set()
    assert await client.answer() == "a"
    assert await client.closed()
    await closing
    assert bench.script.seen == ["wait:a"]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", listener.port)
