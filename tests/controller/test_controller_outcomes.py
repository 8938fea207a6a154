"""A controller that loses its store connection at each operation, or finds unexpected data there: it finishes its work,
or resigns."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pybroker.coordination.memory import Fate, MemorySession
from pybroker.coordination.store import Create, Delete, NoNode, SessionState
from pybroker.metadata import nodes
from pybroker.model import TopicPartition
from tests.controller.brokers import FakeCluster
from tests.harness import eventually

PARTITIONS = 2000


def lose(session: MemorySession, number: int, fate: Fate) -> list[int]:
    """Give the operation of this number this fate, then reconnect; return [number of operations], updated later."""
    sent = [0]

    def next_fate() -> Fate:
        sent[0] += 1
        return fate if sent[0] == number else Fate.ANSWERED

    def heed(state: SessionState) -> None:
        if state is SessionState.DISCONNECTED:
            session.reconnect()

    session.fate = next_fate
    session.listen(heed)
    return sent


async def fail_over(number: int, fate: Fate) -> int:
    """Let a leader die and the controller lose one operation of the failover; return the number of operations."""
    cluster = await FakeCluster().begin()
    led, followed, alone = await cluster.create("t", (2, 3, 1), (3, 2), (2,))
    sent = lose(cluster.controller.session, number, fate)
    await cluster.brokers[2].die()
    await cluster.until_led(led, 3)
    await cluster.until_led(alone, -1)
    assert await cluster.state(led) == (3, 1, [3, 1], 1)
    assert await cluster.state(followed) == (3, 1, [3], 1)
    assert await cluster.state(alone) == (-1, 1, [2], 1)
    assert int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0]) == 1, "the same controller did it"
    assert cluster.brokers[3].states[led].leader_epoch == cluster.brokers[1].states[led].leader_epoch == 1
    await cluster.end()
    return sent[0]


@pytest.mark.parametrize("fate", [Fate.LOST_BEFORE, Fate.LOST_AFTER])
async def test_a_failover_whose_operations_are_lost(fate: Fate) -> None:
    """Each leader epoch is raised once, whichever operation gets no answer."""
    operations = await fail_over(0, fate)
    assert operations >= 5
    for number in range(1, operations + 1):
        await fail_over(number, fate)


async def take_over(number: int, fate: Fate) -> int:
    """Let the controller die and the next one lose an operation; return the number of operations."""
    cluster = await FakeCluster().begin()
    (key,) = await cluster.create("t", (1, 2, 3))
    await cluster.brokers[3].controller.stop()  # so that broker 2 is next
    sent = lose(cluster.brokers[2].session, number, fate)
    await cluster.brokers[1].die()
    cluster.brokers[1].session.expire()
    await cluster.until_led(key, 2)
    assert await cluster.state(key) == (2, 1, [2, 3], 1)
    assert int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0]) == 2
    await cluster.end()
    return sent[0]


@pytest.mark.parametrize("fate", [Fate.LOST_BEFORE, Fate.LOST_AFTER])
async def test_a_takeover_whose_operations_are_lost(fate: Fate) -> None:
    operations = await take_over(0, fate)
    for number in range(1, operations + 1):
        await take_over(number, fate)


async def test_a_partition_that_somebody_else_began() -> None:
    """A partition node without a state, as a Kafka controller that dies in between leaves it, is completed."""
    cluster = await FakeCluster().begin()
    key = TopicPartition("t", 0)
    for path in (nodes.topic("t"), nodes.partitions("t"), nodes.partition(*key)):
        data = nodes.dump_assignment(b"t" * 16, [(2, 3)]) if path == nodes.topic("t") else b""
        cluster.admin.create(path, data)  # in one turn: the controller sees the topic with the partition's node
    await eventually("it has a leader", lambda: key in cluster.brokers[2].states)
    assert (await cluster.state(key))[:3] == (2, 0, [2, 3])
    assert int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0]) == 1, "the same controller did it"
    await cluster.end()


async def test_a_reign_that_fails_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is alive and its node prevents another election, so the controller deletes the node."""
    cluster = await FakeCluster().begin()
    first = cluster.controller

    async def fail() -> None:
        raise NoNode

    monkeypatch.setattr(first.controller, "_take_over", fail)
    with pytest.raises(NoNode):
        await first.controller.ask(fail)
    await eventually("another is elected", lambda: any(b.controller.active for b in cluster.living if b is not first))
    (key,) = await cluster.create("t", (2, 3))
    assert (await cluster.state(key))[0] == 2
    await cluster.end()


