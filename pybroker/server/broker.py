"""The broker as a whole: starts its parts in order, and stops them.

Start: lock and read the log dirs; connect to the store; settle the broker's identity; load dynamic settings; bind the
sockets, without accepting; create the parts. What differs between a lone broker and one of a cluster is in `place.py`:
registration, opening of logs, election, when the sockets accept.
Stop: the reverse. The clean-stop mark is written once all logs are closed; the store is closed last.
"""

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from random import Random, SystemRandom
from typing import TYPE_CHECKING

from pybroker.clock import monotonic_ms
from pybroker.config import BrokerConfig
from pybroker.config.security_settings import TOKEN_SECRET
from pybroker.coordination.store import Session, Store, StoreDamaged, StoreError
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.errors import StartError
from pybroker.groups.coordinator import Coordinator
from pybroker.metadata import configs, login_secret
from pybroker.metadata.delegation_tokens import TokenStore
from pybroker.metadata.entities import EntityConfigs
from pybroker.model import HostPort
from pybroker.replication.disks.logdirs import LogDir, open_log_dirs
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.replication.workers import Workers
from pybroker.security.credentials import Credentials
from pybroker.security.quotas import ClientQuotas
from pybroker.server.api.authorization import Authorization
from pybroker.server.api.debts import Debts
from pybroker.server.api.dispatch import AnyHandler, Dispatcher
from pybroker.server.api.handlers.fetch import Fetch, Followers
from pybroker.server.api.mutations import Mutations
from pybroker.server.api.quotas import QuotaManager
from pybroker.server.api.responder import Responder
from pybroker.server.api.table import Collaborators, fetch_of, handlers
from pybroker.server.cluster import directories
from pybroker.server.cluster.control_plane import ControlPlane
from pybroker.server.cluster.place import ClusterPlace
from pybroker.server.cluster.sole_member import SoleMember
from pybroker.server.cluster.token_keeper import TokenKeeper
from pybroker.server.network.bridge import native_plane
from pybroker.server.network.listener import descriptors_for_logs
from pybroker.server.network.network_threads import NetworkThreads
from pybroker.server.network.plane import PlaneMaker
from pybroker.server.network.socket_server import SocketServer
from pybroker.server.scheduler import Scheduler, chores, finish_deletions
from pybroker.server.tracing import tracing_of

if TYPE_CHECKING:
    from pybroker.server.metrics.export import Exporter
    from pybroker.server.tracing.export import Tracing

log = logging.getLogger(__name__)

FINISH_SECONDS = 30.0
"""Seconds that running requests have to finish at a stop."""
METADATA_GRACE_S = 0.003

Table = Mapping[int, AnyHandler]
"""The handlers by API key."""


