"""A clean stop waits for clients that read their answers, and for no others."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from pathlib import Path

import pytest

from pybroker import core
from pybroker.server.metrics import http
from pybroker.server.metrics.http import MetricsServer
from pybroker.server.network import relay, socket_server
from tests.harness import eventually
from tests.server.live import Live, Wire, batch, fetch_fields
from tests.server.test_tls import context, settings

STALL_S = 1.0
PAUSE_S = STALL_S / 40
PIECE = 64 << 10
"""The bytes that the slow reader takes at a time, fewer than a connection buffers between its two ends."""


async def asking(live: Live, listener: str) -> tuple[Wire, int]:
    """Request 3.6 MB with a small buffer; return the connection and the size of the answer, which has begun."""
    wire = await live.connect(listener, context() if listener == "TLS" else None, limit=PIECE // 4)
    wire.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE // 2)
    wire.send("Fetch", 12, **fetch_fields("t", 0, partition_max_bytes=1 << 26))
    return wire, struct.unpack(">i", await wire.reader.readexactly(4))[0]


async def read_slowly(wire: Wire, size: int) -> bool:
    """Read an answer slowly; return whether it came whole, or the machine itself held this reader up for STALL_S."""
    longest_s, read_s = 0.0, time.monotonic()
    while size > 0 and (data := await wire.reader.read(PIECE)):
        size -= len(data)
        await asyncio.sleep(PAUSE_S)
        longest_s, read_s = max(longest_s, time.monotonic() - read_s), time.monotonic()
    return size == 0 or max(longest_s, time.monotonic() - read_s) >= STALL_S


@pytest.mark.parametrize("kind", ["core", "ssl module"])
async def test_a_stop_waits_for_who_reads(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stop waits for clients that read, however slowly, and not for those that read nothing, also with TLS."""
    for module in (relay, socket_server):
        monkeypatch.setattr(module, "STALL_SECONDS", STALL_S)
    monkeypatch.setattr("pybroker.server.broker.FINISH_SECONDS", 86_400.0)
    if kind == "ssl module":
        monkeypatch.setattr(core, "tls_available", lambda: False)
    live = Live(tmp_path / "data", [*settings(tmp_path), "socket.send.buffer.bytes=32768"])
    broker = await live.start()
    try:
        writer = await live.connect()
        await writer.create("t")
        for _ in range(4):
            assert (await writer.produce("t", batch(os.urandom(900_000)))).error_code == 0
        stuck = [await asking(live, name) for name in ("OPEN", "TLS")]
        slow = [await asking(live, name) for name in ("OPEN", "TLS")]
        left = [asyncio.create_task(read_slowly(wire, size)) for wire, size in slow]
        for wire, _ in stuck:
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        began, live.broker = time.monotonic(), None
        await broker.stop()
        took = time.monotonic() - began
        assert all(await asyncio.gather(*left))
        assert took >= STALL_S
        assert "it did not read its answers" in caplog.text
    finally:
        await live.stop()


async def test_who_does_not_read_metrics_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of a metrics client that does not read is closed after its timeout, or when the broker stops."""
    large = b"x" * (16 << 20)
    server = MetricsServer(lambda: large, str, str, str, lambda _: b"", bytes)
    port = await server.start("127.0.0.1", 0)
    open_files = len(os.listdir("/proc/self/fd"))
    for seconds_max in (0.2, 60):
        monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", seconds_max)
        with socket.create_connection(("127.0.0.1", port)) as reader:
            reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            await asyncio.to_thread(reader.recv, 1)
            if seconds_max > 1:
                await server.close()
            await eventually("its connection is closed", lambda: len(os.listdir("/proc/self/fd")) <= open_files + 1)
