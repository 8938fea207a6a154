"""One life of a simulated broker: the product's parts of a cluster's broker, on the simulation's network.

Sockets and core's plane are replaced: a follower copies through the fetcher in Python.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable, Collection, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pybroker import core, errors
from pybroker.controller.controller import Controller
from pybroker.coordination.memory import MemorySession
from pybroker.coordination.store import Session, StoreError
from pybroker.decisions.caller import Call, Caller
from pybroker.decisions.changes import Changes
from pybroker.decisions.image import OFFSETS_TOPIC, LiveBroker
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.errors import KafkaError, StartError
from pybroker.groups.coordinator import Coordinator
from pybroker.metadata import nodes
from pybroker.metadata.topic_admin import TopicAdmin
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.replication.controller_link import ControllerLink
from pybroker.replication.disks.disk_space import DiskSpace
from pybroker.replication.disks.logdirs import open_log_dirs
from pybroker.replication.isr import IsrKeeper
from pybroker.replication.lease import LAPSED_MS, NO_MEMBER_MS, Lease
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.proof import Proof
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.server.api.handlers import control, fetch, group_offsets, produce
from pybroker.server.api.handlers.offsets import ListOffsets, list_offsets_failed
from pybroker.server.cluster.controller_watch import ControllerWatch
from pybroker.server.cluster.group_locator import GroupLocator
from pybroker.server.cluster.membership import Membership
from tests.controller.stage import live_broker
from tests.simulation.network import SimLink
from tests.simulation.store import StoreOfLife
from tests.simulation.virtual import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

SESSION_MS = 3_000
CONTROLLED_SHUTDOWN = 3
AGAIN_S = 0.2
CALLER = Caller("127.0.0.1", 9092, "PLAINTEXT")
TOPIC_SETTINGS = {OFFSETS_TOPIC: {"cleanup.policy": "compact", "segment.bytes": "1048576"}}


class Life(Process):
    """A broker from the start of its process to its end. All its work runs in its own context."""

    def __init__(self, world: World, number: int, home: Path) -> None:
        super().__init__()
        self.world, self.number, self.home = world, number, home
        self.listens = False
        self.links: dict[SimLink, None] = {}  # ordered, as a replay needs it
        self.sessions: list[MemorySession] = []
        self.parts: Collection[Replica] = ()
        """The replicas that the broker has, open or not."""
        self.epoch = -1
        self.freezes = 0
        self.controllers = -1, -1
        """The controller epochs that the broker obeyed last, for LeaderAndIsr and for UpdateMetadata."""
        self.seen: dict[Any, Any] = {}
        """The values that the checker saw last."""
        self.lost: set[TopicPartition] = set()
        """Logs whose tail was lost with power, until the cluster knows: the life before may have been in sync."""
        self.lapsed_ms = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self.starting: asyncio.Task[None] | None = None
        self.controller: Controller | None = None
        self._session: Session | None = None

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run work in the context of this life."""
        task = self.world.loop.create_task(work, context=self.context)
        self._tasks.add(task)
        task.add_done_callback(self._done, context=self.world.loop.outside)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        """Fail the schedule if work raised an unexpected exception."""
        self._tasks.discard(task)
        if self.dead or task.cancelled() or task.exception() is None:
            return
        if task is self.starting and isinstance(task.exception(), StoreError | StartError):
            self.kill()  # the process ends, and is started again as after any end
            self.world.loop.later(AGAIN_S, self.world.start_again, self)
        else:
            self.world.crashed.append(task)

    # -- start and end -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the logs, listen, register, and accept requests of controllers."""
        world, loop = self.world, self.world.loop
        config = world.config
        self.metadata = MetadataCache("cluster", loop.time)
        self.dirs = open_log_dirs([str(self.home)])
        (log_dir,) = self.dirs
        space = self.space = log_dir.space = DiskSpace(log_dir.path, loop.time)
        space.report_to(self._report_space)
        replicas = self.replicas = Replicas(self.number, config, self.metadata, self.dirs)
        self.parts = replicas._held.values()
        changes = Changes(loop.ms)
        member = self.member = Membership(
            StoreOfLife(world, self), SESSION_MS, lambda: live_broker(self.number), loop.ms,  # type: ignore[arg-type]
            on_lost=self._end_reign, on_registered=self._registered, on_lease=lambda until: self.lease.renew(until),
        )  # fmt: skip
        await member.open()
        self.asks = ControllerLink(self.metadata, self._reach)  # type: ignore[arg-type,return-value]
        self.isr = IsrKeeper(
            self.number, config, self.metadata, self.asks, lambda: member.epoch, loop.ms,
            lambda: replicas.lease_lapsed, changes,
        )  # fmt: skip
        self._changes = changes
        self.groups = Coordinator(config, None, wall_ms=loop.ms, draw_id=lambda: world.random.getrandbits(64))  # type: ignore[arg-type]
        self.topics = TopicAdmin(
            lambda: member.session, config, self.metadata, world.random, lambda: self.controller
        )
        located = GroupLocator(self.metadata, self.topics, self.groups)
        self.lease = Lease(self._hold_lease, self._hold_lease)
        self.manager = ReplicaManager(
            self.number, config, replicas, self.metadata, self.isr, _settings,
            self._reach_known, _no_dial, changes,  # type: ignore[arg-type]
            on_leadership=located.lead, on_told=self.lease.told,
        )  # fmt: skip
        self.metadata.watch(located.show)
        found = replicas.survey({}).items()
        await self.manager.open_found({key: each.topic_id for key, each in found if each.topic_id is not None})
        await replicas.name_boot()
        world.checker.opened(self)
        self._serve()
        self.isr.start()
        await member.register()
        watch = ControllerWatch(self.number, self.metadata, lambda: member.session, self._reach)  # type: ignore[arg-type,return-value]
        self.run(watch.run())

    def _report_space(self) -> None:
        """Report a change of free space, as the product does."""
        notice = nodes.dump_log_dir_event(self.number)

        async def report() -> None:
            while not self.dead:
                with contextlib.suppress(StoreError):
                    await self.member.session.create(nodes.LOG_DIR_EVENT, notice, sequential=True)
                    return
                await asyncio.sleep(AGAIN_S)

        if self.listens:
            self.run(report())

    def fill_disk(self) -> None:
        """Let no append fit from now on; the next check would find that."""
        for point in ("segment.reserve", "segment.write", "disk.reserve"):
            self.replicas.arm(point, errno.ENOSPC, 1 << 30)
        self.space.lacks()

    def free_disk(self) -> None:
        """Make room again; the next check finds it."""
        self.replicas.disarm()
        self.space.look(at_once=True)

    def _serve(self) -> None:
        orders = control.Control(control.Peers("PLAINTEXT", self.manager, lambda: self.controller, _no_ids))
        followers, proof = fetch.Followers("PLAINTEXT", self.isr.fetched), Proof(self.replicas, self.world.config)
        fetching = fetch.Fetch(self.replicas, self.metadata, 1 << 20, followers, proof)
        self._handlers: dict[type, tuple[Callable[[Any, Call], Any], Callable[[Any, int, str], Any]]] = {
            m.LeaderAndIsrRequest: (orders.leader_and_isr, control.leader_and_isr_failed),
            m.StopReplicaRequest: (orders.stop_replica, control.stop_replica_failed),
            m.UpdateMetadataRequest: (orders.update_metadata, control.update_metadata_failed),
            m.AlterPartitionRequest: (orders.alter_partition, control.alter_partition_failed),
            m.ControlledShutdownRequest: (orders.controlled_shutdown, control.controlled_shutdown_failed),
            m.FetchRequest: (fetching, fetch.failed),
            m.ListOffsetsRequest: (ListOffsets(self.replicas, proof), list_offsets_failed),
            m.ProduceRequest: (produce.Produce(self.replicas, self.metadata, None, None, None), produce.failed),  # type: ignore[arg-type]
            m.OffsetCommitRequest: (
                group_offsets.OffsetCommit(self.groups, self.metadata), group_offsets.failed_commit
            ),
        }  # fmt: skip
        self.listens = True

    def kill(self) -> None:
        """End as with kill -9, which loses no appended record: connections end, the session stays until it expires."""
        self.dead, self.listens = True, False
        for link in list(self.links):
            link.end(self)
        for session in self.sessions:
            session.suspend()
        if hasattr(self, "replicas"):
            self.replicas.abandon()
            for log_dir in self.dirs:
                log_dir.close()

    async def _registered(self, session: Session, epoch: int) -> None:
        """Handle a registration as ClusterMember does."""
        self.world.checker.registered(self)
        self.epoch = epoch
        self.manager.registered(epoch)
        self.lease.registered(epoch, self.isr.led)
        if self.controller is not None and self._session is session:
            return
        self._session = session
        await self._end_reign()
        self.controller = Controller(
            session, self.number, self.world.config, _settings_of, lambda topic: self.metadata.image.topic(topic),
            self._reach, self.world.loop.ms, self._changes,  # type: ignore[arg-type,return-value]
        )  # fmt: skip
        self.controller.start()

    async def _end_reign(self) -> None:
        controller, self.controller = self.controller, None
        if controller is not None:
            await controller.stop()

    def _hold_lease(self, until_ms: int) -> None:
        """Let the lease end by a timer that no freeze delays, as core's clock is not the simulation's."""
        loop = self.world.loop
        self.lapsed_ms = until_ms
        lapsed_ms = NO_MEMBER_MS if until_ms == NO_MEMBER_MS else LAPSED_MS
        self.replicas.set_lease(0 if until_ms > loop.ms() else lapsed_ms)
        if until_ms > loop.ms():
            loop.later((until_ms - loop.ms() + 1) / 1000, self._lapse_if_due)

    def _lapse_if_due(self) -> None:
        if not self.dead and self.lapsed_ms <= self.world.loop.ms():
            self.replicas.set_lease(LAPSED_MS)

    # -- others ------------------------------------------------------------------------------------------------------

    async def _reach(self, broker: LiveBroker) -> SimLink:
        return await self.world.network.connect(self, broker.id)

    async def _reach_known(self, number: int) -> SimLink:
        if number not in self.metadata.image.brokers:
            raise OSError(f"broker {number} is not known to be alive")
        return await self.world.network.connect(self, number)

    async def answer(self, request: Any, version: int) -> Any:
        """Return the product's answer to a request."""
        handler, failed = self._handlers[type(request)]
        try:
            answer = await handler(request, Call(version, "somebody", CALLER))
        except KafkaError as problem:
            return failed(request, problem.code, "")
        if isinstance(request, m.FetchRequest):
            for p in _partitions(answer):
                if isinstance(p.records, core.Slice):
                    found, p.records = p.records, p.records.tobytes()
                    found.close()
        return answer


def _partitions(answer: Any) -> Iterator[Any]:
    for topic in answer.responses:
        yield from topic.partitions


def _settings_of(topic: str) -> dict[str, str]:
    return TOPIC_SETTINGS.get(topic, {})


async def _settings(topic: str, topic_id: bytes) -> dict[str, str]:
    return _settings_of(topic)


async def _no_ids() -> tuple[int, int]:
    raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE, "no producer needs ids here")


async def _no_dial(host: str, port: int) -> Any:
    raise KafkaError(errors.BROKER_NOT_AVAILABLE, "the simulation copies in Python")
