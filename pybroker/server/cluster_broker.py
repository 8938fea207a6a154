"""A broker of a cluster: what it starts in which order, and how it leaves.

Start: log dirs are locked and read; a session of the store; whose they are is settled; the broker's settings are read;
the sockets are bound; those of topics are read; the logs are opened, in no role; the sockets accept; the broker is
registered, and stands for election. What it leads and follows, the controller tells it. It accepts before it is
registered, for whoever is refused at the address of a registered broker takes that for the proof that its process is
dead.

Stop: the controller moves what is led here to others, and the rest is as with a lone broker; the session ends last.

A session that expired: the controllership is over with it, the lease lapses; a new session, and a new broker epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any

from pybroker.clock import monotonic_ms, wall_ms
from pybroker.cluster.changes import Changes
from pybroker.cluster.config_repository import ConfigRepository
from pybroker.cluster.image import LiveBroker
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.cluster.replica_selector import RACK_AWARE
from pybroker.config import BrokerConfig
from pybroker.controller import configs, identity, loading, nodes
from pybroker.controller.cluster_configs import ClusterConfigs
from pybroker.controller.cluster_topics import ClusterTopics
from pybroker.controller.config_watch import ConfigWatch
from pybroker.controller.controller import Controller
from pybroker.controller.producer_ids import ProducerIds
from pybroker.coordination.store import (
    ENDED,
    Session,
    SessionExpired,
    Store,
    StoreDamaged,
    StoreError,
)
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.model import HostPort
from pybroker.replication.controller_link import ControllerLink
from pybroker.replication.isr import IsrKeeper
from pybroker.replication.lease import NO_MEMBER_MS, Lease
from pybroker.replication.logdirs import StartError, open_log_dirs, owner
from pybroker.replication.manager import ReplicaManager
from pybroker.server import directories, own_account
from pybroker.server.broker import Broker, StartLeft, Table
from pybroker.server.cluster_groups import ClusterGroups
from pybroker.server.controller_watch import ControllerWatch
from pybroker.server.hand_over import AWAY_SECONDS, LOOK_SECONDS, HandOver, is_answered
from pybroker.server.handlers.control import Peers
from pybroker.server.handlers.fetch import Followers
from pybroker.server.membership import Membership
from pybroker.server.other_brokers import OtherBrokers
from pybroker.server.table import Collaborators
from pybroker.upkeep import Pauses, keep_up

log = logging.getLogger(__name__)

RETRY_S = 1.0
TOLD_SECONDS = 10.0
"""How long a start waits for the controller's first word; then it says so, and serves what it is asked meanwhile."""
METADATA_GRACE_S = 0.003
TELLING_SECONDS = 0.2
"""How long a stop goes on to tell clients who leads what it has led. Those that did not hear it before their connection
ends look for another broker by their own timers: librdkafka once a second."""


