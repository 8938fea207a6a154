"""One broker in this process for all tests of frames, and its topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from pybroker.client.producing.producer import Producer
from pybroker.testing import BrokerHandle

Fill = Callable[..., None]


@pytest.fixture(scope="session")
def frames_broker() -> Iterator[BrokerHandle]:
    """Shared: tests use topics of their own."""
    with BrokerHandle(settings={"log.retention.check.interval.ms": 86_400_000}) as handle:
        yield handle


@pytest.fixture
def servers(frames_broker: BrokerHandle) -> str:
    return frames_broker.bootstrap_servers


@pytest.fixture
def fill(frames_broker: BrokerHandle) -> Fill:
    """Create a topic, and write values to it: `fill(topic, values, partitions=1, times=..., **settings)`."""

    def make(
        topic: str,
        values: Sequence[bytes | None],
        *,
        partitions: int = 1,
        times: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        **settings: object,
    ) -> None:
        frames_broker.create_topic(topic, partitions=partitions)
        with Producer(bootstrap_servers=frames_broker.bootstrap_servers, **settings) as producer:  # type: ignore[arg-type]
            for number, value in enumerate(values):
                producer.send(
                    topic,
                    value,
                    key=None if keys is None else keys[number],
                    partition=number % partitions,
                    timestamp_ms=None if times is None else times[number],
                )

    return make
