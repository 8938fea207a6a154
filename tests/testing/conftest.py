"""Brokers of both modes, and the clients of others that are pointed at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer

from pybroker.testing import BrokerHandle, Mode


@pytest.fixture(params=["inprocess", "subprocess"])
def mode(request: pytest.FixtureRequest) -> Mode:
    chosen: Mode = request.param
    return chosen


@pytest.fixture
def broker(mode: Mode) -> Iterator[BrokerHandle]:
    """A broker, once in this process and once in its own."""
    with BrokerHandle(mode=mode) as handle:
        yield handle


@pytest.fixture
def consume() -> Iterator[Callable[..., Consumer]]:
    """Subscribed consumers that are closed: `consume(broker, "topic", "group", ...)`."""
    opened: list[Consumer] = []

    def subscribe(broker: BrokerHandle, topic: str, group: str = "g", on_assign: Any = None, **how: Any) -> Consumer:
        consumer = Consumer(broker.confluent_config(group, **how))
        opened.append(consumer)
        consumer.subscribe([topic], **({} if on_assign is None else {"on_assign": on_assign}))
        return consumer

    yield subscribe
    for consumer in opened:
        consumer.close()
