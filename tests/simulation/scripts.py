"""Schedules written by hand, with faults in an order that chance seldom gives."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from pybroker import core
from pybroker.controller.requests import elect_leaders
from pybroker.coordination.store import NodeExists, NoNode
from pybroker.decisions.caller import Call
from pybroker.metadata import nodes
from pybroker.protocol import messages as m
from tests.simulation.broker import Life
from tests.simulation.checker import GROUPS, T
from tests.simulation.clients import ACKS_ALL
from tests.simulation.faults import lose_tail, reboot
from tests.simulation.world import World

LONG_S = 20.0
DELETIONS = 15
LOOK_S = 0.0001  # less than any message takes


async def until(what: str, so: Callable[[], bool], every_s: float = 0.01) -> None:
    async with asyncio.timeout(LONG_S):
        while not so():
            await asyncio.sleep(every_s)


async def controlled_by(world: World, number: int) -> None:
    """Make this broker the controller."""
    admin = await world.store.session(60_000)
    while True:
        with contextlib.suppress(NoNode):
            if nodes.load_controller((await admin.get(nodes.CONTROLLER))[0]) == number:
                break
            await admin.delete(nodes.CONTROLLER)
        await asyncio.sleep(0.5)
    await until("it reigns", lambda: (found := world.network.lives[number].controller) is not None and found.active)
    await asyncio.sleep(1)  # until UpdateMetadata has arrived everywhere


async def quiet(world: World) -> None:
    """Stop all writes, and wait until all replicas are the same."""
    world.clients.stop()
    await asyncio.sleep(2)
    await until("all are in sync", lambda: len(world.checker.states[T].isr) == 3)
    await asyncio.sleep(1)


class Ears:
    """The requests of one kind that a broker does not receive, and the senders that it does not answer."""

    def __init__(self, life: Life, kind: type) -> None:
        self.deaf_to: set[int] = set()
        self.silent_to: set[int] = set()
        self._changed = asyncio.Event()
        self._handle, failed = life._handlers[kind]
        life._handlers[kind] = self._hear, failed

    async def _hear(self, request: Any, call: Call) -> Any:
        asker = request.broker_id if hasattr(request, "broker_id") else request.replica_state.replica_id
        while asker in self.deaf_to:
            await self._changed.wait()
        answer = await self._handle(request, call)
        while asker in self.silent_to and not _is_refusal(answer):
            await self._changed.wait()
        return answer

    def again(self, *askers: int) -> None:
        """Receive and answer these senders again."""
        self.deaf_to.difference_update(askers)
        self.silent_to.difference_update(askers)
        self._changed.set()
        self._changed = asyncio.Event()


def _is_refusal(answer: Any) -> bool:
    """True for a Fetch that arrived before this broker led, as in other schedules: its sender retries."""
    return any(p.error_code for topic in getattr(answer, "responses", ()) for p in topic.partitions)


def log(world: World, number: int) -> core.Partition:
    replica = world.network.lives[number].replicas.get(*T)
    assert replica is not None
    return replica.partition()


async def a_new_leader_lags(world: World) -> None:
    """A committed record is on a follower that becomes leader without knowing that it is committed. Another follower
    has all below that leader's high watermark, but not the record: it may not join the ISR."""
    lives, states = world.network.lives, world.checker.states
    lives[1].kill()
    await until("another leads", lambda: states[T].leader in (2, 3))
    world.start(1)
    leader = states[T].leader
    other = 5 - leader
    await quiet(world)
    end = log(world, leader).log_end_offset
    old, new = (Ears(lives[number], m.FetchRequest) for number in (leader, 1))
    old.deaf_to.add(other)
    await asyncio.sleep(1)  # until earlier requests are answered
    writing = world.loop.create_task(world.clients._write(leader, T, b"<p0>", ACKS_ALL))
    await until("the record is copied", lambda: log(world, 1).log_end_offset == end + 1, LOOK_S)
    old.silent_to.add(1)
    await until("it is committed", lambda: log(world, leader).high_watermark == end + 1)
    assert log(world, 1).high_watermark == end == log(world, other).log_end_offset
    assert other not in states[T].isr
    new.deaf_to.add(leader)
    new.silent_to.add(other)
    (controller,) = [life for life in lives.values() if life.controller is not None and life.controller.active]
    controller.run(elect_leaders(controller.controller, [T], 0))  # type: ignore[arg-type]
    await until("it leads", lambda: states[T].leader == 1)
    await asyncio.sleep(1)
    assert [f.log_end_offset for f in log(world, 1).followers if f.broker == other] == [end]
    assert other not in states[T].isr
    writing.cancel()
    old.again(1, other)
    new.again(leader, other)
    world.clients.start()


