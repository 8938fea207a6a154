"""A cluster without disks: controllers on a store in memory, and brokers that only record their requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from pybroker import errors
from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.controller.controller import Controller
from pybroker.coordination.memory import MemorySession
from pybroker.coordination.store import Create, NodeExists, NoNode
from pybroker.decisions.caller import Call, Caller
from pybroker.decisions.changes import Changes
from pybroker.decisions.image import LiveBroker, PartitionState, TopicImage
from pybroker.decisions.metadata_cache import FULL, MetadataCache
from pybroker.decisions.rollback import NOTHING, Known
from pybroker.metadata import nodes
from pybroker.metadata.lone_broker.loading import prepare
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.server.api.handlers.control import Control, Peers
from tests.controller.forbidding import ForbiddingStore
from tests.controller.stage import live_broker
from tests.harness import eventually
from tests.virtual import loop_ms

SESSION_MS = 30_000
EMPTY = NOTHING._replace(power_lost=False)
"""The state of a log that has no records, and lost none."""


class FakeLink:
    """A connection to a broker of the stage, which answers at once."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        broker.links.append(self)

    async def ask(self, message: Any, version: int, **_: Any) -> Any:
        await asyncio.sleep(0)
        if self.closed.done():
            raise ConnectionError("the broker is dead")
        return self._broker.answer(message)

    def close(self) -> None:
        if not self.closed.done():
            self.closed.set_result("closed")


