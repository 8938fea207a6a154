"""A store that went back in time: epochs, states and ids that brokers know are not used again."""

from __future__ import annotations

import pytest

from pybroker import errors
from pybroker.controller.requests import elect_leaders
from pybroker.coordination.store import NoNode
from pybroker.decisions.rollback import NOTHING, Known
from pybroker.metadata import nodes
from pybroker.metadata.producer_ids import BLOCK, UNKNOWN_BLOCKS, ProducerIds
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from tests.controller.brokers import FakeCluster, alter_partition
from tests.controller.stage import Stage
from tests.controller.test_controller import asked
from tests.harness import eventually


async def epoch_of_store(cluster: FakeCluster) -> int:
    return int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0])


async def restore(cluster: FakeCluster, key: TopicPartition, state: bytes) -> None:
    """Restore an older state in the store, with new registrations and another controller."""
    await cluster.controller.controller.stop()
    await cluster.admin.set(nodes.state(*key), state)
    for broker in cluster.living:
        await broker.session.delete(nodes.broker(broker.number))
        await broker.register()
    await cluster.admin.delete(nodes.CONTROLLER)
    await eventually("another is", lambda: any(broker.controller.active for broker in cluster.living))


async def test_brokers_know_a_later_controller(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """A controller epoch that was set back is raised until brokers accept it; each controller logs a refusal once."""
    for broker in cluster.living:
        broker.controller_epoch = 40
    (key,) = await cluster.create("t", (1, 2, 3))
    await cluster.until_led(key, 1)
    assert await epoch_of_store(cluster) > 40
    said = [record.getMessage() for record in caplog.records]
    assert 0 < sum("controller epoch raised" in line for line in said) < 20  # a larger step each time
    assert sum("broker refused" in line for line in said) <= len(cluster.living) ** 2  # once by each controller


async def test_a_state_that_is_set_back_by_hand(cluster: FakeCluster) -> None:
    """The next election uses an epoch above the controller's own."""
    (key,) = await cluster.create("t", (1, 2, 3))
    old, _ = await cluster.admin.get(nodes.state(*key))
    await cluster.brokers[3].die()
    await cluster.until_led(key, 1)
    await eventually("3 is out", lambda: is_isr(cluster, key, [1, 2]))
    _, epoch, *_ = await cluster.state(key)
    await cluster.admin.set(nodes.state(*key), old)
    done = await elect_leaders(cluster.controller.controller, [key], 0)
    await cluster.brokers[2].die()
    await eventually("2 is out, and 3 is not in", lambda: is_isr(cluster, key, [1]))
    assert (await cluster.state(key))[1] > epoch and done


@pytest.mark.parametrize("with_states", [True, False])
async def test_a_topic_that_had_fewer_partitions(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, with_states: bool
) -> None:
    """A new controller reads a topic node from before CreatePartitions. It writes back the partitions that brokers
    hold, with higher epochs, and elects their leaders."""
    keys = await cluster.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    for key, leader in zip(keys, (1, 2, 3), strict=True):
        await cluster.until_led(key, leader)
    await eventually("all know", lambda: all(len(broker.image) == 3 for broker in cluster.living))
    topic_id = nodes.load_topic((await cluster.admin.get(nodes.topic("t")))[0]).id
    await cluster.admin.set(nodes.topic("t"), nodes.dump_assignment(topic_id, [(1, 2, 3)]))
    for key in () if with_states else keys[1:]:
        await cluster.admin.delete(nodes.state(*key))
        await cluster.admin.delete(nodes.partition(*key))
    await cluster.controller.controller.stop()
    await cluster.admin.delete(nodes.CONTROLLER)
    await eventually("another is", lambda: any(broker.controller.active for broker in cluster.living))
    await eventually("they are written", lambda: cluster.admin.exists(nodes.state(*keys[2])))
    # A refused connection proves a death only to a controller that has reached the broker.
    epoch = cluster.controller.controller.term.fence.epoch
    await eventually("3 is reached", lambda: cluster.brokers[3].controller_epoch == epoch)
    await cluster.brokers[3].die()
    await cluster.until_led(keys[2], 1)
    assert (await cluster.state(keys[2]))[1] > 0
    node = nodes.load_topic((await cluster.admin.get(nodes.topic("t")))[0])
    assert node.replicas == [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
    assert sum("partitions written back topic=t partitions=2 first=1" in line for line in caplog.messages) == 1


async def test_partitions_that_were_lost_around_one_without_known_replicas(cluster: FakeCluster) -> None:
    """All replicas of one partition were dead when the topic grew, so brokers know no replicas of it. The controller
    writes it back with other replicas."""
    await cluster.brokers[3].die()
    keys = await cluster.create("t", (1, 2), (2, 1))
    topic_id = nodes.load_topic((await cluster.admin.get(nodes.topic("t")))[0]).id
    grown = nodes.dump_assignment(topic_id, [(1, 2), (2, 1), (3,), (2, 1)])
    await cluster.admin.set(nodes.topic("t"), grown)
    keys += [TopicPartition("t", 2), TopicPartition("t", 3)]
    await cluster.until_told(keys[3])
    for broker in cluster.living:
        assert keys[2] not in broker.image
        broker.image[keys[2]] = m.UpdateMetadataRequest.TopicStates.PartitionStates(  # as a MetadataCache has it
            partition_index=2, controller_epoch=-1, leader=-1, leader_epoch=-1, isr=[], zk_version=-1, replicas=[],
        )  # fmt: skip
    await cluster.admin.set(nodes.topic("t"), nodes.dump_assignment(topic_id, [(1, 2)]))
    await cluster.controller.controller.stop()
    await cluster.admin.delete(nodes.CONTROLLER)
    await eventually("another is", lambda: any(broker.controller.active for broker in cluster.living))
    for key, leader in zip(keys, (1, 2, 1, 2), strict=True):
        await cluster.until_led(key, leader)
    node = nodes.load_topic((await cluster.admin.get(nodes.topic("t")))[0])
    assert node.replicas == [(1, 2), (2, 1), (1, 2), (2, 1)]


async def test_a_leader_shows_that_the_store_is_behind(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader sends an ISR with epochs that the store does not have. The controller then asks all replicas, and
    continues above their epochs."""
    (key,) = await cluster.create("t", (1, 2, 3))
    await cluster.until_led(key, 1)
    for broker in cluster.living:
        broker.known[key] = Known(7, 3, 1, (1, 2, 3), 7, 50)
    leader = cluster.brokers[1]
    request = asked(leader, key, {number: broker.epoch for number, broker in cluster.brokers.items()}, 7, 3)
    (answer,) = (await alter_partition(cluster.controller.controller, request, 3)).topics[0].partitions
    assert answer.error_code == errors.NOT_CONTROLLER
    await eventually("it is above", lambda: is_above(cluster, key, 7))
    assert "the store is behind its brokers" in caplog.text


async def test_another_leads_in_the_same_epoch(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """The leader epoch of a lost election was given again, and the leader of that election sends an ISR."""
    (key,) = await cluster.create("t", (1, 2, 3))
    await cluster.until_led(key, 1)
    for broker in cluster.living:
        broker.known[key] = Known(0, 0, 2, (2, 3) if broker.number == 2 else (), 0, 50)
    epochs = {number: cluster.brokers[number].epoch for number in (2, 3)}
    request = asked(cluster.brokers[2], key, epochs, 0, 0)
    await alter_partition(cluster.controller.controller, request, 3)
    await eventually("the next epoch begins", lambda: is_above(cluster, key, 0))
    assert (await cluster.state(key))[0] == 2
    assert "the store is behind its brokers" in caplog.text


async def is_above(cluster: FakeCluster, key: TopicPartition, epoch: int) -> bool:
    return bool((await cluster.state(key))[1] > epoch)


async def is_isr(cluster: FakeCluster, key: TopicPartition, isr: list[int]) -> bool:
    return (await cluster.state(key))[2] == isr


async def test_a_state_that_is_deleted_by_hand(cluster: FakeCluster) -> None:
    """A replica out of the ISR stays out, and the leader epoch is above the last."""
    (key,) = await cluster.create("t", (1, 2, 3))
    await cluster.brokers[3].die()
    await eventually("3 is out", lambda: is_isr(cluster, key, [1, 2]))
    _, epoch, *_ = await cluster.state(key)
    await cluster.admin.delete(nodes.state(*key))
    await cluster.brokers[2].die()

    async def made_again() -> bool:
        try:
            return (await cluster.state(key))[2] == [1]
        except NoNode:
            return False

    await eventually("it is made again", made_again)
    assert (await cluster.state(key))[1] > epoch


async def test_the_best_log_leads_once_all_are_there(cluster: FakeCluster) -> None:
    """A leader of an old epoch is not elected again: broker 3 has a later log, and broker 2 may have the latest."""
    (key,) = await cluster.create("t", (1, 2, 3))
    state, _ = await cluster.admin.get(nodes.state(*key))
    await cluster.brokers[2].die()
    await eventually("2 is out", lambda: is_isr(cluster, key, [1, 3]))
    cluster.brokers[1].known[key], cluster.brokers[3].known[key] = log(5, 90), log(17, 70)
    await restore(cluster, key, state)
    await eventually("it waits", lambda: has(cluster, key, -1, 18))
    done = await elect_leaders(cluster.controller.controller, [key], 0)
    assert done[key] != 0 and (await cluster.state(key))[0] == -1
    cluster.brokers[2].session.expire()
    await cluster.join(2)
    await cluster.until_led(key, 3)
    assert (await cluster.state(key))[1:3] == (19, [3])


async def test_an_operator_gives_up_what_is_waited_for(cluster: FakeCluster) -> None:
    """An unclean election takes the replica with the best log of those that are alive."""
    (key,) = await cluster.create("t", (1, 2, 3))
    state, _ = await cluster.admin.get(nodes.state(*key))
    await cluster.brokers[2].die()
    await eventually("2 is out", lambda: is_isr(cluster, key, [1, 3]))
    cluster.brokers[3].known[key] = log(17, 70)
    await restore(cluster, key, state)
    await eventually("it waits", lambda: has(cluster, key, -1, 18))
    assert await elect_leaders(cluster.controller.controller, [key], 1) == {key: 0}
    assert (await cluster.state(key))[:3] == (3, 19, [3])


def log(epoch: int, end: int) -> Known:
    """The log state of a broker, as LeaderAndIsr returns it, without a partition state."""
    return Known(epoch, 0, -1, (), epoch, end)


async def has(cluster: FakeCluster, key: TopicPartition, leader: int, epoch: int) -> bool:
    return (await cluster.state(key))[:2] == (leader, epoch)


async def test_a_state_whose_partition_epoch_is_behind(cluster: FakeCluster) -> None:
    """The store's ISR is too large, so the leader's own ISR counts."""
    (key,) = await cluster.create("t", (1, 2, 3))
    state, _ = await cluster.admin.get(nodes.state(*key))
    cluster.brokers[1].known[key] = Known(0, 7, 1, (1, 3), 0, 10)
    await restore(cluster, key, state)
    await eventually("the ISR is the leader's", lambda: is_isr(cluster, key, [1, 3]))
    assert (await cluster.state(key))[:2] == (1, 1)


async def test_producer_ids_that_the_store_has_forgotten(stage: Stage) -> None:
    """No id that a broker saw in use is given again, in any order of the brokers."""
    logs_hold = -1
    one, other = stage.ids, ProducerIds(lambda: stage.session, 2, lambda: logs_hold)
    old, _ = await stage.session.get(nodes.PRODUCER_IDS)
    drawn = {await one.draw(), await other.draw()}
    assert max(drawn) == BLOCK
    await stage.session.set(nodes.PRODUCER_IDS, old)
    await one.bring_forward()
    await other.bring_forward()
    late = ProducerIds(lambda: stage.session, 3, lambda: -1)
    first = (1 + UNKNOWN_BLOCKS) * BLOCK
    assert await late.draw() == first
    logs_hold = first + 7 * BLOCK + 3
    assert (await other.block())[0] == first + 8 * BLOCK
    logs_hold = (1 << 63) - 1  # as a hostile client wrote it
    assert (await other.block())[0] == first + 9 * BLOCK
    await stage.session.delete(nodes.PRODUCER_IDS)
    assert (await other.block())[0] == first + 10 * BLOCK


async def test_producer_ids_that_only_others_know(stage: Stage) -> None:
    """The first broker back skips the blocks that the missing brokers may have used."""
    one, other = stage.ids, ProducerIds(lambda: stage.session, 2, lambda: -1)
    await one.draw()
    old, _ = await stage.session.get(nodes.PRODUCER_IDS)
    given = {await other.draw()}
    await stage.session.set(nodes.PRODUCER_IDS, old)
    await one.bring_forward(went_back=True)
    given |= {(await one.block())[0], (await other.block())[0]}
    assert len(given) == 3


async def test_a_store_from_before_a_move(cluster: FakeCluster) -> None:
    """The replicas were moved after the copy was made, and their first logs deleted: no empty replica is elected over
    the brokers that have the log now, which become replicas again."""
    (key,) = await cluster.create("t", (1, 2))
    old, _ = await cluster.admin.get(nodes.state(*key))
    for number in (1, 2):
        cluster.brokers[number].known[key] = NOTHING
    cluster.brokers[3].known[key] = Known(9, 4, 3, (3,), 9, 50)
    await restore(cluster, key, old)
    await eventually("the one with the log leads", lambda: has(cluster, key, 3, 10))
    assert nodes.load_topic((await cluster.admin.get(nodes.topic("t")))[0]).replicas == [(1, 2, 3)]
    assert (await cluster.state(key))[2] == [3]
