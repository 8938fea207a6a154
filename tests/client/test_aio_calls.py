"""Calls of an AsyncConsumer on its thread: they raise their errors, and block nothing once their task has gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from pybroker.client.aio.consumer import AsyncConsumer
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.consuming.group import RebalanceListener
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from tests.client.fake_broker import FakeBroker
from tests.client.kit import WAIT_S, create, fill
from tests.harness import Server, eventually

TP = TopicPartition("t", 0)


class Failing(RebalanceListener):
    """A listener that fails at its first call."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind: type[BaseException] | None = kind

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        kind, self.kind = self.kind, None
        if kind is not None:
            raise kind("boom")


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        (ValueError, ValueError),
        (StopIteration, RuntimeError),
        (StopAsyncIteration, RuntimeError),
        (asyncio.CancelledError, RuntimeError),
    ],
)
async def test_a_listener_may_raise_anything(
    shared_broker: Server, topic: str, kind: type[BaseException], raised: type[Exception]
) -> None:
    """A listener may raise anything: the poll that called it raises, and the next one goes on."""
    create(shared_broker, topic)
    fill(shared_broker, topic, 0, [b"x"])
    settings: dict[str, Any] = {"group_id": f"group-of-{topic}", "auto_offset_reset": "earliest"}
    async with asyncio.timeout(2 * WAIT_S), AsyncConsumer(bootstrap_servers=shared_broker.bootstrap, **settings) as c:
        await c.subscribe([topic], listener=Failing(kind))
        with pytest.raises(raised, match="boom"):
            async for _ in c:
                pass
        assert [record.value for record in await c.poll(30_000)] == [b"x"]


def test_a_listener_does_not_end_a_loop(shared_broker: Server, topic: str) -> None:
    """A listener's StopIteration does not end a loop over records."""
    create(shared_broker, topic)
    with Consumer(bootstrap_servers=shared_broker.bootstrap, group_id=f"group-of-{topic}") as consumer:
        consumer.subscribe([topic], listener=Failing(StopIteration))
        with pytest.raises(RuntimeError, match="StopIteration"):
            for _ in consumer:
                pass


class Silent(FakeBroker):
    """A leader and coordinator that answers no other request until it is closed."""

    def __init__(self) -> None:
        self.closing = threading.Event()
        kept = dict.fromkeys(("ListOffsets", "OffsetCommit", "OffsetFetch", "Fetch", "LeaveGroup"), self._keep)
        super().__init__({"FindCoordinator": self.coordinator, **kept}, {"Metadata": 9})

    def _keep(self, _: Any) -> Any:
        self.closing.wait()
        raise ConnectionError


@pytest.fixture
def silent() -> Iterator[Silent]:
    broker = Silent()
    yield broker
    broker.closing.set()
    broker.close()


CALLS: dict[str, Callable[[AsyncConsumer], Coroutine[Any, Any, Any]]] = {
    "end_offsets": lambda consumer: consumer.end_offsets([TP]),
    "position": lambda consumer: consumer.position(TP),
    "commit": lambda consumer: consumer.commit({TP: 1}),
    "committed": lambda consumer: consumer.committed([TP]),
}


@pytest.mark.parametrize("cancelled", [False, True], ids=["awaited", "cancelled"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_waits_holds_up_no_close(silent: Silent, name: str, cancelled: bool) -> None:
    """A waiting call does not block close(), which ends a call that would wait an hour for a silent broker."""
    settings: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False}
    for limit in ("default_api_timeout_ms", "request_timeout_ms"):
        settings[limit] = 3_600_000
    consumer = AsyncConsumer(bootstrap_servers=f"127.0.0.1:{silent.port}", **settings)
    async with asyncio.timeout(2 * WAIT_S):
        await consumer.assign([TP])
        network = consumer.consumer._network
        idle = network.given_up
        waiting = asyncio.create_task(CALLS[name](consumer))
        await eventually("the call waits", lambda: network.given_up is not idle)
        if cancelled:
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await consumer.pause(TP)  # nor does it block any other call
        await consumer.close(0)
        if not cancelled:
            with pytest.raises(KafkaError, match="the consumer is closed"):
                await waiting
        with pytest.raises(KafkaError, match="the consumer is closed"):
            await consumer.poll()
