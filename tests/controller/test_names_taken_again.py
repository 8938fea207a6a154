"""A topic is deleted and another has its name: requests for the first do nothing to the second."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from pybroker import errors
from pybroker.coordination.memory import Fate, MemorySession
from pybroker.coordination.store import Create, Op, SessionState
from pybroker.decisions.image import OFFSETS_TOPIC, LiveBroker, PartitionState
from pybroker.decisions.metadata_cache import MetadataCache, TopicStates, UpdateMetadata
from pybroker.errors import KafkaError
from pybroker.metadata import nodes
from pybroker.metadata.topic_admin import TopicAdmin
from pybroker.model import TopicPartition
from pybroker.server.cluster.group_locator import GroupLocator
from tests.controller.brokers import FakeCluster
from tests.controller.stage import live_broker
from tests.harness import eventually, looked

KEY = TopicPartition("t", 0)
FIRST, SECOND = b"t".ljust(16, b"_"), b"another".ljust(16, b"_")


class Asker:
    """A broker that gets requests to change topic t, and knows only the first one."""

    def __init__(self, cluster: FakeCluster, session: MemorySession) -> None:
        self.cluster = cluster
        self.session = session
        state = PartitionState((2, 3), 2, 0, (2, 3), 1, 0)
        live = [live_broker(number) for number in (1, 2, 3)]
        metadata = MetadataCache("cluster")
        metadata.update(UpdateMetadata(1, 1, live, [TopicStates("t", FIRST, {0: state})]))
        self.topics = TopicAdmin(
            lambda: session, cluster.config, metadata, Random(1), lambda: cluster.brokers[1].controller, shown_s_max=1.0
        )

    def lose_the_answer_of(self, path: str) -> None:
        """Execute the next write of this node, lose its answer, and stay disconnected until reconnect() is called."""
        multi, write = self.session.multi, self.session.set

        def losing() -> None:
            self.session.multi, self.session.set = multi, write  # type: ignore[method-assign]
            self.session.fate = lambda: Fate.LOST_AFTER

        def of_several(ops: list[Op]) -> Any:
            if any(op.path == path for op in ops):
                losing()
            return multi(ops)

        def of_one(at: str, *given: Any) -> Any:
            if at == path:
                losing()
            return write(at, *given)

        def heard(state: SessionState) -> None:
            if state is SessionState.DISCONNECTED:
                self.session.fate = lambda: Fate.ANSWERED

        self.session.multi, self.session.set = of_several, of_one  # type: ignore[method-assign,assignment]
        self.session.listen(heard)

    async def first_is_gone(self) -> None:
        async def gone() -> bool:
            return await self.cluster.admin.exists(nodes.topic("t")) is None

        await eventually("the first is deleted", gone)

    async def make_the_second(self) -> None:
        data = nodes.dump_assignment(SECOND, [(3, 1)])
        config = Create(nodes.topic_config("t"), nodes.dump_config({}))
        await self.cluster.admin.multi([config, Create(nodes.topic("t"), data)])
        one = self.cluster.brokers[1]
        await eventually("the second is led", lambda: KEY in one.states)

    async def there(self) -> tuple[bytes, list[tuple[int, ...]]]:
        """The id and the replicas of the topic that has the name now."""
        node = nodes.load_topic((await self.cluster.admin.get(nodes.topic("t")))[0])
        return node.id, node.replicas


@pytest.fixture
async def asker(cluster: FakeCluster) -> Asker:
    await cluster.create("t", (2, 3))
    return Asker(cluster, await cluster.store.session(30_000))


async def test_a_deletion_whose_answer_is_lost(asker: Asker) -> None:
    asker.lose_the_answer_of(nodes.deletion("t"))
    asked = asyncio.create_task(asker.topics.delete("t", FIRST))
    await asker.first_is_gone()
    await asker.make_the_second()
    asker.session.reconnect()

    async def seen() -> bool:
        return await asker.cluster.admin.exists(nodes.deletion("t")) is None

    with pytest.raises(KafkaError, match="the topic t is being deleted"):  # its metadata never changes
        await asked
    await eventually("there is no wish", seen)
    assert await asker.there() == (SECOND, [(3, 1)])


async def test_a_next_controller_finds_the_wish_of_another(cluster: FakeCluster) -> None:
    """The next controller removes a deletion request for another topic id; the topic stays and has leaders."""
    await cluster.create("t", (2, 3))
    cluster.brokers[1].session.suspend()
    await cluster.admin.create(nodes.deletion("t"), nodes.dump_deletion(SECOND))
    await cluster.admin.delete(nodes.CONTROLLER)

    async def ignored() -> bool:
        return await cluster.admin.exists(nodes.deletion("t")) is None

    await eventually("the wish is seen", ignored)
    assert await cluster.admin.exists(nodes.topic("t")) is not None
    assert [cluster.brokers[number].image[KEY].leader for number in (2, 3)] == [2, 2]


async def test_growth_whose_answer_is_lost(cluster: FakeCluster) -> None:
    """Another controller deletes the topic meanwhile: the first request changes nothing of its successor."""
    await cluster.create("t", (2, 3))
    asker = Asker(cluster, cluster.brokers[1].session)
    asker.lose_the_answer_of(nodes.topic("t"))
    asked = asyncio.create_task(asker.topics.grow("t", 2, None))

    async def grown() -> bool:
        return len((await asker.there())[1]) == 2

    await eventually("it has grown", grown)
    await cluster.admin.delete(nodes.CONTROLLER)
    await cluster.admin.create(nodes.deletion("t"), nodes.dump_deletion(FIRST))
    await asker.first_is_gone()
    await asker.make_the_second()
    asker.session.reconnect()
    with pytest.raises(KafkaError, match="controller"):
        await asked
    assert await asker.there() == (SECOND, [(3, 1)])


async def test_growth_whose_answer_is_lost_is_done_once(cluster: FakeCluster) -> None:
    await cluster.create("t", (2, 3))
    asker = Asker(cluster, cluster.brokers[1].session)
    asker.lose_the_answer_of(nodes.topic("t"))
    asked = asyncio.create_task(asker.topics.grow("t", 3, None))

    async def grown() -> bool:
        return len((await asker.there())[1]) == 3

    await eventually("it has grown", grown)
    asker.session.reconnect()
    with pytest.raises(KafkaError, match="the partitions of t are created"):  # its metadata never changes
        await asked
    assert len((await asker.there())[1]) == 3


async def test_growth_beside_a_deletion(asker: Asker) -> None:
    """A deletion requested between the read and the write waits until the partitions are added."""
    session = asker.cluster.brokers[1].session
    write = session.multi
    wished = False

    def late(ops: list[Op]) -> Any:
        nonlocal wished
        if any(op.path == nodes.topic("t") for op in ops) and not wished:
            wished = True
            return asyncio.ensure_future(after_a_wish(ops))
        return write(ops)

    async def after_a_wish(ops: list[Op]) -> Any:
        await asker.cluster.admin.create(nodes.deletion("t"), nodes.dump_deletion(FIRST))
        await looked()
        assert len((await asker.there())[1]) == 1  # neither deleted nor grown
        return await write(ops)

    session.multi = late  # type: ignore[method-assign,assignment]
    asked = asyncio.create_task(asker.topics.grow("t", 2, None))
    await asker.first_is_gone()
    assert wished
    await asker.make_the_second()
    with pytest.raises(KafkaError, match="the partitions of t are created"):
        await asked
    assert await asker.there() == (SECOND, [(3, 1)])


async def test_growth_without_the_node_of_the_controller_s_epoch(asker: Asker) -> None:
    """If the node was removed, no controller can write, and the request fails instead of retrying forever."""
    await asker.cluster.admin.delete(nodes.CONTROLLER_EPOCH)
    async with asyncio.timeout(5):
        with pytest.raises(KafkaError, match="controller_epoch"):
            await asker.topics.grow("t", 2, None)


async def test_growth_is_the_controller_s(asker: Asker) -> None:
    asker.cluster.brokers[1].controller = asker.cluster.brokers[2].controller
    with pytest.raises(KafkaError) as refused:
        await asker.topics.grow("t", 2, None)
    assert refused.value.code == errors.NOT_CONTROLLER


async def test_growth_where_the_second_was_not_told_of(asker: Asker) -> None:
    await asker.cluster.admin.create(nodes.deletion("t"))
    await asker.first_is_gone()
    await asker.make_the_second()
    with pytest.raises(KafkaError, match=f"topic t has the id {SECOND.hex()}"):
        await asker.topics.grow("t", 2, None)
    assert await asker.there() == (SECOND, [(3, 1)])


class Groups:
    """A coordinator that only records the topics whose offsets it forgot."""

    def __init__(self) -> None:
        self.topic, self.partitions = OFFSETS_TOPIC, 0
        self.forgotten: list[str] = []

    async def forget_topic(self, name: str) -> None:
        self.forgotten.append(name)


@pytest.mark.parametrize("told_gone", [False, True], ids=["told of the second alone", "told that the first is gone"])
async def test_offsets_are_of_the_first(told_gone: bool) -> None:
    """The second topic has no committed offsets, even if the broker never saw the name free."""
    metadata, groups = MetadataCache(), Groups()
    metadata.watch(GroupLocator(metadata, None, groups).show)  # type: ignore[arg-type]
    state = PartitionState((1,), 1, 0, (1,), 1, 0)
    live = [LiveBroker(1, {}, {})]
    metadata.update(UpdateMetadata(1, 1, live, [TopicStates("t", FIRST, {0: state})]))
    metadata.update(UpdateMetadata(1, 1, live, [TopicStates("t", SECOND, {0: state})], ["t"] if told_gone else []))
    await eventually("they are forgotten", lambda: groups.forgotten == ["t"])
