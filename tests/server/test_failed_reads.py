"""A disk error in a read, or while data is sent: only that read fails, and the error is logged."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker import core
from pybroker.errors import KAFKA_STORAGE_ERROR
from pybroker.replication.disks.logdirs import LogDir
from tests.harness import eventually
from tests.server.live import Live, batch, values
from tests.server.system.test_failed_disks import codes, replicas
from tests.server.test_metrics import of, scrape

LARGE = 4 << 20
"""The size of a batch that a socket does not take at once."""
SENT = b"0" * (40 << 10)
"""A record large enough to be sent as a range of a file; a shorter one may be copied into the answer."""


def log_dir_of(live: Live, topic: str) -> LogDir:
    found = replicas(live).leader(topic, 0).directory
    assert found is not None
    return found


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


async def until_told(caplog: pytest.LogCaptureFixture) -> str:
    await eventually("it is logged", lambda: told(caplog))
    [line] = told(caplog)
    return line


@pytest.fixture(params=[True, False], ids=["native", "python"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Live]:
    """A broker whose fetches are executed by the native plane, or by Python."""
    made = Live(tmp_path, ["metrics.listener=127.0.0.1:0"], native_plane=request.param)
    await made.start()
    yield made
    await made.stop()


async def test_a_range_that_cannot_be_sent(either: Live, caplog: pytest.LogCaptureFixture) -> None:
    """The connection ends, as its answer has begun. The error is logged and counted; the log dir stays online, and the
    next fetch is served."""
    wire = await either.connect()
    await wire.create("t")
    await wire.produce("t", batch(SENT))
    replicas(either).arm("segment.send", errno.EIO, 1)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await wire.fetch("t", 0)
    wire = await either.connect()
    assert values((await wire.fetch("t", 0)).records) == [SENT]
    assert (await wire.produce("t", batch(b"1"))).base_offset == 1
    line = await until_told(caplog)
    path = either.data_dir / "t-0"
    assert line.startswith(f"read failed directory={path} ") and "input/output error" in line
    assert of(await scrape(either), "pybroker_log_dir_read_errors_total", dir=str(either.data_dir)) == 1
    assert of(await scrape(either), "pybroker_log_dir_offline", dir=str(either.data_dir)) == 0


async def test_a_short_range_that_cannot_be_copied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The range is sent with sendfile instead, which the disk can read; the failed read is logged and counted."""
    live = Live(tmp_path, [])
    await live.start()
    wire = await live.connect()
    await wire.create("t")
    await wire.produce("t", batch(b"0"))
    replicas(live).arm("segment.send", errno.EIO, 1)
    assert values((await wire.fetch("t", 0)).records) == [b"0"]
    assert (await until_told(caplog)).startswith("read failed ")
    assert log_dir_of(live, "t").read_errors == 1
    await live.stop()


async def test_a_client_that_goes_is_no_failed_disk(either: Live, caplog: pytest.LogCaptureFixture) -> None:
    """Errors of a client's socket, before or in an answer, do not take the log dir offline."""
    wire = await either.connect()
    await wire.create("t", max_message_bytes=str(2 * LARGE))
    assert (await wire.produce("t", batch(os.urandom(LARGE)))).error_code == 0
    for how in ("reset", "close"):
        gone = await either.connect()
        fetched = asyncio.ensure_future(gone.fetch("t", 0, partition_max_bytes=2 * LARGE))
        buffer = gone.reader._buffer  # type: ignore[attr-defined]
        await eventually("it begins", lambda task=fetched, buffer=buffer: task.done() or buffer, every_s=0)
        fetched.cancel()
        sock = gone.writer.get_extra_info("socket")
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.writer.transport.abort()
    for error in (errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT):
        gone = await either.connect()
        replicas(either).arm("segment.send", error, 1)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await gone.fetch("t", 0)
    wire = await either.connect()
    assert (await wire.fetch("t", 0, partition_max_bytes=2 * LARGE)).error_code == 0
    assert log_dir_of(either, "t").read_errors == 0
    log_dir_of(either, "t").check()
    assert told(caplog) == [] and await codes(wire) == {either.data_dir.name: 0}


async def test_a_bad_place_is_an_error_and_no_lost_connection(either: Live) -> None:
    """After a failed read, data is read before the answer begins: the partition gets its error, and its records once
    the disk reads them."""
    wire = await either.connect()
    await wire.create("t")
    await wire.produce("t", batch(SENT))
    replicas(either).arm("segment.send", errno.EIO, 1)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await wire.fetch("t", 0)
    replicas(either).arm("segment.read", errno.EIO, 1000)
    wire = await either.connect()
    answer = await wire.fetch("t", 0)
    assert (answer.error_code, answer.high_watermark, bytes(answer.records)) == (KAFKA_STORAGE_ERROR, -1, b"")
    replicas(either).disarm()
    assert values((await wire.fetch("t", 0)).records) == [SENT]


async def test_a_log_that_is_shorter_than_it_was(either: Live, caplog: pytest.LogCaptureFixture) -> None:
    """A range beyond the end of a truncated file is logged too, and is an error of the partition from then on."""
    wire = await either.connect()
    await wire.create("t")
    await wire.produce("t", batch(b"x" * 1000))
    await wire.fetch("t", 0)
    os.truncate(either.data_dir / "t-0" / f"{0:020}.log", 500)
    for _ in range(3):
        try:
            assert (await wire.fetch("t", 0)).error_code == KAFKA_STORAGE_ERROR
        except (asyncio.IncompleteReadError, ConnectionResetError):
            wire = await either.connect()
    assert (await wire.fetch("t", 0)).error_code == KAFKA_STORAGE_ERROR
    assert (await until_told(caplog)).startswith("read failed ")


def test_a_slice_tells_what_cannot_be_read(tmp_path: Path) -> None:
    """A slice counts each error of a send, copy or read-ahead, and reports its partition once."""
    broker = core.LogManager()
    partition = broker.open(str(tmp_path), "t", 0, topic_id=bytes(16), config={})
    partition.become_leader(0, 0)
    partition.append(batch(b"0"), now_ms=0)
    one, other = socket.socketpair()
    for point, use in (
        ("segment.send", lambda piece: piece.send(one.fileno())),
        ("segment.read", lambda piece: piece.tobytes()),
        ("segment.read", lambda piece: piece.warm()),
    ):
        piece = partition.read(0, 1 << 20).slice
        assert piece is not None
        broker.arm(point, "errno", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            use(piece)
        use(piece)
        piece.close()
    assert broker.read_errors(str(tmp_path)) == 3 and broker.log_dir_error(str(tmp_path)) == 0
    assert broker.unread(str(tmp_path)) == [(partition, errno.EIO)] and broker.unread(str(tmp_path)) == []
    one.close()
    other.close()
    broker.close()
