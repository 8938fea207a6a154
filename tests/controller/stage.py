"""The control plane of broker 1 on a store in memory, with clock, ids and placements from a seed, and brokers that
accept every request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from pybroker import errors
from pybroker.config import BrokerConfig
from pybroker.controller.context import ControllerContext
from pybroker.coordination.memory import MemoryStore
from pybroker.coordination.store import NoNode, Session
from pybroker.decisions.image import LiveBroker
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.decisions.topics import Topic
from pybroker.groups.coordinator import Coordinator
from pybroker.metadata import nodes
from pybroker.metadata.entities import EntityConfigs
from pybroker.metadata.lone_broker.loading import prepare
from pybroker.model import PLAINTEXT, HostPort
from pybroker.protocol import messages as m
from pybroker.security.credentials import Credentials
from pybroker.security.quotas import ClientQuotas
from pybroker.server.api.handlers.control import metadata_of
from pybroker.server.cluster.control_plane import ControlPlane
from tests.harness import eventually

TIMEOUT_MS = 6_000
BEGAN_MS = 1_700_000_000_000
TICK_MS = 7


def live_broker(number: int, **listeners: int) -> LiveBroker:
    """A broker with these listeners and their ports, in one of two racks."""
    ports = listeners or {PLAINTEXT: 9092}
    at = {name: HostPort(f"host-{number}", port) for name, port in ports.items()}
    return LiveBroker(number, at, dict.fromkeys(ports, PLAINTEXT), f"rack-{number % 2}")


class NoReplicas:
    """The replicas of a broker without disks, which record the settings that they get."""

    is_native = lease_lapsed = False

    def __init__(self) -> None:
        self.configured: list[str] = []
        self.moves = self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def report_to(self, on_moved: object) -> None:
        """Ignore who asks to be called after a move: nothing moves."""

    def highest_producer_id(self) -> int:
        return -1

    async def configure(self, topics: Sequence[Topic]) -> None:
        self.configured += [topic.name for topic in topics]


class Obedient:
    """A connection to a broker that accepts every request at once, and records it."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage, self._number = stage, number
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def ask(self, message: Any, version: int, **_: Any) -> Any:
        await asyncio.sleep(0)
        if self.closed.done():
            raise ConnectionError("the line was closed")
        return await self._stage.told_to(self._number, message)

    def close(self) -> None:
        if not self.closed.done():
            self.closed.set_result("the line was closed")


