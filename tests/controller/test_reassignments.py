"""Reassignments: the requests to brokers in their order, what the store has at each step, and who continues it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pybroker import errors
from pybroker.controller.controller import Controller
from pybroker.controller.reassignments import TRIES, Reassignments
from pybroker.controller.requests import alter_partition, elect_leaders
from pybroker.coordination.store import StoreDamaged
from pybroker.decisions.orders import AskedIsr, AskedTopic
from pybroker.metadata import nodes
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from tests.controller.brokers import FakeBroker, FakeCluster
from tests.harness import eventually

pytestmark = pytest.mark.virtual_time
T0 = TopicPartition("t", 0)


async def move(cluster: FakeCluster, targets: dict[TopicPartition, Sequence[int] | None]) -> dict[Any, int]:
    """Ask the controller to move partitions; return the error code of each."""
    controller = cluster.controller.controller
    found = await controller.ask(lambda: controller.reassignments.alter(targets))
    return {key: 0 if problem is None else problem.code for key, problem in found.items()}


async def node(cluster: FakeCluster, name: str = "t") -> dict[str, Any]:
    """The topic's node, without its id and version."""
    found: dict[str, Any] = json.loads((await cluster.admin.get(nodes.topic(name)))[0])
    return {key: value for key, value in found.items() if key not in ("topic_id", "version")}


async def join_isr(cluster: FakeCluster, *isr: int, key: TopicPartition = T0) -> None:
    """Have the leader propose this ISR, as it does once a follower has caught up."""
    controller: Controller = cluster.controller.controller
    leader, leader_epoch, _, partition_epoch = await cluster.state(key)
    asked = AskedTopic(None, key.topic, [AskedIsr(key.partition, leader_epoch, partition_epoch, isr, None)])
    [altered] = await alter_partition(controller, leader, cluster.brokers[leader].epoch, [asked])
    assert altered.partitions[0].error_code == 0


def deletions(broker: FakeBroker) -> list[TopicPartition]:
    """The partitions whose logs a broker was asked to delete, in order."""
    return [
        TopicPartition(topic.topic_name, p.partition_index)
        for each in broker.told if isinstance(each, m.StopReplicaRequest)
        for topic in each.topic_states for p in topic.partition_states if p.delete_partition
    ]  # fmt: skip


async def settled(cluster: FakeCluster, *replicas: int, name: str = "t") -> None:
    """Wait until the first partition has these replicas, and nothing else is in the topic's node."""
    after = {"partitions": {"0": list(replicas)}, "adding_replicas": {}, "removing_replicas": {}}

    async def done() -> bool:
        return await node(cluster, name) == after

    await eventually(f"the replicas are {replicas}", done)


@pytest.fixture
async def four(cluster: FakeCluster) -> FakeCluster:
    """Four brokers; partition 0 of topic t is on 1 and 2."""
    await cluster.join(4)
    await cluster.create("t", (1, 2))
    return cluster


async def test_a_move(four: FakeCluster) -> None:
    """The messages are Kafka's, in Kafka's order, and the topic's node has each step as Kafka's controller has it."""
    assert await move(four, {T0: (3, 4)}) == {T0: 0}
    assert await node(four) == {
        "partitions": {"0": [3, 4, 1, 2]}, "adding_replicas": {"0": [3, 4]}, "removing_replicas": {"0": [1, 2]}
    }  # fmt: skip
    assert await four.state(T0) == (1, 1, [1, 2], 1)
    await eventually("the added replica is told", lambda: T0 in four.brokers[3].states and T0 in four.brokers[4].states)
    first = four.brokers[3].states[T0]
    assert (first.is_new, first.leader, list(first.adding_replicas)) == (True, 1, [3, 4])
    await eventually("the others are told", lambda: four.brokers[2].states[T0].leader_epoch == 1)
    assert not four.brokers[2].states[T0].is_new

    await join_isr(four, 1, 2, 3)
    assert (await node(four))["adding_replicas"] == {"0": [3, 4]}
    before = {number: len(broker.told) for number, broker in four.brokers.items()}
    await join_isr(four, 1, 2, 3, 4)
    await settled(four, 3, 4)
    assert await four.state(T0) == (3, 2, [3, 4], 4)
    assert four.brokers[1].deleted == four.brokers[2].deleted == [T0]
    last = four.brokers[3].states[T0]
    assert (last.leader, list(last.replicas), list(last.isr), last.is_new) == (3, [3, 4], [3, 4], False)
    assert deletions(four.brokers[1]) == deletions(four.brokers[2]) == [T0]
    kinds = [type(each) for each in four.brokers[1].told[before[1] :]]
    assert kinds[-3:] == [m.UpdateMetadataRequest, m.StopReplicaRequest, m.StopReplicaRequest]
    await eventually("clients are told", lambda: all(list(b.image[T0].replicas) == [3, 4] for b in four.living))


