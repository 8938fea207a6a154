"""The health of a cluster: its partitions without a leader or a replica, and its brokers that are away or cannot write.

Counting and sentences are functions of a ClusterHealth that was read; `read` and `probe` ask brokers for it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pybroker.client.admin import Admin, ConfigEntry
from pybroker.client.net.metadata import Node, TopicInfo
from pybroker.errors import TOPIC_AUTHORIZATION_FAILED, KafkaError
from pybroker.model import Document
from pybroker.operations import metrics_listener
from pybroker.operations.each_broker import AdminAt, Silent, Unanswered

MIN_ISR: Final = "min.insync.replicas"
OFFLINE: Final = "offline"
UNDER_MIN_ISR: Final = "under min ISR"
UNDER_REPLICATED: Final = "under-replicated"
STATES: Final = (OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED)
"""The states of a troubled partition, the most serious first."""
NO_CONTROLLER: Final = "a controller to be elected"
WAIT_NAMED_MAX: Final = 3
NAMED_MAX: Final = 5
"""Partitions that a sentence names; it counts the others."""


class Troubled(NamedTuple):
    """A partition that lacks a leader or a replica, with its most serious state."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    state: str
    needed: int
    """Replicas that must be in sync: the topic's min.insync.replicas, but no more than there are replicas."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def document(self) -> Document:
        """The partition for --json."""
        return {
            "topic": self.topic, "partition": self.partition, "leader": self.leader, "replicas": list(self.replicas),
            "isr": list(self.isr), "state": self.state,
        }  # fmt: skip


class ClusterHealth(NamedTuple):
    """A cluster as one broker knows it; `least` has the min.insync.replicas of topics that were asked for."""

    id: str | None
    controller: int | None
    nodes: tuple[Node, ...]
    topics: tuple[TopicInfo, ...]
    least: Mapping[str, int]

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return sum(len(topic.partitions) for topic in self.topics)

    def troubled(self) -> list[Troubled]:
        """The partitions that lack a leader or a replica."""
        return list(troubled(self.topics, self.least))

    def led(self) -> Counter[int]:
        """The number of partitions that each broker leads."""
        return Counter(p.leader for topic in self.topics for p in topic.partitions)

    def held(self) -> Counter[int]:
        """The number of replicas that each broker has, those of brokers that are away included."""
        return Counter(broker for topic in self.topics for p in topic.partitions for broker in p.replicas)

    def away(self) -> list[int]:
        """The brokers that have replicas and are not registered."""
        return sorted(self.held().keys() - {node.id for node in self.nodes})


class BrokerReports(NamedTuple):
    """The brokers' own reports: why one does not answer, its epochs, and its log dirs that take no writes, by id."""

    silent: Mapping[int, str]
    epochs: Mapping[int, Document]
    full: Mapping[int, Mapping[str, str]]


def read(admin: Admin, *, least_of_all: bool = False, settings_optional: bool = False) -> ClusterHealth:
    """Read a cluster from one broker, with min.insync.replicas of topics that lack a replica, or of all. With
    `settings_optional` it is 1 for a user without the right to see it. Raises KafkaError."""
    found = admin.describe_cluster()
    topics = admin.topics()
    lacking = [t.name for t in topics if least_of_all or any(len(p.isr) < len(p.replicas) for p in t.partitions)]
    least: dict[str, int] = {}
    try:
        least = {name: _min_isr(entries) for name, entries in admin.topic_configs(lacking).items()} if lacking else {}
    except KafkaError as error:
        if not (settings_optional and error.code == TOPIC_AUTHORIZATION_FAILED):
            raise
    controller = found.controller if found.controller >= 0 else None
    return ClusterHealth(found.id, controller, found.nodes, tuple(topics), least)


def probe(nodes: Sequence[Node], admin_at: AdminAt) -> BrokerReports:
    """Ask each broker, in parallel, for what it alone knows."""
    told = dict(metrics_listener.answers(nodes, admin_at, lambda where: metrics_listener.objects(where, "/epochs")))
    silent = {node.id: str(reason) for node, reason in told.items() if isinstance(reason, Unanswered)}
    shown = {node.id: each[0] for node, each in told.items() if not isinstance(each, Silent) and each}
    full = {number: dirs for number, each in shown.items() if isinstance(dirs := each.get("full_log_dirs"), Mapping)}
    epochs = {number: each for number, each in shown.items() if isinstance(each.get("controller_epoch"), int)}
    return BrokerReports(silent, epochs, full)


def _min_isr(entries: Sequence[ConfigEntry]) -> int:
    """The topic's min.insync.replicas; 1 if the broker does not report it."""
    return next((int(entry.value) for entry in entries if entry.name == MIN_ISR and entry.value), 1)


