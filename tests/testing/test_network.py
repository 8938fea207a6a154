"""The network of a test's cluster: what it accepted, it closes."""

from __future__ import annotations

import asyncio
import socket

from pybroker.testing.network import stop_listening


async def test_a_connection_that_was_accepted_begins_before_its_server_closes() -> None:
    """Its client hears of the end; otherwise nobody closes it."""
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