async def test_a_leader_that_leaves_is_stopped_at_once(four: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader hears that it leads no more though the controller's term ends before it comes to delete logs: the
    LeaderAndIsr of the next leader is for the replicas that stay."""

    async def ended(reassignments: Reassignments) -> None:
        pass

    monkeypatch.setattr(Reassignments, "_delete_logs", ended)
    await move(four, {T0: (3, 4)})
    await join_isr(four, 1, 2, 3)
    await join_isr(four, 1, 2, 3, 4)
    for number in (1, 2):
        told = four.brokers[number].told
        await eventually("it stops", lambda told=told: any(isinstance(each, m.StopReplicaRequest) for each in told))
        assert deletions(four.brokers[number]) == []


async def test_the_leader_stays_if_it_is_in_the_target(four: FakeCluster) -> None:
    """A leader in the target goes on leading, also where another replica is preferred now; an election moves it."""
    await move(four, {T0: (3, 1)})
    await join_isr(four, 1, 2, 3)
    await settled(four, 3, 1)
    assert (await four.state(T0))[0] == 1
    assert await elect_leaders(four.controller.controller, [T0], 0) == {T0: 0}
    assert (await four.state(T0))[0] == 3


@pytest.mark.parametrize(("wanted", "joined"), [((1,), ()), ((1, 2, 3), (1, 2, 3)), ((2, 1), ())])
async def test_another_factor(four: FakeCluster, wanted: tuple[int, ...], joined: tuple[int, ...]) -> None:
    """A partition gets fewer or more replicas, or the same in another order."""
    await move(four, {T0: wanted})
    if joined:
        await join_isr(four, *joined)
    await settled(four, *wanted)
    assert sorted((await four.state(T0))[2]) == sorted(wanted)
    assert four.brokers[2].deleted == ([T0] if 2 not in wanted else [])


async def test_a_cancel(four: FakeCluster) -> None:
    """A cancel goes back to the original replicas, and deletes what was copied so far."""
    await move(four, {T0: (3, 4)})
    await join_isr(four, 1, 2, 3)
    assert await move(four, {T0: None}) == {T0: 0}
    await settled(four, 1, 2)
    assert four.brokers[3].deleted == four.brokers[4].deleted == [T0]
    assert (await four.state(T0))[0] == 1 and (await four.state(T0))[2] == [1, 2]
    assert await move(four, {T0: None}) == {T0: errors.NO_REASSIGNMENT_IN_PROGRESS}


async def test_a_cancel_keeps_the_last_replica_in_sync(four: FakeCluster) -> None:
    """If only an added replica is in sync, it stays until an original replica has caught up; a second cancel changes
    nothing."""
    await move(four, {T0: (3, 4)})
    await join_isr(four, 1, 3)
    await four.brokers[1].die()
    await four.until_led(T0, 3)
    assert await move(four, {T0: None}) == {T0: 0}
    assert await move(four, {T0: None}) == {T0: 0}
    assert (await node(four))["partitions"] == {"0": [1, 2, 3]}
    assert (await four.state(T0))[0] == 3
    await join_isr(four, 3, 2)
    await settled(four, 1, 2)
    assert (await four.state(T0))[0] == 2 and four.brokers[3].deleted == [T0]


async def test_another_target(four: FakeCluster) -> None:
    """A new target replaces the one that is under way; what only the first needed is deleted, and a cancel still finds
    the originals."""
    await move(four, {T0: (3,)})
    await move(four, {T0: (4, 1)})
    await eventually("the first copy is deleted", lambda: four.brokers[3].deleted == [T0])
    assert (await node(four))["partitions"] == {"0": [4, 1, 2]}
    await move(four, {T0: None})
    await settled(four, 1, 2)
    assert four.brokers[4].deleted == [T0]


@pytest.mark.parametrize("step", ["begun", "in sync"])
async def test_the_next_controller_goes_on(four: FakeCluster, step: str) -> None:
    """After the controller's death at any step the next one does the others, and has given-up logs deleted."""
    (other,) = await four.create("u", (2, 3))
    await move(four, {T0: (3, 4), other: (4, 2)})
    if step == "in sync":
        await join_isr(four, 1, 2, 3, 4)
    await four.brokers[1].die()
    await eventually("another is the controller", lambda: any(b.controller.active for b in four.living))
    await join_isr(four, 2, 3, 4, key=other)
    await settled(four, 4, 2, name="u")
    if step == "begun":
        await four.until_led(T0, 2)
        await join_isr(four, 2, 3, 4)
    await eventually("2 has deleted its log", lambda: four.brokers[2].deleted == [T0])
    left = await node(four)
    assert left["partitions"] == {"0": [3, 4]} and left["pybroker.given_up_replicas"] == {"0": [1]}
    await four.brokers[1].leave()
    await four.join(1)
    await settled(four, 3, 4)
    assert four.brokers[1].deleted == [T0]


@pytest.mark.parametrize("restarts", [True, False])
async def test_a_log_that_cannot_be_deleted(four: FakeCluster, restarts: bool) -> None:
    """The controller asks some times; then it asks again when the broker has registered again, or its log dirs have
    changed."""
    two = four.brokers[2]
    two.refuses[T0] = errors.KAFKA_STORAGE_ERROR
    await move(four, {T0: (1,)})
    await eventually("it was asked often enough", lambda: len(deletions(two)) == 1 + TRIES)
    assert (await node(four))["pybroker.given_up_replicas"] == {"0": [2]}
    if restarts:
        await two.leave()
        await four.join(2)
    else:
        two.refuses.clear()
        await four.admin.create(nodes.LOG_DIR_EVENT, nodes.dump_log_dir_event(2), sequential=True)
    await settled(four, 1)


async def test_the_topic_is_deleted_meanwhile(four: FakeCluster) -> None:
    """A deletion takes the added replicas too."""
    await move(four, {T0: (3, 4)})
    await four.admin.create(nodes.deletion("t"))

    async def gone() -> bool:
        return await four.admin.exists(nodes.topic("t")) is None

    await eventually("it is deleted", gone)
    assert all(broker.deleted == [T0] for broker in four.living)
    assert await move(four, {T0: (1,)}) == {T0: errors.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("back", [False, True])
async def test_a_topic_with_a_log_on_a_dead_broker_is_deleted(four: FakeCluster, back: bool) -> None:
    """A deletion does not wait for a dead broker that is no longer a replica: the store remembers that its log is to be
    deleted. If it comes back before the end it is asked as the others are."""
    topic_id = nodes.load_topic((await four.admin.get(nodes.topic("t")))[0]).id
    await four.brokers[2].die()
    await eventually("it is gone", lambda: 2 not in four.controller.live)
    await move(four, {T0: (1, 3)})
    await join_isr(four, 1, 3)
    if back:
        await four.brokers[3].die()
        await eventually("it is gone", lambda: 3 not in four.controller.live)
    await four.admin.create(nodes.deletion("t"))
    if back:  # the deletion waits for broker 3
        await four.join(2)
        await eventually("it has deleted its log", lambda: deletions(four.brokers[2]))
        await four.join(3)

    async def gone() -> bool:
        return await four.admin.exists(nodes.topic("t")) is None

    await eventually("it is deleted", gone)
    found = await four.admin.exists(nodes.deleted(topic_id))
    assert (found is None) == back
    if not back:
        data, _ = await four.admin.get(nodes.deleted(topic_id))
        assert nodes.load_deleted(nodes.id_text(topic_id), data) == (topic_id, (2,))


async def test_refusals(four: FakeCluster) -> None:
    """One partition's refusal does not keep back another's move; dead brokers are not added; codes are Kafka's."""
    await four.brokers[4].die()
    await eventually("it is gone", lambda: 4 not in four.controller.live)
    (other,) = await four.create("u", (2, 3))
    found = await move(four, {T0: (1, 4), other: (2,), TopicPartition("t", 9): (1,), TopicPartition("v", 0): None})
    assert list(found.values()) == [39, 0, 3, 85]


async def test_partitions_of_one_topic_move_in_few_writes(four: FakeCluster) -> None:
    """Many partitions of one topic: each multi has the topic's node once, and each partition is completed."""
    keys = await four.create("many", *[(1, 2)] * 450)
    assert set((await move(four, dict.fromkeys(keys, (1,)))).values()) == {0}

    async def done() -> bool:
        found = await node(four, "many")
        return all(held == [1] for held in found["partitions"].values()) and len(found) == 3

    await eventually("all are moved", done)
    assert sorted(four.brokers[2].deleted) == sorted(keys)
    version = (await four.admin.get(nodes.topic("many")))[1].version
    assert version < 20


# -- the node /admin/reassign_partitions -----------------------------------------------------------------------------


async def test_the_old_node(four: FakeCluster) -> None:
    """A request in the node is executed and the node deleted at its end; what cannot be done is logged and left out."""
    await four.admin.create(nodes.REASSIGNMENTS, nodes.dump_reassignments({T0: [3, 2], TopicPartition("v", 1): [1]}))

    async def begun() -> bool:
        return nodes.load_reassignments((await four.admin.get(nodes.REASSIGNMENTS))[0]).keys() == {T0}

    await eventually("it is begun", begun)
    assert (await node(four))["adding_replicas"] == {"0": [3]}
    await join_isr(four, 1, 2, 3)
    await settled(four, 3, 2)

    async def deleted() -> bool:
        return await four.admin.exists(nodes.REASSIGNMENTS) is None

    await eventually("the node is deleted", deleted)


async def test_a_request_goes_before_the_old_node(four: FakeCluster) -> None:
    """A cancel takes the partition out of the node: the next controller does not begin again."""
    await four.admin.create(nodes.REASSIGNMENTS, nodes.dump_reassignments({T0: [3, 4]}))

    async def begun() -> bool:
        return (await node(four))["adding_replicas"] == {"0": [3, 4]}

    await eventually("it is begun", begun)
    await move(four, {T0: None})
    await settled(four, 1, 2)
    assert await four.admin.exists(nodes.REASSIGNMENTS) is None


@pytest.mark.parametrize("data", [b"", b"[]", b'{"partitions":[{"topic":1,"partition":0,"replicas":[1]}]}'])
async def test_a_damaged_old_node(four: FakeCluster, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A node that cannot be read is logged, and changes nothing."""
    await four.admin.create(nodes.REASSIGNMENTS, data)
    await eventually("it is logged", lambda: any("node not read" in r.getMessage() for r in caplog.records))
    assert await move(four, {T0: (1, 3)}) == {T0: 0}


# -- hostile nodes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("adding", "removing", "given_up"),
    [
        ({"0": [9]}, {}, {}),
        ({}, {"0": [1, 2]}, {}),
        ({"0": [1]}, {"0": [1]}, {}),
        ({"0": [1, 2]}, {}, {}),
        ({"1": [1]}, {}, {}),
        ({}, {}, {"0": [-1]}),
        ({"x": [1]}, {}, {}),
        ([1], {}, {}),
    ],
)
def test_lists_that_do_not_fit(adding: Any, removing: Any, given_up: Any) -> None:
    """A topic's node with lists that contradict its replicas is damaged as a whole."""
    node = {
        "version": 3, "topic_id": nodes.id_text(b"t" * 16), "partitions": {"0": [1, 2]}, nodes.ADDING: adding,
        nodes.REMOVING: removing, nodes.GIVEN_UP: given_up,
    }  # fmt: skip
    with pytest.raises(StoreDamaged):
        nodes.load_topic(json.dumps(node).encode())
