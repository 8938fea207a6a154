"""Settings as a cluster's store has them: each broker reads them all when its session begins, then what changed, and
goes by them each time.

    /config/changes        a new notice names an entity: topics/T, brokers/N, brokers/<default>, users/U and those of
                           quotas (`entities.py`); that is read
    /config/topics         topics come with their settings, and go: nobody writes a notice for that
    a topic id is told     settings that were read under another id are those of an earlier topic of that name
    connected again        watches were lost with the connection: all are looked at once more

Who alters settings writes them with a notice (`cluster_configs.py`), as Kafka's brokers do.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from pybroker.cluster.config_repository import ConfigRepository
from pybroker.cluster.topics import Topic
from pybroker.config import BrokerConfig
from pybroker.controller import nodes
from pybroker.controller.configs import Configured, load
from pybroker.controller.entities import EntityConfigs
from pybroker.controller.notices import Notices
from pybroker.coordination.commit import read, until_answered
from pybroker.coordination.store import NoNode, Session, StoreError, StoreFailed, Watch
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.tasks import cancel_and_wait

log = logging.getLogger(__name__)

READ_AT_ONCE = 1000
"""Nodes that are asked for before the first answer is waited for."""
PATIENCE_S = 1.0
"""How long whoever needs a topic's settings waits for them; they are gone by once they are there."""
UNKNOWN = {
    "min.insync.replicas": str((1 << 31) - 1), "cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"
}  # fmt: skip
"""What a topic goes by whose settings are not known: acks=all is refused, and nothing is deleted."""
UNREAD_S = 60.0
"""How often unreadable nodes of this broker's settings are read again."""
LAGS_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12)
"""How long a server of ZooKeeper that lags is given, between two looks, to hear of a topic."""


