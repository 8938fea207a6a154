"""Five brokers whose partitions are moved between them, with all the faults of the other schedules meanwhile.

Rules beside the checker's: at the end the replicas are those of the last request, or of one without an answer; nothing
is under way; and no broker has a log of a partition whose replica it is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pybroker.controller.controller import Controller
from pybroker.controller.reassignments import Target
from pybroker.decisions import reassignment
from pybroker.decisions.image import PartitionState
from pybroker.model import TopicPartition
from tests.simulation import scripts
from tests.simulation.broker import Life
from tests.simulation.checker import GROUPS, T
from tests.simulation.scripts import until
from tests.simulation.virtual import VirtualLoop
from tests.simulation.world import Script, World

FROM, TO = (1, 2, 3), (4, 5, 1)


class MovingWorld(World):
    """A world of five brokers, whose schedules move replicas."""

    brokers = (1, 2, 3, 4, 5)

    def __init__(self, seed: int, home: Path, loop: VirtualLoop) -> None:
        super().__init__(seed, home, loop)
        self.wanted: dict[TopicPartition, list[Target]] = {}
        """The targets of which one must be reached in the end: the last accepted, and those without an answer. None: a
        cancel, which returns to some assignment in `rested`."""
        self.rested: dict[TopicPartition, set[tuple[int, ...]]] = {T: set(), GROUPS: set()}
        """The replicas that each partition had while nothing was under way."""
        self.store.changed = self._changed
        self.faults.work += [(12, self._move), (4, self._cancel), (4, self._kill_replica)]

    def _changed(self) -> None:
        self.checker.store_changed()
        for key, rested in self.rested.items():
            state = self.checker.states.get(key)
            if state is not None and not reassignment.is_under_way(state):
                rested.add(state.replicas)

    def is_whole(self, state: PartitionState) -> bool:
        if reassignment.is_under_way(state) or state.given_up or not super().is_whole(state):
            return False
        for key, its in self.checker.states.items():
            if its is state:
                self._check_end(key, state)
                return self._strays(key, state) == []
        return True

    def _check_end(self, key: TopicPartition, state: PartitionState) -> None:
        possible = self.wanted.get(key)
        if possible is None or state.replicas in possible or (None in possible and state.replicas in self.rested[key]):
            return
        self.checker.fail(f"the replicas of {key} are {state.replicas}: {possible} were asked for")

    def _strays(self, key: TopicPartition, state: PartitionState) -> list[int]:
        """The brokers with a log that they should not have."""
        logs = [number for number in self.brokers if (self.home / str(number) / str(key)).exists()]
        return [number for number in logs if number not in state.replicas]

    # -- requests ----------------------------------------------------------------------------------------------------

    def _move(self, life: Life) -> None:
        """Move a partition to some brokers."""
        key = self.random.choice((T, T, GROUPS))
        count = self.random.choice((1, 2, 3, 3))
        self._ask_all(key, tuple(self.random.sample(self.brokers, count)))

    def _cancel(self, life: Life) -> None:
        self._ask_all(self.random.choice((T, T, GROUPS)), None)

    def _kill_replica(self, life: Life) -> None:
        """Kill a broker that a reassignment adds or removes, or one that leads."""
        state = self.checker.states.get(T)
        concerned = () if state is None else (*state.adding, *state.removing, state.leader)
        living = [n for n in concerned if n > 0 and not self.network.lives[n].dead]
        if living:
            life = self.network.lives[self.random.choice(living)]
            self.say(f"-- kill {life.number}, which moves")
            life.kill()

    def _ask_all(self, key: TopicPartition, target: Target) -> None:
        for each in self.faults.controllers():
            if each.controller is not None:
                self.faults.ask(each, partial(self.ask_for, each.controller, key, target))

    async def ask_for(self, controller: Controller, key: TopicPartition, target: Target) -> None:
        """Ask a controller to move a partition, or to cancel. Raises KafkaError."""
        self.say(f"-- move {key} to {target}")
        before = self.wanted.setdefault(key, [None])
        self.wanted[key] = [*before, target]
        found = await controller.ask(lambda: controller.reassignments.alter({key: target}))
        if found[key] is None:  # later requests may have been executed, too
            self.wanted[key] = self.wanted[key][self.wanted[key].index(target) :]
            self.say(f"{key} moves to {target}")


# -- schedules written by hand -----------------------------------------------------------------------------------------


async def wait_for(world: World, what: str, so: Callable[[PartitionState], bool]) -> None:
    """Wait until the state of T in the store is so."""
    await until(what, lambda: T in world.checker.states and so(world.checker.states[T]))


def controller_of(world: World) -> Controller:
    [life] = world.faults.controllers()
    assert life.controller is not None
    return life.controller


async def begin(world: World, target: Target = TO) -> None:
    assert isinstance(world, MovingWorld)
    await wait_for(world, "all are in sync", lambda state: len(state.isr) == len(FROM))
    await until("there is one controller", lambda: len(world.faults.controllers()) == 1)
    await world.ask_for(controller_of(world), T, target)


STEPS: dict[str, Callable[[PartitionState], bool]] = {
    "begun": lambda state: bool(state.adding),
    "one added is in sync": lambda state: bool(set(state.adding) & set(state.isr)),
    "target in sync": lambda state: set(TO) <= set(state.isr),
    "replicas moved": lambda state: not reassignment.is_under_way(state),
    "logs deleted": lambda state: not reassignment.is_under_way(state) and not state.given_up,
}
"""When each step of a reassignment is done, by the store."""
VICTIMS: dict[str, Callable[[World, PartitionState], int]] = {
    "controller": lambda world, state: next(iter(world.faults.controllers())).number,
    "leader": lambda world, state: state.leader,
    "adding": lambda world, state: 4,
    "leaving": lambda world, state: 2 if state.leader != 2 else 3,
}


def killed_at(step: str, victim: str) -> Script:
    """A schedule in which a broker is killed just when a step is done, and comes back later."""

    async def script(world: World) -> None:
        await begin(world)
        await until(step, lambda: STEPS[step](world.checker.states[T]), 0.0002)
        await until("somebody can be killed", lambda: victim != "controller" or bool(world.faults.controllers()), 0.001)
        number = VICTIMS[victim](world, world.checker.states[T])
        if number > 0:
            world.say(f"-- {step}: kill the {victim}, {number}")
            world.network.lives[number].kill()
            await asyncio.sleep(2)
            world.start(number)

    return script


async def cancelled(world: World) -> None:
    """A reassignment is cancelled while one replica is in sync and the other has to copy."""
    assert isinstance(world, MovingWorld)
    world.network.lives[5].kill()
    await asyncio.sleep(0.001)
    await begin(world)
    await wait_for(world, "one is in sync", lambda state: 4 in state.isr)
    await world.ask_for(controller_of(world), T, None)
    world.wanted[T] = [FROM]
    world.start(5)
    await asyncio.sleep(1)


async def moved(world: World) -> None:
    """A reassignment while clients write, without faults."""
    await begin(world)
    await wait_for(world, "it is done", lambda state: not reassignment.is_under_way(state) and not state.given_up)
    assert world.checker.states[T].replicas == TO


async def a_new_leader_lags(world: World) -> None:
    """See scripts.py; meanwhile a broker is being added that cannot copy yet."""
    world.network.lives[4].kill()
    await asyncio.sleep(0.001)
    await begin(world, (1, 4, 2))
    await scripts.a_new_leader_lags(world)
    assert world.checker.states[T].adding == (4,)
    world.start(4)
