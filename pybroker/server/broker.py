"""The broker as a whole: what is started in which order, how it stops, and nothing else.

Start: log dirs are locked and read; the store is opened; whose they are is settled; settings are read that were changed
while it ran; the sockets are bound, without accepting; the controllership is taken; the reactors are made, before logs
take descriptors; topics are loaded and their leader epochs bumped; logs are opened; the broker is registered; the
sockets accept. Stop: the same backwards; the mark of a clean stop is written last.
"""

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from random import Random, SystemRandom
from typing import TYPE_CHECKING

from pybroker.clock import monotonic_ms, wall_ms
from pybroker.cluster.config_repository import ConfigRepository
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.config import BrokerConfig
from pybroker.config.security_settings import TOKEN_SECRET
from pybroker.controller import configs, identity, loading, login_secret, migration
from pybroker.controller.adoption import Adoption
from pybroker.controller.channel import Channel
from pybroker.controller.configs import ConfigAdmin
from pybroker.controller.context import ControllerContext
from pybroker.controller.delegation_tokens import TokenStore
from pybroker.controller.election import elect
from pybroker.controller.entities import EntityConfigs
from pybroker.controller.producer_ids import ProducerIds
from pybroker.controller.registration import Registration
from pybroker.controller.topics import TopicAdmin
from pybroker.coordination.embedded import EmbeddedStore
from pybroker.coordination.store import NodeExists, NoNode, Session, Store, StoreDamaged, StoreError
from pybroker.groups.coordinator import Coordinator
from pybroker.logs import event
from pybroker.model import HostPort
from pybroker.replication.logdirs import LogDir, StartError, open_log_dirs, owner
from pybroker.replication.replicas import Replicas
from pybroker.replication.workers import Workers
from pybroker.security.credentials import Credentials
from pybroker.security.quotas import ClientQuotas
from pybroker.server import directories
from pybroker.server.authorization import Authorization
from pybroker.server.bridge import Bridge
from pybroker.server.connection import Responder
from pybroker.server.debts import Debts
from pybroker.server.dispatch import Dispatcher, Handler
from pybroker.server.group_locator import Locator
from pybroker.server.handlers.fetch import Fetch
from pybroker.server.listener import descriptors_for_logs
from pybroker.server.mutations import Mutations
from pybroker.server.network_threads import NetworkThreads
from pybroker.server.quotas import QuotaManager
from pybroker.server.scheduler import Scheduler, chores, finish_deletions
from pybroker.server.socket_server import SocketServer, pool_bytes
from pybroker.server.table import Collaborators, fetch_of, handlers
from pybroker.server.token_keeper import TokenKeeper

if TYPE_CHECKING:
    from pybroker.server.metrics_export import Exporter

log = logging.getLogger(__name__)

STRAYS_SHOWN = 20
SESSION_TIMEOUT_MS = 18_000
FINISH_SECONDS = 30.0
"""How long running requests have at a stop."""
FAREWELL_SECONDS = 3.0
"""How long the store has for the end of the session; where it cannot write, it does that when it is opened again."""

Table = Mapping[int, Handler]
"""API key to handler."""


class StartLeft(Exception):
    """Somebody asked the broker to stop while its start waited for others."""


