"""Settings in a cluster's store: each broker reads and applies them all when its session begins, then each change.

    /config/changes        Each new notice names an entity whose settings are read: topics/T, brokers/N,
                           brokers/<default>, users/U and those of quotas (`entities.py`).
    /config/topics         Watched, because creating or deleting a topic writes no notice.
    a new topic id         Settings read under another id belong to an earlier topic of that name.
    reconnected            Watches were lost with the connection: everything is read again.

The broker that alters settings writes a notice with them (`config_admin.py`), as Kafka's brokers do.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from pybroker.config import BrokerConfig
from pybroker.coordination.commit import read, until_answered
from pybroker.coordination.store import NoNode, Session, StoreError, StoreFailed, Watch
from pybroker.decisions.config_repository import ConfigRepository
from pybroker.decisions.topics import Topic
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.metadata.configs import Configured, load
from pybroker.metadata.entities import EntityConfigs
from pybroker.metadata.notices import Notices
from pybroker.tasks import cancel_and_wait

log = logging.getLogger(__name__)

READ_AT_ONCE = 1000
"""Nodes read in parallel."""
PATIENCE_S = 1.0
"""Seconds that `topic` waits for settings; they are applied when they arrive, even if later."""
UNKNOWN = {
    "min.insync.replicas": str((1 << 31) - 1), "cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"
}  # fmt: skip
"""Settings applied to a topic while its own are unknown: acks=all is refused, and no record is deleted."""
UNREAD_S = 60.0
"""Seconds between retries of unreadable nodes of this broker's settings."""
LAGS_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12)
"""Seconds between reads of a new topic's settings: the ZooKeeper server may lag behind."""


async def nothing() -> None:
    """Do nothing."""


