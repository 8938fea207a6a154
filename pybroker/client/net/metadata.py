"""A cluster's metadata (brokers, topics, leaders), and blocking connections to its brokers."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from pybroker import errors, fork_safety
from pybroker.client import html_tables
from pybroker.client.net.connection import BrokerConnection
from pybroker.client.security.tls import ClientTls
from pybroker.errors import KafkaError
from pybroker.patience import waiting
from pybroker.protocol import messages as m
from pybroker.security.login import Account

PORT_DEFAULT: Final = 9092
RETRY_BACKOFF_S: Final = 0.1
PATIENCE_S: Final = 2.0
"""Seconds without an answer before another broker is asked."""

GROUP: Final = 0
TRANSACTION: Final = 1
"""Types of the keys that FindCoordinator takes."""
NAMED_MAX: Final = 5

Answer = TypeVar("Answer")


class Node(NamedTuple):
    """A broker and its advertised address."""

    id: int
    host: str
    port: int
    rack: str | None


class PartitionInfo(NamedTuple):
    """One partition; `leader` is -1, and `error` not 0, while it has none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: int


class TopicInfo(NamedTuple):
    """One topic, its partitions ascending; `id` is all zeros from a broker that knows no topic ids."""

    name: str
    id: bytes
    internal: bool
    partitions: tuple[PartitionInfo, ...]
    error: int

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        rows = [(p.partition, p.leader, p.replicas, p.isr) for p in self.partitions]
        problem = f": {errors.lookup(self.error).name}" if self.error else ""
        headings = ("partition", "leader", "replicas", "in sync")
        return html_tables.table(f"topic {self.name}{problem}", headings, rows, len(rows))


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """`host:port,host,[::1]:port` as addresses. KafkaError(INVALID_CONFIG) with the part that cannot be read."""
    addresses = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or (part.startswith("[") and part.endswith("]")):
            host, port = part, str(PORT_DEFAULT)
        host = host.strip()
        valid = not host.isdigit() and port.isascii() and port.isdigit() and 0 < int(port) < 65536
        if not host or not valid or (":" in host and not host.startswith("[")):
            expected = "host:port is expected, with a port from 1 to 65535"
            raise KafkaError(errors.INVALID_CONFIG, f"{part!r} is no broker address: {expected}")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise KafkaError(errors.INVALID_CONFIG, "no broker address given: host:port is expected")
    return addresses


def none_answers(failures: Sequence[KafkaError]) -> KafkaError:
    """The error for addresses of which none answers: the code of the last, and the sentences of the first."""
    named = list(dict.fromkeys(error.message for error in failures))
    more = [f"and {len(named) - NAMED_MAX} more addresses"] if len(named) > NAMED_MAX else []
    return KafkaError(failures[-1].code, "; ".join(named[:NAMED_MAX] + more))


class ClusterConnections:
    """Connections to the brokers of one cluster, opened when first needed, from one or more addresses of it."""

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_s: float = 30.0,
        account: Account | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self.bootstrap = parse_bootstrap(bootstrap)
        self._account = account
        self._tls = tls
        self.timeout_s = timeout_s
        self.id: str | None = None
        self.controller_id = -1
        self.nodes: dict[int, Node] = {}
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._forked = False
        fork_safety.tell(self)

    def __enter__(self) -> "ClusterConnections":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def forked(self) -> None:
        self._forked = True

    def connect(self, host: str, port: int, within_s: float | None = None) -> BrokerConnection:
        """The open connection to an address, or a new one, opened within the time."""
        if self._forked:
            raise fork_safety.refusal("client")
        known = self._connections.get((host, port))
        if known is None or not known.is_open:
            timeout_s = self.timeout_s if within_s is None else min(within_s, self.timeout_s)
            known = self._connections[host, port] = BrokerConnection(
                host, port, timeout_s=timeout_s, account=self._account, tls=self._tls
            )
            known.timeout_s = self.timeout_s
        return known

    def any(self) -> BrokerConnection:
        """A connection to the first bootstrap address that answers. A frozen broker accepts and is silent, so each but
        the last has PATIENCE_S. An address that failed moves to the end. KafkaError of `none_answers`."""
        failures = []
        for tried, (host, port) in enumerate(list(self.bootstrap), 1):
            try:
                return self.connect(host, port, PATIENCE_S if tried < len(self.bootstrap) else None)
            except KafkaError as error:
                failures.append(error)
                self.bootstrap.append(self.bootstrap.pop(0))
        raise none_answers(failures)

    def node(self, node_id: int) -> BrokerConnection:
        """A connection to a broker by its id. KafkaError(BROKER_NOT_AVAILABLE) if the cluster has no such broker."""
        if node_id not in self.nodes:
            self.metadata([])
        if node_id not in self.nodes:
            raise KafkaError(errors.BROKER_NOT_AVAILABLE, f"the cluster has no broker {node_id}")
        return self.connect(self.nodes[node_id].host, self.nodes[node_id].port)

    def controller(self) -> BrokerConnection:
        """A connection to the controller. KafkaError(BROKER_NOT_AVAILABLE) if the cluster has none now."""
        if self.controller_id not in self.nodes:
            self.metadata([])
        if self.controller_id not in self.nodes:
            raise KafkaError(errors.BROKER_NOT_AVAILABLE, "the cluster has no controller now")
        return self.node(self.controller_id)

    def metadata(self, topics: Sequence[str] | None = None) -> list[TopicInfo]:
        """These topics (None: all; []: only the brokers), by name; one that is unknown has its `error`."""
        asked = None if topics is None else [m.MetadataRequest.Topics(name=name) for name in topics]
        answer = self.any().request(m.MetadataRequest(topics=asked, allow_auto_topic_creation=False))
        if answer.error_code:
            raise KafkaError(answer.error_code)
        self.id = answer.cluster_id
        self.controller_id = answer.controller_id
        self.nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in answer.brokers}
        named = (topic_info(topic) for topic in answer.topics if topic.name is not None)
        return sorted(named, key=lambda topic: topic.name)

    def ask_controller(self, ask: Callable[[BrokerConnection], Answer]) -> Answer:
        """`ask` the controller, and retry while the broker asked is not, or is gone."""
        deadline = time.monotonic() + self.timeout_s
        with waiting.get()("for the cluster's controller"):
            while True:
                try:
                    return ask(self.controller())
                except KafkaError as error:
                    moved = error.code in (errors.NOT_CONTROLLER, errors.BROKER_NOT_AVAILABLE)
                    if not moved or time.monotonic() > deadline:
                        raise
                time.sleep(RETRY_BACKOFF_S)
                self.controller_id = -1


def topic_info(answer: m.MetadataResponse.Topics) -> TopicInfo:
    """A topic of a MetadataResponse."""
    partitions: Iterable[PartitionInfo] = (
        PartitionInfo(
            p.partition_index, p.leader_id, p.leader_epoch, tuple(p.replica_nodes), tuple(p.isr_nodes), p.error_code
        )
        for p in answer.partitions
    )
    ordered = tuple(sorted(partitions, key=lambda p: p.partition))
    return TopicInfo(answer.name or "", bytes(answer.topic_id), answer.is_internal, ordered, answer.error_code)
