"""What a broker does of what a controller says to it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pybroker import errors
from pybroker.cluster.changes import Changes
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.cluster.topics import Topic
from pybroker.config import BrokerConfig
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.replication.manager import ReplicaManager


def told(broker_epoch: int) -> Any:
    return m.UpdateMetadataRequest(
        controller_id=3, controller_epoch=1, broker_epoch=broker_epoch, topic_states=[], live_brokers=[]
    )


async def test_settings_that_are_altered_while_a_log_is_opened() -> None:
    """The replica is nowhere yet when they are gone by: it goes by them once it is."""
    altered = asyncio.Event()
    held: list[tuple[str, object]] = []

    async def settings(topic: str, topic_id: bytes) -> dict[str, str]:
        return {"retention.ms": "-1" if altered.is_set() else "7"}

    class Held:
        is_native = False

        def survey(self, ids: object) -> dict[TopicPartition, Any]:
            return {TopicPartition("t", 0): SimpleNamespace(topic_id=b"t" * 16)}

        async def open_in_no_role(self, wanted: list[Any]) -> None:
            held.extend(("opened", dict(each.config)) for each in wanted)
            altered.set()

        async def configure(self, topics: list[Topic]) -> None:
            held.extend((topic.name, dict(topic.config)) for topic in topics)

    nobody, replicas = Any, Held()
    manager = ReplicaManager(
        1, BrokerConfig.load(None, []), replicas, MetadataCache("c"), nobody, settings, nobody, nobody,
        Changes(lambda: 0),
    )  # type: ignore[arg-type]  # fmt: skip
    await manager.open_found()
    assert held == [("opened", {"retention.ms": "7"}), ("t", {"retention.ms": "-1"})]


async def test_what_is_said_before_a_registration_waits_for_it() -> None:
    """A broker that is back takes connections before it is registered: what was meant for its life before is not done
    (KIP-380)."""
    metadata, nobody = MetadataCache("c"), Any
    unused: Any = SimpleNamespace(is_native=False)
    manager = ReplicaManager(
        1, BrokerConfig.load(None, []), unused, metadata, unused, nobody, nobody, nobody, Changes(lambda: 0)
    )  # type: ignore[arg-type]
    late = asyncio.ensure_future(manager.update_metadata(told(5)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not late.done() and metadata.image.controller_id == -1
    manager.epoch = 7
    with pytest.raises(KafkaError) as refusal:
        await late
    assert refusal.value.code == errors.STALE_BROKER_EPOCH and metadata.image.controller_id == -1
    await manager.update_metadata(told(7))
    assert metadata.image.controller_id == 3
