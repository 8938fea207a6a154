"""Schedules in which the store is restored from an older copy."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from sqlite3 import Connection

from pybroker.coordination.memory import MemorySession
from pybroker.decisions.image import NO_LEADER
from pybroker.metadata import nodes
from tests.simulation.checker import GROUPS, T
from tests.simulation.scripts import controlled_by, until
from tests.simulation.world import Script, World


def restore(world: World, copy: Connection, kept: Collection[MemorySession] = ()) -> None:
    """Restore the store to a copy; all sessions end but the kept ones."""
    world.say("-- the store is restored from an older copy")
    world.checker.store_goes_back()
    world.store.restore(copy, kept)


async def move_on(world: World) -> None:
    """Let leaders and controllers change, and acknowledge records meanwhile."""
    for number in (1, 2, 3):
        world.say(f"-- kill {number}")
        world.network.lives[number].kill()
        await asyncio.sleep(1)
        world.start(number)
        await until("all are in sync", lambda: all(len(world.checker.states[key].isr) == 3 for key in (T, GROUPS)))
        await asyncio.sleep(0.5)


async def while_all_run(world: World) -> None:
    """The store is restored while all brokers run; they continue in new sessions."""
    await until("all are in sync", lambda: all(len(s.isr) == 3 for s in world.checker.states.values()))
    copy = world.store.copy()
    await move_on(world)
    restore(world, copy)
    await asyncio.sleep(3)
    await move_on(world)


async def when_all_are_down(world: World, order: Sequence[int]) -> None:
    """All brokers are stopped and then started one after the other: only their logs have the later state."""
    await until("all are in sync", lambda: all(len(s.isr) == 3 for s in world.checker.states.values()))
    copy = world.store.copy()
    await move_on(world)
    for life in world.network.lives.values():
        life.kill()
    restore(world, copy)
    for number in order:
        await asyncio.sleep(0.7)
        world.start(number)


async def when_the_isr_was_larger(world: World) -> None:
    """All replicas are in sync in the copy; one broker was down since, and returns with the restore."""
    down = 3
    await until("all are in sync", lambda: all(len(s.isr) == 3 for s in world.checker.states.values()))
    copy = world.store.copy()
    world.network.lives[down].kill()
    await until("it is out", lambda: all(down not in world.checker.states[key].isr for key in (T, GROUPS)))
    acked = world.clients.acked
    await until("records are acknowledged", lambda: world.clients.acked > acked + 5)
    restore(world, copy)
    world.start(down)
    await asyncio.sleep(1)
    await move_on(world)


async def states_are_deleted(world: World) -> None:
    """The states of partitions are deleted, and their topics are not."""
    await until("all are in sync", lambda: all(len(s.isr) == 3 for s in world.checker.states.values()))
    await move_on(world)
    copy = world.store.copy()
    copy.execute("DELETE FROM node WHERE name = 'state'")
    copy.execute("UPDATE node SET children = 0 WHERE parent LIKE '/brokers/topics/%/partitions'")
    copy.commit()
    restore(world, copy)
    await asyncio.sleep(3)
    await move_on(world)


async def it_waits_for_all(world: World) -> None:
    """One of the logs, which alone have the state, is missing: no other replica leads, under any controller."""
    await until("all are in sync", lambda: all(len(s.isr) == 3 for s in world.checker.states.values()))
    copy = world.store.copy()
    world.network.lives[1].kill()
    await until("it is out", lambda: all(1 not in world.checker.states[key].isr for key in (T, GROUPS)))
    acked = world.clients.acked
    await until("records are acknowledged", lambda: world.clients.acked > acked + 5)
    for life in world.network.lives.values():
        life.kill()
    restore(world, copy)
    for number in (3, 1):
        world.start(number)
        await asyncio.sleep(0.7)
    for number in (1, 3, 1):
        await controlled_by(world, number)
        if (leader := world.checker.states[T].leader) != NO_LEADER:
            world.checker.fail(f"{leader} was elected")
    world.start(2)


async def epochs_are_given_again(world: World) -> None:
    """One election is lost, while one broker's session goes on and the leader's does not: until the leader registers,
    nothing shows the new controller that the store is older, and its election has the lost one's epochs."""
    await until("all are in sync", lambda: all(len(s.isr) == 3 for s in world.checker.states.values()))
    leader, follower, other = 1, 2, 3
    copy = world.store.copy()
    world.network.lives[other].kill()
    await until("it is out", lambda: world.checker.states[T].isr == (leader, follower))
    epoch = world.checker.states[T].leader_epoch
    await asyncio.sleep(0.5)
    world.storeless.add(leader)
    restore(world, copy, [session for session in world.network.lives[follower].sessions if session._ended_ms is None])
    world.reach_store(world.network.lives[follower])
    await until("another is elected", lambda: T in world.checker.states and world.checker.states[T].isr == (follower,))
    if world.checker.states[T].leader_epoch != epoch:
        world.checker.fail("the leader epoch is another one")
    world.storeless.discard(leader)
    world.reach_store(world.network.lives[leader])
    await until("it is in sync", lambda: {leader, follower} <= set(world.checker.states[T].isr))
    world.start(other)


async def the_controller_epoch_is_gone(world: World) -> None:
    """/controller_epoch starts again, while brokers know a later one: they obey the next controller."""
    await move_on(world)
    copy = world.store.copy()
    copy.execute("DELETE FROM node WHERE name = ?", (nodes.CONTROLLER_EPOCH.removeprefix("/"),))
    copy.commit()
    restore(world, copy)
    await asyncio.sleep(3)
    died = world.checker.states[T].leader
    world.network.lives[died].kill()
    await until("another leads", lambda: world.checker.states[T].leader not in (died, NO_LEADER))
    acked = world.clients.acked
    await until("records are acknowledged", lambda: world.clients.acked > acked + 20)
    world.start(died)


ROLLBACKS: dict[str, Script] = {
    "all run": while_all_run,
    "all are down": partial(when_all_are_down, order=(1, 2, 3)),
    "all are down, another order": partial(when_all_are_down, order=(3, 1, 2)),
    "the ISR was larger": when_the_isr_was_larger,
    "epochs are given again": epochs_are_given_again,
    "states are deleted": states_are_deleted,
    "it waits for all": it_waits_for_all,
    "the controller epoch is gone": the_controller_epoch_is_gone,
}
