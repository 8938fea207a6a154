"""Hostile clients of a TLS listener: truncated, corrupted or ten thousand unfinished handshakes, and renegotiation."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import HOST, BrokerProcess, cpu_s, eventually, free_port
from tests.server.live import Live
from tests.server.test_connections import CLIENT_DESCRIPTORS, resident_bytes
from tests.server.test_tls import context, settings

LINGER_NOT = struct.pack("ii", 1, 0)
HALF, HALF_BYTES_MAX, SERVED_CPU_S_MAX, STUCK_S = 10_000, 128 << 10, 5.0, 120
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@pytest.fixture
async def native(tmp_path: Path) -> AsyncIterator[Live]:
    made = Live(tmp_path / "data", settings(tmp_path))
    await made.start()
    yield made
    await made.stop()


def client(version: str) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """A TLS client without a socket, its input buffer and its output buffer."""
    made = context()
    made.minimum_version = made.maximum_version = VERSIONS[version]
    inside, outside = ssl.MemoryBIO(), ssl.MemoryBIO()
    return made.wrap_bio(inside, outside, server_hostname="localhost"), inside, outside


def shake(at: tuple[str, int], version: str, cut: int, *, reset: bool) -> int:
    """Send the first `cut` bytes of a client's handshake, then close; return the bytes of the whole handshake."""
    end, inside, outside = client(version)
    said = 0
    with socket.create_connection(at, 10) as sock:
        while True:
            done = False
            try:
                end.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            flight = outside.read()
            sock.sendall(flight[: max(0, cut - said)])
            said += len(flight)
            if done or said > cut:
                break
            answer = sock.recv(1 << 16)
            assert answer
            inside.write(answer)
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
    return said


async def test_a_handshake_that_is_cut_anywhere_leaves_nothing(native: Live, caplog: pytest.LogCaptureFixture) -> None:
    assert native.broker is not None
    at = HOST, native.broker.addresses["TLS"].port

    def cut_everywhere(version: str) -> int:
        whole = shake(at, version, 1 << 20, reset=False)
        for cut in range(whole):
            shake(at, version, cut, reset=cut % 2 == 1)
        return whole

    for version in VERSIONS:
        assert await asyncio.to_thread(cut_everywhere, version) > 200
    await eventually("all are gone", lambda: not native.broker._sockets)  # type: ignore[union-attr]
    wire = await native.connect("TLS", context())
    assert (await wire.call("Metadata", 9, topics=[])).brokers
    assert [record for record in caplog.records if record.levelno > logging.WARNING or record.exc_info] == []


async def test_a_handshake_that_is_bent_anywhere_is_refused_or_goes_on(
    native: Live, caplog: pytest.LogCaptureFixture
) -> None:
    """Each byte of a ClientHello, with each of two bits flipped: the broker closes, or answers with a TLS record."""
    assert native.broker is not None
    at = HOST, native.broker.addresses["TLS"].port

    def bend_everywhere() -> None:
        end, _, outside = client("1.3")
        with pytest.raises(ssl.SSLWantReadError):
            end.do_handshake()
        hello = outside.read()
        for place in range(len(hello)):
            for bit in (0x01, 0x80):
                bent = bytearray(hello)
                bent[place] ^= bit
                with socket.create_connection(at, 10) as sock:
                    sock.sendall(bent)
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(1 << 16):
                        pass

    await asyncio.to_thread(bend_everywhere)
    await eventually("all are gone", lambda: not native.broker._sockets)  # type: ignore[union-attr]
    wire = await native.connect("TLS", context())
    assert (await wire.call("Metadata", 9, topics=[])).brokers
    assert [record for record in caplog.records if record.levelno > logging.WARNING or record.exc_info] == []


@pytest.fixture
def descriptors() -> Iterator[int]:
    """Raise the limit of open files; yield the number of sockets that a test may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(HALF, (hard if hard > 0 else HALF * 2) - CLIENT_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + CLIENT_DESCRIPTORS), hard))
    yield count
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ten_thousand_half_handshakes(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path, descriptors: int
) -> None:
    """Later clients are served, as unfinished handshakes may hold an eighth of the broker's file descriptors."""
    first, port, last = (free_port() for _ in range(3))
    sets = dict(line.split("=", 1) for line in settings(tmp_path))
    sets["listeners"] = f"OPEN://{HOST}:{first},TLS://{HOST}:{port},BOTH://{HOST}:{last}"
    broker = start_broker(port=first, sets={**sets, "socket.listen.backlog.size": 4096})
    assert broker.process is not None
    pid = broker.process.pid
    end, _, outside = client("1.3")
    with pytest.raises(ssl.SSLWantReadError):
        end.do_handshake()
    half = outside.read()[:200]
    sockets: list[socket.socket] = []
    try:
        before = resident_bytes(pid)
        for _ in range(descriptors):
            sockets.append(socket.create_connection((HOST, port), STUCK_S))
            sockets[-1].sendall(half)
        began_cpu_s = cpu_s(pid)
        with socket.create_connection((HOST, port), STUCK_S) as sock:
            context().wrap_socket(sock, server_hostname="localhost").close()
        used_s = cpu_s(pid) - began_cpu_s
        held = len(os.listdir(f"/proc/{pid}/fd"))
        each = (resident_bytes(pid) - before) / held
        print(f"{held} of {descriptors} half handshakes are held, {each:.0f} bytes each; the next: {used_s:.2f} s cpu")
        assert held < resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] // 8 + CLIENT_DESCRIPTORS
        assert each < HALF_BYTES_MAX and used_s < SERVED_CPU_S_MAX
    finally:
        for sock in sockets:
            sock.close()
