"""Two topics with one id: a follower fetches by id, and must not cut its log back to the other topic's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pybroker import errors
from pybroker.cluster.changes import Changes
from pybroker.cluster.metadata_cache import FULL, MetadataCache
from pybroker.config import BrokerConfig
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.replication.manager import ReplicaManager

ID, OTHER = b"t" * 16, b"u" * 16


class Held(dict[TopicPartition, Any]):
    """The replicas of a broker, each with the id of its topic; those in `lies` are on disk only."""

    is_native = False

    def __init__(self) -> None:
        super().__init__()
        self.lies: dict[TopicPartition, Any] = {}

    def get(self, *key: Any) -> Any:
        return dict.get(self, TopicPartition(*key))

    def __iter__(self) -> Any:
        return iter(list(self.values()))

    def survey(self, ids: object) -> dict[TopicPartition, Any]:
        return self.lies

    async def configure(self, topics: object) -> None: ...

    def let_go(self, key: TopicPartition) -> None: ...

    async def open_in_no_role(self, wanted: list[Any]) -> list[Any]:
        async def follow(*_: object) -> None: ...

        for each in wanted:
            self[each.key] = SimpleNamespace(
                key=each.key, topic_id=each.topic_id, offline=False, leads=False, has_role=False, leader_epoch=-1,
                follow=follow, directory=None,
            )  # fmt: skip
        return []


async def a_manager(metadata: MetadataCache, held: Held) -> ReplicaManager:
    async def settings(topic: str, topic_id: bytes) -> dict[str, str]:
        return {}

    nobody: Any = Any
    keeper: Any = SimpleNamespace(resign=lambda key: None)
    manager = ReplicaManager(
        1, BrokerConfig.load(None, []), held, metadata, keeper, settings, nobody, nobody, Changes(lambda: 0)
    )  # type: ignore[arg-type]
    manager.epoch = 7
    return manager


def roles(*topics: tuple[str, bytes]) -> Any:
    """A LeaderAndIsr of partition 0 of topics, without a leader."""
    kind = m.LeaderAndIsrRequest.TopicStates
    state = kind.PartitionStates(
        partition_index=0, controller_epoch=1, leader=-1, leader_epoch=0, isr=[1], partition_epoch=0, replicas=[1],
        adding_replicas=[], removing_replicas=[], is_new=False, leader_recovery_state=0,
    )  # fmt: skip
    told = [kind(topic_name=name, topic_id=topic_id, partition_states=[state]) for name, topic_id in topics]
    return m.LeaderAndIsrRequest(
        controller_id=3, controller_epoch=1, broker_epoch=7, topic_states=told, live_leaders=[], type=0
    )


def metadata_of(*topics: tuple[str, bytes], full: bool = False, leader: int = 1) -> Any:
    kind = m.UpdateMetadataRequest.TopicStates
    state = kind.PartitionStates(
        partition_index=0, controller_epoch=1, leader=leader, leader_epoch=0, isr=[1], zk_version=0, replicas=[1],
        offline_replicas=[],
    )  # fmt: skip
    told = [kind(topic_name=name, topic_id=topic_id, partition_states=[state]) for name, topic_id in topics]
    return m.UpdateMetadataRequest(
        controller_id=3, controller_epoch=1, broker_epoch=7, topic_states=told, live_brokers=[],
        type=FULL if full else 0,
    )  # fmt: skip


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_role_in_the_topic_of_another_is_refused(at_once: bool) -> None:
    """By its partition alone; the first of the two has the id."""
    held = Held()
    manager = await a_manager(MetadataCache("c"), held)
    good, copy, other = (TopicPartition(name, 0) for name in ("good", "copy", "other"))
    told = [("good", ID), ("copy", ID), ("other", OTHER)]
    codes: dict[TopicPartition, int] = {}
    for request in [roles(*told)] if at_once else [roles(each) for each in told]:
        codes |= await manager.leader_and_isr(request)
    assert codes == {good: 0, copy: errors.INCONSISTENT_TOPIC_ID, other: 0}
    assert held.keys() == {good, other}


async def test_topics_without_ids_have_none_in_common() -> None:
    """A controller before Kafka 2.8 names none."""
    held = Held()
    manager = await a_manager(MetadataCache("c"), held)
    assert set((await manager.leader_and_isr(roles(("a", bytes(16)), ("b", bytes(16))))).values()) == {0}


async def test_logs_of_one_id_wait_for_the_controller() -> None:
    """Their directories do not say which of them is the topic's."""
    held = Held()
    good, copy, other = (TopicPartition(name, 0) for name in ("good", "copy", "other"))
    held.lies = {key: SimpleNamespace(topic_id=ID) for key in (good, copy)}
    held.lies[other] = SimpleNamespace(topic_id=OTHER)
    manager = await a_manager(MetadataCache("c"), held)
    await manager.open_found()
    assert held.keys() == {other}
    codes = await manager.leader_and_isr(roles(("good", ID), ("copy", ID)))
    assert codes == {good: 0, copy: errors.INCONSISTENT_TOPIC_ID}


async def test_the_image_has_one_name_of_an_id(caplog: pytest.LogCaptureFixture) -> None:
    """Until the topic that has it is gone; it is logged once."""
    metadata = MetadataCache("c")
    manager = await a_manager(metadata, Held())

    def names() -> set[str]:
        return set(metadata.image.by_name)

    await manager.update_metadata(metadata_of(("good", ID), ("copy", ID), ("other", OTHER)))
    for _ in range(3):
        await manager.update_metadata(metadata_of(("copy", ID)))
    await manager.update_metadata(metadata_of(("copy", ID), ("good", ID), ("other", OTHER), full=True))
    assert names() == {"good", "other"}
    topic = metadata.image.topic_by_id(ID)
    assert topic is not None and topic.name == "good"
    assert len([r for r in caplog.records if "topic id of another topic" in r.getMessage()]) == 1
    await manager.update_metadata(metadata_of(("copy", ID), ("other", OTHER), full=True))
    assert names() == {"copy", "other"}
    topic = metadata.image.topic_by_id(ID)
    assert topic is not None and topic.name == "copy"
    await manager.update_metadata(metadata_of(("other", bytes(16)), ("more", bytes(16))))
    assert names() == {"copy", "other", "more"}, "zeros are the id of none"
