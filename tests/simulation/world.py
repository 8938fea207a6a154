"""A cluster whose every event follows from one seed, and the rules checked after each of its steps.

    three brokers start ──> clients write and commit ──> faults, one after the other ──> all faults end
                        ──> within RECOVERY_S all are in sync, and clients go on
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from unittest import mock

from pybroker.config import BrokerConfig
from pybroker.coordination.store import Create
from pybroker.decisions.image import PartitionState
from pybroker.metadata import nodes
from pybroker.metadata.lone_broker.loading import prepare
from pybroker.replication import fetcher
from pybroker.replication.replica import Replica
from pybroker.server.api.handlers import fetch, produce
from tests.simulation.broker import TOPIC_SETTINGS, Life
from tests.simulation.checker import GROUPS, Checker, NothingPromised, T
from tests.simulation.clients import Clients
from tests.simulation.faults import Faults
from tests.simulation.network import DELAYS_S, Network
from tests.simulation.store import FarStore
from tests.simulation.virtual import VirtualLoop

BROKERS = (1, 2, 3)
STEPS_MAX = 14
BEGIN_S = 0.3
STEPS_S = (2.0, 0.3, 0.5, 0.3)
"""The longest pauses in seconds between faults of a schedule, mostly shorter than a session of 3 s."""
RECOVERY_S = 40.0
SLOW_DISK = 0.05
SETTINGS = (
    "min.insync.replicas=2", "replica.lag.time.max.ms=1500", "log.flush.interval.messages=1000000",
    "replica.fetch.max.bytes=400", "offsets.topic.num.partitions=1",
)  # fmt: skip
Script = Callable[["World"], Awaitable[None]]
"""A schedule written by hand, in place of the seed's faults."""
CONFIG = BrokerConfig.load(None, list(SETTINGS))


class World:
    """The cluster, its clients, and its faults."""

    brokers = BROKERS

    def __init__(self, seed: int, home: Path, loop: VirtualLoop) -> None:
        self.random, self.loop, self.home, self.config = Random(seed), loop, home, CONFIG
        self.history: list[str] = []
        self.network = Network(loop, self.random)
        self.store = FarStore(loop, lambda: self.random.choice(DELAYS_S))
        self.store_loss = 0.0
        """The share of operations of the store that break the connection."""
        self.storeless: set[int] = set()
        """The brokers that cannot reach the store."""
        self.buried: list[Life] = []
        """Ended lives, kept so that nothing of them is cleaned up before the world ends."""
        self.crashed: list[asyncio.Task[object]] = []
        """Tasks of brokers that raised an unexpected exception."""
        self.checker, self.clients, self.faults = Checker(self), Clients(self), Faults(self)
        loop.after_turn, self.store.changed = self.checker.after_turn, self.checker.store_changed
        loop.slowness = self._slowness

    def _slowness(self) -> float:
        return self.random.random() * 0.03 if self.random.random() < SLOW_DISK else 0.0

    def say(self, what: str) -> None:
        self.history.append(f"{self.loop.time():.4f} {what}")

    async def run(self, script: Script | None = None) -> None:
        """Run a script, or the seed's faults."""
        steps, step_s = self.random.randint(1, STEPS_MAX), self.random.choice(STEPS_S)
        await self.store.open()
        admin = await self.store.session(60_000)
        await prepare(admin, nodes.OF_A_CLUSTER)
        for number in self.brokers:
            self.start(number)
        for key, first in ((T, 1), (GROUPS, 2)):
            order = (*range(first, 4), *range(1, first))
            config = nodes.dump_config(TOPIC_SETTINGS.get(key.topic, {}))
            data = nodes.dump_assignment(key.topic[:1].encode() * 16, [order])
            await admin.multi([Create(nodes.topic_config(key.topic), config), Create(nodes.topic(key.topic), data)])
        self.clients.start()
        await asyncio.sleep(BEGIN_S)
        if script is not None:
            await script(self)
        for _ in range(0 if script is not None else steps):
            await asyncio.sleep(step_s * self.random.random() ** 2)
            self._look()
            self.faults.next()
        self.faults.end()
        await self._recover()

    def _look(self) -> None:
        """Raise the errors that a client or a broker met."""
        self.clients.check()
        for task in self.crashed:
            task.result()

    async def _recover(self) -> None:
        """Check that after the last fault all replicas rejoin the ISR, and clients go on."""
        acked, commits, deadline = self.clients.acked, self.clients.commits, self.loop.time() + RECOVERY_S
        differing: list[str] = []
        while True:
            await asyncio.sleep(0.1)
            self._look()
            states = [self.checker.states.get(key) for key in (T, GROUPS)]
            if (
                all(state is not None and state.leader > 0 and self.is_whole(state) for state in states)
                and self.clients.acked > acked + 3
                and self.clients.commits > commits
                and not (differing := self.checker.differing_images())
            ):
                break
            if self.loop.time() > deadline:
                acked_s = f"{self.clients.acked - acked} acknowledged"
                self.checker.fail(f"not well in {RECOVERY_S} s: {states}, {acked_s}, {differing}")
        self.clients.stop()

    def is_whole(self, state: PartitionState) -> bool:
        """True if all replicas of a partition are in sync."""
        return len(state.isr) == len(state.replicas)

    # -- brokers -----------------------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Start a broker, which takes a while."""
        before = self.network.lives.get(number)
        life = self.network.lives[number] = Life(self, number, self.home / str(number))
        if before is not None:
            life.lost |= before.lost
            self.buried.append(before)
        life.starting = life.run(life.start())

    def start_again(self, life: Life) -> None:
        """Start a broker in place of one life, unless that was done."""
        if self.network.lives[life.number] is life:
            self.say(f"restart {life.number}")
            self.start(life.number)

    def reach_store(self, life: Life) -> None:
        """Let the sessions of a broker reach the store, unless it is cut off."""
        if not life.dead and not life.frozen and life.number not in self.storeless:
            for session in life.sessions:
                session.resume()
                session.reconnect()

    def check_lease(self, life: Life, value: bytes) -> None:
        """Check that a broker that acknowledged a record alone still had its session."""
        session = life.member.session
        if session.id in self.store.expired - self.store.ended_early:
            self.checker.fail(f"{life.number} acknowledged {value!r} alone after its session had expired")


