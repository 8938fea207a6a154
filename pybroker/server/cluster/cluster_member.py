"""A broker of a cluster: joins it through ZooKeeper, and leaves it.

The broker accepts connections before it registers: other brokers take a refused connection to the address of a
registered broker as proof that its process is dead. The controller decides which partitions it leads and follows.
Stop: the controller moves leadership to other brokers; the rest is as with a lone broker; the session ends last.
Session expired: the broker is no longer controller and its lease lapses; it begins a new session and gets a new epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Set
from random import Random
from typing import TYPE_CHECKING, TypeVar

from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.config.cluster_settings import StoreWords
from pybroker.coordination.store import ENDED, Session, SessionExpired, Store, StoreDamaged, StoreError
from pybroker.decisions.image import LiveBroker
from pybroker.decisions.replica_selector import RACK_AWARE
from pybroker.errors import KafkaError, StartError
from pybroker.logs import event
from pybroker.metadata import identity, nodes
from pybroker.metadata.lone_broker import loading
from pybroker.metadata.migration import marks
from pybroker.model import HostPort, TopicPartition
from pybroker.replication.disks.logdirs import LogDir
from pybroker.replication.lease import NO_MEMBER_MS, Lease
from pybroker.replication.replicas import Replicas
from pybroker.retries import Pauses, keep_up
from pybroker.security.credentials import Credentials
from pybroker.server.cluster import directories, own_account
from pybroker.server.cluster.control_plane import ControlPlane
from pybroker.server.cluster.controller_watch import ControllerWatch
from pybroker.server.cluster.deleted_logs import delete_logs
from pybroker.server.cluster.hand_over import AWAY_SECONDS, LOOK_SECONDS, HandOver, is_answered
from pybroker.server.cluster.membership import Membership
from pybroker.server.cluster.other_brokers import OtherBrokers
from pybroker.server.cluster.place import Recovered, Serve, StartLeft

if TYPE_CHECKING:
    from pybroker.server.metrics.export import Exporter

log = logging.getLogger(__name__)

TOLD_SECONDS = 10.0
"""Seconds that a start waits for the controller's first UpdateMetadata; then it logs a warning and serves without."""
TELLING_SECONDS = 0.2
"""Seconds that a stop keeps serving after leadership moved, so that clients learn the new leaders from it. Others find
them only by their own timers: librdkafka once a second."""
FAREWELL_SECONDS = 3.0
"""Seconds that ZooKeeper has for the end of the session."""
Follow = Callable[[Session], Awaitable[None]]
"""Follows changes of nodes of the store until its session ends. Raises StoreError."""
T = TypeVar("T")