class ClusterBroker(Broker):
    """One broker of a cluster, as Broker is a lone one: `await start()`, serve, `await stop()`."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        native_plane: bool = True,
        through: Callable[[Table], Table] | None = None,
        give_up: Collection[str] = (),
        store: Store | None = None,
        reach: Callable[[int, HostPort], HostPort] | None = None,
    ) -> None:
        """As Broker; `store`: the cluster's, in place of the ZooKeeper that zookeeper.connect names. `reach`: where
        another broker is reached, of its id and its address; a test puts its network there."""
        super().__init__(config, native_plane=native_plane, through=through, give_up=give_up)
        self._cluster_store = store
        self._inter_broker = config.listeners.inter_broker
        self._others = OtherBrokers(
            config, lambda: self.metadata.image.brokers, lambda: str(self.broker_id), reach
        )
        self._controller: Controller | None = None
        self._following: list[asyncio.Task[None]] = []
        self._watching: asyncio.Task[None] | None = None
        self._report: asyncio.Task[None] | None = None
        self._unreported = False
        self._serving = False
        self._waits: asyncio.Task[object] | None = None  # a start, for what others do
        self._leaves = False
        self._changes = Changes(wall_ms)

    # -- start -----------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        try:
            await self._join()
        except StoreDamaged as problem:
            raise StartError(str(problem)) from None
        except (StartLeft, StartError):
            if self._serving:
                await self._leave()
            raise

    async def _join(self) -> None:
        config = self.config
        self._dirs = open_log_dirs(config.log_dirs)
        timeout_ms: int = config["zookeeper.session.timeout.ms"]
        store = self._store = self._cluster_store or _zookeeper(config)
        await self._wait(store.open())
        member = self._member = Membership(store, timeout_ms, self._advertised, wall_ms)
        await self._wait(member.open())
        try:
            await self._enter(member)
        finally:
            self._session = member.session

    async def _wait(self, work: Coroutine[Any, Any, object]) -> None:
        """Wait for what others may hold up for long. Raises StartLeft where somebody asks for a stop meanwhile."""
        self._waits = waits = asyncio.get_running_loop().create_task(work)
        if self._leaves:
            waits.cancel()
        try:
            await waits
        except asyncio.CancelledError:
            if not self._leaves:
                raise
            raise StartLeft from None
        finally:
            self._waits = None

    def leave_start(self) -> None:
        self._leaves = True
        if self._waits is not None:
            self._waits.cancel()

    async def _enter(self, member: Membership) -> None:
        """Have a place in the cluster, and take it."""
        config = self.config
        await self._wait(member.in_a_session(lambda session: loading.prepare(session, nodes.OF_A_CLUSTER)))
        await self._wait(member.in_a_session(self._settle))
        await self._wait(
            member.in_a_session(lambda session: configs.load(session, config, self.broker_id, cautious=True))
        )
        self._others.begin()
        sockets = await self._bind()
        replicas = self._make_replicas(sockets)
        self._topic_configs = ConfigRepository()
        self._watch = ConfigWatch(self.broker_id, config, self._topic_configs, replicas, self.entities)
        self._watch.on_broker_altered.append(self._go_by_settings)
        self._watch.on_altered += [self._tell_controller, self._others.try_again]
        await self._wait(member.in_a_session(self._watch.read_others))
        own_account.look_for_user(config, self.entities.credentials)
        await self._wait(member.in_a_session(self._load_security))
        if self._authorization is not None:
            self._authorization.warn_of_brokers()
        own_account.look_at_certificates(config)
        self.metadata.expects_topics = bool(self._topic_configs.all())
        self._link = ControllerLink(self.metadata, self._others.connect_to)
        self._isr = IsrKeeper(
            self.broker_id, config, self.metadata, self._link, lambda: member.epoch, monotonic_ms,
            lambda: replicas.lease_lapsed, self._changes,
        )  # fmt: skip
        self._manager = ReplicaManager(
            self.broker_id, config, replicas, self.metadata, self._isr, self._topic_config,
            self._others.connect, self._others.dial,
            self._changes,
        )  # fmt: skip
        self._manager.follow_in_core &= self._others.are_reached_by_core
        self.metadata.look, self.metadata.grace_s = self._manager.look, METADATA_GRACE_S
        replicas.on_joining = self._isr.caught_up
        await self._manager.open_found()
        asked = self._collaborators()
        if self._exporter is not None:
            from pybroker.server.metrics_replication import Cluster  # which needs prometheus_client

            self._exporter.show_cluster(
                Cluster(self._isr, lambda: self._controller, self._changes, self._epochs, member, self._no_member)
            )
        await self._serve(asked)
        self._isr.start()
        self._serving = True
        member.on_lost.append(self._end_reign)
        lease = self._lease = Lease(self._hold_lease, replicas.set_lease)
        self._manager.on_told.append(lease.told)
        self._manager.on_failure.append(self._report_failure)
        member.on_lease.append(lease.renew)
        member.on_answer.append(lease.go_on)
        member.on_session.append(lambda session: identity.check_cluster(session, self.cluster_id))
        member.on_registered.append(self._registered)
        for log_dir in self._dirs:
            log_dir.space.on_changed = functools.partial(self._tell_of_space, asyncio.get_running_loop())
        await self._wait(member.register())
        if config["broker.death.proof.enable"]:
            watch = ControllerWatch(self.broker_id, self.metadata, lambda: member.session, self._others.connect_to)
            self._watching = asyncio.get_running_loop().create_task(keep_up(watch.run, "watch of the controller"))
        with contextlib.suppress(StartLeft):  # the stop is as any other from here on
            await self._wait(self._told())

    def _collaborators(self) -> Collaborators:
        assert self.replicas is not None
        config, metadata, member, replicas = self.config, self.metadata, self._member, self.replicas
        groups, workers = self._work(replicas)
        topics = ClusterTopics(lambda: member.session, config, metadata, self._random, lambda: self._controller)
        located = ClusterGroups(metadata, topics, groups)
        self._manager.on_leadership.append(located.lead)
        metadata.watch(located.show)
        ids = self._ids = ProducerIds(lambda: member.session, self.broker_id, replicas.highest_producer_id)
        settings = ClusterConfigs(
            lambda: member.session, self.broker_id, config, self._topic_configs, metadata, self._watch, wall_ms
        )
        settings.sockets = self._sockets
        peers = Peers(self._inter_broker, self._manager, lambda: self._controller, ids.block)
        return Collaborators(
            self.broker_id, config, metadata, self._topic_configs, replicas, topics, ids.draw, workers, groups, located,
            settings, self.entities, self._authorization, self._token_store, peers,
            Followers(
                self._inter_broker, self._isr.fetched, self.broker_id, config["broker.rack"], self._rack() is not None
            ),
        )  # fmt: skip

    async def _go_by_settings(self) -> None:
        await super()._go_by_settings()
        self._others.reload()

    def _tell_controller(self) -> None:
        if self._controller is not None:
            self._controller.settings_changed()

    def _rack(self) -> str | None:
        if self.config["replica.selector.class"] != RACK_AWARE:
            return None
        return self.config["broker.rack"] or ""

    def _replica_listener(self) -> int:
        return [endpoint.listener for endpoint in self.config.listeners.endpoints].index(self._inter_broker)

    def _advertised(self) -> LiveBroker:
        assert self._sockets is not None
        return self._sockets.advertised(self.broker_id)

    async def _settle(self, session: Session) -> None:
        """Settle who this is, and write it into the log dirs. Raises KafkaError, OSError."""
        mine = owner(self._dirs)
        if directories.had_store(self._dirs):
            raise StartError(
                "the log directories are a lone broker's, whose topics its own coordination store knows: start it "
                "without zookeeper.connect, or move them with pybroker migrate-store"
            )
        in_use = any(log_dir.in_use for log_dir in self._dirs if not log_dir.failure)
        configured: int = self.config["broker.id"]
        recorded = identity.Identity(mine.cluster_id or "", -1 if mine.broker_id is None else mine.broker_id)
        forced = f"broker-{max(configured, recorded.broker_id)}" in self._give_up
        self.cluster_id, self.broker_id = await identity.join(
            session, configured, recorded, self._random, in_use=in_use, forced=forced
        )
        directories.claim(self._dirs, self.cluster_id, self.broker_id, None, self._random)
        self.metadata = MetadataCache(self.cluster_id, time.monotonic)

    async def _told(self) -> None:
        """Wait until the controller has told who is alive, and of topics if there are any."""
        try:
            await self.metadata.told(TOLD_SECONDS)
        except TimeoutError:
            event(log, logging.WARNING, "no controller yet", waited_s=TOLD_SECONDS)
        finally:
            self.metadata.expects_topics = False

    async def _topic_config(self, topic: str, topic_id: bytes) -> Mapping[str, str]:
        """A topic's own settings, which may have come a moment ago."""
        return await self._watch.topic(self._member.session, topic, topic_id)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def _is_controller(self) -> bool:
        return self._controller is not None and self._controller.active

    def _hold_lease(self, until_ms: int) -> None:
        assert self.replicas is not None
        self.replicas.set_lease(until_ms)
        self.metadata.suspects.doubt(self.broker_id, until_ms == NO_MEMBER_MS)

    async def _registered(self, session: Session, epoch: int) -> None:
        """Another registration: what was meant for the old one is refused from now on."""
        self._epoch = self._manager.epoch = epoch
        self._lease.registered(epoch, self._isr.led)
        if self._controller is not None and self._session is session:
            return
        self._session = session
        await self._end_reign()
        try:
            await self._ids.bring_forward(went_back=epoch < self._manager.latest_epoch)
        except StoreError as problem:  # the next request for a producer id tries again
            event(log, logging.WARNING, "producer ids not brought forward", reason=problem)
        stores = [None if self._authorization is None else self._authorization.store, self._token_store]
        follows = [self._watch.follow, *(store.follow for store in stores if store is not None)]
        loop = asyncio.get_running_loop()
        self._following = [loop.create_task(self._follow(session, follow)) for follow in follows]
        self._controller = Controller(
            session, self.broker_id, self.config, self._topic_configs.topic,
            lambda topic: self.metadata.image.topic(topic), self._others.connect_to, wall_ms, self._changes,
        )  # fmt: skip
        self._controller.start()

    def _tell_of_space(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report to the controller that a log dir became full or has room again: others lead while it is full."""
        with contextlib.suppress(RuntimeError):  # the loop ended before the disk did
            loop.call_soon_threadsafe(self._report_failure)

    def _heed_failures(self) -> None:
        """A log dir failed: the controller is told, or what is led from there would be led by nobody."""
        super()._heed_failures()
        if any(log_dir.failure for log_dir in self._dirs):
            self._report_failure()

    def _report_failure(self) -> None:
        self._unreported = True
        if self._serving and (self._report is None or self._report.done()):
            self._report = asyncio.get_running_loop().create_task(keep_up(self._report_log_dirs, "report of log dirs"))

    async def _report_log_dirs(self) -> None:
        """Leave the notice, as soon as the store takes it."""
        notice = nodes.dump_log_dir_event(self.broker_id)
        while self._serving and self._unreported:
            self._unreported = False  # before the write: a change during it needs another report
            try:
                await self._member.session.create(nodes.LOG_DIR_EVENT, notice, sequential=True)
            except StoreError:
                self._unreported = True
                await asyncio.sleep(RETRY_S)

    async def _renew_registration(self) -> None:
        await self._member.renew()

    def _present_session(self) -> Session:
        return self._member.session

    async def _follow(self, session: Session, follow: Callable[[Session], Awaitable[None]]) -> None:
        """Until the session is over. What fails is read again from the start: others go by what was changed."""
        pauses = Pauses()
        while session.state not in ENDED:
            try:
                await follow(session)
            except SessionExpired:
                return
            except Exception as problem:
                mistake = None if isinstance(problem, (StoreError, KafkaError, OSError)) else problem
                if pauses.is_news(problem):
                    event(log, logging.WARNING, "changes not followed", reason=problem, exc_info=mistake)
                await pauses.wait(asyncio.Event())

    async def _end_reign(self) -> None:
        """The session is over, and with it the controllership."""
        controller, self._controller = self._controller, None
        following, self._following = self._following, []
        for task in following:
            task.cancel()
        if controller is not None:
            await controller.stop()

    # -- stop --------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Hand over what is led here, then end as a lone broker does; the registration goes last."""
        if self._serving:
            if self.config["controlled.shutdown.enable"]:
                led = bool(self._isr.partitions())
                if self._controller is not None and self.metadata.image.brokers.keys() - {self.broker_id}:
                    await self._controller.hand_over()  # the next one learns below that this broker leaves
                if await self._hand_over() and led:
                    await asyncio.sleep(TELLING_SECONDS)
            await self._leave()
            if not await is_answered(self._present_session):  # then no client can learn that it goes: do not wait
                await asyncio.wait({self._member.session.close()}, timeout=AWAY_SECONDS)
        await super().stop()

    async def _hand_over(self) -> bool:
        handing = HandOver(self.config, self.broker_id, self._link, self.metadata, self._away)
        return await handing.run(lambda: self._epoch)

    async def _away(self) -> None:
        """Return once ZooKeeper no longer answers."""
        while not (self.replicas is not None and self.replicas.lease_lapsed):
            if not await is_answered(self._present_session):
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def abort(self) -> None:
        if self._serving:
            await self._leave()
        await super().abort()

    def _epochs(self) -> dict[str, Any]:
        image = self.metadata.image
        return {
            "broker": self.broker_id, "broker_epoch": self._member.epoch,
            "controller": image.controller_id, "controller_epoch": image.controller_epoch,
        }  # fmt: skip

    def _no_member(self) -> str:
        """It reaches ZooKeeper, which does not know it. While that is away for all, they serve on: nobody is to turn
        from them."""
        missed = self._member.connected and not self._member.registered
        return "it is not registered in ZooKeeper" if missed else ""

    async def _leave(self) -> None:
        """Follow nobody, ask nobody, be nobody's controller."""
        self._serving = False
        for task in (self._watching, self._report):
            if task is not None:
                task.cancel()
        await self._manager.stop()
        await self._isr.stop()
        await self._member.close()
        await self._end_reign()
        await self._watch.close()
        self._link.end()
        self._session = self._member.session


def _zookeeper(config: BrokerConfig) -> Store:
    from pybroker.coordination.zookeeper import is_here, store_of  # which needs kazoo

    at = config["zookeeper.connect"]
    if not config["zookeeper.set.acl"] and not is_here(at):
        why = "zookeeper.set.acl is false: whoever reaches it can take any right in this cluster"
        event(log, logging.WARNING, "ZooKeeper is open to all", at=at, reason=why)
    return store_of(config)
