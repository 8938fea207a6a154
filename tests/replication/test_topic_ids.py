"""Two topics with one id are kept apart, as a follower fetches by id and could truncate its log to the other's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pybroker import errors
from pybroker.config import BrokerConfig
from pybroker.decisions.changes import Changes
from pybroker.decisions.image import PartitionState
from pybroker.decisions.metadata_cache import MetadataCache, TopicStates
from pybroker.decisions.orders import LeaderAndIsr, MetadataOrder, Role
from pybroker.model import TopicPartition
from pybroker.replication.manager import ReplicaManager

ID, OTHER = b"t" * 16, b"u" * 16


class Held(dict[TopicPartition, Any]):
    """The replicas of a broker with their topic ids; those in `lies` are only on disk."""

    is_native = False

    def __init__(self) -> None:
        super().__init__()
        self.lies: dict[TopicPartition, Any] = {}

    def get(self, *key: Any) -> Any:
        return dict.get(self, TopicPartition(*key))

    def __iter__(self) -> Any:
        return iter(list(self.values()))

    async def configure(self, topics: object) -> None: ...

    def let_go(self, key: TopicPartition) -> None: ...

    async def open(self, wanted: list[Any]) -> list[Any]:
        def become_follower(*_: object, wait: bool) -> None: ...

        for each in wanted:
            self[each.key] = SimpleNamespace(
                key=each.key, topic_id=each.topic_id, offline=False, leads=False, has_role=False, leader_epoch=-1,
                become_follower=become_follower, tell=lambda: None, directory=None,
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
    manager.registered(7)
    return manager


def roles(*topics: tuple[str, bytes]) -> LeaderAndIsr:
    """Build a LeaderAndIsr of partition 0 of these topics, without a leader."""
    state = PartitionState((1,), -1, 0, (1,), 1, 0)
    return LeaderAndIsr(3, 1, 7, [Role(TopicPartition(name, 0), topic_id, state) for name, topic_id in topics])


def metadata_of(*topics: tuple[str, bytes], full: bool = False, leader: int = 1) -> MetadataOrder:
    state = PartitionState((1,), leader, 0, (1,), 1, 0)
    told = [TopicStates(name, topic_id, {0: state}) for name, topic_id in topics]
    return MetadataOrder(3, 1, 7, [], told, full)


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_role_in_the_topic_of_another_is_refused(at_once: bool) -> None:
    """A role in a topic whose id another topic has is refused for its partition alone; the first topic keeps the id."""
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
    """Topics without ids, as a controller before Kafka 2.8 sends them, do not share an id."""
    held = Held()
    manager = await a_manager(MetadataCache("c"), held)
    assert set((await manager.leader_and_isr(roles(("a", bytes(16)), ("b", bytes(16))))).values()) == {0}


async def test_logs_of_one_id_wait_for_the_controller() -> None:
    """Logs that share a topic id wait for the controller, as their directories do not show which one is the topic's."""
    held = Held()
    good, copy, other = (TopicPartition(name, 0) for name in ("good", "copy", "other"))
    held.lies = {key: SimpleNamespace(topic_id=ID) for key in (good, copy)}
    held.lies[other] = SimpleNamespace(topic_id=OTHER)
    manager = await a_manager(MetadataCache("c"), held)
    await manager.open_found({key: each.topic_id for key, each in held.lies.items()})
    assert held.keys() == {other}
    codes = await manager.leader_and_isr(roles(("good", ID), ("copy", ID)))
    assert codes == {good: 0, copy: errors.INCONSISTENT_TOPIC_ID}


async def test_the_image_has_one_name_of_an_id(caplog: pytest.LogCaptureFixture) -> None:
    """The image has one topic name for an id until that topic is deleted; the other one is logged once."""
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
    assert names() == {"copy", "other", "more"}, "zeros are no id"
