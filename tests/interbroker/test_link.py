"""A connection between brokers gives answers in order, reports its end to every waiter, and refuses invalid answers."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import closing

import pytest

from pybroker.client.net.connection import BrokerConnection
from pybroker.client.net.loop import Loop
from pybroker.errors import KafkaError
from pybroker.interbroker.link import Link, dial
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.testing import async_broker
from tests.harness import HOST, eventually, free_port

UPDATE_METADATA = 6
METADATA_VERSION = 12


@pytest.fixture
def unused() -> int:
    """A port without a listener."""
    return free_port()


class Peer:
    """The other end, which sends what the test asks for."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.writer: asyncio.StreamWriter | None = None
        self.serving = 0

    async def open(self) -> int:
        self.server = await asyncio.start_server(self._serve, HOST, 0)
        return int(self.server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.serving += 1
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                self.frames.put_nowait(await reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.serving -= 1
            writer.close()

    async def answer(self, error_code: int) -> None:
        """Answer the oldest unanswered request."""
        header = codec.decode_request_header(await self.frames.get())
        answer = m.UpdateMetadataResponse(error_code=error_code)
        self.say(codec.encode_response(header.api_key, header.api_version, header.correlation_id, answer))

    def say(self, body: bytes) -> None:
        assert self.writer is not None
        self.writer.write(struct.pack(">i", len(body)) + body)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    yield peer
    peer.server.close()
    if peer.writer is not None:
        peer.writer.transport.abort()
    await eventually("the peer's end is closed", lambda: not peer.serving)


def update() -> object:
    return m.UpdateMetadataRequest(controller_id=1, controller_epoch=1, topic_states=[], live_brokers=[])


async def test_answers_come_in_the_order_of_the_requests(peer: Peer) -> None:
    """Several requests may be in flight; each caller gets the answer to its own request."""
    link = await Link.open(HOST, await peer.open(), client_id="1")
    asked = [asyncio.create_task(link.ask(update(), 8)) for _ in range(3)]
    for code in (11, 0, 77):
        await peer.answer(code)
    assert [answer.error_code for answer in await asyncio.gather(*asked)] == [11, 0, 77]
    link.close()


async def test_an_end_of_the_other_side_fails_what_waits_and_is_told(peer: Peer) -> None:
    """When the other process dies, every waiting request of the connection fails at once."""
    link = await Link.open(HOST, await peer.open(), client_id="1")
    asked = asyncio.create_task(link.ask(update(), 8))
    await peer.frames.get()
    assert peer.writer is not None and not link.hung_up
    peer.writer.transport.abort()
    with pytest.raises(ConnectionError):
        await asked
    assert "connection" in (await link.closed).lower() and link.hung_up
    with pytest.raises(ConnectionError, match="is closed"):
        await link.ask(update(), 8)


async def test_nobody_listens(unused: int) -> None:
    """A refused connection has its own error, which shows that the process is gone."""
    with pytest.raises(ConnectionRefusedError):
        await Link.open(HOST, unused, client_id="1")


@pytest.mark.parametrize("host", ["kafka..example.com", "k" * 64 + ".example.com"])
async def test_what_is_no_name_of_a_host_is_not_reached(host: str) -> None:
    """An invalid host name fails like one that does not resolve, so that a caller may retry."""
    await _is_no_address(host, 9092)


async def test_a_port_that_is_none_reaches_nobody_else() -> None:
    """An invalid port is refused, as the C library would use its lower 16 bits and reach another broker."""
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        for wrong in (port + 65536, port - 65536, 0):
            await _is_no_address(HOST, wrong)
            with pytest.raises(KafkaError, match="no address"):
                BrokerConnection(HOST, wrong)
            found: Future[object] = Future()
            with closing(Loop("looks up")) as loop:
                loop.resolve(HOST, wrong, found.set_result)
                assert isinstance(found.result(5), ValueError)


async def _is_no_address(host: str, port: int) -> None:
    with pytest.raises(OSError, match="is not a valid address"):
        await Link.open(host, port, client_id="1")
    with pytest.raises(OSError, match="is not a valid address"):
        await dial(host, port, client_id="1")


@pytest.mark.parametrize("body", [b"", b"\0\0\0\x63", b"\0\0\0\x01" + b"\xff" * 7])
async def test_nonsense_ends_the_connection(peer: Peer, body: bytes) -> None:
    """An invalid answer, or one to another request, ends the connection, as later answers could not be assigned."""
    link = await Link.open(HOST, await peer.open(), client_id="1")
    asked = asyncio.create_task(link.ask(update(), 8))
    await peer.frames.get()
    peer.say(body)
    with pytest.raises(ConnectionError):
        await asked
    assert link.closed.done()


async def test_what_nobody_asked_for_ends_the_connection(peer: Peer) -> None:
    link = await Link.open(HOST, await peer.open(), client_id="1")
    asked = asyncio.create_task(link.ask(update(), 8))
    await peer.answer(0)
    assert (await asked).error_code == 0
    peer.say(b"\0\0\0\x02\0\0\0")
    assert "unrequested" in await link.closed


async def test_an_answer_that_is_late_ends_the_connection(peer: Peer) -> None:
    """A late answer ends the connection, as it would be taken for the answer to a later request."""
    link = await Link.open(HOST, await peer.open(), client_id="1")
    with pytest.raises(TimeoutError):
        await link.ask(update(), 8, timeout_s=0.05)
    assert "did not answer UpdateMetadata in 0.05 s" in await link.closed


async def test_a_broker_answers() -> None:
    async with async_broker() as broker:
        host, port = broker.bootstrap_servers.split(":")
        link = await Link.open(host, int(port), client_id="1")
        answer = await link.ask(m.MetadataRequest(topics=[]), METADATA_VERSION)
        assert [node.port for node in answer.brokers] == [int(port)]
        link.close()
