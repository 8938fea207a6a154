"""A lone broker: the only member of its cluster, whose store is a file in one of its log dirs.

    open     open the store; a damaged one is set aside, and a new one adopts the partitions in the log dirs.
    settle   settle the broker's identity, and which log dirs are present.
    recover  register, get elected, adopt partitions unknown to the store, and raise every leader epoch, which fences
             an earlier run.
    join     open the logs, let the controller take over, then accept clients.

The session cannot expire and needs no lease, as no other process writes to the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from random import Random
from typing import TYPE_CHECKING, TypeVar

from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.coordination.embedded import EmbeddedStore
from pybroker.coordination.store import NodeExists, NoNode, Session, StoreDamaged
from pybroker.decisions.image import NO_LEADER, Image, LiveBroker
from pybroker.decisions.topics import Topic
from pybroker.errors import KafkaError, StartError
from pybroker.logs import event
from pybroker.metadata import identity, nodes
from pybroker.metadata.controllership import Fence, elect
from pybroker.metadata.lone_broker import loading, registration
from pybroker.metadata.lone_broker.adoption import Adoption
from pybroker.metadata.lone_broker.directory_assignments import DirectoryAssignments
from pybroker.metadata.migration import marks
from pybroker.model import TopicPartition
from pybroker.replication.disks.logdirs import FoundPartition, LogDir
from pybroker.replication.replicas import Replicas
from pybroker.retries import keep_up
from pybroker.security.credentials import Credentials
from pybroker.server.cluster import directories
from pybroker.server.cluster.control_plane import ControlPlane
from pybroker.server.cluster.place import Recovered, Serve

if TYPE_CHECKING:
    from pybroker.controller.controller import Controller
    from pybroker.server.metrics.export import Exporter

log = logging.getLogger(__name__)

SESSION_TIMEOUT_MS = 18_000
STRAYS_SHOWN = 20
TOLD_S = 60.0
"""Seconds that a start waits for UpdateMetadata of its own controller, once that has taken over."""
FAREWELL_SECONDS = 3.0
"""Seconds that the store has to end the session; if it cannot write, the session ends when it is opened again."""

T = TypeVar("T")


class SoleMember:
    """See place.ClusterPlace."""

    cautious = False
    lines: None = None
    replica_listener = -1
    rack: None = None

    def __init__(self, config: BrokerConfig, give_up: Set[str], random: Random, *, store_lost: bool) -> None:
        """`give_up`: ids or paths of log dirs, and names of partitions, whose missing data is given up.
        `store_lost`: there was a store, and its content is lost."""
        self._config = config
        self._random = random
        self._give_up = give_up
        self._store_lost = store_lost
        self._store: EmbeddedStore | None = None
        self._session: Session | None = None
        self._fence: Fence | None = None
        self._known_dirs: Mapping[str, str] = {}  # {directory.id: path} in the store at start
        self._log_dirs: dict[str, str] = {}  # {directory.id: path} after the start
        self._shown: LiveBroker | None = None
        self._ids: dict[TopicPartition, bytes] = {}
        self._control: ControlPlane | None = None
        self.epoch = -1

    @property
    def session(self) -> Session:
        """The session, which ends when the broker stops."""
        assert self._session is not None
        return self._session

    # -- start -----------------------------------------------------------------------------------------------------

    async def open(self, dirs: list[LogDir]) -> None:
        """Open the store in its log dir. Raises StartError, StoreError."""
        self._dirs, self._owner = dirs, directories.owner(dirs)
        self._store_dir = directories.with_store(dirs, self._give_up)
        path = os.path.join(self._store_dir.path, directories.STORE_FILE)
        self._store = EmbeddedStore(path, made_room=self._store_dir.space.lacks)
        await self._store.open()
        self._store_dir.keep_store(directories.STORE_FILE)
        session = self._session = await self._store.session(SESSION_TIMEOUT_MS)
        await marks.check(session)
        await loading.prepare(session)

    async def settle(self) -> identity.Identity:
        """Settle the broker's identity and its log dirs; missing ones are added, offline. Raises KafkaError,
        StartError, OSError, StoreError."""
        session, dirs, mine = self.session, self._dirs, self._owner
        known = await identity.cluster_id(session)
        self._store_lost |= known is None and directories.had_store(dirs)
        self._first_start = known is None
        in_use = any(log_dir.in_use for log_dir in dirs if not log_dir.failure)
        self._identity = await identity.settle(
            session, self._config["broker.id"], known, mine.cluster_id, mine.broker_id, self._random, in_use=in_use
        )
        self._known_dirs = await loading.known_log_dirs(session, self._identity.broker_id)
        self._give_up = directories.ids_of(self._give_up, self._known_dirs)
        dirs += directories.settle(dirs, self._known_dirs, await loading.held(session), self._give_up)
        self._log_dirs = directories.claim(dirs, *self._identity, self._store_dir, self._random)
        return self._identity

    @property
    def give_up(self) -> Set[str]:
        """The log dirs and partitions that are given up; after `settle` log dirs are given by id."""
        return self._give_up

    async def do(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Do work in the session. Raises as `work`."""
        return await work(self.session)

    async def recover(self, replicas: Replicas, current: Callable[[], LiveBroker]) -> Recovered:
        """Register, get elected, and adopt partitions of the log dirs that the store lacks. Raises StartError,
        KafkaError, StoreError."""
        self._current = current
        await self._register(current())
        fence = self._fence = await elect(self.session, self._identity.broker_id, wall_ms())
        if fence is None:
            raise StartError("this cluster already has a controller on another broker")
        try:
            recovered = await self._recover(replicas, fence)
        except (NoNode, NodeExists) as problem:  # no other process writes to the store
            raise StoreDamaged(detail=f"a node of the coordination store is missing or unexpected: {problem}") from None
        directories.warn_of_unknown(self._give_up, self._known_dirs, self._dirs, self._ids)
        return recovered

    async def _recover(self, replicas: Replicas, fence: Fence) -> Recovered:
        """Recover the topics. At the first start the store is empty and adopts the partitions of the log dirs.

        The cluster id is written after that, so that an interrupted first start is repeated."""
        session, broker_id = self.session, self._identity.broker_id
        await loading.record_log_dirs(session, fence, broker_id, self._log_dirs)
        loaded = await loading.load(session)
        found = replicas.survey({topic.name: topic.id for topic in loaded.topics})
        _check_states(loaded.topics, found)
        adoption = Adoption(session, fence, broker_id, self._random)
        if self._first_start:
            await adoption.all(found, loaded, replicas.kafka_settings, lost=self._store_lost)
            loaded = await loading.load(session)
            await identity.record_cluster_id(session, self._identity.cluster_id)
        if await adoption.strays(found, loaded):
            loaded = await loading.load(session)
        if not any(log_dir.failure for log_dir in self._dirs):
            await adoption.forget_deleted(found)
        topics = await loading.lead_again(session, fence, loaded.topics, found, broker_id)
        known = {topic.name: topic.id for topic in (*topics, *loaded.deleted)}
        self._ids = {key: known[key.topic] for key in found if key.topic in known}
        self._say_strays(found, replicas)
        assignments = DirectoryAssignments(
            lambda: self.session,
            {(t.id, index): directory for t in topics for index, directory in t.directories.items()},
            {(t.id, index): state.leader_epoch for t in topics for index, state in enumerate(t.partitions)},
        )
        self._deleted = loaded.deleted
        return Recovered(assignments, [topic.name for topic in loaded.deleted], bool(topics))

    def _say_strays(self, found: Mapping[TopicPartition, FoundPartition], replicas: Replicas) -> None:
        strays = [key for key in found if key not in self._ids and replicas.directory_of(key)]
        if strays:
            shown = ",".join(map(str, strays[:STRAYS_SHOWN]))
            event(log, logging.WARNING, "directories of unknown topics ignored", count=len(strays), partitions=shown)

    async def _register(self, broker: LiveBroker) -> None:
        """Make the broker's node. Raises StartError, StoreError."""
        try:
            self.epoch = await registration.register(self.session, broker, wall_ms)
        except NodeExists:
            raise StartError(f"a broker with the id {broker.id} is already registered in this cluster") from None
        self._shown = broker

    async def join(self, control: ControlPlane, serve: Serve) -> None:
        """Open the logs, let the controller take over, and serve. Raises StartError, StoreError."""
        self._control = control
        control.manager.registered(self.epoch)
        await control.manager.open_found(self._ids)
        control.isr.start()
        controller = control.stand(self.session, self._fence)
        await controller.taken_over()
        await control.metadata.told(TOLD_S)
        control.metadata.expect_topics(False)
        await self._lead_without_failed(control, controller)
        for topic in self._deleted:
            with contextlib.suppress(KafkaError):
                await control.topics.gone(topic.name, topic.id)
        follow = functools.partial(control.watch.follow, self.session, known=True)
        self._following = asyncio.get_running_loop().create_task(keep_up(follow, "changes of settings"))
        await serve()

    async def _lead_without_failed(self, control: ControlPlane, controller: Controller) -> None:
        """Wait until the metadata shows that partitions whose logs cannot be used have no leader."""
        await controller.ask(_nothing)  # runs after the elections that the failed logs caused
        failed = set() if controller.context is None else {key for _, key in controller.context.failed}

        def are_shown(image: Image) -> bool:
            states = [image.partition(*key) for key in failed]
            return all(state is None or state.leader == NO_LEADER for state in states)

        with contextlib.suppress(TimeoutError):
            await control.metadata.shows(are_shown, TOLD_S)

    def told(self, broker_epoch: int, partitions: list[TopicPartition]) -> None:
        """Do nothing: there is no lease to renew."""

    def check_account(self, credentials: Credentials) -> None:
        """Do nothing: this broker logs in at no other."""

    def show(self, exporter: Exporter, control: ControlPlane) -> None:
        """Do nothing: a lone broker has no cluster metrics."""

    async def renew(self) -> None:
        """Update the registration if the settings have changed it. Raises StoreError."""
        broker = self._current()
        if self._shown is not None and broker != self._shown:
            await registration.renew(self.session, broker, wall_ms)
            self._shown = broker

    # -- stop ------------------------------------------------------------------------------------------------------

    def leave_start(self) -> None:
        """Do nothing: the start waits for no other broker, and continues."""

    async def hand_over(self) -> None:
        """Do nothing: there is no other broker to move leadership to."""

    async def leave(self) -> None:
        """Stop the control plane, after running requests were answered."""
        control, self._control = self._control, None
        if control is not None:
            self._following.cancel()
            await control.close()

    def set_aside(self, problem: StoreDamaged) -> None:
        """Rename a damaged store. Raises OSError."""
        assert self._store is not None
        directories.set_store_aside(self._store.path, problem)

    async def close(self, *, session: bool = True) -> None:
        """Close the store. If `session` is False its nodes stay until the store is opened again. Raises StoreError."""
        if self._session is not None and session:
            await asyncio.wait([self._session.close()], timeout=FAREWELL_SECONDS)
        if self._store is not None:
            await self._store.close()


async def _nothing() -> None:
    """Do nothing, in the controller's inbox."""


def _check_states(topics: Iterable[Topic], found: Mapping[TopicPartition, FoundPartition]) -> None:
    """Raise StoreDamaged for a log without a state in the store, as a state is written before its log is created."""
    for topic in topics:
        for index, state in enumerate(topic.partitions):
            if state.leader_epoch < 0 and TopicPartition(topic.name, index) in found:
                raise StoreDamaged(nodes.state(topic.name, index), "the node is missing, but its log exists")