class Broker:
    """One broker: `await start()`, serve, `await stop()`. `host` and `port` are those of its first listener."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        native_plane: bool = True,
        through: Callable[[Table], Table] | None = None,
        give_up: Collection[str] = (),
    ) -> None:
        """Without the native plane, Produce and Fetch are Python handlers as everything else is.

        `through`: what the table of handlers passes through before it serves; a test puts its faults there. `give_up`:
        ids or paths of log dirs, and names of partitions, whose missing data does not come back."""
        self.config = config
        self._give_up: Set[str] = directories.ids_of(give_up, {})
        self._known_dirs: Mapping[str, str] = {}  # {directory.id: path} as the store had them at start
        self._random: Random = SystemRandom()  # of ids and assignments; as wall_ms, the controller's code is handed it
        self._native = native_plane
        self._through = through
        self.broker_id = -1
        self.cluster_id = ""
        self.host, self.port = "", 0
        self.metrics_port = 0
        self.metadata = MetadataCache()
        self.entities = EntityConfigs(Credentials(), ClientQuotas())
        self._authorization: Authorization | None = None
        self._tokens: TokenKeeper | None = None
        self._registration: Registration | None = None
        self.replicas: Replicas | None = None
        self._dirs: list[LogDir] = []
        self._store: Store | None = None
        self._session: Session | None = None
        self._sockets: SocketServer | None = None
        self._fetch: Fetch | None = None
        self._scheduler: Scheduler | None = None
        self._workers: Workers | None = None
        self._threads = NetworkThreads(0, 0)  # of the native plane
        self._exporter: Exporter | None = None
        self._epoch = -1
        self._store_lost = False  # it was damaged or is gone, and another one is in its place
        self.groups: Coordinator | None = None
        self._loading_groups: asyncio.Task[None] | None = None
        self._deleted_topics: list[str] = []  # whose deletion this start finished
        self.disks_failed = asyncio.Event()  # all of them, or that of the store is not there, while it ran

    @property
    def log_dirs(self) -> Sequence[LogDir]:
        """Those that it uses, and those that it misses."""
        return self._dirs

    @property
    def addresses(self) -> Mapping[str, HostPort]:
        """Where each of its listeners is, by name."""
        return {} if self._sockets is None else self._sockets.addresses

    @property
    def topic_count(self) -> int:
        return len(self.metadata.image)

    @property
    def partition_count(self) -> int:
        return len(self.replicas or ())

    # -- start -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve. Raises StartError in one sentence for a person, OSError where the disk fails."""
        try:
            try:
                await self._start()
            except StoreDamaged as problem:
                await self._set_store_aside(problem)
                await self._start()
        except StoreError as problem:
            await self._release()
            raise StartError(str(problem)) from problem
        except BaseException:
            await self._release()
            raise

    async def _start(self) -> None:
        self._dirs = open_log_dirs(self.config.log_dirs)
        mine = owner(self._dirs)
        store = directories.with_store(self._dirs, self._give_up)
        session = self._session = await self._open_store(store)
        if (elsewhere := await migration.goes_on(session)) is not None:
            raise StartError(
                f"this broker's topics were moved to ZooKeeper at {elsewhere}: start it with --zookeeper {elsewhere}"
            )
        await loading.prepare(session)
        known_cluster = await identity.cluster_id(session)
        self._store_lost |= known_cluster is None and directories.had_store(self._dirs)
        configured: int = self.config["broker.id"]
        in_use = any(log_dir.in_use for log_dir in self._dirs if not log_dir.failure)
        self.cluster_id, self.broker_id = await identity.settle(
            session, configured, known_cluster, mine.cluster_id, mine.broker_id, self._random, in_use=in_use
        )
        self.metadata = MetadataCache(self.cluster_id)
        log_dirs = await self._settle_log_dirs(session, store)
        await configs.load(session, self.config, self.broker_id)
        sockets = await self._bind()
        fence = await elect(session, self.broker_id, wall_ms())
        if fence is None:
            raise StartError("another broker of this cluster is its controller already")
        context, metadata, topic_configs = ControllerContext(self.broker_id, fence), self.metadata, ConfigRepository()
        channel = Channel(context, metadata, topic_configs)
        await self.entities.load_all(session)
        await self._load_security(session)
        await loading.record_log_dirs(session, fence, self.broker_id, log_dirs)
        replicas = self._make_replicas(sockets)
        admin = TopicAdmin(session, context, channel, self.config, replicas, self._random)
        try:
            await self._load_topics(session, context, channel, admin, replicas, first_start=known_cluster is None)
        except (NoNode, NodeExists) as problem:  # nobody else writes to it
            raise StoreDamaged(detail=f"a node of the coordination store is not where it was made: {problem}") from None
        directories.warn_of_unknown(self._give_up, self._known_dirs, self._dirs, (r.key for r in replicas))
        ids = ProducerIds(lambda: session, self.broker_id, replicas.highest_producer_id)
        advertised = functools.partial(sockets.advertised, self.broker_id)
        self._registration = Registration(session, context, channel, advertised, wall_ms)
        try:
            self._epoch = await self._registration.register()
        except NodeExists:
            raise StartError(f"a broker with the id {self.broker_id} is registered in this cluster already") from None
        settings = ConfigAdmin(
            session, context, channel, self.config, admin, replicas, wall_ms, self.entities
        )
        settings.on_broker_altered.append(self._go_by_settings)
        settings.sockets = sockets
        groups, workers = self._work(replicas)
        locator = Locator(self.broker_id, metadata, replicas, admin, groups)
        admin.on_deleted.append(locator.topic_deleted)
        self._loading_groups = asyncio.get_running_loop().create_task(locator.lead(self._deleted_topics))
        asked = Collaborators(
            self.broker_id, self.config, metadata, topic_configs, replicas, admin, ids.draw, workers, groups, locator,
            settings, self.entities, self._authorization, self._token_store,
        )  # fmt: skip
        await self._serve(asked)

    async def _bind(self) -> SocketServer:
        """Take the addresses of clients and of metrics; nobody is accepted yet. Raises StartError."""
        sockets = self._sockets = SocketServer(self.config, self.entities.credentials)
        await sockets.bind()
        self.host, self.port = next(iter(sockets.addresses.values()))
        if self.config.metrics is not None:
            self._exporter = await self._show_metrics(sockets, self.config.metrics)
        return sockets

    def _make_replicas(self, sockets: SocketServer) -> Replicas:
        """The replicas, none open yet, and the reactors, which come before logs take descriptors."""
        replicas = self.replicas = Replicas(
            self.broker_id, self.config, self.metadata, self._dirs, self._give_up, descriptors_for_logs()
        )
        if self._native:
            sockets.use(self._native_plane(replicas), self.metadata)
        return replicas

    async def _open_store(self, log_dir: LogDir) -> Session:
        store = self._store = EmbeddedStore(os.path.join(log_dir.path, directories.STORE_FILE))
        await store.open()
        log_dir.keep_store(directories.STORE_FILE)
        store.made_room = log_dir.space.lacks
        return await self._store.session(SESSION_TIMEOUT_MS)

    async def _set_store_aside(self, problem: StoreDamaged) -> None:
        """Have the next start begin with a new store, and take over what lies in the log dirs. Raises OSError."""
        assert isinstance(self._store, EmbeddedStore)
        path = self._store.path
        await self._release()
        self._session = self._sockets = self._exporter = self.replicas = None
        directories.set_store_aside(path, problem)
        self._store_lost = True

    async def _settle_log_dirs(self, session: Session, store: LogDir) -> dict[str, str]:
        """See which log dirs are there; {directory.id: path} of those that are known from now on."""
        known = self._known_dirs = await loading.known_log_dirs(session, self.broker_id)
        self._give_up = directories.ids_of(self._give_up, known)
        held = await loading.held(session)
        self._dirs += directories.settle(self._dirs, known, held, self._give_up)
        return directories.claim(self._dirs, self.cluster_id, self.broker_id, store, self._random)

    async def _load_topics(
        self, session: Session, context: ControllerContext, channel: Channel, admin: TopicAdmin, replicas: Replicas,
        *, first_start: bool,
    ) -> None:  # fmt: skip
        """Open what the store knows. At the first start it knows nothing, and takes over what lies in the log dirs.

        The cluster id is written once that is done, so that a first start that was cut short is one again."""
        loaded, fence = await loading.load(session), context.fence
        found = replicas.survey({topic.name: topic.id for topic in loaded.topics})
        adoption = Adoption(session, fence, self.broker_id, self._random)
        if first_start:
            await adoption.all(found, loaded, replicas.kafka_settings, lost=self._store_lost)
            loaded = await loading.load(session)
            await identity.record_cluster_id(session, self.cluster_id)
        for topic in loaded.deleted:
            await admin.finish_deletion(topic)
            self._deleted_topics.append(topic.name)
        for topic, first in loaded.unfinished:
            await admin.undo(topic, first)
        if await adoption.strays(found, loaded) or loaded.deleted or loaded.unfinished:
            loaded = await loading.load(session)
        if not any(log_dir.failure for log_dir in self._dirs):
            await adoption.forget_deleted(found)
        topics = await loading.lead_again(session, fence, loaded.topics, found, self.broker_id)
        await replicas.open(topics, new=False)
        topics = await loading.record_directories(session, fence, topics, replicas)
        context.topics = {topic.name: topic for topic in topics}
        channel.update_configs(topics)
        channel.update_metadata(topics)
        image = self.metadata.image
        strays = [key for key in found if image.partition(*key) is None and replicas.directory_of(key)]
        if strays:
            event(
                log,
                logging.WARNING,
                "directories of unknown topics ignored",
                count=len(strays),
                partitions=",".join(map(str, strays[:STRAYS_SHOWN])),
            )

    def _tell_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # it ended before the disk did
            loop.call_soon_threadsafe(self._heed_failures)

    def _heed_failures(self) -> None:
        """A log dir failed, perhaps the last, or the one that topics and offsets of groups are known by."""
        if self.groups is not None:
            self.groups.resign_failed()
        if all(log_dir.failure for log_dir in self._dirs) or any(log_dir.store_removed for log_dir in self._dirs):
            self.disks_failed.set()

    def _work(self, replicas: Replicas) -> tuple[Coordinator, Workers]:
        """Begin with what goes on beside requests: chores, the coordinator of groups, failures of disks."""
        workers = self._workers = Workers(self._io_threads(), "records")
        groups = self.groups = Coordinator(self.config, workers)
        for log_dir in self._dirs:
            log_dir.on_failed = functools.partial(self._tell_loop, asyncio.get_running_loop())
        self._heed_failures()  # those of the start
        self._scheduler = Scheduler(chores(replicas, self.config), replicas.stop_cleaning)
        self._scheduler.start()
        workers.submit(finish_deletions, self._dirs)
        return groups, workers

    async def _serve(self, asked: Collaborators) -> None:
        """Accept, and have requests answered by those who are asked."""
        assert self._sockets is not None
        self._fetch = fetch_of(asked)
        await asyncio.sleep(0)  # every partition is known to be loading before the first request comes
        limits = Mutations(self.entities.quotas, self.metadata, self.config, monotonic_ms)
        table: Table = limits.counted(handlers(asked, self._fetch))
        free = None
        if self._authorization is not None:
            table, free = self._authorization.guard(table, self.metadata), self._authorization.is_free
            self._sockets.judge_by(self._authorization)
        quotas = QuotaManager(self.entities.quotas, None if asked.peers is None else self.config.listeners.inter_broker)
        self._sockets.count_by(quotas, self.entities.quotas)
        table = quotas.counted(table) if self._through is None else self._through(quotas.counted(table))
        responder: Responder = Dispatcher(table, quotas.charge, self._sockets.refuse)
        if self._exporter is not None:
            responder = self._exporter.watch(asked.replicas, asked.groups, quotas, responder)
        self._sockets.open(Debts(responder, quotas), free)
        if self._tokens is not None:
            self._tokens.sweep(self._is_controller)

    async def _load_security(self, session: Session) -> None:
        """Load ACLs, delegation tokens, and the secret for users that do not exist. Raises StoreError."""
        await login_secret.share(session, self.entities.credentials)
        self._authorization = Authorization.of(self.config, self._present_session)
        if self._authorization is not None:
            await self._authorization.load(session)
        if self.config[TOKEN_SECRET]:
            self._tokens = TokenKeeper(self.config, self._present_session, self.entities.credentials)
            await self._tokens.load(session)

    @property
    def _token_store(self) -> TokenStore | None:
        return None if self._tokens is None else self._tokens.store

    def _is_controller(self) -> bool:
        return True

    def _present_session(self) -> Session:
        assert self._session is not None
        return self._session

    async def _show_metrics(self, sockets: SocketServer, where: HostPort) -> "Exporter":
        """Open the endpoint of metrics; what it needs is only imported here."""
        from pybroker.server.metrics_export import Exporter

        exporter = Exporter(self.metadata, lambda: len(sockets), sockets.logins, sockets.certificate_ends)
        await exporter.open(where)
        self.metrics_port = exporter.port
        return exporter

    def _io_threads(self) -> int:
        threads: int = self.config["num.io.threads"]
        return min(threads, os.cpu_count() or 1)

    async def _go_by_settings(self) -> None:
        """Do as the settings say now: connections, threads, and the address that clients are told."""
        assert self._workers is not None and self.replicas is not None
        assert self._sockets is not None
        await self._sockets.look_up()
        self._sockets.follow()
        self._sockets.limit()
        self._sockets.reload()
        self._workers.resize(self._io_threads())
        self.replicas.resize()
        self._threads = self._wanted_threads().applied(self.replicas, self._threads)
        self.replicas.throttles.follow(self.config)
        await self._renew_registration()

    async def _renew_registration(self) -> None:
        assert self._registration is not None
        await self._registration.renew()

    def _native_plane(self, replicas: Replicas) -> Bridge:
        """The reactors that execute Produce and Fetch; what they decline comes to the handlers."""
        config = self.config
        threads = self._threads = self._wanted_threads()
        plane = replicas.native_plane(
            reactors=threads.serving,
            fetchers=threads.copying,
            frame_bytes_max=config["socket.request.max.bytes"],
            fetch_bytes_max=config["fetch.max.bytes"],
            idle_ms=config["connections.max.idle.ms"],
            pool_bytes=pool_bytes(config),
            requests_max=config["queued.max.requests"],
            fetch_sessions=config["max.incremental.fetch.session.cache.slots"],
            replica_listener=self._replica_listener(),
            rack=self._rack(),
        )
        listeners = [endpoint.listener for endpoint in config.listeners.endpoints]
        return Bridge(plane, replicas.grown, listeners, replicas.fetched, replicas.joining)

    def _wanted_threads(self) -> NetworkThreads:
        return NetworkThreads.of(self.config, follows=self._replica_listener() >= 0)

    def _rack(self) -> str | None:
        """The broker's rack, where consumers fetch from the replica in theirs; None: they fetch from leaders."""
        return None

    def _replica_listener(self) -> int:
        """The number of the listener that followers come by; -1: nobody follows."""
        return -1

    # -- stop ------------------------------------------------------------------------------------------------------

    def leave_start(self) -> None:
        """End a start that waits for others, with StartLeft; one that works goes on to its end."""

    async def stop(self) -> None:
        """Answer what runs, flush, record, and mark the stop as a clean one."""
        if self._exporter is not None:
            await self._exporter.detach()
        if self._sockets is not None and self._fetch is not None:
            self._sockets.stop_accepting()
            self._fetch.release()
            if self.groups is not None:
                self.groups.resign_all()
            await self._sockets.close(FINISH_SECONDS)
        if self._scheduler is not None:
            await asyncio.to_thread(self._scheduler.stop)
        if self.replicas is not None:
            clean = await asyncio.to_thread(self.replicas.close)
            for log_dir in clean:
                log_dir.record_clean_stop(self._epoch)
            self.replicas = None
        await self._release()

    async def abort(self) -> None:
        """End as SIGKILL would end the process: nobody is answered, nothing is flushed, no stop is marked."""
        if self._exporter is not None:
            await self._exporter.detach()
        if self._sockets is not None:
            self._sockets.abandon()
            await self._sockets.close(0)
        if self.groups is not None:
            self.groups.resign_all()
        if self._scheduler is not None:
            await asyncio.to_thread(self._scheduler.stop)
        if self.replicas is not None:
            await asyncio.to_thread(self.replicas.abandon)
            self.replicas = None
        self._session = None  # its nodes stay until the store is opened again
        await self._release()

    def disconnect(self) -> None:
        """Close every connection; clients may come back at once."""
        if self._sockets is not None:
            self._sockets.disconnect()

    def hurry(self) -> None:
        """Do not wait for running requests any longer; what was acknowledged is flushed all the same."""
        if self._sockets is not None:
            self._sockets.abandon()

    async def _release(self) -> None:
        """Give back what other processes may want: the address, the store, the log dirs."""
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
        with contextlib.suppress(StoreError):
            if self._session is not None:
                await asyncio.wait([self._session.close()], timeout=FAREWELL_SECONDS)
            if self._store is not None:
                await self._store.close()
        for log_dir in self._dirs:
            log_dir.close()
