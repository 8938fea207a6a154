"""A clean stop and clients that do not read: it waits for those that take bytes, and for no others."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from pathlib import Path

import pytest

from pybroker import core
from pybroker.server import listener as listeners
from pybroker.server import metrics_http, socket_server
from pybroker.server.metrics_http import MetricsServer
from tests.harness import eventually
from tests.server.live import Live, Wire, batch, fetch_fields
from tests.server.test_tls import context, settings

STALL_S = 0.5
PIECE = 64 << 10
"""What the slow reader takes at a time, and less than what a connection holds between the two ends."""


async def asking(live: Live, listener: str) -> tuple[Wire, int]:
    """A client that has asked for 900 KB, and has a small buffer for it; the size of the answer, which begins to come.
    """
    wire = await live.connect(listener, context() if listener == "TLS" else None, limit=PIECE // 4)
    wire.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE // 2)
    wire.send("Fetch", 12, **fetch_fields("t", 0))
    return wire, struct.unpack(">i", await wire.reader.readexactly(4))[0]


async def read_slowly(wire: Wire, size: int) -> int:
    """How many bytes of an answer do not come."""
    while size > 0 and (data := await wire.reader.read(PIECE)):
        size -= len(data)
        await asyncio.sleep(STALL_S / 10)
    return size


@pytest.mark.parametrize("kind", ["native", "python", "ssl module"])
async def test_a_stop_waits_for_who_reads(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Slowly, too, and for as long as that takes; not for who takes nothing of its answer. In the open and by TLS."""
    for module in (listeners, socket_server):
        monkeypatch.setattr(module, "STALL_SECONDS", STALL_S)
    if kind == "ssl module":
        monkeypatch.setattr(core, "tls_available", lambda: False)
    live = Live(tmp_path / "data", [*settings(tmp_path), "socket.send.buffer.bytes=32768"],
                native_plane=kind != "python")  # fmt: skip
    broker = await live.start()
    try:
        writer = await live.connect()
        await writer.create("t")
        assert (await writer.produce("t", batch(os.urandom(900_000)))).error_code == 0
        stuck = [await asking(live, name) for name in ("OPEN", "TLS")]
        slow = [await asking(live, name) for name in ("OPEN", "TLS")]
        left = [asyncio.create_task(read_slowly(wire, size)) for wire, size in slow]
        for wire, _ in stuck:
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        began, live.broker = time.monotonic(), None
        await broker.stop()
        took = time.monotonic() - began
        assert await asyncio.gather(*left) == [0, 0]
        assert STALL_S <= took < 10
        assert "it did not read its answers" in caplog.text
    finally:
        await live.stop()


async def test_who_does_not_read_metrics_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is closed when its time is over, or when the broker stops before."""
    large = b"x" * (16 << 20)
    server = MetricsServer(lambda: large, str, str, str, lambda _: b"", bytes)
    port = await server.start("127.0.0.1", 0)
    open_files = len(os.listdir("/proc/self/fd"))
    for seconds_max in (0.2, 60):
        monkeypatch.setattr(metrics_http, "REQUEST_SECONDS_MAX", seconds_max)
        with socket.create_connection(("127.0.0.1", port)) as reader:
            reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            await asyncio.to_thread(reader.recv, 1)
            if seconds_max > 1:
                async with asyncio.timeout(5):
                    await server.close()
            await eventually("its connection is closed", lambda: len(os.listdir("/proc/self/fd")) <= open_files + 1)
