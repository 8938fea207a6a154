"""Several brokers that are one cluster, in the process of the test: on a thread of their own, with a store in memory.

    cluster() ──with──> running ──kill, stop of one──> the others lead ──start──> in sync again

Topics, replication, failover and groups are those of a cluster in ZooKeeper; only the store is another, so that no Java
is needed. Each broker keeps its address and its data for as long as the cluster is used.
"""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pybroker.testing import clients
from pybroker.testing.datadir import DataDir
from pybroker.testing.handle import DEFAULTS, hold_port
from pybroker.testing.life import ASK_S_MAX, HOST, START_S_MAX, STOP_S_MAX, BrokerFailed, as_text

if TYPE_CHECKING:
    from pybroker.coordination.memory import MemorySession, MemoryStore
    from pybroker.coordination.store import Session, Store
    from pybroker.server.cluster_broker import ClusterBroker

T = TypeVar("T")
BROKERS: Final = 3
CLUSTER_DEFAULTS: Final[Mapping[str, str]] = {
    **DEFAULTS,
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "num.network.threads": "1",
    "offsets.topic.replication.factor": "3",
    "replica.lag.time.max.ms": "3000",
    "zookeeper.session.timeout.ms": "6000",
}
"""What a test expects of a cluster; replication factors are those of as many brokers as there are, at most."""


