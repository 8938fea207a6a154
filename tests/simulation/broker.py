"""A broker of the simulation: the product's controller, replicas, ISR keeper and fetch handler on our network."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pybroker import core, errors
from pybroker.cluster.caller import Call, Caller
from pybroker.cluster.changes import Changes
from pybroker.cluster.fetch_sessions import Sessions
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.controller import nodes
from pybroker.controller.controller import Controller
from pybroker.controller.requests import alter_partition
from pybroker.coordination.store import NodeExists
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.replication.controller_link import ControllerLink
from pybroker.replication.isr import IsrKeeper
from pybroker.replication.logdirs import open_log_dirs
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.replicas import Replicas
from pybroker.server.handlers import control, fetch
from tests.controller.stage import live_broker

if TYPE_CHECKING:
    from tests.simulation.world import World

SESSION_MS = 6_000


class SimLink:
    """A connection to a broker: each way takes a while, in order; a kill or a cut ends it."""

    hung_up = False

    def __init__(self, world: World, by: SimBroker, to: SimBroker) -> None:
        self._world, self._to = world, to
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._one = asyncio.Lock()
        by.links[self] = None
        to.links[self] = None

    async def ask(self, message: Any, version: int, *, timeout_s: float = 30.0) -> Any:
        async with asyncio.timeout(timeout_s), self._one:
            if self.closed.done():
                raise ConnectionError("closed")
            work = asyncio.get_running_loop().create_task(self._exchange(message, version))
            self._to.tasks[work] = None
            await asyncio.wait([work, self.closed], return_when=asyncio.FIRST_COMPLETED)
            if self.closed.done() or work.cancelled():
                raise ConnectionError("closed while it waited")
            return work.result()

    async def _exchange(self, message: Any, version: int) -> Any:
        await asyncio.sleep(self._world.delay())
        answer = await self._to.answer(message, version)
        await asyncio.sleep(self._world.delay())
        return answer

    def close(self) -> None:
        if not self.closed.done():
            self.closed.set_result("closed")


class SimBroker:
    """One life of a broker after another, over the same log dir."""

    def __init__(self, world: World, number: int, home: Path) -> None:
        self.world, self.number, self.home = world, number, home
        self.alive = False
        self.links: dict[SimLink, None] = {}  # in order, as a replay needs it
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.epoch = -1

    async def start(self) -> None:
        """Register, and take orders."""
        world, loop = self.world, self.world.loop
        self.links, self.tasks = {}, {}
        self.metadata = MetadataCache("cluster")
        self.dirs = open_log_dirs([str(self.home)])
        self.replicas = Replicas(self.number, world.config, self.metadata, self.dirs)
        changes = Changes(loop.ms)
        self.asks = ControllerLink(self.metadata, lambda to: self._connect(to.id))  # type: ignore[arg-type,return-value]
        self.isr = IsrKeeper(
            self.number, world.config, self.metadata, self.asks, lambda: self.epoch, loop.ms, lambda: False, changes
        )
        self.manager = ReplicaManager(
            self.number, world.config, self.replicas, self.metadata, self.isr, _no_settings,
            self._connect, _no_dial, changes,  # type: ignore[arg-type]
        )  # fmt: skip
        followers = fetch.Followers("PLAINTEXT", self.isr.fetched)
        sessions = Sessions(10, lambda: world.random.getrandbits(31))
        self.fetch = fetch.Fetch(self.replicas, self.metadata, sessions, 1 << 20, followers)
        await self.manager.open_found()
        self.isr.start()
        self.session = await world.store.session(SESSION_MS)
        self.alive = True
        data = nodes.dump_broker(live_broker(self.number), loop.ms())
        while True:
            with contextlib.suppress(NodeExists):
                await self.session.create(nodes.broker(self.number), data, ephemeral=True)
                break
            await asyncio.sleep(0.2)  # our own ghost
        self.epoch = (await self.session.get(nodes.broker(self.number)))[1].czxid
        self.manager.epoch = self.epoch
        self.controller = Controller(
            self.session, self.number, world.config, lambda topic: {}, lambda to: self._connect(to.id), loop.ms, changes
        )
        self.controller.start()

    async def kill(self) -> None:
        """As kill -9, which loses nothing that was appended: connections end, the session stays for its time."""
        self.alive = False
        for link in list(self.links):
            link.close()
        self.session.suspend()
        for task in self.tasks:
            task.cancel()
        await self.controller.stop()
        await self.manager.stop()
        await self.isr.stop()
        self.replicas.close()
        for log_dir in self.dirs:
            log_dir.close()

    async def _connect(self, number: int) -> SimLink:
        await asyncio.sleep(self.world.delay())
        to = self.world.brokers[number]
        if not to.alive:
            raise ConnectionRefusedError
        return SimLink(self.world, self, to)

    async def answer(self, request: Any, version: int) -> Any:
        """What the product says to a request between brokers."""
        try:
            if isinstance(request, m.LeaderAndIsrRequest):
                return control._leader_and_isr_answer(request, await self.manager.leader_and_isr(request))
            if isinstance(request, m.UpdateMetadataRequest):
                await self.manager.update_metadata(request)
                return m.UpdateMetadataResponse()
            if isinstance(request, m.AlterPartitionRequest):
                return await alter_partition(self.controller, request, version)
            if isinstance(request, m.FetchRequest):
                return await self._fetched(request, version)
        except KafkaError as problem:
            if isinstance(request, m.LeaderAndIsrRequest):
                return control.leader_and_isr_failed(request, problem.code, "")
            if isinstance(request, m.UpdateMetadataRequest):
                return control.update_metadata_failed(request, problem.code, "")
            return control.alter_partition_failed(request, problem.code, "")
        raise ConnectionError(f"nobody simulates {type(request).__name__}")

    async def _fetched(self, request: Any, version: int) -> Any:
        caller = Caller("127.0.0.1", 9092, "PLAINTEXT")
        answer = await self.fetch(request, Call(version, "follower", caller))
        for topic in answer.responses:
            for p in topic.partitions:
                if isinstance(p.records, core.Slice):
                    found, p.records = p.records, p.records.tobytes()
                    found.close()
        return answer


async def _no_settings(topic: str) -> dict[str, str]:
    return {}


async def _no_dial(host: str, port: int) -> Any:
    raise KafkaError(errors.BROKER_NOT_AVAILABLE, "the simulation copies in Python")
