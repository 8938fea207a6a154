"""Damage stays within one topic, for any content of its nodes, and any failure in work on it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from pybroker import errors
from pybroker.coordination.store import Delete, StoreDamaged
from pybroker.metadata import nodes
from pybroker.metadata.stored_topic import PARTITIONS_MAX, REPLICAS_MAX, StateNode, judge, judge_node, strangers
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from tests.controller.brokers import FakeCluster, alter_partition, controlled_shutdown
from tests.harness import eventually
from tests.rows import with_each

ID = b"t" * 16


def node(**changes: object) -> bytes:
    sound = json.loads(nodes.dump_assignment(ID, [[1, 2, 3]]))
    return json.dumps({**sound, **changes}).encode()


def state(**changes: object) -> bytes:
    sound = {"version": 1, "leader": 1, "leader_epoch": 4, "controller_epoch": 2, "isr": [1, 2]}
    return json.dumps({**sound, **changes}).encode()


NODES = {
    "garbage": b"\xff\x00x",
    "empty": b"",
    "a list": b"[]",
    "deep": b"[" * 200_000,
    "no partitions": node(partitions={}),
    "partitions are text": node(partitions="x"),
    "a gap": node(partitions={"0": [1], "5": [1]}),
    "a partition twice": node(partitions={"0": [1], "00": [2]}),
    "a partition below 0": node(partitions={"-1": [1]}),
    "replicas are text": node(partitions={"0": "1"}),
    "no replicas": node(partitions={"0": []}),
    "a replica twice": node(partitions={"0": [1, 1]}),
    "a replica below 0": node(partitions={"0": [-1]}),
    "a replica above int32": node(partitions={"0": [1 << 31]}),
    "a replica that is true": node(partitions={"0": [True]}),
    "too many replicas": node(partitions={"0": list(range(REPLICAS_MAX + 1))}),
    "too many partitions": node(partitions={str(index): [1] for index in range(PARTITIONS_MAX + 1)}),
    "no id": node(topic_id=None),
    "a short id": node(topic_id="AAAA"),
    "the id of no topic": node(topic_id=nodes.id_text(bytes(16))),
    "the id of KRaft's metadata": node(topic_id=nodes.id_text(bytes(15) + b"\x01")),
}
STATES = {
    "garbage": b"\xff\x00x",
    "empty": b"",
    "leader is text": state(leader="1"),
    "leader is no replica": state(leader=4),
    "leader is below none": state(leader=-2),
    "an epoch above int32": state(leader_epoch=1 << 31),
    "a leader epoch below 0": state(leader_epoch=-1),
    "a controller epoch below 0": state(controller_epoch=-1),
    "an empty ISR": state(isr=[]),
    "an ISR with a stranger": state(isr=[1, 77]),
    "an ISR with a broker twice": state(isr=[1, 1]),
    "no ISR": state(isr=None),
}


@with_each("damage", NODES)
def test_a_topic_node_is_judged(damage: str) -> None:
    with pytest.raises(StoreDamaged):
        judge_node("t", NODES[damage])


@with_each("name", ["", ".", "..", "a b", "\u00fc", "a" * 250, "a/b"])
def test_a_name_is_judged(name: str) -> None:
    with pytest.raises(StoreDamaged):
        judge_node(name, node())


@with_each("damage", STATES)
def test_a_state_is_judged(damage: str) -> None:
    with pytest.raises(StoreDamaged) as refused:
        judge("t", judge_node("t", node()), [StateNode(STATES[damage], 3)])
    assert "partition 0" in str(refused.value)


def test_a_sound_topic_is_as_it_is_written() -> None:
    """A valid topic is read as written, with defaults for a state that is not written yet."""
    held = judge_node("t", node(partitions={"1": [2], "0": list(range(REPLICAS_MAX))}))
    topic = judge("t", held, [StateNode(state(), 3), None])
    assert topic.id == ID
    first, second = topic.partitions
    assert (first.leader, first.leader_epoch, first.isr, first.partition_epoch) == (1, 4, (1, 2), 3)
    assert (second.replicas, second.leader, second.leader_epoch) == ((2,), -1, -1)


def test_the_older_of_two_topics_keeps_their_id() -> None:
    """The rule depends on the store only, so each controller decides the same."""
    one = {"new": (ID, 9), "old": (ID, 4), "other": (bytes(16), 1), "newest": (ID, 12)}
    assert strangers(one) == {"new": "old", "newest": "old"}


@pytest.fixture(autouse=True)
def every_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pybroker")


def said(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if what in record.getMessage()]


async def another_controls(cluster: FakeCluster) -> None:
    """Let the controller die, let others notice, and wait for the next one."""
    dies = cluster.controller
    await dies.die()
    await cluster.admin.multi([Delete(nodes.CONTROLLER), Delete(nodes.broker(dies.number))])
    await eventually("another controls", lambda: any(broker.controller.active for broker in cluster.living))


@pytest.mark.parametrize("damage", [*NODES, "a replica gone from the ISR"])
async def test_a_damaged_node_costs_its_topic(
    cluster: FakeCluster, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The next controller elects leaders for all other topics, in its first term."""
    (t,) = await cluster.create("t", (1, 2, 3))
    (u,) = await cluster.create("u", (1, 2, 3))
    await cluster.admin.set(nodes.topic("t"), NODES.get(damage, node(partitions={"0": [77, 78, 79]}))[:1_000_000])
    await another_controls(cluster)
    await cluster.until_led(u, 2)
    assert (await cluster.state(t))[0] == 1, "no leader is elected"
    assert all(t in broker.image for broker in cluster.living), "brokers still know the topic"
    assert (await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0] == b"2", "there is no other election"
    assert len({line for line in said(caplog, "topic damaged") if "topic=t" in line}) <= 2
    assert not said(caplog, "controller failed")


