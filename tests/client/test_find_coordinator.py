"""A consumer finds its group's coordinator at the address from FindCoordinator, not from metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pybroker.client.aio.consumer import AsyncConsumer
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.net.network import NetworkClient
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from tests.client.fake_broker import FakeBroker
from tests.client.kit import WAIT_S
from tests.harness import free_port, until

TP = TopicPartition("t", 0)


class Coordinating(FakeBroker):
    """A coordinator whose metadata has its broker at `address`, or lacks it."""

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
    """A coordinator whose metadata has its address, lacks it as the broker is new, or has an old address."""
    made = Coordinating()
    made.address = {"known": made.port, "unknown": None, "moved": free_port()}[request.param]
    yield made
    made.close()


def settings(broker: Coordinating) -> dict[str, Any]:
    return {"bootstrap_servers": f"127.0.0.1:{broker.port}", "group_id": "g", "enable_auto_commit": False}


def renew(network: NetworkClient) -> None:
    """Have a client request metadata, and wait for it."""
    before = network.view.version
    network.refresh_soon()
    until("there is new metadata", lambda: network.view.version > before)


def test_the_first_call_of_a_consumer(broker: Coordinating) -> None:
    """The first call of a consumer needs one FindCoordinator, before there is any metadata."""
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
    """Metadata that lacks the coordinator does not make the consumer drop it."""
    with Consumer(**settings(broker)) as consumer:
        for _ in range(3):
            consumer.commit_async({TP: 7}).result(WAIT_S)
            renew(consumer._network)
    assert broker.searches == 1


@pytest.mark.parametrize("broker", ["known"], indirect=True)
def test_a_coordinator_that_metadata_names_no_more_is_searched(broker: Coordinating) -> None:
    """A coordinator that disappears from metadata is looked up again, as its host may be gone and not refuse: the next
    commit goes to the present one."""
    with Consumer(**settings(broker)) as consumer:
        consumer.commit_async({TP: 7}).result(WAIT_S)
        renew(consumer._network)
        broker.address = None
        renew(consumer._network)
        consumer.commit_async({TP: 7}).result(WAIT_S)
    assert broker.searches == 2
