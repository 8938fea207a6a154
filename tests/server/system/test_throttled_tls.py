"""Quotas on TLS listeners: a waiting request may be decrypted already, so the socket does not show it."""

from __future__ import annotations

import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker import core
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.security.quotas import PRODUCER
from tests.harness import eventually
from tests.server.live import KEYS, Live, Wire, batch, produce_data
from tests.server.test_client_quotas import alter, entry
from tests.server.test_tls import context, settings

RATE = 50_000


@pytest.fixture(params=["core", "ssl module"])
async def live(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    """A broker with core's TLS, and one where core cannot use this Python's OpenSSL."""
    if request.param == "ssl module":
        monkeypatch.setattr(core, "tls_available", lambda: False)
    made = Live(tmp_path / "data", settings(tmp_path))
    await made.start()
    admin = await made.connect("OPEN")
    await admin.create("t")
    assert await alter(admin, entry({"client_id": "test"}, **{PRODUCER: RATE})) == [0]
    yield made
    await made.stop()


def frame(records: bytes, number: int) -> bytes:
    request = m.ProduceRequest(acks=1, timeout_ms=5000, topic_data=produce_data("t", {0: records}))
    made = codec.encode_request(KEYS["Produce"], 9, number, "test", request)
    return struct.pack(">i", len(made)) + made


async def answers(wire: Wire, first: int, last: int) -> int:
    """Receive these answers, in order; return the largest throttle_time_ms."""
    most = 0
    for number in range(first, last):
        answered, answer = await wire.receive("Produce", 9)
        assert answered == number and answer.responses[0].partition_responses[0].error_code == 0
        most = max(most, answer.throttle_time_ms)
    return most


async def test_what_came_at_once_is_executed_one_after_the_other(live: Live) -> None:
    wire = await live.connect("TLS", context())
    large, small = batch(b"x" * 12 * RATE), batch(b"y" * RATE)
    began = time.monotonic()
    wire.writer.write(frame(large, 0) + b"".join(frame(small, number) for number in range(1, 3)))
    assert await answers(wire, 0, 1) > 1500
    assert time.monotonic() - began < 1.5, "the answer comes before the throttling"
    await answers(wire, 1, 3)
    assert time.monotonic() - began > 2


async def test_who_is_muted_and_leaves_is_gone(live: Live) -> None:
    wire = await live.connect("TLS", context())
    assert live.broker is not None and live.broker._sockets is not None
    sockets = live.broker._sockets
    count = len(sockets)
    wire.writer.write(frame(batch(b"x" * 15 * RATE), 0))
    assert await answers(wire, 0, 1) > 4000
    wire.writer.transport.abort()
    await eventually("its connection is gone", lambda: len(sockets) == count - 1, timeout_s=8)
