"""The coordinator of a consumer's group is reached where FindCoordinator says, whatever metadata says of its broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pybroker.client.aio_consumer import AsyncConsumer
from pybroker.client.consumer import Consumer
from pybroker.client.network import Network
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from tests.client.fake_broker import FakeBroker
from tests.client.kit import WAIT_S
from tests.harness import free_port, until

TP = TopicPartition("t", 0)


class Coordinating(FakeBroker):
    """A coordinator whose metadata names its broker at `address`, or does not."""

    def __init__(self) -> None:
        self.address: int | None = None
        self.searches = 0
        answers = {"FindCoordinator": self._find, "OffsetCommit": self._commit, "OffsetFetch": self._fetch}
        super().__init__(answers, {"Metadata": 9, "OffsetFetch": 7})

    def _metadata(self, request: Any) -> Any:
        found = super()._metadata(request)
        for broker in found.brokers:
            broker.port = self.address
        if self.address is None:
            found.brokers = []
        return found

    def _find(self, request: Any) -> Any:
        self.searches += 1
        return self.coordinator(request)

    def _commit(self, _: Any) -> Any:
        kind = m.OffsetCommitResponse.Topics
        return m.OffsetCommitResponse(topics=[kind(name="t", partitions=[kind.Partitions(partition_index=0)])])

    def _fetch(self, _: Any) -> Any:
        kind = m.OffsetFetchResponse.Topics
        found = kind.Partitions(partition_index=0, committed_offset=7)
        return m.OffsetFetchResponse(topics=[kind(name="t", partitions=[found])])


@pytest.fixture(params=["known", "unknown", "moved"])
def broker(request: pytest.FixtureRequest) -> Iterator[Coordinating]:
    """As metadata names it: at its address, not at all since it came later, or where it was before."""
    made = Coordinating()
    made.address = {"known": made.port, "unknown": None, "moved": free_port()}[request.param]
    yield made
    made.close()


def settings(broker: Coordinating) -> dict[str, Any]:
    return {"bootstrap_servers": f"127.0.0.1:{broker.port}", "group_id": "g", "enable_auto_commit": False}


def renew(network: Network) -> None:
    """Have a client ask for metadata, and wait for it."""
    before = network.view.version
    network.refresh_soon()
    until("there is new metadata", lambda: network.view.version > before)


def test_the_first_call_of_a_consumer(broker: Coordinating) -> None:
    """One search finds the coordinator, before there is any metadata."""
    with Consumer(**settings(broker)) as consumer:
        assert consumer.commit_async({TP: 7}).result(WAIT_S) is None
    with Consumer(**settings(broker)) as consumer:
        consumer.commit({TP: 7})
    with Consumer(**settings(broker)) as consumer:
        found = consumer.committed([TP])[TP]
        assert found is not None and found.offset == 7
    assert broker.searches == 3


async def test_the_first_call_of_a_consumer_that_is_awaited(broker: Coordinating) -> None:
    async with AsyncConsumer(**settings(broker)) as consumer:
        await asyncio.wrap_future(consumer.commit_async({TP: 7}))
    assert broker.searches == 1


def test_metadata_takes_no_coordinator_away(broker: Coordinating) -> None:
    """The consumer keeps its coordinator, though metadata does not name it."""
    with Consumer(**settings(broker)) as consumer:
        for _ in range(3):
            consumer.commit_async({TP: 7}).result(WAIT_S)
            renew(consumer._network)
    assert broker.searches == 1


@pytest.mark.parametrize("broker", ["known"], indirect=True)
def test_a_coordinator_that_metadata_names_no_more_is_searched(broker: Coordinating) -> None:
    """It may be gone for good, with a host that does not refuse: the next commit goes to the present one."""
    with Consumer(**settings(broker)) as consumer:
        consumer.commit_async({TP: 7}).result(WAIT_S)
        renew(consumer._network)
        broker.address = None
        renew(consumer._network)
        consumer.commit_async({TP: 7}).result(WAIT_S)
    assert broker.searches == 2