class ClusterMember:
    """See place.ClusterPlace."""

    cautious = True

    def __init__(
        self,
        config: BrokerConfig,
        give_up: Set[str],
        random: Random,
        *,
        store: Store,
        live: Callable[[], Mapping[int, LiveBroker]],
        follows: Callable[[], Iterable[Follow]],
        reach: Callable[[int, HostPort], HostPort] | None,
    ) -> None:
        """`live`: returns the live brokers by id; `follows`: further functions that follow changes of the store;
        `reach`: maps the id and address of another broker to the address to connect to."""
        self._config = config
        self._give_up = give_up
        self._random = random
        self._store = store
        self._follows = follows
        self._others = OtherBrokers(config, live, lambda: str(self._identity.broker_id), reach)
        self._membership = Membership(
            store, config["zookeeper.session.timeout.ms"], self._advertised, wall_ms, on_session=self._check_cluster,
            on_lost=self._resign, on_registered=self._registered, on_lease=self._on_lease, on_answer=self._on_answer,
        )  # fmt: skip
        self._lease: Lease | None = None
        self._replicas: Replicas | None = None
        self._control: ControlPlane | None = None
        self._term: Session | None = None  # the session in which this broker stands for election
        self._following: list[asyncio.Task[None]] = []
        self._watching: asyncio.Task[None] | None = None
        self._serving = False
        self._silent = False  # ZooKeeper did not answer while this broker stopped
        self._stop_waiting: Callable[[], object] | None = None  # while the start waits for ZooKeeper or other brokers
        self._leaves = False
        self._identity = identity.Identity("", -1)
        listeners = [endpoint.listener for endpoint in config.listeners.endpoints]
        self.replica_listener = listeners.index(config.listeners.inter_broker)
        self.rack: str | None = None
        if config["replica.selector.class"] == RACK_AWARE:
            self.rack = config["broker.rack"] or ""

    @property
    def lines(self) -> OtherBrokers:
        """Opens connections to other brokers."""
        return self._others

    @property
    def session(self) -> Session:
        """The current session, which may have ended."""
        return self._membership.session

    @property
    def epoch(self) -> int:
        """The broker epoch of the current registration."""
        return self._membership.epoch

    @property
    def give_up(self) -> Set[str]:
        """The log dirs and partitions that are given up, as named by the operator."""
        return self._give_up

    def _advertised(self) -> LiveBroker:
        return self._current()

    # -- start -----------------------------------------------------------------------------------------------------

    async def open(self, dirs: list[LogDir]) -> None:
        """Begin a session, and create the nodes that a cluster needs. Raises StartError, StartLeft, StoreError."""
        self._dirs = dirs
        if directories.had_store(dirs):  # before ZooKeeper has a node of a cluster that is not there
            named = " ".join(f"--data-dir {each.path}" for each in dirs)
            lone = "the log directories belong to a lone broker, whose topics are in its own coordination store"
            setting = "zookeeper.connect" if self._config["etcd.connect"] is None else "etcd.connect"
            at = self._config[setting]
            how = f"pybroker migrate-store {named} {StoreWords.of(at).option} {at}"
            raise StartError(f"{lone}: move them with: {how}; or start it without {setting}")
        await self._wait(self._store.open())
        await self._wait(self._membership.open())
        await self.do(marks.check)
        await self.do(lambda session: loading.prepare(session, nodes.OF_A_CLUSTER))

    async def settle(self) -> identity.Identity:
        """Settle the broker's identity, and write it into the log dirs. Raises KafkaError, StartError, StartLeft,
        OSError."""
        await self.do(self._settle)
        self.lines.begin()
        return self._identity

    async def _settle(self, session: Session) -> None:
        mine = directories.owner(self._dirs)
        in_use = any(log_dir.in_use for log_dir in self._dirs if not log_dir.failure)
        configured: int = self._config["broker.id"]
        recorded = identity.Identity(mine.cluster_id or "", -1 if mine.broker_id is None else mine.broker_id)
        forced = f"broker-{max(configured, recorded.broker_id)}" in self._give_up
        self._identity = await identity.join(
            session, configured, recorded, self._random, in_use=in_use, forced=forced
        )
        directories.claim(self._dirs, *self._identity, None, self._random)

    async def do(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Do work in a session, and again in a new session if the first expires. Raises as `work`, StartLeft."""
        return await self._wait(self._membership.in_a_session(work))

    async def _wait(self, work: Coroutine[object, None, T]) -> T:
        """Wait for work that depends on ZooKeeper or other brokers. Raises StartLeft if a stop is requested meanwhile.
        """
        waits = asyncio.get_running_loop().create_task(work)
        self._stop_waiting = waits.cancel
        if self._leaves:
            waits.cancel()
        try:
            return await waits
        except asyncio.CancelledError:
            if not self._leaves:
                raise
            raise StartLeft from None
        finally:
            self._stop_waiting = None

    def leave_start(self) -> None:
        """Abort a start that waits, with StartLeft."""
        self._leaves = True
        if self._stop_waiting is not None:
            self._stop_waiting()

    async def recover(self, replicas: Replicas, current: Callable[[], LiveBroker]) -> Recovered:
        """Create the lease; the store is shared, so a broker of a cluster repairs nothing in it."""
        self._current, self._replicas = current, replicas
        self._lease = Lease(self._hold_lease, replicas.set_lease)
        return Recovered()

    async def join(self, control: ControlPlane, serve: Serve) -> None:
        """Open the logs, serve, register, stand for election, and wait for the controller's first UpdateMetadata.
        Raises StartError, StartLeft, StoreError, OSError."""
        assert self._replicas is not None
        self._control = control
        control.metadata.expect_topics(bool(control.topic_configs.all()))
        survey = self._replicas.survey({}).items()
        found = {key: each.topic_id for key, each in survey if each.topic_id is not None}
        deleted = await self.do(functools.partial(self._delete_logs, self._replicas, found))
        await control.manager.open_found({key: topic_id for key, topic_id in found.items() if key not in deleted})
        await self._replicas.name_boot()
        await serve()
        control.isr.start()
        self._serving = True
        await self._wait(self._membership.register())
        if self._config["broker.death.proof.enable"]:
            watch = ControllerWatch(
                self._identity.broker_id, control.metadata, lambda: self.session, self.lines.connect_to
            )
            self._watching = asyncio.get_running_loop().create_task(keep_up(watch.run, "watch of the controller"))
        with contextlib.suppress(StartLeft):  # from here on a stop needs no special handling
            await self._wait(self._told(control))

    async def _delete_logs(
        self, replicas: Replicas, found: Mapping[TopicPartition, bytes], session: Session
    ) -> Set[TopicPartition]:
        whole = not any(log_dir.failure for log_dir in self._dirs)
        return await delete_logs(session, self._identity.broker_id, found, replicas.remove, whole=whole)

    async def _told(self, control: ControlPlane) -> None:
        """Wait for the controller's first UpdateMetadata, with topics if the cluster has any."""
        try:
            await control.metadata.told(TOLD_SECONDS)
        except TimeoutError:
            event(log, logging.WARNING, "no UpdateMetadata received from a controller", waited_s=TOLD_SECONDS)
        finally:
            control.metadata.expect_topics(False)

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def _check_cluster(self, session: Session) -> None:
        await marks.check(session)
        await identity.check_cluster(session, self._identity.cluster_id)

    def told(self, broker_epoch: int, partitions: list[TopicPartition]) -> None:
        """Note that the controller assigned roles for these partitions, under this broker epoch."""
        assert self._lease is not None
        self._lease.told(broker_epoch, partitions)

    def _on_lease(self, until_ms: int) -> None:
        assert self._lease is not None
        self._lease.renew(until_ms)

    def _on_answer(self, until_ms: int) -> None:
        assert self._lease is not None
        self._lease.go_on(until_ms)

    def _hold_lease(self, until_ms: int) -> None:
        assert self._replicas is not None and self._control is not None
        self._replicas.set_lease(until_ms)
        self._control.metadata.suspects.doubt(self._identity.broker_id, until_ms == NO_MEMBER_MS)

    async def _registered(self, session: Session, epoch: int) -> None:
        """Handle a new registration: requests with the old broker epoch are refused from now on."""
        control = self._control
        assert control is not None and self._lease is not None
        went_back = epoch < control.manager.latest_epoch
        control.manager.registered(epoch)
        self._lease.registered(epoch, control.isr.led)
        if control.controller is not None and self._term is session:
            return
        self._term = session
        await self._resign()
        try:
            await control.ids.bring_forward(went_back=went_back)
        except StoreError as problem:  # the next request for a producer id tries again
            event(log, logging.WARNING, "producer ids not brought forward", reason=problem)
        loop = asyncio.get_running_loop()
        follows = [control.watch.follow, *self._follows()]
        self._following = [loop.create_task(self._follow(session, follow)) for follow in follows]
        control.stand(session)

    async def _follow(self, session: Session, follow: Follow) -> None:
        """Follow changes until the session is over; after a failure read everything again from the start."""
        pauses = Pauses()
        while session.state not in ENDED:
            try:
                await follow(session)
            except SessionExpired:
                return
            except Exception as problem:
                mistake = None if isinstance(problem, (StoreError, KafkaError, OSError)) else problem
                if pauses.is_news(problem):
                    event(log, logging.WARNING, "store changes not read", reason=problem, exc_info=mistake)
                await pauses.wait(asyncio.Event())

    async def _resign(self) -> None:
        """Stop following changes and resign as controller, as the session is over."""
        following, self._following = self._following, []
        for task in following:
            task.cancel()
        if self._control is not None:
            await self._control.resign()

    async def renew(self) -> None:
        """Apply changed settings to the broker's registration and to new connections to others. Raises StoreError."""
        await self._membership.renew()
        self.lines.reload()

    def missing(self) -> str:
        """Return why this broker is not a member although it reaches ZooKeeper, or "". If ZooKeeper is down for all
        brokers they keep serving, so that is no reason for clients to leave."""
        missed = self._membership.connected and not self._membership.registered
        return f"it is not registered in {self._store.name}" if missed else ""

    def check_account(self, credentials: Credentials) -> None:
        """Warn if other brokers will not accept this broker's login or certificate."""
        own_account.look_for_user(self._config, credentials)
        own_account.look_at_certificates(self._config)

    def show(self, exporter: Exporter, control: ControlPlane) -> None:
        """Add the metrics of the cluster, as this broker sees it."""
        from pybroker.server.metrics.replication import Cluster  # needs prometheus_client

        def epochs() -> dict[str, int]:
            image = control.metadata.image
            return {
                "broker": self._identity.broker_id, "broker_epoch": self.epoch,
                "controller": image.controller_id, "controller_epoch": image.controller_epoch,
            }  # fmt: skip

        exporter.show_cluster(
            Cluster(control.isr, lambda: control.controller, control.changes, epochs, self._membership, self.missing)
        )

    # -- stop --------------------------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Move leadership to other brokers, then leave, and end the session if ZooKeeper responds."""
        if not self._serving:
            return
        control = self._control
        assert control is not None
        if self._config["controlled.shutdown.enable"]:
            led = bool(control.isr.partitions())
            if control.controller is not None and control.metadata.image.brokers.keys() - {self._identity.broker_id}:
                await control.controller.hand_over()  # the ControlledShutdown below goes to the next controller
            handing = HandOver(
                self._config, self._identity.broker_id, control.link, control.metadata, self._away
            )
            if await handing.run(lambda: self.epoch) and led:
                await asyncio.sleep(TELLING_SECONDS)
        await self.leave()
        if self._silent or not await is_answered(lambda: self.session):  # ZooKeeper is down: do not wait for it
            await asyncio.wait({self.session.close()}, timeout=AWAY_SECONDS)

    async def _away(self) -> None:
        """Return once ZooKeeper no longer responds."""
        while not (self._replicas is not None and self._replicas.lease_lapsed):
            if not await is_answered(lambda: self.session):
                self._silent = True
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def leave(self) -> None:
        """Stop the tasks of the registration and the control plane."""
        if not self._serving:
            return
        self._serving = False
        if self._watching is not None:
            self._watching.cancel()
        assert self._control is not None
        await self._control.manager.stop()
        await self._control.isr.stop()
        await self._membership.close()
        for task in self._following:
            task.cancel()
        await self._control.close()

    def set_aside(self, problem: StoreDamaged) -> None:
        """Raise StartError, as the store belongs to the whole cluster."""
        raise StartError(str(problem)) from None

    async def close(self, *, session: bool = True) -> None:
        """Close the session and the connection to ZooKeeper. Raises StoreError."""
        if session and self._membership.has_session:
            await asyncio.wait([self.session.close()], timeout=FAREWELL_SECONDS)
        await self._store.close()


def store_of_cluster(config: BrokerConfig) -> Store:
    """The store that the settings name: the ZooKeeper at zookeeper.connect, or the etcd at etcd.connect."""
    if (at := config["etcd.connect"]) is not None:
        from pybroker.coordination.etcd import settings as etcd

        if config["etcd.user"] is None and not etcd.is_here(config):
            why = "any client that connects to etcd can take over the cluster: set etcd.user"
            event(log, logging.WARNING, "etcd is open to all", at=at, reason=why)
        return etcd.store_of(config)
    from pybroker.coordination.zookeeper import is_here, store_of  # needs kazoo

    at = config["zookeeper.connect"]
    if not config["zookeeper.set.acl"] and not is_here(at):
        why = "any client that connects to ZooKeeper can take over the cluster: set zookeeper.set.acl=true"
        event(log, logging.WARNING, "ZooKeeper is open to all", at=at, reason=why)
    return store_of(config)
