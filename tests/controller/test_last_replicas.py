"""The last in-sync replica returns after a loss of power: the controller compares logs before it leads."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pybroker.controller.requests import elect_leaders
from pybroker.decisions.rollback import Known
from pybroker.model import TopicPartition
from tests.controller.brokers import FakeCluster
from tests.controller.test_rollback import has, is_isr
from tests.harness import eventually


def log(end: int, *, power_lost: bool = False) -> Known:
    return Known(0, 0, -1, (), 0, end, power_lost)


async def the_last_dies(cluster: FakeCluster, *alive: int) -> TopicPartition:
    """The ISR of a partition shrinks to broker 2, which dies; of the others these live."""
    (key,) = await cluster.create("t", (2, 1, 3))
    await cluster.brokers[3].die()
    await eventually("3 is out", lambda: is_isr(cluster, key, [2, 1]))
    (controller,) = [broker for broker in cluster.living if broker.controller.active]
    assert controller.number == 1
    await shrink(cluster, key)
    await cluster.brokers[2].die()
    await eventually("it has no leader", lambda: has(cluster, key, -1, 2))
    for number in set(alive) - {1}:
        await back(cluster, number, key, log(90))
    return key


async def shrink(cluster: FakeCluster, key: TopicPartition) -> None:
    """Take broker 1 out of the ISR, as its leader would."""
    controller = cluster.controller.controller
    context = controller.context
    assert context is not None

    async def alter() -> None:
        state = context.state(key)  # in the controller's turn: it may not know yet what it has just written
        assert state is not None
        await controller.change({key: state._replace(isr=(2,))}, "a test")

    await controller.ask(alter)


async def back(cluster: FakeCluster, number: int, key: TopicPartition, known: Known) -> None:
    """Start a broker again with this log."""
    cluster.brokers[number].session.expire()
    broker = cluster.brokers[number] = type(cluster.brokers[number])(cluster, number)
    broker.known[key] = known
    await broker.join()


@pytest.fixture
async def hasty() -> AsyncIterator[FakeCluster]:
    """Three brokers of a cluster that waits for no absent replica."""
    made = await FakeCluster("unclean.recovery.timeout.ms=0").begin()
    yield made
    await made.end()


async def test_a_longer_log_leads(cluster: FakeCluster) -> None:
    """Broker 2 was the ISR and lost power: broker 3 has more of the log, and leads, alone in the ISR."""
    key = await the_last_dies(cluster, 1, 3)
    cluster.brokers[1].known[key] = log(80)
    await back(cluster, 2, key, log(70, power_lost=True))
    await cluster.until_led(key, 3)
    assert (await cluster.state(key))[:3] == (3, 3, [3])


async def test_a_log_that_is_as_long_leads(cluster: FakeCluster) -> None:
    key = await the_last_dies(cluster, 1, 3)
    cluster.brokers[1].known[key] = log(90)
    await back(cluster, 2, key, log(90, power_lost=True))
    await cluster.until_led(key, 2)
    assert (await cluster.state(key))[2] == [2]


async def test_without_a_loss_of_power_nobody_is_compared(cluster: FakeCluster) -> None:
    """The member of the ISR leads at once, whatever is absent, and whatever others have."""
    key = await the_last_dies(cluster, 1)
    cluster.brokers[1].known[key] = log(99)
    await back(cluster, 2, key, log(70))
    await cluster.until_led(key, 2)


async def test_an_absent_replica_is_awaited(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """While broker 3 is away the partition waits, which is logged once; no preferred election ends it."""
    key = await the_last_dies(cluster, 1)
    cluster.brokers[1].known[key] = log(80)
    await back(cluster, 2, key, log(85, power_lost=True))
    said = lambda: [r.getMessage() for r in caplog.records if "partition waits for replicas" in r.getMessage()]  # noqa: E731
    await eventually("it waits", said)
    assert (await elect_leaders(cluster.controller.controller, [key], 0))[key] != 0
    assert (await cluster.state(key))[0] == -1
    await back(cluster, 3, key, log(90))
    await cluster.until_led(key, 3)
    assert len(said()) == 1 and "brokers=3" in said()[0]


async def test_the_wait_ends(hasty: FakeCluster) -> None:
    """After unclean.recovery.timeout.ms the longest log of the live replicas leads."""
    key = await the_last_dies(hasty, 1)
    hasty.brokers[1].known[key] = log(80)
    await back(hasty, 2, key, log(70, power_lost=True))
    await hasty.until_led(key, 1)


async def test_an_operator_ends_the_wait(cluster: FakeCluster) -> None:
    """An unclean election takes the longest log of those that are alive."""
    key = await the_last_dies(cluster, 1)
    cluster.brokers[1].known[key] = log(80)
    await back(cluster, 2, key, log(70, power_lost=True))
    controller = cluster.controller.controller
    await eventually("it is noted", lambda: controller.context is not None and key in controller.context.power_lost)
    assert await elect_leaders(controller, [key], 1) == {key: 0}
    await cluster.until_led(key, 1)


async def test_the_next_controller_waits_too(cluster: FakeCluster) -> None:
    """A controller that is elected during the wait asks the brokers again."""
    key = await the_last_dies(cluster, 1)
    cluster.brokers[1].known[key] = log(80)
    await back(cluster, 2, key, log(70, power_lost=True))
    await cluster.controller.controller.stop()
    await cluster.admin.delete("/controller")
    await eventually("another is", lambda: any(broker.controller.active for broker in cluster.living))
    assert (await cluster.state(key))[0] == -1
    await back(cluster, 3, key, log(90))
    await cluster.until_led(key, 3)
