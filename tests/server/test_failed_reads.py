"""A disk that fails a read, or the sending of what is read: that read fails alone, and it is told."""

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
from pybroker.replication.logdirs import LogDir
from tests.server.live import Live, batch, values
from tests.server.system.test_failed_disks import codes, replicas
from tests.server.test_metrics import of, scrape

LARGE = 4 << 20
"""Bytes of a batch, more than a socket takes at once."""
SENT = b"0" * (40 << 10)
"""A record that an answer has as a range of a file; a shorter one may be copied into it."""


def log_dir_of(live: Live, topic: str) -> LogDir:
    found = replicas(live).leader(topic, 0).directory
    assert found is not None
    return found


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


async def until_told(caplog: pytest.LogCaptureFixture) -> str:
    async with asyncio.timeout(20):
        while not (lines := told(caplog)):
            await asyncio.sleep(0.01)
    [line] = lines
    return line


@pytest.fixture(params=[True, False], ids=["native", "python"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Live]:
    """A broker whose fetches the plane executes, or Python."""
    made = Live(tmp_path, ["metrics.listener=127.0.0.1:0"], native_plane=request.param)
    await made.start()
    yield made
    await made.stop()


async def test_a_range_that_cannot_be_sent(either: Live, caplog: pytest.LogCaptureFixture) -> None:
    """Its answer has begun, so its connection ends. It is told, and counted; the log dir goes on, and so does who asks
    again: what can be read is sent."""
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
    """It is sent as a range instead, which the disk can read again; the failed read is told, and counted."""
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
    """Its socket's errors, in the middle of an answer or before it, are not the log dir's."""
    wire = await either.connect()
    await wire.create("t", max_message_bytes=str(2 * LARGE))
    assert (await wire.produce("t", batch(os.urandom(LARGE)))).error_code == 0
    for how in ("reset", "close"):
        gone = await either.connect()
        fetched = asyncio.ensure_future(gone.fetch("t", 0, partition_max_bytes=2 * LARGE))
        while not fetched.done() and not gone.reader._buffer:  # type: ignore[attr-defined]
            await asyncio.sleep(0.001)
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
    """Once a read failed, what is answered is read before: the partition has its error, and its records when the disk
    reads them again."""
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
    """A range that the file has no more is told as well, and is an error of the partition from then on."""
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
    """Sent, copied or read ahead; each is counted, and the partition named once."""
    broker = core.Broker()
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
