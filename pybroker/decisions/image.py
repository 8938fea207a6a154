"""A snapshot of a cluster's metadata: live brokers with their endpoints, topics, partitions.

Images are immutable: a later image shares unchanged parts with an earlier one (see MetadataCache). A handler that takes
one image never mixes two states.

Invariants: a topic is found by both its name and its id, or by neither; partitions are numbered from 0 without gaps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from pybroker.model import HostPort
from pybroker.persistent_map import PersistentMap

NO_LEADER = -1
DELETED = -2
"""As a leader: the topic is being deleted. As a leader epoch: the replica is deleted."""
NO_EPOCH = -1
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTION_TOPIC})


class Node(NamedTuple):
    """A live broker, at the address that the clients of one listener use."""

    id: int
    host: str
    port: int
    rack: str | None = None


class LiveBroker(NamedTuple):
    """A live broker, with its advertised addresses and security protocols by listener name."""

    id: int
    endpoints: Mapping[str, HostPort]
    protocols: Mapping[str, str]
    rack: str | None = None

    def node(self, listener: str) -> Node | None:
        """The broker at this listener's address; None if it has no such listener."""
        endpoint = self.endpoints.get(listener)
        return None if endpoint is None else Node(self.id, *endpoint, self.rack)


class PartitionState(NamedTuple):
    """The replicas, leader and ISR of one partition. `partition_epoch` is the version of its state node; `offline` are
    the offline replicas that the controller sent in UpdateMetadata. The last three describe a reassignment
    (reassignment.py); UpdateMetadata does not have them."""

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    partition_epoch: int
    offline: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    given_up: tuple[int, ...] = ()

    @property
    def assignment(self) -> tuple[tuple[int, ...], ...]:
        """The parts that are in the topic's node, not in the partition's state node."""
        return self.replicas, self.adding, self.removing, self.given_up

    def with_replicas_of(self, other: "PartitionState") -> "PartitionState":
        """This state with the assignment of another."""
        return self._replace(
            replicas=other.replicas, adding=other.adding, removing=other.removing, given_up=other.given_up
        )


class TopicImage(NamedTuple):
    """One incarnation of a topic; `id` is 16 bytes."""

    name: str
    id: bytes
    partitions: tuple[PartitionState, ...]

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class Image:
    """The brokers and topics of one cluster; immutable."""

    cluster_id: str = ""
    controller_id: int = NO_LEADER
    controller_epoch: int = NO_EPOCH
    brokers: Mapping[int, LiveBroker] = field(default_factory=dict)
    by_name: PersistentMap[str, TopicImage] = field(default_factory=PersistentMap)
    names: PersistentMap[bytes, str] = field(default_factory=PersistentMap)
    """Topic names by id."""

    def __len__(self) -> int:
        return len(self.by_name)

    def topics(self) -> Iterable[TopicImage]:
        """All topics, sorted by name."""
        return sorted(self.by_name.values(), key=itemgetter(0))

    def topic(self, name: str) -> TopicImage | None:
        return self.by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        name = self.names.get(topic_id)
        return None if name is None else self.by_name[name]

    def partition(self, name: str, index: int) -> PartitionState | None:
        topic = self.by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def node(self, broker_id: int, listener: str) -> Node | None:
        """A broker at its address for a listener; None if the broker is not alive, or has no such listener."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.node(listener)

    def nodes(self, listener: str) -> list[Node]:
        """The live brokers that have this listener, at its addresses."""
        found = (broker.node(listener) for broker in self.brokers.values())
        return [node for node in found if node is not None]
