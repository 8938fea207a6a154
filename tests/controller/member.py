"""One broker of a cluster, as far as its settings go: it writes them, and goes by what the store has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pybroker.clock import wall_ms
from pybroker.cluster.config_repository import ConfigRepository
from pybroker.cluster.image import PartitionState
from pybroker.cluster.metadata_cache import MetadataCache, TopicStates, UpdateMetadata
from pybroker.cluster.topics import Topic
from pybroker.config import BrokerConfig
from pybroker.controller.cluster_configs import ClusterConfigs
from pybroker.controller.config_watch import ConfigWatch
from pybroker.controller.entities import EntityConfigs
from pybroker.coordination.memory import MemorySession, MemoryStore
from pybroker.security.credentials import Credentials
from pybroker.security.quotas import ClientQuotas
from tests.controller.stage import live_broker
from tests.harness import eventually

T_ID = b"t" * 16
LISTENERS = [
    "listeners=PLAINTEXT://:9092,CLIENTS://:9093",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT",
]


class Held:
    """The replicas of a broker, as far as they go by settings."""

    def __init__(self) -> None:
        self.configured: list[dict[str, str]] = []

    async def configure(self, topics: Sequence[Topic]) -> None:
        self.configured += [dict(topic.config) for topic in topics]


class Member:
    """One broker of a cluster, as far as its settings go."""

    def __init__(self, number: int, sets: Sequence[str] = LISTENERS) -> None:
        self.number = number
        self.config = BrokerConfig.load(None, ["password.encoder.secret=in winter", *sets])
        self.topics = ConfigRepository()
        self.metadata = MetadataCache("cluster")
        state = PartitionState((1, 2), 1, 0, (1, 2), 1, 0)
        told = TopicStates("t", b"t" * 16, {0: state})
        self.metadata.update(UpdateMetadata(1, 1, [live_broker(1), live_broker(2)], [told]))
        self.held = Held()
        self.entities = EntityConfigs(Credentials(), ClientQuotas())
        self.credentials = self.entities.credentials
        self.watch = ConfigWatch(number, self.config, self.topics, self.held, self.entities)

    async def join(self, store: MemoryStore) -> None:
        self.store = store
        self.session: MemorySession = await store.session(60_000)
        present = lambda: self.session  # noqa: E731
        self.configs = ClusterConfigs(
            present, self.number, self.config, self.topics, self.metadata, self.watch, wall_ms
        )
        self.following = asyncio.create_task(self.watch.follow(self.session))
        await eventually("it has read all", lambda: self.topics.topic("t") or self.following.done())
