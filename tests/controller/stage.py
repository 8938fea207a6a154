"""A controller on a store in memory, whose clock, ids and placements come from a seed; and brokers that do as told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random

from pybroker import errors
from pybroker.cluster.config_repository import ConfigRepository
from pybroker.cluster.image import LiveBroker
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.cluster.topics import Topic
from pybroker.config import BrokerConfig
from pybroker.controller.channel import Channel
from pybroker.controller.configs import ConfigAdmin
from pybroker.controller.context import ControllerContext
from pybroker.controller.election import elect
from pybroker.controller.entities import EntityConfigs
from pybroker.controller.loading import prepare
from pybroker.controller.producer_ids import ProducerIds
from pybroker.controller.topics import TopicAdmin
from pybroker.coordination.memory import MemoryStore
from pybroker.coordination.store import NoNode, Session
from pybroker.errors import KafkaError
from pybroker.model import PLAINTEXT, HostPort
from pybroker.security.credentials import Credentials
from pybroker.security.quotas import ClientQuotas

TIMEOUT_MS = 6_000
BEGAN_MS = 1_700_000_000_000
TICK_MS = 7


def live_broker(number: int, **listeners: int) -> LiveBroker:
    """A broker with these listeners, each at a port; in one of two racks."""
    ports = listeners or {PLAINTEXT: 9092}
    at = {name: HostPort(f"host-{number}", port) for name, port in ports.items()}
    return LiveBroker(number, at, dict.fromkeys(ports, PLAINTEXT), f"rack-{number % 2}")


class Holders:
    """Whoever holds replicas: remembers what it was told, and refuses to make the topics named in `refuses`."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, int]] = []
        self.refuses: set[str] = set()

    async def open(self, topics: Iterable[Topic], *, first: int = 0, new: bool) -> None:
        for topic in topics:
            if topic.name in self.refuses:
                raise KafkaError(errors.KAFKA_STORAGE_ERROR, f"{topic.name} cannot be made")
            self.told.append(("open", topic.name, first))

    def show(self, topic: Topic, first: int) -> None:
        self.told.append(("show", topic.name, first))

    async def delete(self, topic: Topic, first: int = 0) -> None:
        self.told.append(("delete", topic.name, first))

    def directories(self, topic: Topic) -> Mapping[int, str]:
        return {index: f"dir-{index % 2}" for index in range(len(topic.partitions))}

    async def configure(self, topics: Sequence[Topic]) -> None:
        self.told += [("configure", topic.name, 0) for topic in topics]


class Stage:
    """One controller, of broker 1, and the cluster that it sees."""

    session: Session
    context: ControllerContext
    topics: TopicAdmin
    configs: ConfigAdmin
    ids: ProducerIds

    def __init__(self, seed: int = 0, brokers: int = 3) -> None:
        self.random = Random(seed)
        self.now_ms = BEGAN_MS
        self.store = MemoryStore(clock_ms=self.wall_ms, wall_ms=self.wall_ms)
        self.config = BrokerConfig.load(None, ["num.partitions=2", "default.replication.factor=1"])
        self.holders = Holders()
        self.metadata = MetadataCache("cluster")
        self.topic_configs = ConfigRepository()
        self.brokers = {number: live_broker(number) for number in range(1, brokers + 1)}

    def wall_ms(self) -> int:
        """Another moment at each look."""
        self.now_ms += TICK_MS
        return self.now_ms

    async def begin(self) -> Stage:
        await self.store.open()
        await self.take_over(1)
        return self

    async def take_over(self, broker_id: int) -> None:
        """Be the controller from now on, in a session of its own."""
        self.session = await self.store.session(TIMEOUT_MS)
        await prepare(self.session)
        fence = await elect(self.session, broker_id, self.wall_ms())
        assert fence is not None
        self.context = ControllerContext(broker_id, fence, dict(self.brokers))
        channel = Channel(self.context, self.metadata, self.topic_configs)
        self.topics = TopicAdmin(self.session, self.context, channel, self.config, self.holders, self.random)
        self.entities = EntityConfigs(Credentials(), ClientQuotas())
        self.credentials = self.entities.credentials
        self.configs = ConfigAdmin(
            self.session, self.context, channel, self.config, self.topics, self.holders, self.wall_ms, self.entities
        )
        self.ids = ProducerIds(lambda: self.session, broker_id, lambda: -1)

    async def end(self) -> None:
        await self.store.close()

    async def there(self, path: str) -> bytes | None:
        """What a node of the store holds; None if there is none."""
        try:
            return (await self.session.get(path))[0]
        except NoNode:
            return None

    async def tree(self, path: str = "/") -> bytes:
        """Every node with its data and all that the store knows of it, one a line."""
        data, stat = await self.session.get(path)
        lines = [f"{path} {data!r} {tuple(stat)}\n".encode()]
        for name in (await self.session.children(path))[0]:
            lines.append(await self.tree(f"{path.rstrip('/')}/{name}"))
        return b"".join(lines)