class ConfigWatch:
    """Keeps a broker's settings and those of all topics in step with the store."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        topics: ConfigRepository,
        held: Configured,
        entities: EntityConfigs,
        *,
        on_broker_altered: Callable[[], Awaitable[object]] = nothing,
        on_altered: Callable[[], object] = lambda: None,
    ) -> None:
        """`held` applies topics' settings, `entities` those of users, client ids and addresses. `on_broker_altered` is
        awaited when the broker's settings may have changed, `on_altered` is called when any may have."""
        self._broker_id = broker_id
        self._config = config
        self._topics = topics
        self._held = held
        self._entities = entities
        self._one = asyncio.Lock()
        self._unread: set[str] = set()
        self._own: set[str] = set()
        """Paths of notices that this broker wrote and has not yet seen listed."""
        self._ignored: dict[str, str] = {}  # the logged reason why settings cannot be read, of a topic or of all
        self._ids: dict[str, bytes | None] = {}  # under which topic id each topic's settings were read
        self._learning: dict[tuple[str, bytes], asyncio.Task[None]] = {}
        self._on_broker_altered, self._on_altered = on_broker_altered, on_altered

    async def read_all(self, session: Session) -> None:
        """Read all settings while the broker runs. Raises StoreError."""
        async with self._one:
            self._own.clear()
            self._unread = await load(session, self._config, self._broker_id, running=True)
            await self.read_others(session)

    async def read_others(self, session: Session) -> None:
        """Read all settings except the broker's own, which a start reads first. Raises StoreError."""
        await self._entities.load_all(session)
        names = await self._listed(session, None)
        self._forget(self._ids.keys() - set(names))
        await self._read_topics(session, names)

    async def follow(self, session: Session, *, known: bool = False) -> None:
        """Read and apply changes until the session ends. `known`: everything in the store now has been read. Raises
        StoreError."""
        with Notices(session, nodes.CONFIG_CHANGES, known=known) as notices:
            while True:
                fresh = await notices.look()
                names = await self._listed(session, notices.watch)
                if fresh is None:
                    await self.read_all(session)
                    await self._go_by_all()
                else:
                    self._forget(self._ids.keys() - set(names))
                    await self._learn(session, set(names) - self._ids.keys())
                    for entity in await self._named(session, fresh):
                        await self.take(session, entity)
                await self._wait(session, notices)

    async def _wait(self, session: Session, notices: Notices) -> None:
        """Wait for a possible change. If this broker's settings are unreadable, read them again after UNREAD_S."""
        try:
            async with asyncio.timeout(UNREAD_S if self._unread else None):
                await notices.wait()
        except TimeoutError:
            await self.take(session, f"brokers/{self._broker_id}")

    async def _listed(self, session: Session, watch: Watch | None) -> list[str]:
        """The topics that have settings. If ZooKeeper denies reading the list, return the known topics; others are read
        by name in `topic`."""
        try:
            names, _ = await until_answered(lambda: session.children(nodes.TOPIC_CONFIGS, watch=watch))
        except StoreFailed as problem:
            if self._ignored.get("") != str(problem):
                self._ignored[""] = str(problem)
                event(log, logging.ERROR, "list of topic settings unreadable", node=nodes.TOPIC_CONFIGS, reason=problem)
            return list(self._ids)
        self._ignored.pop("", None)
        return names

    def is_known(self, notice: str) -> None:
        """Skip the notice at this path: this broker wrote it and has applied its change."""
        self._own.add(notice)

    async def take(self, session: Session, entity: str) -> None:
        """Read and apply the settings of an entity. Raises StoreError."""
        async with self._one:  # `read_all` would forget an entity that is created meanwhile
            await self._take(session, entity)

    async def _take(self, session: Session, entity: str) -> None:
        kind, _, name = entity.partition("/")
        if kind == "topics":
            await self._learn(session, [name])
        elif (of := nodes.entity_of_path(entity)) is not None:
            await self._entities.load(session, of)
        elif kind == "brokers" and name in ("<default>", str(self._broker_id)):
            self._unread = await load(session, self._config, self._broker_id, running=True)
            await self._go_by_all()
            return
        self._on_altered()

    async def _go_by_all(self) -> None:
        """Apply all settings, of every topic and of the broker."""
        await self._go_by(list(self._ids))
        await self._on_broker_altered()
        self._on_altered()

    async def topic(self, session: Session, name: str, topic_id: bytes) -> Mapping[str, str]:
        """The settings of the topic with this id, which may just have replaced an earlier one of its name. UNKNOWN if
        reading takes longer than PATIENCE_S; they are applied when they arrive."""
        if self._ids.get(name) != topic_id:
            task = self._learning.get((name, topic_id))
            if task is None:
                task = asyncio.get_running_loop().create_task(self._learn_of(session, name, topic_id))
                self._learning[name, topic_id] = task
                task.add_done_callback(lambda _: self._learning.pop((name, topic_id), None))
            await asyncio.wait([task], timeout=PATIENCE_S)
        return self._topics.topic(name) if self._ids.get(name) == topic_id else UNKNOWN

    async def close(self) -> None:
        """Stop reading settings of new topics."""
        await cancel_and_wait(*self._learning.values())

    async def _learn_of(self, session: Session, name: str, topic_id: bytes) -> None:
        for lag_s in LAGS_S:
            try:
                await self._learn(session, [name])
            except StoreError:
                return  # the session is over: the next one reads all
            except (KafkaError, OSError) as problem:
                event(log, logging.WARNING, "topic settings not applied", topic=name, reason=problem)
                return
            if self._ids.get(name) == topic_id:
                return
            await asyncio.sleep(lag_s)
        event(log, logging.WARNING, "topic settings not found", topic=name, topic_id=topic_id.hex())

    async def _learn(self, session: Session, names: Collection[str]) -> None:
        """Read the settings of topics, and apply them."""
        await self._read_topics(session, names)
        await self._go_by(names)

    async def _go_by(self, names: Iterable[str]) -> None:
        """Apply the settings of these topics to their replicas here; topics without a known id are skipped."""
        known = [(name, topic_id) for name in names if (topic_id := self._ids.get(name)) is not None]
        await self._held.configure([Topic(name, topic_id, (), self._topics.topic(name)) for name, topic_id in known])

    async def _named(self, session: Session, paths: Iterable[str]) -> Iterable[str]:
        """The entities that notices name, each once. Notices that are gone were read long ago and are skipped."""
        entities: dict[str, None] = {}
        for path in paths:
            if path in self._own:
                self._own.discard(path)
                continue
            try:
                data, _ = await read(session, path)
                entities[nodes.load_config_change(data)] = None
            except NoNode:
                continue
            except StoreFailed as problem:  # the node is damaged, or access is denied
                event(log, logging.WARNING, "settings notice ignored", path=path, reason=problem)
        return entities

    async def _read_topics(self, session: Session, names: Iterable[str]) -> None:
        """Read the settings of topics, READ_AT_ONCE at a time: a cluster has thousands."""
        left = list(names)
        for first in range(0, len(left), READ_AT_ONCE):
            share = left[first : first + READ_AT_ONCE]
            await asyncio.gather(*(self._read_topic(session, name) for name in share))

    async def _read_topic(self, session: Session, name: str) -> None:
        """Read a topic's id, then its settings: both are written in one multi, so the settings are never older."""
        topic_id, config = None, dict[str, str]()
        try:
            with contextlib.suppress(NoNode):
                topic_id = nodes.load_topic((await read(session, nodes.topic(name)))[0]).id
            try:
                config = nodes.load_config((await read(session, nodes.topic_config(name)))[0])
            except NoNode:
                if topic_id is None:
                    self._forget([name])
                    return
            self._topics.put(name, config)
            self._ids[name] = topic_id
            self._ignored.pop(name, None)
        except StoreFailed as problem:  # the node is damaged, or access is denied
            if self._ignored.get(name) != str(problem):
                self._ignored[name] = str(problem)
                event(log, logging.ERROR, "topic settings ignored", topic=name, reason=problem)

    def _forget(self, names: Iterable[str]) -> None:
        for name in list(names):
            self._ids.pop(name, None)
            self._ignored.pop(name, None)
            self._topics.remove(name)