class FakeBroker:
    """One broker: its session, its node, its controller, and the requests that it received."""

    def __init__(self, cluster: FakeCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.alive = True
        self.refused = 0  # connections refused since it died
        self.links: list[FakeLink] = []
        self.told: list[Any] = []
        self.states: dict[TopicPartition, Any] = {}
        """The partition states from LeaderAndIsr."""
        self.image: dict[TopicPartition, Any] = {}
        """The partition states from UpdateMetadata."""
        self.topic_ids: dict[str, bytes] = {}
        self.live: set[int] = set()
        self.deleted: list[TopicPartition] = []
        self.refuses: dict[TopicPartition, int] = {}
        self.controller_epoch = -1
        self.known: dict[TopicPartition, Known] = {}
        """The replicas whose leader epoch is above the one the controller may send."""

    async def join(self) -> FakeBroker:
        self.session: MemorySession = await self.cluster.store.session(SESSION_MS)
        await self.register()
        self.controller = self.candidate()
        self.controller.start()
        return self

    def candidate(self) -> Controller:
        """The controller of this broker's session, before it stands for election."""
        return Controller(
            self.session, self.number, self.cluster.config, lambda topic: self.cluster.configs.get(topic, {}),
            self.known_topic, self.cluster.open_link, wall_ms, Changes(wall_ms),
        )  # fmt: skip

    async def register(self) -> None:
        data = nodes.dump_broker(live_broker(self.number), 0)
        with contextlib.suppress(NodeExists):
            await self.session.create(nodes.broker(self.number), data, ephemeral=True)
        self.epoch = (await self.session.get(nodes.broker(self.number)))[1].czxid

    def known_topic(self, name: str) -> TopicImage | None:
        parts = [self.image[key] for key in sorted(self.image) if key.topic == name]
        states = [
            PartitionState(tuple(p.replicas), p.leader, p.leader_epoch, tuple(p.isr), p.controller_epoch, p.zk_version)
            for p in parts
        ]
        return TopicImage(name, self.topic_ids[name], tuple(states)) if parts else None

    async def leave(self) -> None:
        await self.controller.stop()
        with contextlib.suppress(Exception):
            await self.session.close()

    async def die(self, *, silently: bool = False) -> None:
        """Die as with `kill -9`: the session stays until it expires. With `silently` (a host): connections stay too."""
        self.alive = False
        await self.controller.stop()
        self.session.suspend()
        if not silently:
            for link in self.links:
                link.close()

    def answer(self, request: Any) -> Any:
        self.told.append(request)
        if request.controller_epoch < self.controller_epoch:
            code = errors.STALE_CONTROLLER_EPOCH
        elif request.broker_epoch < self.epoch:
            code = errors.STALE_BROKER_EPOCH
        else:
            code = errors.NONE
            self.controller_epoch = request.controller_epoch
        if isinstance(request, m.LeaderAndIsrRequest):
            return self._lead_and_follow(request, code)
        if isinstance(request, m.UpdateMetadataRequest):
            if not code:
                self.live = {broker.id for broker in request.live_brokers}
                if request.type == FULL:
                    named = {topic.topic_name for topic in request.topic_states}
                    self.image = {key: p for key, p in self.image.items() if key.topic in named}
                for topic in request.topic_states:
                    self.topic_ids[topic.topic_name] = bytes(topic.topic_id)
                    for p in topic.partition_states:  # as replication/manager.py: a dead broker is offline anyway
                        p.offline_replicas = [broker for broker in p.offline_replicas if broker in self.live]
                        self.image[TopicPartition(topic.topic_name, p.partition_index)] = p
            return m.UpdateMetadataResponse(error_code=code)
        failed = []
        for topic in request.topic_states:
            for p in topic.partition_states:
                key = TopicPartition(topic.topic_name, p.partition_index)
                if p.delete_partition and key not in self.refuses:
                    self.deleted.append(key)
                elif p.delete_partition:
                    failed.append((key, self.refuses[key]))
        kind = m.StopReplicaResponse.PartitionErrors
        found = [kind(topic_name=topic, partition_index=at, error_code=wrong) for (topic, at), wrong in failed]
        return m.StopReplicaResponse(error_code=code, partition_errors=found)

    def _lead_and_follow(self, request: Any, code: int) -> Any:
        kind = m.LeaderAndIsrResponse.Topics
        topics, known = [], {TopicPartition(t.topic_name, i) for t in request.asked_about for i in t.partition_indexes}
        for topic in request.topic_states:
            found = []
            for p in topic.partition_states:
                key = TopicPartition(topic.topic_name, p.partition_index)
                wrong = self.refuses.get(key, 0)
                later = self.states[key].leader_epoch if key in self.states else -1
                if key in self.known and self.known[key].leader_epoch > p.leader_epoch:
                    known.add(key)
                    wrong = errors.STALE_CONTROLLER_EPOCH
                if not code and not wrong and later < p.leader_epoch:
                    self.states[key] = p
                found.append(kind.PartitionErrors(partition_index=p.partition_index, error_code=wrong))
            topics.append(kind(topic_id=topic.topic_id, partition_errors=found))
        kept = m.LeaderAndIsrResponse.Known
        told = [
            kept(topic_name=key.topic, partition_index=key.partition, **self.known.get(key, EMPTY)._asdict())
            for key in sorted(known)
        ]
        return m.LeaderAndIsrResponse(error_code=code, topics=topics, known=told, latest_broker_epoch=self.epoch)


class FakeCluster:
    """Brokers that join one after another; the first is the controller."""

    def __init__(self, *sets: str) -> None:
        self.store = ForbiddingStore(timeouts_ms=(100, 60_000), clock_ms=loop_ms)
        self.config = BrokerConfig.load(None, list(sets))
        self.configs: dict[str, Mapping[str, str]] = {}
        self.brokers: dict[int, FakeBroker] = {}
        self.metadata = MetadataCache("cluster")

    async def begin(self, count: int = 3) -> FakeCluster:
        await self.store.open()
        self.admin = await self.store.session(60_000)
        self.store.owners.add(self.admin.id)
        await prepare(self.admin, nodes.OF_A_CLUSTER)
        for number in range(1, count + 1):
            await self.join(number)
        await eventually("all are told of all", lambda: all(b.live == set(self.brokers) for b in self.living))
        return self

    async def join(self, number: int) -> FakeBroker:
        self.brokers[number] = self.broker(number)
        return await self.brokers[number].join()

    def broker(self, number: int) -> FakeBroker:
        return FakeBroker(self, number)

    async def end(self) -> None:
        for broker in self.brokers.values():
            await broker.leave()
        await self.store.close()

    async def open_link(self, broker: LiveBroker) -> FakeLink:
        found = self.brokers[broker.id]
        if not found.alive:
            found.refused += 1
            raise ConnectionRefusedError
        return FakeLink(found)

    @property
    def living(self) -> list[FakeBroker]:
        return [broker for broker in self.brokers.values() if broker.alive]

    @property
    def controller(self) -> FakeBroker:
        return next(broker for broker in self.living if broker.controller.active)

    async def create(self, name: str, *replicas: Sequence[int]) -> list[TopicPartition]:
        """Create a topic as any broker does; return its partitions."""
        data = nodes.dump_assignment(name.encode().ljust(16, b"_"), replicas)
        config = Create(nodes.topic_config(name), nodes.dump_config({}))
        await self.admin.multi([config, Create(nodes.topic(name), data)])
        keys = [TopicPartition(name, index) for index in range(len(replicas))]
        await self.until_told(*keys)
        return keys

    async def until_told(self, *keys: TopicPartition) -> None:
        await eventually("all brokers are told of it", lambda: all(k in b.image for b in self.living for k in keys))

    async def state(self, key: TopicPartition) -> tuple[int, int, list[int], int]:
        """(leader, leader epoch, ISR, partition epoch) as the store has it."""
        data, stat = await self.admin.get(nodes.state(*key))
        found = nodes.load_state(data, (), stat.version)
        return found.leader, found.leader_epoch, list(found.isr), found.partition_epoch

    async def until_led(self, key: TopicPartition, leader: int) -> None:
        async def led() -> bool:
            with contextlib.suppress(NoNode):  # not created yet
                return (await self.state(key))[0] == leader
            return False

        await eventually(f"{leader} leads {key}", led)
        await eventually("all are told", lambda: all(b.image[key].leader == leader for b in self.living))


async def alter_partition(controller: Controller, request: Any, version: int) -> Any:
    """Return the answer to an AlterPartition that this controller's broker receives."""
    return await _door_of(controller).alter_partition(request, _call(version))


async def controlled_shutdown(controller: Controller, request: Any) -> Any:
    """Return the answer to a ControlledShutdown that this controller's broker receives."""
    return await _door_of(controller).controlled_shutdown(request, _call(3))


def _door_of(controller: Controller) -> Control:
    unused: Any = None
    return Control(Peers("BROKERS", unused, lambda: controller, unused))


def _call(version: int) -> Call:
    return Call(version, None, Caller("127.0.0.1", 1, "BROKERS"))