def troubled(topics: Iterable[TopicInfo], least: Mapping[str, int]) -> Iterator[Troubled]:
    """Yield each partition that lacks a leader or a replica, with the most serious fault."""
    for topic in topics:
        for p in topic.partitions:
            needed = min(least.get(topic.name, 1), len(p.replicas))
            if p.leader < 0:
                what = OFFLINE
            elif len(p.isr) < needed:
                what = UNDER_MIN_ISR
            elif len(p.isr) < len(p.replicas):
                what = UNDER_REPLICATED
            else:
                continue
            yield Troubled(
                topic.name, p.partition, p.leader if p.leader >= 0 else None, p.replicas, p.isr, what, needed
            )


def counted(states: Iterable[str]) -> dict[str, int]:
    """Return the number of partitions by state, each counted in its most serious state and in all that are less so."""
    found, total, counts = Counter(states), 0, {}
    for state in STATES:
        counts[state] = total = total + found[state]
    return counts


def ids(brokers: Iterable[int]) -> str:
    """Return brokers as text: 1,2,3."""
    return ",".join(map(str, brokers))


def brokers_named(numbers: Sequence[int]) -> str:
    """Return brokers with the noun: broker 1, brokers 1,2."""
    return f"{'broker' if len(numbers) == 1 else 'brokers'} {ids(numbers)}"


# -- sentences ---------------------------------------------------------------------------------------------------------


def problems(cluster: ClusterHealth, reports: BrokerReports) -> list[str]:
    """Return one sentence for each way in which the cluster is degraded; empty if it is healthy."""
    found = []
    if cluster.controller is None:
        found.append("no controller is elected: no leader is elected, and no topic is created or deleted")
    held = cluster.held()
    for broker in cluster.away():
        found.append(f"broker {broker} is not registered, and has {times(held[broker], 'replica')}")
    for broker, why in sorted(reports.silent.items()):
        found.append(f"broker {broker} does not answer: {why}")
    for broker, dirs in sorted(reports.full.items()):
        found += [f"broker {broker} takes no writes in {path}: {why}" for path, why in sorted(dirs.items())]
    lacks = cluster.troubled()
    for state, tell in ((OFFLINE, _offline), (UNDER_MIN_ISR, _under_min_isr), (UNDER_REPLICATED, _under_replicated)):
        its = [each for each in lacks if each.state == state]
        if its:
            found.append(f"{times(len(its), 'partition')} {_are(len(its))} {_listed(state, its, tell)}")
    return found


def _listed(state: str, its: Sequence[Troubled], tell: Callable[[Troubled], str]) -> str:
    more = f", and {len(its) - NAMED_MAX} more" if len(its) > NAMED_MAX else ""
    meaning = {OFFLINE: "without a leader", UNDER_MIN_ISR: "under min ISR, refusing acks=all"}.get(state, state)
    return f"{meaning}: {', '.join(f'{each.name} ({tell(each)})' for each in its[:NAMED_MAX])}{more}"


def _offline(partition: Troubled) -> str:
    return f"replicas {ids(partition.replicas)}, last in sync {ids(partition.isr) or 'none'}"


def _under_min_isr(partition: Troubled) -> str:
    return f"in sync {ids(partition.isr)} of {ids(partition.replicas)}, {MIN_ISR} {partition.needed}"


def _under_replicated(partition: Troubled) -> str:
    return f"in sync {ids(partition.isr) or 'none'} of {ids(partition.replicas)}"


def absent(lacks: Iterable[Troubled]) -> set[int]:
    """Return the brokers whose replicas of these partitions are not in sync."""
    return {each for p in lacks for each in p.replicas if each not in p.isr}


def wait_words(cluster: ClusterHealth, lacks: Sequence[Troubled]) -> str:
    """Return what a command waits for that wants these partitions in sync: how many, for which brokers; empty if there
    are none."""
    if not lacks:
        return ""
    brokers = sorted(absent(lacks))
    away = sorted(set(brokers) & set(cluster.away()))
    but = f", {'which is' if away == brokers else f'{ids(away)} of them'} not registered" if away else ""
    few = ", ".join(f"{p.name} ({_under_replicated(p)})" for p in lacks[:WAIT_NAMED_MAX])
    more = f", and {len(lacks) - WAIT_NAMED_MAX} more" if len(lacks) > WAIT_NAMED_MAX else ""
    by = f" with {brokers_named(brokers)}{but}" if brokers else ""
    return f"{times(len(lacks), 'partition')} to be in sync{by}: {few}{more}"


def times(number: int, noun: str) -> str:
    """Return a number with its noun: 1 broker, 3 brokers."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