class ClusterHandle:
    """A cluster, started when it is made; brokers are numbered from 1. Raises BrokerFailed."""

    def __init__(self, brokers: int = BROKERS, *, settings: Mapping[str, object] | None = None) -> None:
        """`settings` are those of each broker, by Kafka's names."""
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        self._held: list[socket.socket] = [hold_port() for _ in range(brokers)]
        self._directory = DataDir(None)
        few = {name: str(min(int(CLUSTER_DEFAULTS[name]), brokers)) for name in _COUNTS}
        given = {name: as_text(value) for name, value in (settings or {}).items()}
        self._settings = {**CLUSTER_DEFAULTS, **few, **given}
        self._brokers: dict[int, ClusterBroker] = {}
        self._sessions: dict[int, MemorySession] = {}
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pybroker-cluster", daemon=True)
        self._thread.start()
        try:
            self._store: MemoryStore = self._do(self._make_store(), START_S_MAX)
            self.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "ClusterHandle":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- life ------------------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> Sequence[int]:
        """The numbers of all of them."""
        return range(1, len(self._held) + 1)

    @property
    def running(self) -> Sequence[int]:
        """The numbers of those that run."""
        return sorted(self._brokers)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all, for clients."""
        return ",".join(f"{HOST}:{held.getsockname()[1]}" for held in self._held)

    def start(self, *numbers: int) -> None:
        """Start those that are down, of these or all. Raises BrokerFailed."""
        self._do(self._start([n for n in numbers or self.brokers if n not in self._brokers]), START_S_MAX)

    def stop(self, *numbers: int) -> None:
        """End them cleanly, of these or all: what they lead goes to others first."""
        for number in numbers or self.running:
            self._do(self._brokers.pop(number).stop(), STOP_S_MAX)

    def kill(self, *numbers: int) -> None:
        """End them, of these or all, as `kill -9` does."""
        for number in numbers or self.running:
            self._sessions[number].suspend()  # nobody says goodbye to the store
            self._do(self._brokers.pop(number).abort(), STOP_S_MAX)

    def close(self) -> None:
        """The end of its use: threads and files go; calling it again does nothing."""
        if self._loop.is_closed():
            return
        try:
            self.kill()
            self._do(_end_tasks(), STOP_S_MAX)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_S_MAX)
            self._loop.close()
            for held in self._held:
                held.close()
            self._directory.remove()

    # -- topics ----------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, **config: object) -> str:
        """Create a topic with the cluster's replication factor; its name. `segment_bytes=1` is segment.bytes."""
        texts = {key.replace("_", "."): as_text(value) for key, value in config.items()}
        self._ask(lambda admin: admin.create_topic(name, partitions=partitions, configs=texts))
        return name

    def leader(self, topic: str, partition: int = 0) -> int:
        """Who leads a partition; -1 for nobody."""
        return int(self._ask(lambda admin: admin.topics([topic])[0].partitions[partition].leader))

    def in_sync(self, topic: str, partition: int = 0) -> Sequence[int]:
        """The in-sync replicas of a partition."""
        return sorted(self._ask(lambda admin: admin.topics([topic])[0].partitions[partition].isr))

    def wait_in_sync(self, topic: str, timeout_s: float = 30.0) -> None:
        """Return when every replica of a topic whose broker runs is in sync. Raises TimeoutError."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            partitions = self._ask(lambda admin: admin.topics([topic]))[0].partitions
            if all(set(p.replicas) & set(self._brokers) == set(p.isr) and p.leader >= 0 for p in partitions):
                return
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{topic} is not in sync after {timeout_s:g} s: {partitions}")
            time.sleep(0.01)

    # -- clients ---------------------------------------------------------------------------------------------------

    def confluent_config(self, group_id: str | None = None, **overrides: Any) -> dict[str, Any]:
        """For confluent-kafka, as a broker's."""
        return clients.confluent(self.bootstrap_servers, group_id, overrides)

    def kafka_python_config(self, group_id: str | None = None, **overrides: Any) -> dict[str, Any]:
        """For kafka-python, as a broker's."""
        return clients.kafka_python(self.bootstrap_servers, group_id, overrides)

    def aiokafka_config(self, group_id: str | None = None, **overrides: Any) -> dict[str, Any]:
        """For aiokafka, as a broker's."""
        return clients.aiokafka(self.bootstrap_servers, group_id, overrides)

    # -- on the brokers' thread ------------------------------------------------------------------------------------

    def _do(self, work: Awaitable[T], timeout_s: float) -> T:
        async def wait() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result(timeout_s)

    async def _make_store(self) -> "MemoryStore":
        from pybroker.coordination.memory import MemoryStore

        store = MemoryStore()
        await store.open()
        return store

    async def _start(self, numbers: Sequence[int]) -> None:
        begun = {number: self._broker(number) for number in numbers}
        started = await asyncio.gather(*(each.start() for each in begun.values()), return_exceptions=True)
        for (number, each), problem in zip(begun.items(), started, strict=True):
            if isinstance(problem, BaseException):
                raise BrokerFailed(f"broker {number} did not start: {problem}") from problem
            self._brokers[number] = each

    def _broker(self, number: int) -> "ClusterBroker":
        from pybroker.config import BrokerConfig
        from pybroker.server.cluster_broker import ClusterBroker

        own = {
            "broker.id": str(number),
            "listeners": f"PLAINTEXT://{HOST}:{self._held[number - 1].getsockname()[1]}",
            "log.dirs": os.path.join(self._directory.path, f"broker-{number}"),
        }
        config = BrokerConfig.load(None, [f"{name}={text}" for name, text in (self._settings | own).items()])
        if config.warnings:
            raise BrokerFailed("; ".join(config.warnings))
        store = _shared(self._store, lambda session: self._sessions.update({number: session}))
        return ClusterBroker(config, store=store)

    def _ask(self, ask: "Callable[[Any], T]") -> T:
        from pybroker.client.admin import Admin

        with Admin(self.bootstrap_servers, timeout_s=ASK_S_MAX) as admin:
            return ask(admin)


_COUNTS: Final = ("default.replication.factor", "min.insync.replicas", "offsets.topic.replication.factor")


def _shared(store: "MemoryStore", opened: "Callable[[MemorySession], object]") -> "Store":
    """The store as one broker sees it, whose end is not the store's."""
    from pybroker.coordination.store import Store

    class Shared(Store):
        async def open(self) -> None: ...

        async def session(self, timeout_ms: int) -> "Session":
            session = await store.session(timeout_ms)
            opened(session)
            return session

        async def close(self) -> None: ...

    return Shared()


def cluster(brokers: int = BROKERS, *, settings: Mapping[str, object] | None = None) -> ClusterHandle:
    """A cluster for the length of a `with`; the arguments are ClusterHandle's."""
    return ClusterHandle(brokers, settings=settings)


async def _end_tasks() -> None:
    """End what the brokers that were killed had under way, while their loop runs still."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