async def test_thousands_of_partitions() -> None:
    """All partitions get a new leader, and all brokers know it, in far less than a session timeout."""
    cluster = await FakeCluster().begin()
    keys = await cluster.create("t", *[(2, 3, 1)] * PARTITIONS)
    began = time.process_time()
    await cluster.brokers[2].die()
    await eventually(
        "all are told", lambda: all(b.image[key].leader == 3 for b in cluster.living for key in (keys[0], keys[-1]))
    )
    took_s = time.process_time() - began
    assert all(b.states[key].leader == 3 for b in cluster.living for key in keys)
    print(f"\n{PARTITIONS} partitions elected and told in {took_s * 1e3:.0f} ms of cpu")
    assert took_s < 5
    await cluster.end()


async def test_what_another_program_wrote_of_a_topic_stops_nobody(cluster: FakeCluster) -> None:
    """Invalid replicas, no replicas, or an invalid state affect no other topic, whose leaders change as usual."""
    (t,) = await cluster.create("t", (2, 3))
    (u,) = await cluster.create("u", (3, 2))
    state, _ = await cluster.admin.get(nodes.state(*t))
    await cluster.admin.set(nodes.state(*t), state.replace(b"[2,3]", b'["2","3"]'))
    for name, replicas in (("words", '["1"]'), ("none", "[]")):
        data = nodes.dump_assignment(name.encode().ljust(16, b"_"), [(1,)]).replace(b"[1]", replicas.encode())
        config = Create(nodes.topic_config(name), nodes.dump_config({}))
        await cluster.admin.multi([config, Create(nodes.topic(name), data)])
    controller = cluster.controller.controller
    await eventually("it is seen", lambda: controller.context and controller.context.damaged >= {"words", "none"})
    await cluster.admin.delete(nodes.CONTROLLER)
    cluster.brokers[1].session.suspend()
    cluster.brokers[1].alive = False
    others = [cluster.brokers[number] for number in (2, 3)]
    await eventually("another controls", lambda: any(broker.controller.active for broker in others))
    known = cluster.controller.controller.context
    assert known is not None
    await eventually("it has seen all", lambda: known.damaged == {"words", "none", "t"})
    await cluster.until_led(u, 3)
    await cluster.create("later", (2, 3))
    assert int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0]) == 2


async def test_a_node_beside_the_brokers_is_none(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """A foreign node there is logged once, and brokers come and go as usual."""
    for name in ("backup", "04", "3000000000"):
        await cluster.admin.create(f"{nodes.BROKER_IDS}/{name}")
    await cluster.join(4)
    await eventually("it has come", lambda: all(broker.live == {1, 2, 3, 4} for broker in cluster.living))
    await cluster.create("t", (4, 3))
    assert int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0]) == 1
    assert caplog.text.count("registration ignored broker=backup") == 1


async def test_a_notice_with_a_node_below_it(cluster: FakeCluster) -> None:
    """Both the notification with a foreign child node and the controller stay."""
    await cluster.admin.create(f"{nodes.LOG_DIR_EVENT}7", nodes.dump_log_dir_event(2))
    controller = cluster.controller.controller
    await cluster.admin.create(f"{nodes.LOG_DIR_EVENT}8", nodes.dump_log_dir_event(2))
    await cluster.admin.create(f"{nodes.LOG_DIR_EVENT}8/lock")
    await cluster.create("t", (2, 3))
    assert controller.active
    assert int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0]) == 1


def nodes_of(key: TopicPartition) -> list[str]:
    """The nodes of a topic with one partition, children first."""
    return [
        nodes.state(*key), nodes.partition(*key), nodes.partitions(key.topic), nodes.topic(key.topic),
        nodes.topic_config(key.topic),
    ]  # fmt: skip


