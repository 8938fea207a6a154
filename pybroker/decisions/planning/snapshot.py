"""Input and output of the planner: a snapshot of the cluster, goals, and the plan."""

from collections.abc import Mapping
from typing import NamedTuple

from pybroker.model import TopicPartition


class Volume(NamedTuple):
    """A file system on which a broker has log dirs."""

    total_bytes: int
    used_bytes: int


class PlanBroker(NamedTuple):
    """A broker. One that is not `live` keeps its replicas until the plan moves them, and receives none. Without
    `volumes` the sizes of its disks are unknown, and not limited."""

    id: int
    host: str = ""
    rack: str | None = None
    volumes: tuple[Volume, ...] = ()
    live: bool = True

    @property
    def total_bytes(self) -> int:
        return sum(volume.total_bytes for volume in self.volumes)

    @property
    def used_bytes(self) -> int:
        return sum(volume.used_bytes for volume in self.volumes)


class PlanPartition(NamedTuple):
    """A partition: its replicas, the preferred leader first; its leader, -1 if none; a replica's bytes; its ISR."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    leader: int = -1
    size_bytes: int = 0
    isr: tuple[int, ...] = ()


class ClusterSnapshot(NamedTuple):
    """The brokers and partitions of a cluster at one moment."""

    brokers: tuple[PlanBroker, ...]
    partitions: tuple[PlanPartition, ...]


class Goals(NamedTuple):
    """The goals of a plan.

    `drain`: brokers that shall hold nothing. `successors`: the broker that takes over a drained one's replicas, where
    it can. `spared`: brokers that keep what they have, and get nothing unless they are named here otherwise. `add`:
    brokers that shall get their share. `spread`: every broker gets its share of bytes, leaders and
    replicas. `even_disks`: of bytes only. `racks`: partitions that are in fewer racks, or on fewer hosts, than they
    could be, are mended. `factors`: the number of replicas, by topic.

    `disk_limit` is the share of a broker's disks above which the plan puts nothing. With `fewer_racks` a partition may
    come to be in fewer racks, or on fewer hosts, than it is. Replicas of the partitions `pinned` are not moved to
    make brokers even. Unless `search`, a plan is what the first tries find: in milliseconds, and it may copy more."""

    drain: frozenset[int] = frozenset()
    successors: Mapping[int, int] = {}
    spared: frozenset[int] = frozenset()
    add: frozenset[int] = frozenset()
    spread: bool = False
    even_disks: bool = False
    racks: bool = False
    factors: Mapping[str, int] = {}
    disk_limit: float = 0.85
    fewer_racks: bool = False
    pinned: frozenset[TopicPartition] = frozenset()
    search: bool = True


class Reassigned(NamedTuple):
    """A partition whose replicas the plan changes."""

    partition: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    leader: int
    size_bytes: int

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def copied_bytes(self) -> int:
        return self.size_bytes * len(self.adding)


class Holding(NamedTuple):
    """The holdings of a broker: bytes of replicas, the share of its disks in use (None: unknown), replicas, and the
    partitions whose preferred leader it is."""

    data_bytes: int
    disk_share: float | None
    replicas: int
    leaders: int


class Plan(NamedTuple):
    """The replicas to move, and what each broker holds before and after. A plan with `refused` sentences must not run.

    `least_bytes`: no plan that reaches these goals copies fewer, where the goals can be reached. `notes`: sentences
    about goals that are not reached."""

    moves: tuple[Reassigned, ...]
    before: Mapping[int, Holding]
    after: Mapping[int, Holding]
    least_bytes: int
    refused: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def copied_bytes(self) -> int:
        return sum(move.copied_bytes for move in self.moves)

    def busiest_bytes(self) -> int:
        """The bytes that pass the busiest broker in one direction: they divided by a throttle, which limits each
        broker's sending and receiving, is the time that the plan takes."""
        sent: dict[int, int] = {}
        received: dict[int, int] = {}
        for move in self.moves:
            sent[move.leader] = sent.get(move.leader, 0) + move.copied_bytes
            for broker in move.adding:
                received[broker] = received.get(broker, 0) + move.size_bytes
        return max((*sent.values(), *received.values()), default=0)
