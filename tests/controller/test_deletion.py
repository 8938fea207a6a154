"""Deletion of topics: requests to brokers, what the controller waits for, and the nodes that it removes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import ANY

import pytest

from pybroker import errors
from pybroker.coordination.memory import Fate
from pybroker.coordination.store import Create, Delete, Op, SessionState, Set
from pybroker.metadata import nodes
from pybroker.model import TopicPartition
from tests.controller.brokers import FakeCluster, FakeLink
from tests.controller.stage import live_broker
from tests.harness import eventually

pytestmark = pytest.mark.virtual_time


async def deleted(cluster: FakeCluster) -> None:
    """Wait until the deletion of topic t is complete."""

    async def gone() -> bool:
        return await cluster.admin.exists(nodes.deletion("t")) is None

    await eventually("it is deleted", gone)


async def test_a_topic_is_deleted(cluster: FakeCluster) -> None:
    """Clients no longer see the topic, replicas delete it, and the store keeps nothing of it."""
    key, _ = await cluster.create("t", (2, 3), (1, 2))
    await cluster.admin.create(nodes.deletion("t"))

    await deleted(cluster)
    assert await cluster.admin.exists(nodes.topic("t")) is None
    assert await cluster.admin.exists(nodes.topic_config("t")) is None
    assert all(broker.image[key].leader == -2 for broker in cluster.living)
    assert [sorted(cluster.brokers[n].deleted) for n in (1, 2, 3)] == [
        [TopicPartition("t", 1)], [TopicPartition("t", 0), TopicPartition("t", 1)], [TopicPartition("t", 0)]
    ]  # fmt: skip


async def test_a_topic_is_deleted_again(cluster: FakeCluster) -> None:
    """Results for the first topic of a name do not count for the second."""
    for times in (1, 2):
        (key,) = await cluster.create("t", (2, 3))
        await cluster.admin.create(nodes.deletion("t"))

        await deleted(cluster)
        assert cluster.brokers[2].deleted == cluster.brokers[3].deleted == [key] * times
        for broker in cluster.living:
            broker.image.pop(key)
            broker.states.pop(key, None)


async def test_what_failed_is_forgotten_with_its_topic(cluster: FakeCluster) -> None:
    """A broker that failed to open the log of a first topic opens that of the second, and stays its leader."""
    key = TopicPartition("t", 0)
    two = cluster.brokers[2]
    two.refuses[key] = errors.KAFKA_STORAGE_ERROR
    await cluster.create("t", (2,))
    await cluster.until_led(key, -1)
    two.refuses.clear()
    await cluster.admin.create(nodes.deletion("t"))

    await deleted(cluster)
    for broker in cluster.living:
        broker.image.pop(key)
        broker.states.pop(key, None)
    await cluster.create("t", (2,))
    (other,) = await cluster.create("u", (3, 1))
    await cluster.brokers[3].die()
    await cluster.until_led(other, 1)
    assert await cluster.state(key) == (2, 0, [2], 0)


async def test_a_topic_that_is_removed_by_hand_while_it_is_deleted(cluster: FakeCluster) -> None:
    """Replicas are still deleted, and the request node is removed."""
    (key,) = await cluster.create("t", (3, 2))
    await cluster.brokers[3].die()
    await cluster.until_led(key, 2)
    await cluster.admin.create(nodes.deletion("t"))
    await eventually("one is deleted", lambda: cluster.brokers[2].deleted == [key])
    paths = nodes.state(*key), nodes.partition(*key), nodes.partitions("t"), nodes.topic("t"), nodes.topic_config("t")
    await cluster.admin.multi([Delete(path) for path in paths])
    await cluster.create("u", (2, 1))
    await cluster.brokers[3].leave()
    await cluster.join(3)

    await deleted(cluster)
    assert cluster.brokers[3].deleted == [key]
    assert int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0]) == 1


@pytest.mark.parametrize("first", ["the wish", "the topic"])
async def test_a_deletion_that_is_given_up_by_hand(cluster: FakeCluster, first: str) -> None:
    """A replica waits for a broker that is down. Once an operator removes topic and request, the name can be used."""
    (key,) = await cluster.create("t", (3, 2))
    await cluster.brokers[3].die()
    await cluster.until_led(key, 2)
    await cluster.admin.create(nodes.deletion("t"))
    await eventually("one is deleted", lambda: cluster.brokers[2].deleted == [key])
    topic = [nodes.state(*key), nodes.partition(*key), nodes.partitions("t"), nodes.topic("t"), nodes.topic_config("t")]
    wish = [nodes.deletion("t")]
    for paths in (wish, topic) if first == "the wish" else (topic, wish):
        await cluster.admin.multi([Delete(path) for path in paths])
        await asyncio.sleep(0.05)
    cluster.brokers[2].states.pop(key)
    data = nodes.dump_assignment(b"second".ljust(16, b"_"), [(2, 1)])
    await cluster.admin.multi([Create(nodes.topic_config("t"), nodes.dump_config({})), Create(nodes.topic("t"), data)])
    await eventually("it is told", lambda: key in cluster.brokers[2].states)
    await cluster.until_led(key, 2)
    assert int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0]) == 1


async def test_what_another_program_left_below_a_topic_goes_with_it(cluster: FakeCluster) -> None:
    """Foreign nodes below partitions, topic, settings and request are deleted with the topic, as in Kafka."""
    await cluster.create("t", (2, 3), (3, 2))
    await cluster.create("settings", (2, 3))
    left = (
        nodes.partition("t", 7), f"{nodes.partition('t', 7)}/lock", f"{nodes.partition('t', 0)}/lock",
        f"{nodes.state('t', 1)}/lock", f"{nodes.topic('t')}/notes", f"{nodes.topic('t')}/notes/one",
        f"{nodes.topic_config('settings')}/lock",
    )  # fmt: skip
    for path in left:
        await cluster.admin.create(path)
    wishes = [nodes.deletion(name) for name in ("t", "settings", "nowhere")]
    await cluster.admin.multi([each for path in wishes for each in (Create(path), Create(f"{path}/lock"))])

    async def gone() -> bool:
        return (await cluster.admin.children(nodes.DELETIONS))[0] == []

    await eventually("they are deleted", gone)
    for parent in (nodes.TOPICS, nodes.TOPIC_CONFIGS):
        assert (await cluster.admin.children(parent))[0] == []
    assert int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0]) == 1


async def test_a_topic_that_another_program_holds(cluster: FakeCluster) -> None:
    """A program adds a child node at each deletion: the next round tries again, and other deletions go on."""
    await cluster.create("t", (2, 3))
    session = cluster.controller.session
    multi, tries = session.multi, []

    def late(ops: list[Op]) -> Any:
        path = nodes.partition("t", 0)
        if holds and any(isinstance(op, Delete) and op.path == path for op in ops):
            tries.append(ops)
            cluster.admin.create(f"{path}/lock-{len(tries)}")
        return multi(ops)

    session.multi, holds = late, True  # type: ignore[method-assign,assignment]
    await cluster.admin.create(nodes.deletion("t"))
    await eventually("it is tried", lambda: tries)
    await cluster.create("u", (2, 3))
    assert len(tries) < 5
    assert await cluster.admin.exists(nodes.topic("t")) is not None
    holds = False
    await cluster.join(4)

    await deleted(cluster)
    assert int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0]) == 1


async def test_a_deletion_ends_at_once(cluster: FakeCluster) -> None:
    """A topic created as soon as the name is free keeps its settings, and the old request does not delete it."""
    await cluster.create("t", (2, 3))
    made = []

    async def create() -> None:
        data = nodes.dump_assignment(b"another".ljust(16, b"_"), [(2, 3)])
        config = nodes.dump_config({"retention.ms": "7"})
        own = Set if await cluster.admin.exists(nodes.topic_config("t")) else Create
        await cluster.admin.multi([own(nodes.topic_config("t"), config), Create(nodes.topic("t"), data)])
        made.append(await cluster.admin.exists(nodes.deletion("t")))

    tasks = []
    watch = lambda _: tasks.append(asyncio.get_running_loop().create_task(create()))  # noqa: E731
    await cluster.admin.exists(nodes.topic("t"), watch=watch)
    await cluster.admin.create(nodes.deletion("t"))
    await eventually("another is made", lambda: made)
    assert made == [None]
    await eventually("it is led", lambda: all(TopicPartition("t", 0) in cluster.brokers[n].states for n in (2, 3)))
    assert nodes.load_config((await cluster.admin.get(nodes.topic_config("t")))[0]) == {"retention.ms": "7"}
    assert await cluster.admin.exists(nodes.topic("t")) is not None


async def test_a_topic_made_while_the_end_of_a_deletion_is_unknown_stays(cluster: FakeCluster) -> None:
    """The last write succeeded, its answer was lost, and the name is used again before the controller reads it."""
    await cluster.create("t", (2, 3))
    session = cluster.controller.session
    multi, lost = session.multi, []

    def losing(ops: list[Op]) -> Any:
        if any(isinstance(op, Delete) and op.path == nodes.topic("t") for op in ops) and not lost:
            lost.append(ops)
            session.fate = lambda: Fate.LOST_AFTER
        return multi(ops)

    def heard(state: SessionState) -> None:
        if state is SessionState.DISCONNECTED:
            session.fate = lambda: Fate.ANSWERED

    session.multi = losing  # type: ignore[method-assign,assignment]
    session.listen(heard)
    await cluster.admin.create(nodes.deletion("t"))

    async def gone() -> bool:
        return await cluster.admin.exists(nodes.topic("t")) is None

    await eventually("the name is free", gone)
    data = nodes.dump_assignment(b"another".ljust(16, b"_"), [(2, 3)])
    config = Create(nodes.topic_config("t"), nodes.dump_config({"retention.ms": "7"}))
    await cluster.admin.multi([config, Create(nodes.topic("t"), data)])
    session.reconnect()
    await eventually("it is led", lambda: all(TopicPartition("t", 0) in cluster.brokers[n].states for n in (2, 3)))
    assert await cluster.admin.exists(nodes.topic("t")) is not None
    assert await cluster.admin.exists(nodes.topic_config("t")) is not None


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[set[int], asyncio.Event]]:
    """The numbers of brokers that receive no request until an event is set."""
    numbers, event, ask = set[int](), asyncio.Event(), FakeLink.ask

    async def late(link: FakeLink, message: Any, version: int, **_: Any) -> Any:
        if link._broker.number in numbers:
            await event.wait()
        return await ask(link, message, version)

    monkeypatch.setattr(FakeLink, "ask", late)
    yield numbers, event


async def test_who_comes_again_hears_that_a_topic_is_gone(
    cluster: FakeCluster, held_back: tuple[set[int], asyncio.Event]
) -> None:
    """A broker that registers again gets full metadata, as requests to its earlier registration were lost."""
    (key,) = await cluster.create("t", (2, 1))
    (other,) = await cluster.create("u", (2, 1))
    three, (numbers, event) = cluster.brokers[3], held_back
    numbers.add(3)
    await cluster.admin.create(nodes.deletion("t"))

    await deleted(cluster)
    assert key in three.image
    await cluster.admin.delete(nodes.broker(3))
    await eventually("it is gone", lambda: cluster.brokers[2].live == {1, 2})
    await three.register()
    event.set()
    await eventually("it is told of what there is", lambda: three.image.keys() == {other})


async def test_a_deletion_goes_on_at_a_broker_that_is_reached_elsewhere(
    cluster: FakeCluster, held_back: tuple[set[int], asyncio.Event]
) -> None:
    """Pending requests go to the new address."""
    (key,) = await cluster.create("t", (3, 2))
    three, (numbers, event) = cluster.brokers[3], held_back
    numbers.add(3)
    await cluster.admin.create(nodes.deletion("t"))
    await eventually("the other is deleted", lambda: cluster.brokers[2].deleted == [key])
    moved = live_broker(3)._replace(rack="elsewhere")
    await three.session.set(nodes.broker(3), nodes.dump_broker(moved, 0))
    known = cluster.controller.controller.context
    assert known is not None
    await eventually("the controller knows", lambda: known.brokers[3].rack == "elsewhere")
    event.set()

    await deleted(cluster)
    assert three.deleted == [key]


async def test_a_deletion_waits_for_a_broker_that_is_away(cluster: FakeCluster) -> None:
    """The replica would come back otherwise; the next controller continues the deletion."""
    (key,) = await cluster.create("t", (3, 2))
    await cluster.brokers[3].die()
    await cluster.until_led(key, 2)
    await cluster.admin.create(nodes.deletion("t"))
    await eventually("the other is deleted", lambda: cluster.brokers[2].deleted == [key])
    assert await cluster.admin.exists(nodes.topic("t")) is not None
    await cluster.brokers[1].die()
    cluster.brokers[1].session.expire()
    await eventually("another controls", lambda: any(b.controller.active for b in cluster.living))
    await cluster.brokers[3].leave()
    await cluster.join(3)

    await deleted(cluster)
    assert cluster.brokers[3].deleted == [key]


async def test_a_deletion_goes_on_once_there_is_room(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """A broker that cannot delete its log is asked again when its log dirs have changed, without a restart."""
    (key,) = await cluster.create("t", (1, 3))
    three = cluster.brokers[3]
    three.refuses[key] = errors.KAFKA_STORAGE_ERROR
    await cluster.admin.create(nodes.deletion("t"))
    await eventually("it is not deleted", lambda: any("replica not deleted" in said for said in caplog.messages))
    three.refuses.clear()
    await cluster.admin.create(nodes.LOG_DIR_EVENT, nodes.dump_log_dir_event(3), sequential=True)
    await deleted(cluster)
    assert three.deleted[-1] == key


async def test_a_topic_that_is_being_deleted_is_shown_to_no_broker_again(cluster: FakeCluster) -> None:
    """No request about its offline replica, or about its broker's end, brings the topic back to clients."""
    (key,) = await cluster.create("t", (1, 3))
    three = cluster.brokers[3]
    three.refuses[key] = errors.KAFKA_STORAGE_ERROR
    await cluster.admin.create(nodes.LOG_DIR_EVENT, nodes.dump_log_dir_event(3), sequential=True)
    others = [broker for broker in cluster.living if broker is not three]
    await eventually("they know", lambda: all(list(b.image[key].offline_replicas) == [3] for b in others))
    await cluster.admin.create(nodes.deletion("t"))
    await eventually("it is deleted at the other", lambda: cluster.brokers[1].deleted == [key])
    await eventually("clients see it no more", lambda: all(b.image[key].leader == -2 for b in others))
    await cluster.admin.delete(nodes.broker(3))
    await eventually("it is gone", lambda: all(3 not in broker.live for broker in others))
    data = nodes.dump_assignment(b"another topic id", [(1, 2)])
    await cluster.admin.multi([Create(nodes.topic("other"), data)])
    other = TopicPartition("other", 0)  # it arrives after all earlier requests
    await eventually("they hear of another", lambda: all(other in broker.image for broker in others))
    assert all(broker.image[key].leader == -2 for broker in others)
    three.refuses.clear()
    await three.register()

    await deleted(cluster)
    assert key not in three.image and all(broker.image[key].leader == -2 for broker in others)


async def test_a_wish_that_is_not_granted_takes_no_topic_away() -> None:
    """With delete.topic.enable=false the topic stays, also when a controller finds the request at its start."""
    cluster = await FakeCluster("delete.topic.enable=false").begin()
    led = {2: (await cluster.create("t", (2, 3)))[0], 3: (await cluster.create("u", (3, 2)))[0]}
    cluster.brokers[1].session.suspend()
    wishes = [Create(nodes.deletion(key.topic), b"") for key in led.values()]
    await cluster.admin.multi([*wishes, Delete(nodes.CONTROLLER)])

    async def ignored() -> bool:
        return await cluster.admin.children(nodes.DELETIONS) == ([], ANY)

    await eventually("another controller has seen them", ignored)
    (dies,) = (number for number in led if not cluster.brokers[number].controller.active)
    await cluster.brokers[dies].die()
    await cluster.until_led(led[dies], 5 - dies)
    await cluster.end()
