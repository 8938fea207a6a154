"""What a broker does of what a controller says to it."""

from __future__ import annotations

import asyncio
import contextlib
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

        async def open_in_no_role(self, wanted: list[Any]) -> list[Any]:
            held.extend(("opened", dict(each.config)) for each in wanted)
            altered.set()
            return []

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


async def test_a_rack_that_is_too_long_keeps_nobody_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """Another program's broker has it: it is known without, which is said once, and so are the others."""
    metadata, nobody = MetadataCache("c"), Any
    unused: Any = SimpleNamespace(is_native=False)
    manager = ReplicaManager(
        1, BrokerConfig.load(None, []), unused, metadata, unused, nobody, nobody, nobody, Changes(lambda: 0)
    )  # type: ignore[arg-type]
    manager.epoch = 7
    request, kind = told(7), m.UpdateMetadataRequest.LiveBrokers
    at = [kind.Endpoints(host="h", port=1, listener="PLAINTEXT", security_protocol=0)]
    racks = {1: None, 2: "r" * 256, 3: "r" * 255}
    request.live_brokers = [kind(id=number, endpoints=at, rack=rack) for number, rack in racks.items()]
    for _ in range(2):
        await manager.update_metadata(request)
    assert {number: each.rack for number, each in metadata.image.brokers.items()} == {1: None, 2: None, 3: "r" * 255}
    assert [r.getMessage() for r in caplog.records] == [
        'rack left out broker=2 reason="it is longer than 255 bytes"'
    ]  # fmt: skip


@pytest.mark.parametrize("fault", ["is offline", "cannot be opened"])
async def test_a_log_that_could_not_be_made_anew_is_reported(fault: str) -> None:
    """It was dropped, to be copied anew from its leader: nobody else would know that nothing follows."""
    key, reported = TopicPartition("t", 0), []

    class Held(dict[TopicPartition, Any]):
        is_native = False

        def get(self, *key: Any) -> Any:
            return dict.get(self, TopicPartition(*key))

        async def remove(self, keys: list[TopicPartition]) -> None:
            for each in keys:
                self.pop(each)

        async def open_in_no_role(self, wanted: list[Any]) -> list[Any]:
            if fault == "cannot be opened":
                raise KafkaError(errors.KAFKA_STORAGE_ERROR)
            self[key] = SimpleNamespace(key=key, offline=True, leader_epoch=3)
            return []

    async def settings(topic: str, topic_id: bytes) -> dict[str, str]:
        return {}

    held: Any = Held()
    nobody = Any
    manager = ReplicaManager(
        1, BrokerConfig.load(None, []), held, MetadataCache("c"), nobody, settings, nobody, nobody, Changes(lambda: 0)
    )  # type: ignore[arg-type]
    manager.on_failure.append(lambda: reported.append(key))
    log = SimpleNamespace(log_start_offset=50, role=SimpleNamespace(partition_epoch=4))
    held[key] = replica = SimpleNamespace(key=key, topic_id=b"t" * 16, leader_epoch=3, partition=lambda: log)
    left: Any = SimpleNamespace(leave=lambda key: None)
    manager._fetchers[2], manager._follows[key] = left, 2
    with contextlib.suppress(KafkaError):
        await manager._cut_back(replica, 10, 3)
    assert reported == [key]
