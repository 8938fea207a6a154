"""The parts of a broker that write settings and apply those in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.coordination.memory import MemorySession, MemoryStore
from pybroker.decisions.config_repository import ConfigRepository
from pybroker.decisions.image import PartitionState
from pybroker.decisions.metadata_cache import MetadataCache, TopicStates, UpdateMetadata
from pybroker.decisions.topics import Topic
from pybroker.metadata.config_admin import ConfigAdmin
from pybroker.metadata.config_watch import ConfigWatch, nothing
from pybroker.metadata.entities import EntityConfigs
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
    """The replicas of a broker, as far as settings apply to them."""

    def __init__(self) -> None:
        self.configured: list[dict[str, str]] = []

    async def configure(self, topics: Sequence[Topic]) -> None:
        self.configured += [dict(topic.config) for topic in topics]


class Member:
    """The parts of a broker that handle settings."""

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
        self.on_broker_altered: Callable[[], Awaitable[object]] = nothing
        self.on_altered: Callable[[], object] = lambda: None
        self.watch = ConfigWatch(
            number, self.config, self.topics, self.held, self.entities,
            on_broker_altered=lambda: self.on_broker_altered(), on_altered=lambda: self.on_altered(),
        )  # fmt: skip

    async def join(self, store: MemoryStore) -> None:
        self.store = store
        self.session: MemorySession = await store.session(60_000)
        present = lambda: self.session  # noqa: E731
        self.configs = ConfigAdmin(
            present, self.number, self.config, self.topics, self.metadata, self.watch, wall_ms
        )
        self.following = asyncio.create_task(self.watch.follow(self.session))
        await eventually("it has read all", lambda: self.topics.topic("t") or self.following.done())
