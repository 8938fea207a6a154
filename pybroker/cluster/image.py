"""What this broker knows of its cluster: brokers, topics, partitions, configs. No I/O: it is told, and it answers.

Invariants: a topic is found by its name and by its id or by neither; its partitions are numbered from 0 without gaps.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

NO_LEADER = -1
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


class Node(NamedTuple):
    """A live broker, at the address that clients use."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(slots=True)
class PartitionState:
    """One partition: who holds it and who leads. `partition_epoch` is the version of its state in the store."""

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    partition_epoch: int


@dataclass(slots=True)
class Topic:
    """One incarnation of a topic; `id` is 16 bytes, `config` its own settings as text, `directories` the
    directory.id of the log dir of each partition that was made."""

    name: str
    id: bytes
    partitions: list[PartitionState]
    config: Mapping[str, str] = field(default_factory=dict)
    directories: Mapping[int, str] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class Image:
    """The brokers and topics of one cluster."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.controller_id = NO_LEADER
        self.brokers: dict[int, Node] = {}
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def topics(self) -> Iterable[Topic]:
        return self._by_name.values()

    def names(self) -> Iterator[str]:
        return iter(self._by_name)

    def topic(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(topic_id)

    def partition(self, name: str, index: int) -> PartitionState | None:
        topic = self._by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def put(self, topic: Topic) -> None:
        """Add a topic, or replace the one of that name."""
        self.remove(topic.name)
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic

    def remove(self, name: str) -> None:
        """Forget a topic; one that is unknown is no error."""
        topic = self._by_name.pop(name, None)
        if topic is not None:
            del self._by_id[topic.id]
