"""A cluster in place of one broker: `pytest --target cluster` gives it to the tests of clients, unchanged.

Kills hit the brokers that matter to a test: the leaders of its topic, or the coordinator of its group. Others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pybroker.client.net.connection import BrokerConnection
from pybroker.protocol import messages as m
from tests.brokers.kit import Cluster, Planted
from tests.harness import HOST, LIVE, LOG_LINES_SHOWN, Server, until
from tests.stores import AnyStore


class ThreeBrokers(Server):
    """A cluster of three; `kill` and `stop` affect the brokers that lead `topic` or coordinate `group`, or all."""

    name = "pybroker"

    def __init__(self, home: Path, store: AnyStore, **sets: object) -> None:
        self.cluster = Cluster(home, store, **sets)  # type: ignore[arg-type]
        self.topic = self.group = ""
        super().__init__(home, self.brokers[0].port)

    @property
    def brokers(self) -> Sequence[Planted]:
        return list(self.cluster.brokers.values())

    def begin(self) -> None:
        if self not in LIVE:
            LIVE.append(self)
        for broker in self.brokers:
            if not broker.running:
                broker.begin()

    def wait_ready(self) -> None:
        for broker in self.brokers:
            broker.wait_ready()

    @property
    def running(self) -> bool:
        return all(broker.running for broker in self.brokers)

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def ports(self) -> list[int]:
        return [broker.port for broker in self.brokers]

    def output(self) -> str:
        each = LOG_LINES_SHOWN // len(self.brokers)
        return "\n".join(f"-- {b.port}:\n" + "\n".join(b.output().splitlines()[-each:]) for b in self.brokers)

    def count(self, words: str) -> int:
        return sum(broker.count(words) for broker in self.brokers)

    # -- kill and stop -----------------------------------------------------------------------------------------------

    def kill(self) -> None:
        self._end(Server.kill)

    def stop(self) -> None:
        self._end(Server.stop)

    def _end(self, how: Callable[[Server], None]) -> None:
        for number in self._concerned():
            how(self.cluster.brokers[number])

    def _concerned(self) -> Sequence[int]:
        """The brokers that matter to the test."""
        if self.group:
            return [self._coordinator()]
        topics = self.cluster.metadata().topics
        if self.topic in topics:
            return sorted({p.leader for p in topics[self.topic].partitions.values()} & self.cluster.brokers.keys())
        return list(self.cluster.brokers)

    def close(self) -> None:
        self.cluster.close()
        if self in LIVE:
            LIVE.remove(self)

    # -- brokers for a request ---------------------------------------------------------------------------------------

    def port_of(self, topic: str, partition: int = 0) -> int:
        found: list[int] = []
        until("somebody leads", lambda: found.append(self.cluster.leader(topic, partition)) or found[-1] >= 0)
        return self.cluster.brokers[found[-1]].port

    def coordinator_port(self, group: str) -> int:
        self.group = group
        return self.cluster.brokers[self._coordinator()].port

    def _coordinator(self) -> int:
        found: list[int] = []

        def told() -> bool:
            with BrokerConnection(HOST, next(b.port for b in self.brokers if b.running)) as connection:
                answer = connection.request(m.FindCoordinatorRequest(coordinator_keys=[self.group]))
            found.append(answer.coordinators[0].node_id)
            return found[-1] in self.cluster.brokers

        until(f"group {self.group} has a coordinator", told, timeout_s=20)
        return found[-1]

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        """The partition's directory at its leader."""
        return self.cluster.brokers[self.cluster.leader(topic, partition)].partition_dir(topic, partition)
