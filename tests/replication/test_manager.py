"""A broker executes the controller's requests."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pybroker import errors
from pybroker.config import BrokerConfig
from pybroker.decisions.changes import Changes
from pybroker.decisions.image import PartitionState
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.decisions.orders import LeaderAndIsr, MetadataOrder, Role, UncheckedBroker, UncheckedEndpoint
from pybroker.decisions.topics import Topic
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.replication.manager import ReplicaManager
from tests.harness import eventually


def told(broker_epoch: int) -> MetadataOrder:
    return MetadataOrder(3, 1, broker_epoch, [], [], False)


async def test_settings_that_are_altered_while_a_log_is_opened() -> None:
    """Settings that were altered while a replica's log was being opened apply once it is open."""
    altered = asyncio.Event()
    held: list[tuple[str, object]] = []

    async def settings(topic: str, topic_id: bytes) -> dict[str, str]:
        return {"retention.ms": "-1" if altered.is_set() else "7"}

    class Held:
        is_native = False

        async def open(self, wanted: list[Any]) -> list[Any]:
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
    await manager.open_found({TopicPartition("t", 0): b"t" * 16})
    assert held == [("opened", {"retention.ms": "7"}), ("t", {"retention.ms": "-1"})]


async def test_what_is_said_before_a_registration_waits_for_it() -> None:
    """Controller requests wait for the broker's registration, and those for an earlier epoch are dropped (KIP-380)."""
    metadata, nobody = MetadataCache("c"), Any
    unused: Any = SimpleNamespace(is_native=False)
    manager = ReplicaManager(
        1, BrokerConfig.load(None, []), unused, metadata, unused, nobody, nobody, nobody, Changes(lambda: 0)
    )  # type: ignore[arg-type]
    late = asyncio.ensure_future(manager.update_metadata(told(5)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not late.done() and metadata.image.controller_id == -1
    manager.registered(7)
    with pytest.raises(KafkaError) as refusal:
        await late
    assert refusal.value.code == errors.STALE_BROKER_EPOCH and metadata.image.controller_id == -1
    await manager.update_metadata(told(7))
    assert metadata.image.controller_id == 3


async def test_a_rack_that_is_too_long_keeps_nobody_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """A broker whose rack is too long is known without a rack, which is logged once, and so are the others."""
    metadata, nobody = MetadataCache("c"), Any
    unused: Any = SimpleNamespace(is_native=False)
    manager = ReplicaManager(
        1, BrokerConfig.load(None, []), unused, metadata, unused, nobody, nobody, nobody, Changes(lambda: 0)
    )  # type: ignore[arg-type]
    manager.registered(7)
    at = [UncheckedEndpoint("PLAINTEXT", "h", 1, 0)]
    racks = {1: None, 2: "r" * 256, 3: "r" * 255}
    brokers = [UncheckedBroker(number, at, rack) for number, rack in racks.items()]
    for _ in range(2):
        await manager.update_metadata(replace(told(7), brokers=brokers))
    assert {number: each.rack for number, each in metadata.image.brokers.items()} == {1: None, 2: None, 3: "r" * 255}
    assert [r.getMessage() for r in caplog.records] == [
        'rack left out broker=2 reason="it is longer than 255 bytes"'
    ]  # fmt: skip


async def test_leaders_take_their_roles_first() -> None:
    """Clients wait for the replicas that lead from now on, so those take their roles before the followers. One with an
    append at the disk takes it on a thread, and keeps no other waiting."""
    taken: list[tuple[int, bool]] = []
    at_disk = asyncio.Event()

    class Held(dict[TopicPartition, Any]):
        is_native = False

        def get(self, *key: Any) -> Any:
            return dict.get(self, TopicPartition(*key))

        def __iter__(self) -> Any:
            return iter(list(self.values()))

        def let_go(self, key: TopicPartition) -> None: ...

    def replica(index: int) -> Any:
        def become(*_: object, wait: bool) -> None:
            if index == 1 and not wait:
                raise BlockingIOError
            taken.append((index, wait))

        async def run(become: Any, *, wait: bool) -> None:
            await at_disk.wait()
            become(wait=wait)

        return SimpleNamespace(
            key=TopicPartition("t", index), topic_id=b"t" * 16, offline=False, leads=False, has_role=False, log=None,
            leader_epoch=-1, directory=None, become_leader=become, become_follower=become, at_disk=run,
            tell=lambda: None,
        )  # fmt: skip

    held: Any = Held({TopicPartition("t", index): replica(index) for index in range(4)})
    nobody: Any = Any
    keeper: Any = SimpleNamespace(resign=lambda key: None, lead=lambda *_, **__: None)
    manager = ReplicaManager(
        1, BrokerConfig.load(None, []), held, MetadataCache("c"), keeper, nobody, nobody, nobody, Changes(lambda: 0)
    )
    manager.registered(7)
    states = [PartitionState((1, 2), leader, 0, (1, 2), 1, 0) for leader in (-1, 1, -1, 1)]
    roles = [Role(TopicPartition("t", index), b"t" * 16, each) for index, each in enumerate(states)]
    answer = asyncio.ensure_future(manager.leader_and_isr(LeaderAndIsr(3, 1, 7, roles)))
    await eventually("all but one have their roles", lambda: len(taken) == 3)
    assert taken == [(3, False), (0, False), (2, False)] and not answer.done()
    at_disk.set()
    assert set((await answer).values()) == {0} and taken[3:] == [(1, True)]


@pytest.mark.parametrize("fault", ["is offline", "cannot be opened"])
async def test_a_log_that_could_not_be_made_anew_is_reported(fault: str) -> None:
    """A log that was dropped to be copied again, and could not be created, is reported to the controller."""
    key, reported = TopicPartition("t", 0), []

    class Held(dict[TopicPartition, Any]):
        is_native = False

        def get(self, *key: Any) -> Any:
            return dict.get(self, TopicPartition(*key))

        async def remove(self, keys: list[TopicPartition]) -> None:
            for each in keys:
                self.pop(each)

        async def open(self, wanted: list[Any]) -> list[Any]:
            if fault == "cannot be opened":
                raise KafkaError(errors.KAFKA_STORAGE_ERROR)
            self[key] = SimpleNamespace(key=key, offline=True, leader_epoch=3)
            return []

    async def settings(topic: str, topic_id: bytes) -> dict[str, str]:
        return {}

    held: Any = Held()
    nobody = Any
    manager = ReplicaManager(
        1, BrokerConfig.load(None, []), held, MetadataCache("c"), nobody, settings, nobody, nobody,
        Changes(lambda: 0), on_failure=lambda: reported.append(key),
    )  # type: ignore[arg-type]  # fmt: skip
    log = SimpleNamespace(log_start_offset=50, role=SimpleNamespace(partition_epoch=4))
    held[key] = replica = SimpleNamespace(key=key, topic_id=b"t" * 16, leader_epoch=3, partition=lambda: log)
    left: Any = SimpleNamespace(leave=lambda key: None, follow=lambda *_: None)
    manager.fetchers._make = lambda leader: left
    manager.fetchers.follow(replica, 2, 3)  # type: ignore[arg-type]
    with contextlib.suppress(KafkaError):
        await manager._cut_back(replica, 10, 3)
    assert reported == [key]
