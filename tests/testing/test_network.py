"""The network of a test's cluster closes every connection that it accepted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Any

import pytest

from pybroker.testing.lifecycle import hold_port
from pybroker.testing.network import ClusterNetwork, stop_listening


async def test_a_connection_that_was_accepted_begins_before_its_server_closes() -> None:
    """An accepted connection begins before its server closes, so that its client sees the end; otherwise it would stay
    open."""
    begun = asyncio.Event()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname(), timeout=10) as client:
        for _ in range(2):
            await asyncio.sleep(0)  # it is accepted, and has not begun
        assert not begun.is_set()
        await stop_listening(server)
        await asyncio.wait_for(begun.wait(), 10)
        assert await asyncio.to_thread(client.recv, 1) == b""


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("when", ["meanwhile", "before"])
def test_a_way_that_listens_again_while_all_is_closed(when: str) -> None:
    """A link that listens again while the network closes leaves no listener and no open descriptor."""
    before = len(os.listdir("/proc/self/fd"))
    network = ClusterNetwork()
    with hold_port() as refuses:
        network.way_to(1, refuses.getsockname()[1], by=2)
    (way,) = network._ways
    assert way.listening is not None
    network.thread.call(way.listening.close)
    again: Any = network._listen(way)

    def begin() -> None:
        """Run it as far as it goes without waiting."""
        with contextlib.suppress(StopIteration):
            again.send(None)

    if when == "meanwhile":
        network.thread.call(begin)
    network.close()
    if when == "before":
        begin()
    again.close()
    again = None
    assert len(os.listdir("/proc/self/fd")) == before
