"""The controller and brokers with full log dirs: leaders move, and a broker that cannot write is not elected."""

from __future__ import annotations

import asyncio
from typing import Any

from pybroker import errors
from pybroker.controller.requests import elect_leaders
from pybroker.decisions.election import TAKES_NO_APPENDS
from pybroker.metadata import nodes
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from tests.controller.brokers import FakeBroker, FakeCluster, alter_partition, controlled_shutdown
from tests.controller.test_controller import asked
from tests.harness import eventually


async def tell(cluster: FakeCluster, number: int, key: TopicPartition, *, full: bool) -> None:
    """Let a broker's log dir become full, or writable again: it leaves a notification and answers accordingly."""
    broker = cluster.brokers[number]
    if full:
        broker.refuses[key] = TAKES_NO_APPENDS
    else:
        broker.refuses.pop(key)
    await cluster.admin.create(nodes.LOG_DIR_EVENT, nodes.dump_log_dir_event(number), sequential=True)
    context = cluster.controller.controller.context
    assert context is not None
    await eventually("it has answered", lambda: ((number, key) in context.full) == full)


def offline(broker: FakeBroker, key: TopicPartition) -> list[int]:
    """The offline replicas in the metadata that a broker received."""
    return list(broker.image[key].offline_replicas) if key in broker.image else []


async def test_a_broker_comes_back_with_the_disk_that_had_failed(cluster: FakeCluster) -> None:
    """All brokers get metadata without the offline replica, though only that has changed: a leader keeps replicas that
    are offline there out of the ISR."""
    (key,) = await cluster.create("t", (3, 1, 2))
    two = cluster.brokers[2]
    two.refuses[key] = errors.KAFKA_STORAGE_ERROR
    await cluster.admin.create(nodes.LOG_DIR_EVENT, nodes.dump_log_dir_event(2), sequential=True)
    others = [broker for broker in cluster.living if broker is not two]
    await eventually("they know", lambda: all(offline(broker, key) == [2] for broker in others))
    await eventually("it is out of the ISR", lambda: isr_is(cluster, key, [3, 1]))
    two.refuses.clear()
    await cluster.admin.delete(nodes.broker(2))
    await eventually("it is gone", lambda: all(2 not in broker.live for broker in others))
    await two.register()
    await eventually("they know", lambda: all(2 in broker.live for broker in others))
    await eventually("it is offline no more", lambda: all(offline(broker, key) == [] for broker in others))


async def isr_is(cluster: FakeCluster, key: TopicPartition, isr: list[int]) -> bool:
    return bool((await cluster.state(key))[2] == isr)


async def test_another_leads_while_a_log_dir_is_full(cluster: FakeCluster) -> None:
    """Another leader is elected at once without the full replica, which may rejoin and lead again once it has room."""
    (key,) = await cluster.create("t", (2, 3, 1))
    await tell(cluster, 2, key, full=True)
    await cluster.until_led(key, 3)
    assert (await cluster.state(key))[2] == [3, 1]
    await eventually("the leader knows", lambda: offline(cluster.brokers[3], key) == [2])
    controller, three = cluster.controller.controller, cluster.brokers[3]
    epochs = {number: cluster.brokers[number].epoch for number in (3, 1, 2)}

    async def joins() -> int:
        state = await cluster.state(key)
        answer = await alter_partition(controller, asked(three, key, epochs, state[1], state[3]), 3)
        return int(answer.topics[0].partitions[0].error_code)

    assert await joins() == errors.INELIGIBLE_REPLICA
    assert (await elect_leaders(controller, [key], 0))[key] == errors.PREFERRED_LEADER_NOT_AVAILABLE
    await tell(cluster, 2, key, full=False)
    await eventually("the leader knows", lambda: offline(three, key) == [])
    assert await joins() == errors.NONE
    assert (await elect_leaders(controller, [key], 0))[key] == errors.NONE
    await cluster.until_led(key, 2)


async def test_a_full_follower_leaves_the_isr_at_once(cluster: FakeCluster) -> None:
    (key,) = await cluster.create("t", (3, 2, 1))
    await tell(cluster, 2, key, full=True)
    await eventually("the leader is told", lambda: list(cluster.brokers[3].states[key].isr) == [3, 1])
    assert (await cluster.state(key))[0] == 3


async def test_where_all_are_full_one_leads_on(cluster: FakeCluster) -> None:
    """An out-of-sync replica is not elected, even if the topic allows it; the first one with room becomes leader."""
    cluster.configs["t"] = {"unclean.leader.election.enable": "true"}
    (key,) = await cluster.create("t", (2, 3, 1))
    await tell(cluster, 2, key, full=True)
    await cluster.until_led(key, 3)
    await tell(cluster, 3, key, full=True)
    await cluster.until_led(key, 1)
    await tell(cluster, 1, key, full=True)
    state = await cluster.state(key)
    assert (state[0], state[2]) == (1, [1]), "only this broker has all acknowledged records"
    await eventually("it is told", lambda: offline(cluster.brokers[1], key) == [2, 3])
    await tell(cluster, 3, key, full=False)
    assert (await cluster.state(key))[:3] == state[:3]


async def test_all_that_are_in_sync_become_full_at_once(cluster: FakeCluster) -> None:
    """Leader and ISR stay, as each member has all acknowledged records, so leadership does not move back and forth."""
    cluster.configs["t"] = {"unclean.leader.election.enable": "true"}
    (key,) = await cluster.create("t", (2, 3, 1))
    before = await cluster.state(key)
    controller = cluster.controller.controller
    assert controller.context is not None
    controller.context.full |= {(number, key) for number in (1, 2, 3)}
    controller.settings_changed()  # starts elections where they are needed
    await controller.ask(lambda: asyncio.sleep(0))
    assert await cluster.state(key) == before


async def test_a_full_replica_leads_before_none_does(cluster: FakeCluster) -> None:
    """A broker that shuts down hands over to a full replica if no other is in sync."""
    (key,) = await cluster.create("t", (2, 3))
    controller = cluster.controller.controller
    assert controller.context is not None
    controller.context.full.add((3, key))
    request: Any = m.ControlledShutdownRequest(broker_id=2, broker_epoch=cluster.brokers[2].epoch)
    answer = await controlled_shutdown(controller, request)
    assert answer.remaining_partitions == []
    assert (await cluster.state(key))[0] == 3
