"""The /controller node, and the end of a term when another program deletes or overwrites it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from pybroker.coordination.store import Create, Delete, NoNode, Set
from pybroker.metadata import nodes
from tests.controller.brokers import FakeCluster
from tests.harness import eventually

pytestmark = pytest.mark.virtual_time

LOOP_S = 2.0


async def epoch(cluster: FakeCluster) -> int:
    return nodes.load_controller_epoch((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0])


async def until_one_reigns(cluster: FakeCluster, above: int) -> None:
    """Wait until there is one controller, in a later epoch, which /controller names."""

    async def so() -> bool:
        active = [broker for broker in cluster.living if broker.controller.active]
        if len(active) != 1 or await epoch(cluster) <= above:
            return False
        with contextlib.suppress(NoNode):
            data, stat = await cluster.admin.get(nodes.CONTROLLER)
            (one,) = active
            return nodes.load_controller(data) == one.number and stat.ephemeral_owner == one.session.id
        return False

    await eventually("one reigns", so)


@pytest.mark.parametrize("brokers", [1, 3])
async def test_a_deleted_controllership_is_missed(brokers: int, caplog: pytest.LogCaptureFixture) -> None:
    """Once the node is deleted, as in Kafka's runbooks, the controller resigns at once and one is elected."""
    caplog.set_level("INFO")
    cluster = await FakeCluster().begin(brokers)
    (key,) = await cluster.create("t", tuple(cluster.brokers))
    await cluster.admin.delete(nodes.CONTROLLER)
    await until_one_reigns(cluster, 1)
    assert caplog.text.count('controller resigned epoch=1 cause="/controller was deleted"') == 1
    assert await epoch(cluster) == 2
    assert (await cluster.state(key))[0] == 1
    await cluster.create("later", tuple(cluster.brokers))
    await cluster.end()


async def test_a_controllership_that_another_took(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """The controller resigns without a write, and no broker is elected. A KRaft controller leaves a persistent node."""
    for number, ephemeral in enumerate((True, False), 1):
        before = await epoch(cluster)
        claim = Create(nodes.CONTROLLER, nodes.dump_controller(9, 0), ephemeral)
        await cluster.admin.multi([Delete(nodes.CONTROLLER), claim])
        await eventually("none reigns", lambda: not any(b.controller.active for b in cluster.living))
        assert caplog.text.count('cause="/controller belongs to another session"') == number
        await asyncio.sleep(0.3)
        assert await epoch(cluster) == before and not any(b.controller.active for b in cluster.living)
        assert ("no controller is elected" in caplog.text) is not ephemeral
        await cluster.admin.delete(nodes.CONTROLLER)
        await until_one_reigns(cluster, before)
    assert caplog.text.count("no controller is elected") == 3, "once by each broker"


@pytest.mark.parametrize("data", [b"", b"garbage", b"[]", nodes.dump_controller(2, 0)])
async def test_a_controllership_that_was_written_over(
    cluster: FakeCluster, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The node names no broker, or another one. The controller, whose session owns the node, resigns and deletes it."""
    await cluster.admin.set(nodes.CONTROLLER, data)
    await until_one_reigns(cluster, 1)
    assert caplog.text.count("controller resigned epoch=1 cause=") == 1
    assert await epoch(cluster) == 2


async def test_a_controllership_that_says_the_same_goes_on(cluster: FakeCluster) -> None:
    """The controller watches the node again after the write."""
    first = cluster.controller
    for now in (1, 2):
        await cluster.admin.set(nodes.CONTROLLER, nodes.dump_controller(first.number, now))
        await asyncio.sleep(0.1)
    assert await epoch(cluster) == 1 and cluster.controller is first
    await cluster.admin.delete(nodes.CONTROLLER)
    await until_one_reigns(cluster, 1)


async def test_a_controllership_deleted_while_its_session_hears_nothing(cluster: FakeCluster) -> None:
    """The watch is lost with the connection; the controller checks the node after the next one."""
    first = cluster.controller
    first.session.disconnect()
    await cluster.admin.delete(nodes.CONTROLLER)
    await eventually("another reigns", lambda: sum(b.controller.active for b in cluster.living) == 2)
    first.session.reconnect()
    await until_one_reigns(cluster, 1)
    assert not first.controller.active
    one = cluster.controller
    one.session.disconnect()
    one.session.reconnect()
    await asyncio.sleep(0.1)
    assert one.controller.active and await epoch(cluster) == 2, "the node was not deleted this time"
    await cluster.admin.delete(nodes.CONTROLLER)
    await until_one_reigns(cluster, 2)


async def test_a_controllership_deleted_in_a_take_over(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is deleted before the first step of a take-over, or in the middle."""
    take_over = type(cluster.brokers[1].controller)._take_over
    deletions = 3

    async def deleted_in_it(self: object) -> None:
        nonlocal deletions
        deletions -= 1
        if deletions >= 0:
            await cluster.admin.delete(nodes.CONTROLLER)
        await take_over(self)  # type: ignore[arg-type]

    monkeypatch.setattr(type(cluster.brokers[1].controller), "_take_over", deleted_in_it)
    await cluster.admin.delete(nodes.CONTROLLER)
    await eventually("all of them were deleted", lambda: deletions < 0)
    await until_one_reigns(cluster, 4)
    await cluster.create("later", (1, 2, 3))


@pytest.mark.parametrize("brokers", [1, 3])
async def test_a_controllership_deleted_again_and_again(brokers: int, caplog: pytest.LogCaptureFixture) -> None:
    """Brokers compete for it less and less often, and once the deletions end there is one controller."""
    cluster = await FakeCluster().begin(brokers)
    began = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < began + LOOP_S:
        with contextlib.suppress(NoNode):
            await cluster.admin.delete(nodes.CONTROLLER)
        await asyncio.sleep(0.001)
    assert 3 <= await epoch(cluster) <= 8 * brokers
    assert caplog.text.count("controller resigned") <= 8 * brokers
    await until_one_reigns(cluster, await epoch(cluster) - 1)
    await cluster.create("later", tuple(cluster.brokers))
    await cluster.end()


async def test_an_epoch_raised_by_hand_ends_a_reign_once(cluster: FakeCluster) -> None:
    """The deposed controller deletes its /controller node, at its next write."""
    await cluster.admin.multi([Set(nodes.CONTROLLER_EPOCH, b"7", 1)])
    await cluster.create("t", (2, 3))
    await until_one_reigns(cluster, 7)
