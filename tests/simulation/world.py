"""A cluster whose every event follows from one seed, and what must hold of it after each of its steps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace

from pybroker import core
from pybroker.config import BrokerConfig
from pybroker.controller import nodes
from pybroker.controller.loading import prepare
from pybroker.coordination.memory import MemoryStore
from pybroker.coordination.store import Create, NoNode
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.replication.replica import LEADER
from pybroker.server.handlers import fetch
from tests.simulation.broker import SimBroker
from tests.simulation.virtual import VirtualLoop

KEY = TopicPartition("t", 0)
STEP_S = 0.4
SETTINGS = ("min.insync.replicas=2", "replica.lag.time.max.ms=2000", "log.flush.interval.messages=1000000")


class Violated(AssertionError):
    """An invariant does not hold."""


class World:
    def __init__(self, seed: int, home: Path, loop: VirtualLoop) -> None:
        self.random, self.loop, self.home = Random(seed), loop, home
        self.config = BrokerConfig.load(None, list(SETTINGS))
        self.store = MemoryStore(timeouts_ms=(100, 60_000), clock_ms=loop.ms, wall_ms=loop.ms)
        self.brokers = {n: SimBroker(self, n, home / str(n)) for n in (1, 2, 3)}
        self.acked: dict[int, bytes] = {}
        self.history: list[str] = []
        self._led: dict[int, int] = {}
        self._marks: dict[tuple[int, int, int], int] = {}
        self._epochs = (0, 0)
        self._sent = 0

    def delay(self) -> float:
        return self.random.choice((0.0005, 0.001, 0.002, 0.02))

    def say(self, what: str) -> None:
        self.history.append(f"{self.loop.time():.4f} {what}")

    async def run(self, steps: int) -> None:
        await self.store.open()
        self.admin = await self.store.session(60_000)
        await prepare(self.admin, nodes.OF_A_CLUSTER)
        for broker in self.brokers.values():
            await broker.start()
        data = nodes.dump_assignment(b"t" * 16, [(1, 2, 3)])
        await self.admin.multi([Create(nodes.topic_config("t"), nodes.dump_config({})), Create(nodes.topic("t"), data)])
        producer = self.loop.create_task(self._produce())
        try:
            for _ in range(steps):
                await asyncio.sleep(STEP_S * self.random.random())
                await self.check()
                await self._fault()
                await asyncio.sleep(0.05 * self.random.random())
                await self.check()
            for broker in self.brokers.values():
                if not broker.alive:
                    await broker.start()
            await asyncio.sleep(20)
            await self.check()
        finally:
            producer.cancel()
            for broker in self.brokers.values():
                if broker.alive:
                    await broker.kill()
            await self.store.close()

    async def _fault(self) -> None:
        broker = self.brokers[self.random.choice((1, 2, 3))]
        what = self.random.choice(("kill", "restart", "cut", "nothing"))
        if what == "kill" and broker.alive:
            self.say(f"kill {broker.number}")
            await broker.kill()
        elif what == "restart" and not broker.alive:
            self.say(f"restart {broker.number}")
            await broker.start()
        elif what == "cut" and broker.alive:
            self.say(f"cut {broker.number}")
            for link in list(broker.links):
                link.close()

    async def _produce(self) -> None:
        """acks=all at whoever leads; many at once, and some to one that leads no more."""
        while True:
            await asyncio.sleep(0.02 * self.random.random())
            broker = self.brokers[self.random.choice((1, 2, 3))]
            self._sent += 1
            task = self.loop.create_task(self._send(broker, b"<%d>" % self._sent))
            broker.tasks[task] = None

    async def _send(self, broker: SimBroker, value: bytes) -> None:
        with contextlib.suppress(KafkaError, core.LogError):
            replica = broker.replicas.get(*KEY) if broker.alive else None
            if replica is None:
                return
            replica.check_leads()
            epoch = replica.partition().leader_epoch
            appended = await replica.append(core.build_batch([(1, b"k", value, ())]), self.loop.ms(), epoch)
            await replica.committed(appended.base_offset + 1, epoch)
            self.acked[appended.base_offset] = value
            self.say(f"acked {appended.base_offset} {value.decode()} by {broker.number}")

    # -- what must hold ----------------------------------------------------------------------------------------------

    def fail(self, why: str) -> None:
        raise Violated("\n".join([*self.history[-30:], why]))

    async def check(self) -> None:
        try:
            data, stat = await self.admin.get(nodes.state(*KEY))
        except NoNode:
            return
        state = nodes.load_state(data, (1, 2, 3), stat.version)
        if state.leader >= 0 and state.leader not in state.isr:
            self.fail(f"leader {state.leader} is not in ISR {state.isr}")
        if (state.leader_epoch, state.partition_epoch) < self._epochs:
            self.fail(f"epochs {self._epochs} went back to {state}")
        self._epochs = state.leader_epoch, state.partition_epoch
        logs = {n: r.log for n, b in self.brokers.items() if b.alive and (r := b.replicas.get(*KEY)) and r.log}
        for n, log in logs.items():
            role = log.role
            if role.kind == LEADER and self._led.setdefault(role.leader_epoch, n) != n:
                self.fail(f"{n} and {self._led[role.leader_epoch]} lead in epoch {role.leader_epoch}")
            life = n, self.brokers[n].epoch, role.leader_epoch
            if log.high_watermark < self._marks.get(life, 0):
                self.fail(f"the high watermark of {life} went back from {self._marks[life]} to {log.high_watermark}")
            self._marks[life] = log.high_watermark
        high_watermark = max((log.high_watermark for log in logs.values()), default=0)
        self._compare({n: _batches(log) for n, log in logs.items() if n in state.isr}, high_watermark)

    def _compare(self, logs: dict[int, dict[int, bytes]], high_watermark: int) -> None:
        """Below the high watermark all members of the ISR have the same bytes, and all that was acknowledged."""
        committed = {n: {at: b for at, b in batches.items() if at < high_watermark} for n, batches in logs.items()}
        for n, batches in committed.items():
            if batches != next(iter(committed.values())):
                self.fail(f"broker {n} differs below the high watermark {high_watermark}")
            missing = [at for at, value in self.acked.items() if value not in logs[n].get(at, b"")]
            if missing:
                self.fail(f"broker {n} of the ISR lost acknowledged records at {missing[:5]}")


def _batches(log: core.Partition) -> dict[int, bytes]:
    """The bytes at each offset of a log whose batches have one record each."""
    found: dict[int, bytes] = {}
    for offset in range(log.log_start_offset, log.log_end_offset):
        read = log.read(offset, 1, minimum_one=True, to_log_end=True)
        assert read.slice is not None
        found[offset] = read.slice.tobytes()
        read.slice.close()
    return found


def simulate(seed: int, home: Path, steps: int = 20) -> list[str]:
    """One schedule; its history. Raises Violated."""
    loop = VirtualLoop()
    real = fetch.time
    fetch.time = SimpleNamespace(monotonic_ns=lambda: loop.ms() * 1_000_000)  # type: ignore[assignment]
    world = World(seed, home, loop)
    try:
        loop.run_until_complete(world.run(steps))
    finally:
        fetch.time = real
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()
    return world.history


def main(first: int, seconds: float) -> int:
    """Seeds from `first` on, until the time is over or one fails; the status to exit with."""
    logging.disable(logging.ERROR)
    began, seed = time.monotonic(), first
    while time.monotonic() - began < seconds:
        with tempfile.TemporaryDirectory() as directory:
            try:
                simulate(seed, Path(directory))
            except Exception as problem:
                print(f"{problem}\nseed {seed} failed: {type(problem).__name__}")
                return 1
        seed += 1
    rate = (seed - first) * 60 / (time.monotonic() - began)
    print(f"seeds {first} to {seed - 1} held; {rate:.0f} schedules a minute")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))
