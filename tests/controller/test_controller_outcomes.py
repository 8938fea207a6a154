"""The controller of a cluster, with its connection to the store lost at each operation, and with what it does not
expect there: it finishes what it began, or gives the controllership up."""

from __future__ import annotations

import time

import pytest

from pybroker.controller import nodes
from pybroker.coordination.memory import Fate, MemorySession
from pybroker.coordination.store import NoNode, SessionState
from pybroker.model import TopicPartition
from tests.controller.brokers import FakeCluster
from tests.harness import eventually

PARTITIONS = 2000


def lose(session: MemorySession, number: int, fate: Fate) -> list[int]:
    """Have the operation of this number meet its fate; how many were sent, as its only item. It connects again."""
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
    """A leader dies and the controller loses an operation of what follows; how many there were."""
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
    """Each leader epoch is raised once, whichever operation has no answer."""
    operations = await fail_over(0, fate)
    assert operations >= 5
    for number in range(1, operations + 1):
        await fail_over(number, fate)


async def take_over(number: int, fate: Fate) -> int:
    """The controller dies and the next one loses an operation; how many there were."""
    cluster = await FakeCluster().begin()
    (key,) = await cluster.create("t", (1, 2, 3))
    await cluster.brokers[3].controller.stop()  # the next one is broker 2
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
    """A node without a state, as a controller of Kafka leaves it that dies between the two, is completed."""
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
    """The session lives, and with it the node that keeps everybody else from being elected: it is deleted."""
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
    """Their leader dies: all have a new one, and all brokers know, in far less than a session's time."""
    cluster = await FakeCluster().begin()
    keys = await cluster.create("t", *[(2, 3, 1)] * PARTITIONS)
    began = time.perf_counter()
    await cluster.brokers[2].die()
    await eventually(
        "all are told", lambda: all(b.image[key].leader == 3 for b in cluster.living for key in (keys[0], keys[-1]))
    )
    took_s = time.perf_counter() - began
    assert all(b.states[key].leader == 3 for b in cluster.living for key in keys)
    print(f"\n{PARTITIONS} partitions elected and told in {took_s * 1e3:.0f} ms")
    assert took_s < 5
    await cluster.end()
