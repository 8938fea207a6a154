"""The control plane of one broker, which manages topics, settings, replica roles, ISRs and groups.

A lone broker and one of a cluster have the same parts, but another store session and other lines to brokers
(`sole_member.py`, `cluster_member.py`). A lone broker's controller calls its own broker's functions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Executor
from random import Random
from typing import TYPE_CHECKING, Protocol

from pybroker.clock import monotonic_ms, wall_ms
from pybroker.config import BrokerConfig
from pybroker.controller.controller import STOPS, Controller
from pybroker.coordination.store import Session, StoreError
from pybroker.decisions.changes import Changes
from pybroker.decisions.config_repository import ConfigRepository
from pybroker.decisions.image import LiveBroker
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.groups.coordinator import Coordinator
from pybroker.metadata import nodes
from pybroker.metadata.config_admin import ConfigAdmin
from pybroker.metadata.config_watch import ConfigWatch
from pybroker.metadata.configs import Sockets
from pybroker.metadata.controllership import Fence
from pybroker.metadata.entities import EntityConfigs
from pybroker.metadata.producer_ids import ProducerIds
from pybroker.metadata.topic_admin import TopicAdmin
from pybroker.model import TopicPartition
from pybroker.replication.controller_link import ControllerLink
from pybroker.replication.isr import IsrKeeper
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.opening import Assignments
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.retries import keep_up
from pybroker.server.api.handlers.control import Control, Peers
from pybroker.server.cluster.group_locator import GroupLocator
from pybroker.server.cluster.loopback import Loopback
from pybroker.server.cluster.transaction_plane import TransactionPlane

if TYPE_CHECKING:  # a lone broker has no lines to others
    from pybroker.interbroker.link import Dialled, Link

RETRY_S = 1.0
"""Seconds between attempts to write a log dir event to the store."""


class CurrentRegistration(Protocol):
    """The current session and registration of this broker."""

    @property
    def session(self) -> Session:
        """The current session of the store, which may have ended."""

    @property
    def epoch(self) -> int:
        """The broker epoch of the current registration; -1 before the first."""


class Lines(Protocol):
    """Opens connections to other brokers of the cluster."""

    @property
    def are_reached_by_core(self) -> bool:
        """True if core can handle connections to other brokers."""

    async def connect(self, broker_id: int) -> Link:
        """A link to a broker, at its address in the metadata. Raises OSError."""

    async def connect_to(self, broker: LiveBroker) -> Link:
        """A link to the inter-broker listener of a broker. Raises OSError."""

    async def dial(self, broker_id: int) -> Dialled:
        """A non-blocking socket that is connected to a broker. Raises OSError."""

    def try_again(self) -> None:
        """Retry at once at brokers that refused our login; passwords of users may have changed."""

    def reload(self) -> None:
        """Use the current certificates and trust stores for new connections. On an error the old ones stay."""


class ControlPlane:
    """The parts of the control plane. `controller` belongs to the current session; None while there is no session."""

    def __init__(
        self,
        *,
        broker_id: int,
        config: BrokerConfig,
        metadata: MetadataCache,
        replicas: Replicas,
        entities: EntityConfigs,
        groups: Coordinator,
        workers: Executor,
        sockets: Sockets | None,
        member: CurrentRegistration,
        lines: Lines | None,
        random: Random,
        is_native: bool,
        on_settings: Callable[[], Awaitable[object]],
        on_told: Callable[[int, list[TopicPartition]], object] = lambda broker_epoch, partitions: None,
        assignments: Assignments | None = None,
        deleted: Collection[str] = (),
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """`lines` is None at a lone broker. `on_settings` is awaited when the broker's settings may have changed;
        `on_told` is called after each LeaderAndIsr and StopReplica. `deleted`: as in GroupLocator. `wall_ms`: the clock
        for timestamps in nodes of the store."""
        self._wall_ms = wall_ms
        self.config = config
        self.metadata = metadata
        self.inter_broker = config.listeners.inter_broker
        self.topic_configs = ConfigRepository()
        self.changes = Changes(wall_ms)
        self.controller: Controller | None = None
        self._replicas = replicas
        self._member, self._broker_id, self._lines = member, broker_id, lines
        self._report: asyncio.Task[None] | None = None
        self._unreported = False
        self.watch = ConfigWatch(
            broker_id, config, self.topic_configs, replicas, entities,
            on_broker_altered=on_settings, on_altered=self._settings_changed,
        )  # fmt: skip
        self.link = ControllerLink(metadata, self._line_to)
        self.isr = IsrKeeper(
            broker_id, config, metadata, self.link, lambda: member.epoch, monotonic_ms,
            lambda: replicas.lease_lapsed, self.changes,
        )  # fmt: skip
        self.topics = TopicAdmin(
            lambda: member.session, config, metadata, random, lambda: self.controller,
            unmade=self._unmade if lines is None else None,
        )
        self.locator = GroupLocator(metadata, self.topics, groups, deleted)
        metadata.watch(self.locator.show)
        self.ids = ProducerIds(lambda: member.session, broker_id, replicas.highest_producer_id)
        self.transactions = TransactionPlane(
            broker_id=broker_id, config=config, metadata=metadata, replicas=replicas, topics=self.topics, groups=groups,
            workers=workers, draw_producer_id=self.ids.draw, connect=self._connect, wall_ms=wall_ms,
        )  # fmt: skip
        self.manager = ReplicaManager(
            broker_id, config, replicas, metadata, self.isr, self._topic_config,
            self._connect, self._dial, self.changes,
            follow_in_core=is_native and lines is not None and lines.are_reached_by_core,
            on_leadership=self._lead, on_told=on_told, on_failure=self.report_log_dirs, assignments=assignments,
        )  # fmt: skip
        replicas.moves.report_to(self.manager.placements.moved)
        self.configs = ConfigAdmin(
            lambda: member.session, broker_id, config, self.topic_configs, metadata, self.watch, wall_ms, sockets
        )
        self.peers = Peers(self.inter_broker, self.manager, lambda: self.controller, self.ids.block)

    def stand(self, session: Session, fence: Fence | None = None) -> Controller:
        """Stand for election in a session. With a `fence` this broker has been elected already."""
        self.controller = Controller(
            session, self._broker_id, self.config, self.topic_configs.topic,
            lambda topic: self.metadata.image.topic(topic), self._line_to, self._wall_ms, self.changes,
            remember_deleted=self._lines is None, settings=None if self._lines is None else self.configs,
        )  # fmt: skip
        self.controller.start(fence)
        return self.controller

    async def resign(self, why: str = "its session is over") -> None:
        """Resign as controller or candidate; the /controller node is removed with its session."""
        controller, self.controller = self.controller, None
        if controller is not None:
            await controller.stop(why)

    def report_log_dirs(self) -> None:
        """Notify the controller that a log dir failed, became full, or has room again; it then asks this broker."""
        self._unreported = True
        if self._report is None or self._report.done():
            self._report = asyncio.get_running_loop().create_task(keep_up(self._report_log_dirs, "report of log dirs"))

    async def _report_log_dirs(self) -> None:
        """Write the log dir event, retrying until the store accepts it."""
        notice = nodes.dump_log_dir_event(self._broker_id)
        while self._unreported:
            self._unreported = False  # before the write: a change during it needs another report
            try:
                await self._member.session.create(nodes.LOG_DIR_EVENT, notice, sequential=True)
            except StoreError:
                self._unreported = True
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Stop fetching and following settings, close the link to the controller, and resign."""
        if self._report is not None:
            self._report.cancel()
        self.transactions.close()
        await self.manager.stop()
        await self.isr.stop()
        await self.resign(STOPS)
        await self.watch.close()
        self.link.end()

    def _lead(self, replica: Replica, leads: bool, leader_epoch: int, led_on: bool) -> None:
        self.locator.lead(replica, leads, leader_epoch, led_on)
        self.transactions.locator.lead(replica, leads, leader_epoch, led_on)

    def _settings_changed(self) -> None:
        if self.controller is not None:
            self.controller.settings_changed()
        if self._lines is not None:
            self._lines.try_again()

    async def _line_to(self, broker: LiveBroker) -> Link | Loopback:
        if self._lines is not None:
            return await self._lines.connect_to(broker)
        return Loopback(Control(self.peers), self.inter_broker)

    def _unmade(self, topic: str, partition: int) -> str:
        replica = self._replicas.get(topic, partition)
        return replica.failure if replica is not None and replica.log is None else ""

    async def _connect(self, broker_id: int) -> Link:
        if self._lines is None:
            raise OSError(f"this broker is alone: there is no broker {broker_id}")
        return await self._lines.connect(broker_id)

    async def _dial(self, broker_id: int) -> Dialled:
        if self._lines is None:
            raise OSError(f"this broker is alone: there is no broker {broker_id}")
        return await self._lines.dial(broker_id)

    async def _topic_config(self, topic: str, topic_id: bytes) -> Mapping[str, str]:
        """The settings of a topic, read from the store if the topic is new."""
        return await self.watch.topic(self._member.session, topic, topic_id)