class Stage:
    """The cluster as its controller, broker 1, sees it."""

    session: Session
    control: ControlPlane

    def __init__(self, seed: int = 0, brokers: int = 3) -> None:
        self.random = Random(seed)
        self.now_ms = BEGAN_MS
        self.store = MemoryStore(clock_ms=self.wall_ms, wall_ms=self.wall_ms)
        self.config = BrokerConfig.load(None, ["num.partitions=2", "default.replication.factor=1"])
        self.metadata = MetadataCache("cluster")
        self.brokers = {number: live_broker(number) for number in range(1, brokers + 1)}
        self.replicas: Any = NoReplicas()
        self.entities = EntityConfigs(Credentials(), ClientQuotas())
        self.credentials = self.entities.credentials
        self.told: list[tuple[int, Any]] = []
        self._known: ControllerContext | None = None
        self.epochs: dict[int, int] = {}
        self.heard: list[int] = []
        """The value of log.retention.ms at each change of the broker's settings."""

    are_reached_by_core = False

    def wall_ms(self) -> int:
        """The wall clock, which advances at each call."""
        self.now_ms += TICK_MS
        return self.now_ms

    async def begin(self) -> Stage:
        await self.store.open()
        await self.take_over(1)
        return self

    async def take_over(self, broker_id: int) -> None:
        """Become the controller, in a new session."""
        self.session = await self.store.session(TIMEOUT_MS)
        await prepare(self.session)
        for number, broker in self.brokers.items():
            path, data = nodes.broker(number), nodes.dump_broker(broker, self.wall_ms())
            await self.session.create(path, data, ephemeral=True)
            self.epochs[number] = (await self.session.get(path))[1].czxid
        self.epoch = self.epochs[broker_id]
        self.control = self._control(broker_id)
        self.topics, self.configs, self.ids = self.control.topics, self.control.configs, self.control.ids
        self.topic_configs = self.control.topic_configs
        self.control.manager.registered(self.epoch)
        self._following = asyncio.get_running_loop().create_task(self.control.watch.follow(self.session))
        await self.control.stand(self.session).taken_over()
        await eventually("it has taken over", lambda: self._has_taken_over(broker_id))

    def _has_taken_over(self, broker_id: int) -> bool:
        image, controller = self.metadata.image, self.control.controller
        known = image.controller_id == broker_id and len(image.brokers) == len(self.brokers)
        return known and controller is not None and controller.active

    def _control(self, broker_id: int) -> ControlPlane:
        return ControlPlane(
            broker_id=broker_id, config=self.config, metadata=self.metadata, replicas=self.replicas,
            entities=self.entities, groups=self.groups(), workers=None, sockets=None, member=self,
            lines=self, random=self.random, is_native=False, on_settings=self._hear, wall_ms=self.wall_ms,
        )  # type: ignore[arg-type]  # fmt: skip

    def groups(self) -> Coordinator:
        return Coordinator(self.config, None)  # type: ignore[arg-type]

    async def _hear(self) -> None:
        self.heard.append(self.config["log.retention.ms"])

    async def rest(self) -> None:
        """Stop all background work; the session stays the controller's, and its context stays as it was."""
        self._known = self.context
        self._following.cancel()
        assert self.control.controller is not None
        await self.control.controller.stop()

    async def leave(self) -> None:
        """Resign as controller; the ephemeral nodes go with the session."""
        self._following.cancel()
        await self.control.close()
        await self.session.close()

    async def end(self) -> None:
        await self.leave()
        await self.store.close()

    # -- brokers -----------------------------------------------------------------------------------------------------

    async def connect_to(self, broker: LiveBroker) -> Any:
        return Obedient(self, broker.id)

    async def connect(self, broker_id: int) -> Any:
        return Obedient(self, broker_id)

    async def dial(self, broker_id: int) -> Any:
        raise OSError("the stage has no sockets")

    def try_again(self) -> None:
        """Do nothing, as no broker refuses a login here."""

    async def told_to(self, number: int, request: Any) -> Any:
        """Return the answer of a broker that accepts the request; broker 1 also applies its UpdateMetadata."""
        self.told.append((number, request))
        if isinstance(request, m.UpdateMetadataRequest):
            if self.epochs.get(number) == self.epoch:
                await self.control.manager.update_metadata(metadata_of(request))
            return m.UpdateMetadataResponse()
        if isinstance(request, m.StopReplicaRequest):
            return m.StopReplicaResponse(partition_errors=[])
        kind = m.LeaderAndIsrResponse.Topics
        topics = [
            kind(
                topic_id=topic.topic_id,
                partition_errors=[
                    kind.PartitionErrors(partition_index=p.partition_index, error_code=errors.NONE)
                    for p in topic.partition_states
                ],
            )
            for topic in request.topic_states
        ]
        return m.LeaderAndIsrResponse(topics=topics, partition_errors=[])

    @property
    def context(self) -> ControllerContext:
        """The controller's context, or the one it had at rest()."""
        if self._known is not None:
            return self._known
        assert self.control.controller is not None and self.control.controller.context is not None
        return self.control.controller.context

    async def there(self, path: str) -> bytes | None:
        """The data of a node of the store; None if there is none."""
        try:
            return (await self.session.get(path))[0]
        except NoNode:
            return None

    async def tree(self, path: str = "/") -> bytes:
        """Every node with its data and stat, one a line."""
        data, stat = await self.session.get(path)
        lines = [f"{path} {data!r} {tuple(stat)}\n".encode()]
        for name in (await self.session.children(path))[0]:
            lines.append(await self.tree(f"{path.rstrip('/')}/{name}"))
        return b"".join(lines)