@pytest.mark.parametrize("seen", [True, False], ids=["seen while it was gone", "not seen"])
async def test_a_topic_that_is_removed_by_hand(cluster: FakeCluster, seen: bool) -> None:
    """The topic is forgotten, as by Kafka's controller, and a new topic of its name gets leaders."""
    key, other = (await cluster.create("t", (2, 3)))[0], (await cluster.create("u", (2, 3)))[0]
    await cluster.brokers[3].die()
    await cluster.until_led(key, 2)
    cluster.brokers[2].states.clear()
    removal = [Delete(path) for path in nodes_of(key)]
    data = nodes.dump_assignment(b"second".ljust(16, b"_"), [(2, 1), (1, 2)])
    made = [Create(nodes.topic_config("t"), nodes.dump_config({})), Create(nodes.topic("t"), data)]
    if seen:
        await cluster.admin.multi(removal)
        await eventually("clients see it no more", lambda: all(b.image[key].leader == -2 for b in cluster.living))
        context = cluster.controller.controller.context
        assert context is not None and context.topics.keys() == {"u"}
        await cluster.admin.multi(made)
    else:
        await cluster.admin.multi([*removal, *made])
    one = cluster.brokers[1]
    await eventually("it is led", lambda: TopicPartition("t", 1) in one.states)
    await cluster.until_led(TopicPartition("t", 1), 1)
    await cluster.until_led(key, 2)
    assert await cluster.state(key) == (2, 0, [2, 1], 0)
    assert cluster.brokers[2].states[key].leader_epoch == 0
    assert (await cluster.state(other))[0] == 2
    assert int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0]) == 1


async def test_what_cannot_be_read_is_forgotten_with_its_node(cluster: FakeCluster) -> None:
    """Once the unreadable node is deleted, brokers get all metadata again."""
    await cluster.create("t", (2, 3))
    context = cluster.controller.controller.context
    assert context is not None
    await cluster.admin.create(nodes.topic("bad"), b"{")
    await eventually("it is seen", lambda: context.damaged == {"bad"})
    await cluster.admin.delete(nodes.topic("bad"))
    await eventually("it is forgotten", lambda: context.damaged == set())


async def test_only_what_changed_is_read(cluster: FakeCluster) -> None:
    """No other topic is read again when one is created, extended, removed or unreadable. After a lost connection all
    are, as the watches are gone."""
    for name in ("a", "b"):
        await cluster.create(name, (2, 3))
    session = cluster.controller.session
    read, get = list[str](), session.get

    def counted(path: str, **given: Any) -> Any:
        if path.startswith(f"{nodes.TOPICS}/"):
            read.append(path.removeprefix(f"{nodes.TOPICS}/").partition("/")[0])
        return get(path, **given)

    session.get = counted  # type: ignore[method-assign]
    (key,) = await cluster.create("c", (2, 3))
    grown = nodes.dump_assignment(b"a".ljust(16, b"_"), [(2, 3), (3, 2)])
    await cluster.admin.set(nodes.topic("a"), grown)
    await cluster.until_told(TopicPartition("a", 1))
    await cluster.admin.multi([Delete(path) for path in nodes_of(key)])
    await eventually("it is gone", lambda: all(b.image[key].leader == -2 for b in cluster.living))
    assert set(read) == {"a", "c"}
    sound, _ = await cluster.admin.get(nodes.topic("a"))
    for data in (b"{", sound):
        before = len(read)
        await cluster.admin.set(nodes.topic("a"), data)
        await eventually("it is read", lambda before=before: len(read) > before)
    assert set(read) == {"a", "c"}
    read.clear()
    session.disconnect()
    grown = nodes.dump_assignment(b"b".ljust(16, b"_"), [(2, 3), (3, 2)])
    await cluster.admin.set(nodes.topic("b"), grown)
    session.reconnect()
    await cluster.until_told(TopicPartition("b", 1))
    assert set(read) == {"a", "b"}