async def a_follower_comes_back_with_less(world: World) -> None:
    """A leader saw a follower catch up, and its AlterPartition arrives late: the follower was killed meanwhile, lost
    its records, and registered again. The leader never saw this life of it."""
    lives, states = world.network.lives, world.checker.states
    await quiet(world)
    await controlled_by(world, 2)
    assert states[T].leader == 1
    leader, controller = Ears(lives[1], m.FetchRequest), Ears(lives[2], m.AlterPartitionRequest)
    leader.deaf_to.add(3)
    await asyncio.sleep(1)
    world.loop.create_task(world.clients._write(1, T, b"<p0>", ACKS_ALL))
    await until("it is out of the ISR", lambda: 3 not in states[T].isr)
    controller.deaf_to.add(1)
    leader.again(3)
    await until("it is asked for", lambda: (led := lives[1].isr._led[T]).asked is not None and 3 in led.asked)
    leader.deaf_to.add(3)
    before = lives[3].epoch
    lives[3].kill()
    shutil.rmtree(world.home / "3" / "t-0")
    world.start(3)
    await until("it is registered anew", lambda: lives[3].epoch > before)
    await until("it has nothing", lambda: (found := lives[3].replicas.get(*T)) is not None and found.log is not None)
    controller.again(1)
    await asyncio.sleep(1)
    assert 3 not in states[T].isr
    leader.again(3)
    world.clients.start()


async def the_last_replica_loses_power(world: World, order: Sequence[int]) -> None:
    """The ISR shrinks to the leader of T, then all brokers are down. The leader lost power, and the end of its logs;
    the others have all that was acknowledged. They start in this order, in which 0 is the leader;
    one that is named twice is killed and started again."""
    lives, states = world.network.lives, world.checker.states
    await until("all are in sync", lambda: all(len(states[key].isr) == 3 for key in (T, GROUPS)))
    await until("records are acknowledged", lambda: world.clients.acked > 3)
    await quiet(world)
    leader = states[T].leader
    others = [number for number in lives if number != leader]
    for number in others:
        lives[number].kill()
    await until("it is the last", lambda: all(states[key].isr == (leader,) for key in (T, GROUPS)))
    life = lives[leader]
    life.kill()
    world.say(f"-- power lost at {leader}")
    world.checker.others_have_it = {key: states[key].leader_epoch for key in (T, GROUPS)}
    life.lost.update(key for key in (T, GROUPS) if lose_tail(life.home / str(key), world.random))
    assert T in life.lost
    reboot(life.home)
    for number in ([leader, *others][place] for place in order):
        if not lives[number].dead:
            lives[number].kill()
        world.start(number)
        await asyncio.sleep(2)
    world.clients.start()


async def the_controllership_goes(world: World) -> None:
    """Delete /controller, or overwrite it, again and again, between the faults of the seed."""
    random, admin = world.random, await world.store.session(60_000)
    for _ in range(DELETIONS):
        await asyncio.sleep(random.choice((0.01, 0.3, 1.5)) * random.random())
        world.clients.check()
        if random.random() < 0.4:
            world.faults.next()
        how = random.choice(("deleted", "garbage", "another's", "nobody's"))
        world.say(f"-- /controller is {how}")
        with contextlib.suppress(NoNode, NodeExists):
            if how == "garbage":
                await admin.set(nodes.CONTROLLER, b"garbage")
                continue
            await admin.delete(nodes.CONTROLLER)
            if how != "deleted":
                await admin.create(nodes.CONTROLLER, nodes.dump_controller(9, 0), ephemeral=how == "another's")
                await asyncio.sleep(random.random())
                await admin.delete(nodes.CONTROLLER)
    world.faults.end()
    await until("one knows that it reigns", lambda: _reigns(world))


def _reigns(world: World) -> bool:
    """True if a broker believes to be the controller, and the store agrees."""
    with contextlib.suppress(NoNode):
        _, there = world.store.read(nodes.CONTROLLER)
        lives = world.network.lives.values()
        active = [life for life in lives if life.controller is not None and life.controller.active]
        return [life.member.session.id for life in active] == [there.ephemeral_owner]
    return False