class ConfigWatch:
    """Keeps a broker's settings, and those of all topics, as the store has them."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        topics: ConfigRepository,
        held: Configured,
        entities: EntityConfigs,
    ) -> None:
        """`held` goes by what topics' settings say, logins and quotas by what `entities` have."""
        self._broker_id = broker_id
        self._config = config
        self._topics = topics
        self._held = held
        self._entities = entities
        self._unread: set[str] = set()
        self._ignored: dict[str, str] = {}  # the logged reason why settings cannot be read, of a topic or of all
        self._ids: dict[str, bytes | None] = {}  # under which topic id each topic's settings were read
        self._learning: dict[tuple[str, bytes], asyncio.Task[None]] = {}
        self.on_broker_altered: list[Callable[[], Awaitable[object]]] = []  # who goes by the broker's settings
        self.on_altered: list[Callable[[], object]] = []  # who goes by those of topics too

    async def read_all(self, session: Session, *, running: bool = False) -> None:
        """Read every setting there is; `running` as of `load`. Raises StoreError."""
        self._unread = await load(session, self._config, self._broker_id, running=running)
        await self.read_others(session)

    async def read_others(self, session: Session) -> None:
        """The same but for the broker's own, which a start has read before all else. Raises StoreError."""
        await self._entities.load_all(session)
        names = await self._listed(session, None)
        self._forget(self._ids.keys() - set(names))
        await self._read_topics(session, names)

    async def follow(self, session: Session) -> None:
        """Read what changes from now on, until the session ends. Raises StoreError."""
        with Notices(session, nodes.CONFIG_CHANGES) as notices:
            while True:
                fresh = await notices.look()
                names = await self._listed(session, notices.watch)
                if fresh is None:
                    await self.read_all(session, running=True)
                    await self._go_by_all()
                else:
                    self._forget(self._ids.keys() - set(names))
                    await self._learn(session, set(names) - self._ids.keys())
                    for entity in await self._named(session, fresh):
                        await self.take(session, entity)
                await self._wait(session, notices)

    async def _wait(self, session: Session, notices: Notices) -> None:
        """Wait until something may be new, or until it is time to read unreadable settings of this broker again."""
        try:
            async with asyncio.timeout(UNREAD_S if self._unread else None):
                await notices.wait()
        except TimeoutError:
            await self.take(session, f"brokers/{self._broker_id}")

    async def _listed(self, session: Session, watch: Watch | None) -> list[str]:
        """The topics that have settings. If ZooKeeper denies reading the list, the known ones: the settings of others
        are read by name once this broker learns of the topic."""
        try:
            names, _ = await until_answered(lambda: session.children(nodes.TOPIC_CONFIGS, watch=watch))
        except StoreFailed as problem:
            if self._ignored.get("") != str(problem):
                self._ignored[""] = str(problem)
                event(log, logging.ERROR, "list of settings ignored", node=nodes.TOPIC_CONFIGS, reason=problem)
            return list(self._ids)
        self._ignored.pop("", None)
        return names

    async def take(self, session: Session, entity: str) -> None:
        """Go by what the store says of an entity now. Raises StoreError."""
        kind, _, name = entity.partition("/")
        if kind == "topics":
            await self._learn(session, [name])
        elif (of := nodes.entity_of_path(entity)) is not None:
            await self._entities.load(session, of)
        elif kind == "brokers" and name in ("<default>", str(self._broker_id)):
            self._unread = await load(session, self._config, self._broker_id, running=True)
            await self._go_by_all()
            return
        for hear in self.on_altered:
            hear()

    async def _go_by_all(self) -> None:
        """Whatever may have changed."""
        await self._go_by(list(self._ids))
        for tell in self.on_broker_altered:
            await tell()
        for hear in self.on_altered:
            hear()

    async def topic(self, session: Session, name: str, topic_id: bytes) -> Mapping[str, str]:
        """The settings of the topic that has this id, which may have come a moment ago, in the place of an earlier one
        of its name; UNKNOWN where that takes longer, and it goes by them once they are there."""
        if self._ids.get(name) != topic_id:
            task = self._learning.get((name, topic_id))
            if task is None:
                task = asyncio.get_running_loop().create_task(self._learn_of(session, name, topic_id))
                self._learning[name, topic_id] = task
                task.add_done_callback(lambda _: self._learning.pop((name, topic_id), None))
            await asyncio.wait([task], timeout=PATIENCE_S)
        return self._topics.topic(name) if self._ids.get(name) == topic_id else UNKNOWN

    async def close(self) -> None:
        """Learn no more."""
        await cancel_and_wait(*self._learning.values())

    async def _learn_of(self, session: Session, name: str, topic_id: bytes) -> None:
        for lag_s in LAGS_S:
            try:
                await self._learn(session, [name])
            except StoreError:
                return  # the session is over: the next one reads all
            except (KafkaError, OSError) as problem:
                event(log, logging.WARNING, "settings of a topic not gone by", topic=name, reason=problem)
                return
            if self._ids.get(name) == topic_id:
                return
            await asyncio.sleep(lag_s)
        event(log, logging.WARNING, "settings of a topic not found", topic=name, topic_id=topic_id.hex())

    async def _learn(self, session: Session, names: Collection[str]) -> None:
        """Read the settings of topics, and go by them."""
        await self._read_topics(session, names)
        await self._go_by(names)

    async def _go_by(self, names: Iterable[str]) -> None:
        """What is open of these topics, told of or not."""
        known = [(name, topic_id) for name in names if (topic_id := self._ids.get(name)) is not None]
        await self._held.configure([Topic(name, topic_id, (), self._topics.topic(name)) for name, topic_id in known])

    async def _named(self, session: Session, paths: Iterable[str]) -> Iterable[str]:
        """The entities that notices name, each once; a notice that is gone was read by everybody long ago."""
        entities: dict[str, None] = {}
        for path in paths:
            try:
                data, _ = await read(session, path)
                entities[nodes.load_config_change(data)] = None
            except NoNode:
                continue
            except StoreFailed as problem:  # the node is damaged, or access is denied
                event(log, logging.WARNING, "notice of settings ignored", path=path, reason=problem)
        return entities

    async def _read_topics(self, session: Session, names: Iterable[str]) -> None:
        """Several at once: a cluster has thousands."""
        left = list(names)
        for first in range(0, len(left), READ_AT_ONCE):
            share = left[first : first + READ_AT_ONCE]
            await asyncio.gather(*(self._read_topic(session, name) for name in share))

    async def _read_topic(self, session: Session, name: str) -> None:
        """The id first: both are written at once, so the settings are of that topic or of a later one."""
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
                event(log, logging.ERROR, "settings of a topic ignored", topic=name, reason=problem)

    def _forget(self, names: Iterable[str]) -> None:
        for name in list(names):
            self._ids.pop(name, None)
            self._ignored.pop(name, None)
            self._topics.remove(name)
