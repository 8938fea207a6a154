"""The faults in a simulated cluster, chosen by the seed, and the requests of operators meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from pybroker import core
from pybroker.controller.requests import elect_leaders
from pybroker.coordination.store import SessionExpired, StoreError
from pybroker.errors import KafkaError
from pybroker.metadata import nodes
from pybroker.metadata.planning import NewTopic
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.replication.disks.lock_file import LOCK
from tests.simulation.broker import CONTROLLED_SHUTDOWN, Life
from tests.simulation.checker import T, U

if TYPE_CHECKING:
    from tests.simulation.world import World

BATCH_OVERHEAD = 12
"""The bytes of base offset and length, which the length does not count."""
TAIL_BATCHES = 20
LASTING_S = (0.05, 0.3, 1.0, 2.0, 3.5, 6.0)
"""Seconds of a freeze or a cut: a session lasts 3 s, a follower may lag 1.5 s."""


class Faults:
    def __init__(self, world: World) -> None:
        self._world = world
        self._timers: list[asyncio.TimerHandle] = []
        self._leaving: set[Life] = set()
        """Brokers that have handed over their partitions and are about to stop."""
        self.work: list[tuple[int, Callable[[Life], object]]] = [
            (6, self._kill), (4, self._freeze), (2, self._hang_up), (3, self._cut), (3, self._cut_store),
            (2, self._store_loses), (3, self._slow), (3, self._kill_controller), (4, self._elect), (1, self._shut_down),
            (2, self._topic), (2, self._expire), (2, self._bury), (4, self._lose_power),
            (3, self._fill_disk),
        ]  # fmt: skip

    def next(self) -> None:
        """Begin the next fault, at some broker."""
        random = self._world.random
        life = self._world.network.lives[random.choice(self._world.brokers)]
        dead = sum(each.dead for each in self._world.network.lives.values())
        if random.random() < 0.3 * dead:
            self._restart(life)
            return
        (what,) = random.choices([each for _, each in self.work], [weight for weight, _ in self.work])
        what(life)

    def end(self) -> None:
        """End all faults."""
        world = self._world
        world.say("all is well")
        for timer in self._timers:
            timer.cancel()
        world.store_loss = world.network.slow = 0.0
        world.storeless.clear()
        world.network.heal()
        for life in list(world.network.lives.values()):
            if life in self._leaving:
                self._kill(life)
            if life.dead:
                world.start(life.number)
            else:
                self._thaw(life)
                self._free_disk(life)

    def _say(self, what: str, life: Life) -> None:
        self._world.say(f"-- {what} {life.number}")

    def _later(self, delay: float, what: Callable[..., object], *args: Any) -> None:
        self._timers.append(self._world.loop.later(delay, what, *args))

    def _lasting(self) -> float:
        return self._world.random.choice(LASTING_S)

    # -- processes ---------------------------------------------------------------------------------------------------

    def _kill(self, life: Life) -> None:
        if not life.dead:
            self._say("kill", life)
            life.kill()

    def _restart(self, life: Life) -> None:
        for each in self._world.network.lives.values():
            if each.dead:
                self._world.start_again(each)
                return

    def controllers(self) -> list[Life]:
        """The brokers that believe to be the controller."""
        lives = self._world.network.lives.values()
        return [life for life in lives if not life.dead and life.controller is not None and life.controller.active]

    def _kill_controller(self, life: Life) -> None:
        for each in self.controllers():
            self._kill(each)

    def _or_controller(self, life: Life) -> Life:
        """Return a controller with probability 1/2, else the given broker."""
        controllers = self.controllers()
        return self._world.random.choice(controllers) if controllers and self._world.random.random() < 0.5 else life

    def _lose_power(self, life: Life) -> None:
        """Start the broker twice, while the leader of T cannot reach the controller to expand the ISR. The second time
        part of the page cache is lost, if the broker was in no ISR."""
        world, state = self._world, self._world.checker.states.get(T)
        leader = -1 if state is None else state.leader
        controllers = {each.number for each in self.controllers()}
        lives = [n for n in sorted(world.network.lives) if n not in controllers | {leader}]
        life = world.network.lives[world.random.choice(lives or [life.number])]
        if life.dead or life.frozen:
            return
        self._kill(life)
        self._again(life.number, 0.1)
        for controller in controllers - {leader}:
            self._cut_ways({(leader, controller), (controller, leader)}, 1.0 + world.random.random())
        self._later(0.2 + 0.6 * world.random.random(), self._cut_power, life.number)

    def _cut_power(self, number: int) -> None:
        states = self._world.checker.states
        life = self._world.network.lives[number]
        if life.dead or any(number in state.isr for state in states.values()):
            return
        self._say("power lost at", life)
        life.kill()
        lost = [key for key in states if lose_tail(life.home / str(key), self._world.random)]
        reboot(life.home)
        self._again(number, 0.3, lost)

    def _again(self, number: int, within_s: float, lost: Collection[TopicPartition] = ()) -> None:
        """Start the broker in a moment, unless it was started meanwhile."""
        life = self._world.network.lives[number]
        life.lost.update(lost)
        self._later(within_s * self._world.random.random(), self._world.start_again, life)

    def _freeze(self, life: Life) -> None:
        life = self._or_controller(life)
        if life.dead or life.frozen:
            return
        lasts = self._lasting()
        self._say(f"freeze for {lasts} s", life)
        life.frozen = True
        life.freezes += 1
        for session in life.sessions:
            session.suspend()
        self._later(lasts, self._thaw, life)

    def _thaw(self, life: Life) -> None:
        """Unfreeze the broker; notifications of the store arrive a while later."""
        if life.frozen and not life.dead:
            self._say("thaw", life)
            self._world.loop.thaw(life)
        self._later(self._world.random.random() * 0.03, self._world.reach_store, life)

    # -- disks -------------------------------------------------------------------------------------------------------

    def _fill_disk(self, life: Life) -> None:
        """Fill the broker's disk for a while."""
        if life.dead or life.frozen or not life.listens:
            return
        self._say("disk full at", life)
        life.fill_disk()
        self._later(self._lasting(), self._free_disk, life)

    def _free_disk(self, life: Life) -> None:
        if not life.dead and life.listens:
            self._say("room again at", life)
            life.free_disk()

    # -- connections -------------------------------------------------------------------------------------------------

    def _hang_up(self, life: Life) -> None:
        self._say("connections end of", life)
        for link in list(life.links):
            link.close()

    def _cut(self, life: Life) -> None:
        """Cut one way or both, to one broker or to all."""
        world = self._world
        random, network = world.random, world.network
        others = [n for n in network.lives if n != life.number]
        others = others if random.random() < 0.4 else [random.choice(others)]
        ways = random.choice((1, 2, 3))
        cut = {(life.number, n) for n in others if ways & 1} | {(n, life.number) for n in others if ways & 2}
        self._cut_ways(cut, self._lasting())

    def _cut_ways(self, ways: set[tuple[int, int]], lasts_s: float) -> None:
        self._world.say(f"-- cut {sorted(ways)} for {lasts_s:.2f} s")
        self._world.network.cut |= ways
        self._later(lasts_s, self._world.network.heal)

    def _slow(self, life: Life) -> None:
        self._world.say("-- the network is slow")
        self._world.network.slow = 0.1
        self._later(self._lasting(), setattr, self._world.network, "slow", 0.0)

    # -- the store ---------------------------------------------------------------------------------------------------

    def _cut_store(self, life: Life) -> None:
        """Cut the way to the store; later the client gives its connection up, or not."""
        world, lasts = self._world, self._lasting()
        self._say(f"no store for {lasts} s for", life)
        world.storeless.add(life.number)
        gives_up = world.random.random() < 0.7
        for session in life.sessions:
            session.suspend()
            if gives_up:
                self._later(lasts * 0.6, self._give_up, life, session)
        self._later(lasts, self._store_back, life)

    def _give_up(self, life: Life, session: Any) -> None:
        if not life.dead and not life.frozen and life.number in self._world.storeless:
            session.disconnect()

    def _store_back(self, life: Life) -> None:
        self._world.storeless.discard(life.number)
        self._world.reach_store(self._world.network.lives[life.number])

    def _store_loses(self, life: Life) -> None:
        self._world.say("-- the store loses connections")
        self._world.store_loss = 0.1
        self._later(self._lasting(), setattr, self._world, "store_loss", 0.0)

    def _expire(self, life: Life) -> None:
        """Let the store end the broker's session, maybe five times in a row."""
        self._say("session expires of", life)
        for session in list(life.sessions):
            self._world.store.ended_early.add(session.id)  # no lease can foresee it
            session.expire()
        if self._world.random.random() < 0.3 and not life.dead:
            self._later(0.3 * self._world.random.random(), self._expire, life)

    def _bury(self, life: Life) -> None:
        """Delete a live broker's nodes, as if it were dead."""
        life = self._or_controller(life)
        self._say("delete nodes of", life)
        other = self._world.random.choice([each for n, each in self._world.network.lives.items() if n != life.number])
        if not other.dead and other.listens and life.number != other.number:
            self.ask(other, partial(self._bury_by, other, life.number))

    async def _bury_by(self, life: Life, number: int) -> None:
        stat = await life.member.session.exists(nodes.broker(number))
        control = await life.member.session.exists(nodes.CONTROLLER)
        if stat is not None:
            await life.member.session.delete(nodes.broker(number), stat.version)
            if control is not None and control.ephemeral_owner == stat.ephemeral_owner:
                await life.member.session.delete(nodes.CONTROLLER, control.version)

    # -- requests of operators ---------------------------------------------------------------------------------------

    def ask(self, life: Life, work: Callable[[], Awaitable[object]]) -> None:
        async def ask() -> None:
            with contextlib.suppress(KafkaError, StoreError, core.LogError, SessionExpired, OSError):
                await work()

        life.run(ask())

    def _elect(self, life: Life) -> None:
        """Elect the preferred leaders."""
        for each in self.controllers():
            assert each.controller is not None
            self._say("preferred leaders by", each)
            self.ask(each, partial(elect_leaders, each.controller, None, 0))

    def _shut_down(self, life: Life) -> None:
        """Let the broker hand over its partitions and stop a moment later."""
        if life.dead or life.frozen or not life.listens:
            return
        self._say("shutdown", life)
        request = m.ControlledShutdownRequest(broker_id=life.number, broker_epoch=life.epoch)
        self._leaving.add(life)
        self.ask(life, partial(life.asks.ask, request, CONTROLLED_SHUTDOWN))
        self._later(0.3, self._kill, life)

    def _topic(self, life: Life) -> None:
        """Create or delete a topic."""
        if life.dead or not life.listens:
            return
        known = life.metadata.image.topic(U.topic)
        if known is None:
            self._say("create u by", life)
            self.ask(life, partial(life.topics.create, NewTopic(U.topic, 1, 3)))
        else:
            self._say("delete u by", life)
            self.ask(life, partial(life.topics.delete, U.topic, known.id))


def reboot(home: Path) -> None:
    """Let a log dir name another boot of its machine than this one."""
    (home / LOCK).write_bytes(b"an earlier boot\n")


def lose_tail(directory: Path, random: Random) -> bool:
    """Cut off some of the last batches of a log that is not open; True if there were any."""
    path = directory / "00000000000000000000.log"
    if not path.exists():
        return False
    data, starts, at = path.read_bytes(), list[int](), 0
    while at + BATCH_OVERHEAD <= len(data):
        starts.append(at)
        at += BATCH_OVERHEAD + int.from_bytes(data[at + 8 : at + BATCH_OVERHEAD], "big")
    if not starts:
        return False
    with path.open("r+b") as file:
        file.truncate(random.choice(starts[-TAIL_BATCHES:]))
    return True