@contextlib.contextmanager
def _clocks(loop: VirtualLoop) -> Iterator[None]:
    """Let the product read the loop's clock wherever it asks for the time."""
    with (
        mock.patch.object(fetch, "monotonic_ms", loop.ms),
        mock.patch.object(produce, "wall_ms", loop.ms),
        mock.patch.object(fetcher, "wall_ms", loop.ms),
        mock.patch.object(fetcher, "monotonic_ms", loop.ms),
        mock.patch.object(Replica, "_become", _become_late),
    ):
        yield


async def _become_late(replica: Replica, become: Callable[..., None], *args: int) -> None:
    """Change the role through the log dir's thread, as where each change waits for a running append."""
    await replica.at_disk(become, *args)


def simulate(seed: int, home: Path, script: Script | None = None, kind: type[World] = World) -> list[str]:
    """Run one schedule; return its history. Raises Violated."""
    loop = VirtualLoop()
    world = kind(seed, home, loop)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with _clocks(loop), contextlib.suppress(NothingPromised):
            loop.run_until_complete(world.run(script))
    finally:
        loop.after_turn = lambda ran: None
        for life in world.network.lives.values():
            if not life.dead:
                life.kill()
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(Exception):
                task.get_coro().close()  # type: ignore[union-attr]
        if world.store._tree is not None:
            world.store._tree.close()
        loop.close()
        logging.disable(disabled)
    return world.history


def seeds(first: int, step: int, deadline: float) -> tuple[int, str]:
    """Run every `step`-th seed from `first` until a failure or the deadline; return (next seed, failure)."""
    seed, shared = first, "/dev/shm" if os.path.isdir("/dev/shm") else None
    while time.monotonic() < deadline:
        with tempfile.TemporaryDirectory(dir=shared) as directory:
            try:
                simulate(seed, Path(directory))
            except Exception as problem:
                return seed, f"{problem}\nseed {seed} failed: {type(problem).__name__}"
        seed += step
    return seed, ""


def main(first: int, seconds: float) -> int:
    """Run seeds from `first` on, on all cores; return the exit status."""
    began, cores = time.monotonic(), len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, get_context("spawn")) as workers:
        runs = [workers.submit(seeds, first + core, cores, began + seconds) for core in range(cores)]
        ended = [run.result() for run in runs]
    failed = [why for _, why in ended if why]
    for why in failed:
        print(why)
    count = sum((last - first - core) // cores for core, (last, _) in enumerate(ended))
    rate = count * 60 / (time.monotonic() - began)
    print(f"{count} schedules held, of seeds {first} to {first + cores - 1} and on; {rate:.0f} a minute")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))
