"""Hostile TLS clients, with truncated, excessive or invalid records: the broker serves others and keeps nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker import core
from tests.harness import eventually
from tests.server.live import Live, batch
from tests.server.test_tls import HOST, context, settings

READ_BYTES = 1 << 16


@pytest.fixture(params=["core", "ssl module"])
async def live(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    """A broker with core's TLS, and one where core cannot use this Python's OpenSSL."""
    if request.param == "ssl module":
        monkeypatch.setattr(core, "tls_available", lambda: False)
    made = Live(tmp_path / "data", settings(tmp_path))
    await made.start()
    yield made
    await made.stop()


def connections(live: Live) -> int:
    assert live.broker is not None and live.broker._sockets is not None
    return len(live.broker._sockets)


class Raw:
    """A TLS client whose records a test can change."""

    def __init__(self, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        made = context()
        made.minimum_version = made.maximum_version = version
        self.came, self.goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = made.wrap_bio(self.came, self.goes, server_hostname="localhost")

    async def open(self, live: Live, listener: str = "TLS") -> None:
        assert live.broker is not None
        at = live.broker.addresses[listener]
        self.reader, self.writer = await asyncio.open_connection(HOST, at.port)

    def step(self) -> bytes:
        """The next bytes that the handshake sends."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.goes.read()

    async def hear(self) -> None:
        self.came.write(await self.reader.read(READ_BYTES))

    async def handshake(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.writer.write(self.goes.read())
                await self.hear()
        self.writer.write(self.goes.read())

    async def hang_up(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
async def test_handshakes_that_are_cut_at_every_byte(live: Live, version: ssl.TLSVersion) -> None:
    """A client that disconnects at any byte of the first or second flight leaves no connection behind."""
    first, second = len(Raw(version).step()), 80  # of the second flight the first 80 bytes
    cuts = [(at, 0) for at in range(first)] + [(first, at) for at in range(0, second, 3)]
    for begin in range(0, len(cuts), 40):
        await asyncio.gather(*(_cut(live, version, *cut) for cut in cuts[begin : begin + 40]))
    await eventually("nothing is held of them", lambda: connections(live) == 0)
    wire = await live.connect("TLS", context())
    assert (await wire.create("t")).error_code == 0


async def _cut(live: Live, version: ssl.TLSVersion, first: int, second: int) -> None:
    raw = Raw(version)
    await raw.open(live)
    raw.writer.write(raw.step()[:first])
    if second:
        await raw.hear()
        raw.writer.write(raw.step()[:second])
    await raw.hang_up()


async def test_records_that_are_cut_or_changed_at_every_byte(live: Live) -> None:
    """A request whose TLS records are truncated or changed is not executed, and its connection ends."""
    wire = await live.connect("TLS", context())
    assert (await wire.create("t")).error_code == 0
    chance = random.Random(7)
    for number in range(60):
        raw = Raw()
        await raw.open(live)
        await raw.handshake()
        raw.tls.write(b"\0\0\0\x0a" + os.urandom(10) + b"\0\0\x10\0" + b"x" * chance.randrange(2000))
        data = bytearray(raw.goes.read())
        at = chance.randrange(5, len(data))
        if number % 2:
            data[at] ^= 1 << chance.randrange(8)
        else:
            del data[at:]
        raw.writer.write(data)
        if number % 2:
            with contextlib.suppress(ConnectionError):
                while await raw.reader.read(READ_BYTES):  # session tickets, an alert, and the end
                    pass
        await raw.hang_up()
    await eventually("nothing is held of them", lambda: connections(live) == 1)
    assert (await wire.produce("t", batch(b"x"))).base_offset == 0


async def test_a_thousand_half_handshakes_hold_nobody_up(live: Live) -> None:
    """Clients connect while a thousand others are silent or have only begun a handshake."""
    assert live.broker is not None
    at = live.broker.addresses["TLS"]
    hello = Raw().step()
    strangers = []
    for number in range(1000):
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(HOST, at.port)
            writer.write(hello[: (0, 3, 5, len(hello) - 1)[number % 4]])
            strangers.append((reader, writer))
        if number % 250 == 0:
            wire = await live.connect("TLS", context())
            assert (await wire.call("Metadata", 9, topics=[])).brokers
    wire = await live.connect("TLS", context())
    assert (await wire.call("Metadata", 9, topics=[])).brokers
    for _, writer in strangers:
        writer.close()
    live.hang_up()
    await eventually("nothing is held of them", lambda: connections(live) == 0)


async def test_what_is_told_beside_records_is_bounded(live: Live) -> None:
    """Endless empty records or warnings close the connection, and keep no thread busy."""
    raw = Raw(ssl.TLSVersion.TLSv1_2)
    await raw.open(live)
    await raw.handshake()
    with contextlib.suppress(ConnectionError):
        for _ in range(2000):
            raw.writer.write(b"\x15\x03\x03\x00\x02\x01\x00" * 10)  # in plaintext, where records must be encrypted
            await raw.writer.drain()
    await raw.hang_up()
    await eventually("it is closed", lambda: connections(live) == 0)
    wire = await live.connect("TLS", context())
    assert (await wire.call("Metadata", 9, topics=[])).brokers


async def test_a_peer_that_ends_its_half(live: Live) -> None:
    """After close_notify, or a half-closed socket without it, a request sent before is answered."""
    for says_so in (True, False):
        raw = Raw()
        await raw.open(live)
        await raw.handshake()
        from pybroker.protocol import codec
        from pybroker.protocol import messages as m
        from tests.server.live import KEYS

        frame = codec.encode_request(KEYS["Metadata"], 9, 5, "c", m.MetadataRequest(topics=[]))
        raw.tls.write(len(frame).to_bytes(4, "big") + frame)
        if says_so:
            with contextlib.suppress(ssl.SSLError):
                raw.tls.unwrap()
        raw.writer.write(raw.goes.read())
        raw.writer.write_eof()
        answer = b""
        while len(answer) < 8:
            try:
                answer += raw.tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                data = await raw.reader.read(READ_BYTES)
                assert data, "it was not answered"
                raw.came.write(data)
            except ssl.SSLZeroReturnError:
                break
        assert int.from_bytes(answer[4:8], "big") == 5
        await raw.hang_up()
    await eventually("it is closed", lambda: connections(live) == 0)