class Broker:
    """One broker: `await start()`, serve, `await stop()`. `host` and `port` are those of its first listener."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        plane: PlaneMaker = native_plane,
        through: Callable[[Table], Table] | None = None,
        give_up: Collection[str] = (),
        store: Store | None = None,
        reach: Callable[[int, HostPort], HostPort] | None = None,
    ) -> None:
        """`plane` makes the plane that serves clients; `through` wraps the table of handlers; `reach` maps the id and
        address of another broker to the address to connect to: tests pass a slow plane, faults and a network.
        `give_up`: ids or paths of log dirs, and names of partitions, whose missing data is given up. `store`: the
        cluster's store, in place of the one that the settings name."""
        self.config = config
        self._alone = store is None and not config.in_cluster
        self._cluster_store, self._reach = store, reach
        self._named_lost: Set[str] = directories.ids_of(give_up, {})
        self._random: Random = SystemRandom()  # for ids and assignments; passed to the controller's code, like wall_ms
        self._make_plane = plane
        self._through = through
        self.broker_id = -1
        self.cluster_id = ""
        self.host, self.port = "", 0
        self.metrics_port = 0
        self.metadata = MetadataCache()
        self.entities = EntityConfigs(Credentials(), ClientQuotas())
        self._store_lost = False  # the store was damaged or missing, and a new one replaces it
        self._leaves_start = False
        self.disks_failed = asyncio.Event()  # set when all log dirs failed, or the store's files were removed
        self._forget_parts()

    def _forget_parts(self) -> None:
        """Reset the parts that a start creates."""
        self._dirs: list[LogDir] = []
        self._place: ClusterPlace | None = None
        self._control: ControlPlane | None = None
        self._authorization: Authorization | None = None
        self._tokens: TokenKeeper | None = None
        self.replicas: Replicas | None = None
        self._sockets: SocketServer | None = None
        self._fetch: Fetch | None = None
        self._scheduler: Scheduler | None = None
        self._workers: Workers | None = None
        self._threads = NetworkThreads(0, 0)  # of the plane
        self._exporter: Exporter | None = None
        self._tracing: Tracing | None = None
        self.groups: Coordinator | None = None

    @property
    def log_dirs(self) -> Sequence[LogDir]:
        """The log dirs in use, and those that are missing."""
        return self._dirs

    @property
    def addresses(self) -> Mapping[str, HostPort]:
        """The address of each listener, by name."""
        return {} if self._sockets is None else self._sockets.addresses

    @property
    def session(self) -> Session:
        """The current session of the store, which may have ended."""
        assert self._place is not None
        return self._place.session

    @property
    def topic_count(self) -> int:
        return len(self.metadata.image)

    @property
    def partition_count(self) -> int:
        return len(self.replicas or ())

    # -- start -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, and serve clients. Raises StartError with one sentence for the operator, StartLeft, OSError."""
        try:
            try:
                await self._start()
            except StoreDamaged as problem:
                place = self._place
                await self._release()
                self._forget_parts()
                assert place is not None
                place.set_aside(problem)
                self._store_lost = True
                await self._start()
        except StoreError as problem:
            await self._release()
            raise StartError(str(problem)) from problem
        except BaseException:
            await self._release()
            raise

    async def _start(self) -> None:
        config = self.config
        dirs = self._dirs = open_log_dirs(config.log_dirs)
        place = self._place = self._make_place()
        await place.open(dirs)
        self.cluster_id, self.broker_id = await place.settle()
        metadata = self.metadata = MetadataCache(
            self.cluster_id, time.monotonic, grace_s=0.0 if self._alone else METADATA_GRACE_S, look=self._look
        )
        await place.do(lambda session: configs.load(session, config, self.broker_id, cautious=place.cautious))
        sockets = await self._bind()
        replicas = self.replicas = Replicas(
            self.broker_id, config, metadata, dirs, place.give_up, descriptors_for_logs(), self._joining
        )
        self._threads = self._wanted_threads(place)
        plane = self._make_plane(
            config, replicas, self._threads, replica_listener=place.replica_listener, rack=place.rack
        )
        sockets.use(plane, metadata)  # reactors must open their descriptors before logs take the rest
        recovered = await place.recover(replicas, functools.partial(sockets.advertised, self.broker_id))
        workers = self._workers = Workers(self._io_threads(), "records")
        groups = self.groups = Coordinator(config, workers)
        metadata.expect_topics(recovered.has_topics)
        control = self._control = ControlPlane(
            broker_id=self.broker_id,
            config=config,
            metadata=metadata,
            replicas=replicas,
            entities=self.entities,
            groups=groups,
            workers=workers,
            sockets=sockets,
            member=place,
            lines=place.lines,
            random=self._random,
            is_native=replicas.is_native,
            on_settings=self._go_by_settings,
            on_told=place.told,
            assignments=recovered.assignments,
            deleted=recovered.deleted,
        )
        await place.do(control.watch.read_others)
        await self._load_security(place)
        self._begin_upkeep(replicas, workers, control)
        asked = self._collaborators(replicas, workers, groups, control, place)
        if self._exporter is not None:
            place.show(self._exporter, control)
        await place.join(control, functools.partial(self._serve, asked))

    def _make_place(self) -> ClusterPlace:
        if self._alone:
            return SoleMember(self.config, self._named_lost, self._random, store_lost=self._store_lost)
        from pybroker.server.cluster.cluster_member import (  # not needed by a lone broker
            ClusterMember,
            store_of_cluster,
        )

        place: ClusterMember = ClusterMember(
            self.config, self._named_lost, self._random, store=self._cluster_store or store_of_cluster(self.config),
            live=lambda: self.metadata.image.brokers, follows=self._follows, reach=self._reach,
        )  # fmt: skip
        if self._leaves_start:
            place.leave_start()
        return place

    def _look(self) -> None:
        if self._control is not None:
            self._control.manager.look()

    def _joining(self, replica: Replica) -> None:
        if self._control is not None:
            self._control.isr.caught_up(replica)

    async def _bind(self) -> SocketServer:
        """Bind the listeners and the metrics endpoint, without accepting yet. Raises StartError."""
        sockets = self._sockets = SocketServer(self.config, self.entities.credentials)
        await sockets.bind()
        self.host, self.port = next(iter(sockets.addresses.values()))
        if self.config.metrics is not None:
            self._exporter = await self._show_metrics(sockets, self.config.metrics)
        return sockets

    def _begin_upkeep(self, replicas: Replicas, workers: Workers, control: ControlPlane) -> None:
        """Start the background tasks: chores, and the handling of disk failures."""
        loop = asyncio.get_running_loop()
        for log_dir in self._dirs:
            log_dir.report_to(
                functools.partial(_on_loop, loop, self._heed_failures),
                functools.partial(_on_loop, loop, control.report_log_dirs),
            )
        self._heed_failures()  # of log dirs that failed during the start
        self._scheduler = Scheduler(chores(replicas, self.config), replicas.stop_cleaning)
        self._scheduler.start()
        workers.submit(finish_deletions, self._dirs)

    def _heed_failures(self) -> None:
        """Handle failed log dirs: resign as coordinator of groups there, and report to the controller, which elects
        other leaders. Set `disks_failed` if no log dir is left or the store was removed."""
        if self.groups is not None:
            self.groups.resign_failed()
        if self._control is not None:
            self._control.transactions.coordinator.resign_failed()
        if all(log_dir.failure for log_dir in self._dirs) or any(log_dir.store_removed for log_dir in self._dirs):
            self.disks_failed.set()
        if self._control is not None and any(log_dir.failure for log_dir in self._dirs):
            self._control.report_log_dirs()

    def _collaborators(
        self, replicas: Replicas, workers: Workers, groups: Coordinator, control: ControlPlane, place: ClusterPlace
    ) -> Collaborators:
        followers = None
        if place.lines is not None:
            followers = Followers(
                control.inter_broker, control.isr.fetched, self.broker_id, self.config["broker.rack"],
                place.rack is not None,
            )  # fmt: skip
        return Collaborators(
            broker_id=self.broker_id,
            config=self.config,
            metadata=self.metadata,
            topic_configs=control.topic_configs,
            replicas=replicas,
            admin=control.topics,
            draw_producer_id=control.ids.draw,
            workers=workers,
            groups=groups,
            locator=control.locator,
            transactions=control.transactions.coordinator,
            transaction_locator=control.transactions.locator,
            verification=control.transactions.verification,
            configs=control.configs,
            entities=self.entities,
            authorization=self._authorization,
            tokens=self._token_store,
            controller=lambda: control.controller,
            peers=None if place.lines is None else control.peers,
            followers=followers,
        )

    async def _serve(self, asked: Collaborators) -> None:
        """Build the chain of responders around the handlers, and accept connections."""
        assert self._sockets is not None
        self._fetch = fetch_of(asked)
        limits = Mutations(self.entities.quotas, self.metadata, self.config, monotonic_ms)
        table: Table = limits.counted(handlers(asked, self._fetch))
        tracing = self._tracing = tracing_of(self.config, self.broker_id, self.cluster_id)
        free = None
        if self._authorization is not None:
            table, free = self._authorization.guard(table, self.metadata), self._authorization.is_free
            self._sockets.judge_by(self._authorization)
        quotas = QuotaManager(self.entities.quotas, None if asked.peers is None else self.config.listeners.inter_broker)
        self._sockets.count_by(quotas, self.entities.quotas)
        table = quotas.counted(table) if self._through is None else self._through(quotas.counted(table))
        responder: Responder = Dispatcher(
            table if tracing is None else tracing.described(table), quotas.charge, self._sockets.refuse
        )
        if self._exporter is not None:
            responder = self._exporter.watch(asked.replicas, asked.groups, quotas, responder)
        responder = Debts(responder, quotas)
        self._sockets.open(responder if tracing is None else tracing.watch(asked.replicas, responder), free)
        if self._tokens is not None:
            self._tokens.sweep(self._is_controller)

    async def _load_security(self, place: ClusterPlace) -> None:
        """Load ACLs, delegation tokens, and the secret for users that do not exist. Raises StoreError."""
        credentials = self.entities.credentials
        place.check_account(credentials)
        await place.do(functools.partial(login_secret.share, credentials=credentials))
        def present() -> Session:
            return self.session

        self._authorization = Authorization.of(self.config, present)
        if self._authorization is not None:
            await place.do(self._authorization.load)
            if place.lines is not None:
                self._authorization.warn_of_brokers()
        if self.config[TOKEN_SECRET]:
            self._tokens = TokenKeeper(self.config, present, credentials)
            await place.do(self._tokens.load)

    @property
    def _token_store(self) -> TokenStore | None:
        return None if self._tokens is None else self._tokens.store

    def _is_controller(self) -> bool:
        controller = None if self._control is None else self._control.controller
        return controller is not None and controller.active

    def _follows(self) -> list[Callable[[Session], Awaitable[None]]]:
        """The functions that follow changes of ACLs and delegation tokens in the store."""
        stores = [None if self._authorization is None else self._authorization.store, self._token_store]
        return [store.follow for store in stores if store is not None]

    async def _show_metrics(self, sockets: SocketServer, where: HostPort) -> "Exporter":
        """Open the metrics endpoint, whose modules are only imported here."""
        from pybroker.server.metrics.bounded import SeriesLimits
        from pybroker.server.metrics.export import Exporter

        limits = SeriesLimits(*(self.config[f"metrics.{what}.max"] for what in SeriesLimits._fields))
        exporter = Exporter(self.metadata, lambda: len(sockets), sockets.logins, sockets.certificate_ends, limits)
        await exporter.open(where)
        self.metrics_port = exporter.port
        return exporter

    def _io_threads(self) -> int:
        threads: int = self.config["num.io.threads"]
        return min(threads, os.cpu_count() or 1)

    async def _go_by_settings(self) -> None:
        """Apply changed settings: connection limits, threads, and advertised addresses."""
        place = self._place
        assert self._workers is not None and self.replicas is not None
        assert self._sockets is not None and place is not None
        await self._sockets.look_up()
        self._sockets.follow()
        self._sockets.limit()
        self._sockets.reload()
        self._workers.resize(self._io_threads())
        self.replicas.resize()
        self._threads = self._wanted_threads(place).applied(self.replicas, self._threads)
        self.replicas.throttles.follow(self.config)
        await place.renew()

    def read_again(self) -> None:
        """Read again the files whose content may change under the same names; see SIGHUP in docs/systemd.md."""
        if self._sockets is not None and self._place is not None:
            lines = self._place.lines
            self._sockets.read_again(has_peers=lines is not None)
            if lines is not None:
                lines.reload()

    def _wanted_threads(self, place: ClusterPlace) -> NetworkThreads:
        return NetworkThreads.of(self.config, follows=place.replica_listener >= 0)

    # -- stop ------------------------------------------------------------------------------------------------------

    def leave_start(self) -> None:
        """Abort a start that waits for ZooKeeper or other brokers, with StartLeft; otherwise the start continues."""
        self._leaves_start = True
        if self._place is not None:
            self._place.leave_start()

    async def stop(self) -> None:
        """Finish running requests, flush the logs, and mark the stop as clean."""
        epoch = -1
        if self._place is not None:
            epoch = self._place.epoch
            await self._place.hand_over()
        if self._exporter is not None:
            await self._exporter.detach()
        if self._sockets is not None and self._fetch is not None:
            self._sockets.stop_accepting()
            self._fetch.release()
            self._resign_coordinators()
            await self._sockets.close(FINISH_SECONDS)
        if self._place is not None:
            await self._place.leave()
        if self._scheduler is not None:
            await asyncio.to_thread(self._scheduler.stop)
        if self.replicas is not None:
            clean = await asyncio.to_thread(self.replicas.close)
            for log_dir in clean:
                log_dir.record_clean_stop(epoch)
            self.replicas = None
        await self._release()

    def _resign_coordinators(self) -> None:
        if self.groups is not None:
            self.groups.resign_all()
        if self._control is not None:
            self._control.transactions.coordinator.resign_all()

    async def abort(self) -> None:
        """End like SIGKILL: answer no request, flush nothing, and do not mark the stop as clean."""
        if self._exporter is not None:
            await self._exporter.detach()
        if self._sockets is not None:
            self._sockets.abandon()
            await self._sockets.close(0)
        self._resign_coordinators()
        if self._place is not None:
            await self._place.leave()
        if self._scheduler is not None:
            await asyncio.to_thread(self._scheduler.stop)
        if self.replicas is not None:
            await asyncio.to_thread(self.replicas.abandon)
            self.replicas = None
        await self._release(session=False)  # its ephemeral nodes stay until the store is opened again

    def disconnect(self) -> None:
        """Close every connection; clients may reconnect at once."""
        if self._sockets is not None:
            self._sockets.disconnect()

    def hurry(self) -> None:
        """Stop waiting for running requests; acknowledged records are still flushed."""
        if self._sockets is not None:
            self._sockets.abandon()

    async def _release(self, *, session: bool = True) -> None:
        """Release the addresses, the store and the log dirs, which other processes may want."""
        if self._place is not None:
            await self._place.leave()
        if self._tracing is not None:
            await self._tracing.close()
            self._tracing = None
        if self._tokens is not None:
            await self._tokens.close()
        if self._exporter is not None:
            await self._exporter.close()
        if self._sockets is not None:
            self._sockets.release()
        if self._authorization is not None:
            self._authorization.close()
        if self.replicas is not None:
            await asyncio.to_thread(self.replicas.close)
        if self._workers is not None:
            self._workers.shutdown()
        if self._place is not None:
            with contextlib.suppress(StoreError):
                await self._place.close(session=session)
        for log_dir in self._dirs:
            log_dir.close()


def _on_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> None:
    """Run `work` on the event loop; call from any thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed already
        loop.call_soon_threadsafe(work)
