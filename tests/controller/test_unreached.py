"""A broker that the controller cannot reach is logged once with the reason, and a refused connection proves nothing."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from pybroker.controller import broker_channel
from pybroker.controller.broker_channel import BrokerChannel
from pybroker.controller.metadata_update import Merged
from pybroker.decisions.image import LiveBroker
from tests.controller.stage import live_broker
from tests.harness import eventually


class Link:
    """A connection to the broker."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        if not self.closed.done():
            self.closed.set_result("")


class Reports:
    def __init__(self) -> None:
        self.dead = 0

    def refused(self, broker: int, epoch: int) -> None:
        self.dead += 1


async def test_the_reason_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new reason is logged once, and again after the broker was reached; an address that refused from the start
    does not prove a death."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(broker_channel, "RETRY_S", 0.001)
    monkeypatch.setattr(broker_channel, "ACCEPTS_S", 0.0)
    tries, reports = 0, Reports()
    outcome: OSError | None = ConnectionRefusedError(111, "refused")
    links: list[Link] = []

    async def open_link(broker: LiveBroker) -> Link:
        nonlocal tries
        tries += 1
        if outcome is not None:
            raise outcome
        links.append(Link())
        return links[-1]

    channel = BrokerChannel(1, 1, live_broker(2), 7, open_link, reports, Merged())  # type: ignore[arg-type]

    async def several() -> None:
        until = tries + 5
        await eventually("it is tried again and again", lambda: tries >= until)

    await several()
    outcome = socket.gaierror(-2, "Name or service not known")
    await several()
    outcome = TimeoutError()
    await several()
    assert [message.split(" reason=")[0] for message in caplog.messages] == [
        "broker not reached broker=2 at=host-2:9092"
    ] * 3
    assert ["refused" in caplog.messages[0], "name or service" in caplog.messages[1]] == [True, True]
    assert "it did not answer in time" in caplog.messages[2], "an exception without a text gets one"
    assert reports.dead == 0
    outcome = None
    await eventually("it is reached", lambda: links)
    outcome = TimeoutError()
    links[-1].close()
    await several()
    assert len(caplog.messages) == 4, "it was reached in between"
    outcome = ConnectionRefusedError(111, "refused")
    await eventually("it is taken for dead", lambda: reports.dead)
    channel.close()


async def test_a_broker_that_has_just_registered_may_refuse_for_a_moment(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker accepts connections a moment after it registers, so its start logs no warning."""
    monkeypatch.setattr(broker_channel, "RETRY_S", 0.001)
    monkeypatch.setattr(broker_channel, "ACCEPTS_S", 60.0)
    tries = 0
    links: list[Link] = []

    async def open_link(broker: LiveBroker) -> Link:
        nonlocal tries
        tries += 1
        if tries < 5:
            raise ConnectionRefusedError(111, "refused")
        links.append(Link())
        return links[-1]

    channel = BrokerChannel(1, 1, live_broker(2), 7, open_link, Reports(), Merged())  # type: ignore[arg-type]
    await eventually("it is reached", lambda: links)
    assert not caplog.messages
    channel.close()