async def test_a_mended_state_is_seen_at_once(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """The same controller sees the repair, through its watch on the state."""
    (t,) = await cluster.create("t", (1, 2, 3))
    sound, _ = await cluster.admin.get(nodes.state(*t))
    await cluster.admin.set(nodes.state(*t), b"garbage")
    await another_controls(cluster)
    await eventually("it is left out", lambda: said(caplog, "topic damaged"))
    await cluster.admin.set(nodes.state(*t), b"other garbage")
    await eventually("the other reason is logged", lambda: len(said(caplog, "topic damaged")) <= 2)
    active = cluster.controller
    await cluster.admin.set(nodes.state(*t), sound)
    await cluster.until_led(t, 2)
    assert active is cluster.controller
    assert len(said(caplog, "topic repaired")) == 1


async def test_a_state_damaged_in_a_reign_is_mended_in_it(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller finds the damage at its next write to the topic."""
    (t,) = await cluster.create("t", (2, 3))
    (u,) = await cluster.create("u", (2, 3))
    sound, _ = await cluster.admin.get(nodes.state(*t))
    await cluster.admin.set(nodes.state(*t), b"garbage")
    active = cluster.controller
    await cluster.brokers[2].die()
    await cluster.until_led(u, 3)
    await eventually("it is left out", lambda: said(caplog, "topic damaged"))
    await cluster.admin.set(nodes.state(*t), sound)
    await cluster.until_led(t, 3)
    assert active is cluster.controller


async def test_what_only_a_timer_can_see(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No watch fires when a node's ACL changes; a timer checks, and logs the same reason once."""
    monkeypatch.setattr("pybroker.controller.controller.AGAIN_S", 0.02)
    (t,) = await cluster.create("t", (1, 2, 3))
    (u,) = await cluster.create("u", (1, 2, 3))
    cluster.store.forbidden |= {nodes.topic("t"), nodes.state(*t)}
    await another_controls(cluster)
    await cluster.until_led(u, 2)
    context = cluster.controller.controller.context
    assert context is not None
    looks = 0
    read = type(context)._read_topic

    async def counted(self: Any, name: str, watch: Any) -> Any:
        nonlocal looks
        looks += name == "t"
        return await read(self, name, watch)

    monkeypatch.setattr(type(context), "_read_topic", counted)
    await eventually("it is looked at", lambda: looks > 3)
    assert len(said(caplog, "topic damaged")) == 1
    cluster.store.forbidden.discard(nodes.topic("t"))
    await eventually("the other reason is logged", lambda: len(said(caplog, "topic damaged")) == 2)
    cluster.store.forbidden.clear()
    await cluster.until_led(t, 2)


async def test_a_state_that_cannot_be_written_costs_its_topic(cluster: FakeCluster) -> None:
    (t,) = await cluster.create("t", (2, 3))
    (u,) = await cluster.create("u", (2, 3))
    cluster.store.forbidden.add(nodes.state(*t))
    active = cluster.controller
    await cluster.brokers[2].die()
    await cluster.until_led(u, 3)
    assert active is cluster.controller


@pytest.mark.parametrize("anew", [False, True], ids=["in a reign", "at a take-over"])
async def test_two_topics_with_one_id(
    cluster: FakeCluster, anew: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """No broker gets the second topic until the first is gone."""
    (good,) = await cluster.create("good", (2, 3))
    data, _ = await cluster.admin.get(nodes.topic("good"))
    copy = TopicPartition("copy", 0)
    await cluster.admin.create(nodes.topic("copy"), data.replace(b"[2,3]", b"[3,2]"))
    await eventually("it is left out", lambda: said(caplog, "topic=copy"))
    if anew:
        await another_controls(cluster)
    await cluster.create("u", (2, 3))
    assert all(copy not in broker.image and copy not in broker.states for broker in cluster.living)
    assert all(good in broker.image for broker in cluster.living)
    assert "is that of good" in said(caplog, "topic=copy")[0]
    for path in (nodes.state(*good), nodes.partition(*good), nodes.partitions("good"), nodes.topic("good")):
        await cluster.admin.delete(path)
    await cluster.until_told(copy)


async def test_an_id_that_was_changed(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """A recreated topic has a new node; the same node with another id is damaged."""
    (t,) = await cluster.create("t", (2, 3))
    data, _ = await cluster.admin.get(nodes.topic("t"))
    await cluster.admin.set(nodes.topic("t"), data.replace(json.loads(data)["topic_id"].encode(), b"A" * 21 + b"g"))
    await eventually("it is left out", lambda: said(caplog, "topic damaged"))
    await cluster.admin.set(nodes.topic("t"), data)
    await eventually("it is mended", lambda: said(caplog, "topic repaired"))
    await cluster.brokers[2].die()
    await cluster.until_led(t, 3)


Slip = Callable[[pytest.MonkeyPatch], None]


def fails_about(monkeypatch: pytest.MonkeyPatch, of: str, names: Callable[..., bool]) -> None:
    """Make a function raise when its arguments are about the topic t."""
    module, _, name = of.rpartition(".")
    from pydoc import locate

    sound = getattr(locate(module), name)

    def slips(*given: Any, **named: Any) -> Any:
        if names(*given):
            raise StopIteration
        return sound(*given, **named)

    monkeypatch.setattr(of, slips)


MARK = (2, 3, 1)
"""The replicas of the topic t, by which an election recognizes it."""
STEPS: dict[str, tuple[str, Callable[..., bool]]] = {
    "election": ("pybroker.decisions.election.after_change", lambda state, *_: state.replicas == MARK),
    "creation": ("pybroker.decisions.election.first", lambda replicas, *_: replicas == MARK),
    "who may lead": (
        "pybroker.controller.context.ControllerContext.live", lambda _, key: key.topic == "t"
    ),
    "settings": ("pybroker.controller.controller.Controller._unclean", lambda _, topic: topic == "t"),
    "what is noted": ("pybroker.controller.controller.note", lambda _, key, *__: key.topic == "t"),
    "what is written": ("pybroker.metadata.nodes.dump_state", lambda state: state.replicas == MARK),
    "deletion": ("pybroker.controller.topic_deletion.Deletions._ask", lambda _, name: name == "t"),
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
async def test_a_mistake_about_one_topic_costs_that_one(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    """After an exception in any step, logged once with a traceback, the term and other elections go on."""
    (u,) = await cluster.create("u", (2, 3))
    if step != "creation":
        await cluster.create("t", MARK)
    fails_about(monkeypatch, *STEPS[step])
    if step == "creation":
        await cluster.admin.create(nodes.topic("t"), nodes.dump_assignment(ID, [MARK]))
    if step == "deletion":
        await cluster.admin.create(nodes.deletion("t"))
        await eventually("it is left out", lambda: said(caplog, "topic damaged"))
    active = cluster.controller
    await cluster.brokers[2].die()
    await cluster.until_led(u, 3)
    (v,) = await cluster.create("v", (3, 1))
    assert active is cluster.controller
    assert v in cluster.brokers[1].image
    found = [record for record in caplog.records if "topic damaged" in record.getMessage()]
    assert len(found) == 1
    assert "StopIteration" in found[0].getMessage()
    assert found[0].exc_info


async def test_a_mistake_at_a_take_over(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the first election of a term affects only its topic."""
    await cluster.create("t", MARK)
    (u,) = await cluster.create("u", (1, 3))
    fails_about(monkeypatch, *STEPS["election"])
    await another_controls(cluster)
    await cluster.until_led(u, 3)
    context = cluster.controller.controller.context
    assert context is not None
    assert context.fence.epoch == 2


async def test_a_controlled_shutdown_with_a_mistake(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's other partitions get new leaders."""
    await cluster.create("t", MARK)
    (u,) = await cluster.create("u", (2, 3))
    fails_about(monkeypatch, *STEPS["election"])
    request = m.ControlledShutdownRequest(broker_id=2, broker_epoch=cluster.brokers[2].epoch)
    answer = await controlled_shutdown(cluster.controller.controller, request)
    assert answer.error_code == errors.NONE
    assert (await cluster.state(u))[0] == 3


async def test_a_balance_with_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preferred replicas of the other topics lead again."""
    cluster = await FakeCluster("leader.imbalance.check.interval.seconds=1").begin()
    try:
        await cluster.create("t", MARK)
        (u,) = await cluster.create("u", (2, 3))
        await cluster.brokers[2].die()
        await cluster.until_led(u, 3)
        fails_about(
            monkeypatch, "pybroker.decisions.election.preferred", lambda state, *_: state.replicas == MARK
        )
        await cluster.brokers[2].leave()
        two = await cluster.join(2)
        await eventually("it is told", lambda: u in two.states)
        kind = m.AlterPartitionRequest.Topics
        members = [
            kind.Partitions.NewIsrWithEpochs(broker_id=b, broker_epoch=cluster.brokers[b].epoch) for b in (3, 2)
        ]
        joins = kind.Partitions(
            partition_index=0, leader_epoch=1, new_isr_with_epochs=members, partition_epoch=1, leader_recovery_state=0
        )
        topic = kind(topic_id=b"u".ljust(16, b"_"), partitions=[joins])
        request = m.AlterPartitionRequest(broker_id=3, broker_epoch=cluster.brokers[3].epoch, topics=[topic])
        await alter_partition(cluster.controller.controller, request, 3)
        await cluster.until_led(u, 2)
    finally:
        await cluster.end()


async def test_a_deletion_whose_node_is_damaged_meanwhile(cluster: FakeCluster) -> None:
    """The deletion waits, and the term goes on."""
    await cluster.create("t", (2, 3))
    (u,) = await cluster.create("u", (2, 3))
    await cluster.brokers[3].die(silently=True)
    await cluster.admin.create(nodes.deletion("t"))
    sound, _ = await cluster.admin.get(nodes.topic("t"))
    active = cluster.controller
    await cluster.admin.set(nodes.topic("t"), b"garbage")
    await cluster.admin.delete(nodes.deletion("t"))
    await cluster.create("v", (2, 1))
    assert active is cluster.controller
    await cluster.admin.create(nodes.deletion("t"))
    await cluster.admin.set(nodes.topic("t"), sound)
    await cluster.create("w", (2, 1))
    assert active is cluster.controller
    assert (await cluster.state(u))[0] == 2
