"""One look at a cluster for `pybroker top`: what brokers answer now, and a sentence for each that does not.

Each broker is asked for its own partitions, log dirs and metrics, in parallel. Nothing that one does not answer, or
refuses, keeps the rest from being shown.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from pybroker.cli.each_broker import Silent, admin_at, ask_each, in_command
from pybroker.cli.options import admin_of
from pybroker.cli.top.broker_metrics import Counts, counts
from pybroker.client.admin import LATEST, Admin, LogDir
from pybroker.client.admin.reassignments import PartitionReassignment
from pybroker.client.net.metadata import Node, TopicInfo
from pybroker.errors import NETWORK_EXCEPTION, REQUEST_TIMED_OUT, KafkaError
from pybroker.model import HostPort, TopicPartition
from pybroker.operations import health, metrics_listener
from pybroker.operations.health import ClusterHealth

_GONE: Final = (NETWORK_EXCEPTION, REQUEST_TIMED_OUT)
T = TypeVar("T")


class BrokerReading(NamedTuple):
    """The answers of one broker; None for each that it did not give."""

    ends: Mapping[TopicPartition, int | None] | None
    log_dirs: Sequence[LogDir] | None
    counts: Counts | None
    problems: tuple[str, ...]


class GroupReading(NamedTuple):
    """A group, and the records that it has not committed yet; None if no leader answered."""

    id: str
    state: str
    lag: int | None


class Reading(NamedTuple):
    """One look at a cluster, at `at_s` of the monotonic clock."""

    at_s: float
    cluster: ClusterHealth
    brokers: Mapping[int, BrokerReading | Silent]
    groups: Sequence[GroupReading]
    reassignments: Mapping[TopicPartition, PartitionReassignment]
    problems: Sequence[str]


class Reader:
    """Reads a cluster again and again, also when the brokers to begin with are gone and others are there."""

    def __init__(self, bootstrap: str, timeout_s: float) -> None:
        self._given = self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._listeners: dict[Node, str | Silent] = {}

    def read(self) -> Reading:
        """Look at the cluster now. Raises KafkaError if no broker answers."""
        problems: list[str] = []
        with admin_of(self._bootstrap, self._timeout_s) as admin:
            found = health.read(admin)
            known = ",".join(str(HostPort(node.host, node.port)) for node in found.nodes)
            self._bootstrap = f"{self._given},{known}" if known else self._given
            told = ask_each(found.nodes, lambda node: self._of_broker(node, found.topics))
            moving = _part(problems, "reassignments", admin.list_partition_reassignments) or {}
            brokers = {node.id: each for node, each in told}
            groups: Sequence[GroupReading] = ()
            if not any(isinstance(each, Silent) for each in brokers.values()):  # each broker is asked for its groups
                groups = _part(problems, "groups", lambda: _groups(admin, brokers.values())) or ()
        for node, each in told:
            if isinstance(each, Silent):
                problems.append(f"broker {node.id} does not answer: {each}")
            else:
                problems += [f"broker {node.id}: {why}" for why in each.problems]
        return Reading(time.monotonic(), found, brokers, groups, moving, problems)

    def _of_broker(self, node: Node, topics: Iterable[TopicInfo]) -> BrokerReading:
        problems: list[str] = []
        led = [t._replace(partitions=tuple(p for p in t.partitions if p.leader == node.id)) for t in topics]
        with admin_at(node) as admin:
            log_dirs = _part(problems, "log dirs", lambda: admin.log_dirs([node.id]), gone=_GONE)
            ends = _part(problems, "offsets", lambda: admin.offsets(led, LATEST), gone=_GONE)
        return BrokerReading(ends, log_dirs, self._counts(node, problems), tuple(problems))

    def _counts(self, node: Node, problems: list[str]) -> Counts | None:
        """The broker's counters; None without a metrics listener, which is no problem, or if it does not answer."""
        if node not in self._listeners:
            try:
                self._listeners[node] = metrics_listener.address(node, in_command(admin_at))
            except Silent as reason:
                self._listeners[node] = reason
        where = self._listeners[node]
        if isinstance(where, Silent):
            return None
        try:
            return counts(metrics_listener.text(where, "/metrics", metrics_listener.METRICS_BYTES_MAX, self._timeout_s))
        except Silent as reason:
            problems.append(f"no metrics: {reason}")
            return None


def _part(problems: list[str], what: str, ask: Callable[[], T], gone: Collection[int] = ()) -> T | None:
    """Return an answer; None after an error, which becomes a problem. Raises KafkaError with a code in `gone`."""
    try:
        return ask()
    except KafkaError as problem:
        if problem.code in gone:
            raise
        problems.append(f"no {what}: {problem.message}")
        return None


def _groups(admin: Admin, brokers: Iterable[BrokerReading | Silent]) -> list[GroupReading]:
    ends = {tp: end for each in brokers if isinstance(each, BrokerReading) for tp, end in (each.ends or {}).items()}
    listed = {group.id: group.state for group in admin.groups()}
    committed = admin.group_offsets(listed) if listed else {}
    found = []
    for group, state in listed.items():
        behind = [None if (end := ends.get(tp)) is None else max(0, end - at.offset)
                  for tp, at in committed.get(group, {}).items()]  # fmt: skip
        known = [lag for lag in behind if lag is not None]
        found.append(GroupReading(group, state, sum(known) if known or not behind else None))
    return found
