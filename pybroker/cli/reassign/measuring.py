"""Measures a cluster for a plan: its partitions, and what lies on each broker's disks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pybroker.cli.each_broker import Silent, admin_at, ask_each
from pybroker.client.admin import Admin, LogDir
from pybroker.client.net.metadata import Node
from pybroker.decisions.planning.snapshot import ClusterSnapshot, PlanBroker, PlanPartition, Volume
from pybroker.model import TopicPartition

ReplicaSizes = Mapping[tuple[TopicPartition, int], int]
"""Bytes by partition and broker."""


class Measured(NamedTuple):
    """A cluster, and a sentence for each live broker that does not report its disks. These get no replicas."""

    snapshot: ClusterSnapshot
    silent: tuple[str, ...]


def measure(admin: Admin) -> Measured:
    """Measure the cluster as its brokers report it now. Partitions that are being moved count with their targets."""
    nodes = admin.describe_cluster().nodes
    topics = admin.topics()
    found, silent = log_dirs(nodes)
    sizes = sizes_of(dirs for dirs in found.values())
    moving = admin.list_partition_reassignments()
    brokers = tuple(
        PlanBroker(node.id, node.host, node.rack, volumes(found.get(node.id, ())), live=node.id in found)
        for node in nodes
    )
    partitions = tuple(
        PlanPartition(
            tp := TopicPartition(topic.name, p.partition),
            tuple(b for b in p.replicas if tp not in moving or b not in moving[tp].removing),
            p.leader,
            sizes.get((tp, p.leader)) or max((sizes.get((tp, broker), 0) for broker in p.replicas), default=0),
            tuple(p.isr),
        )
        for topic in topics
        for p in topic.partitions
    )
    words = (
        f"broker {number} does not report its disks, and gets no replicas: {why}" for number, why in silent.items()
    )
    return Measured(ClusterSnapshot(brokers, partitions), tuple(words))


def log_dirs(
    nodes: Sequence[Node], topics: Sequence[str] | None = None
) -> tuple[dict[int, list[LogDir]], dict[int, Silent]]:
    """Return the log dirs of each broker that answers, with the replicas of these topics; and why others do not."""
    found, silent = dict[int, list[LogDir]](), dict[int, Silent]()

    def ask(node: Node) -> list[LogDir]:
        with admin_at(node) as admin:
            return admin.log_dirs([node.id], topics)

    for node, told in ask_each(nodes, ask):
        if isinstance(told, Silent):
            silent[node.id] = told
        else:
            found[node.id] = told
    return found, silent


def sizes_of(brokers: Iterable[Iterable[LogDir]]) -> dict[tuple[TopicPartition, int], int]:
    """Return the size of each replica, by partition and broker."""
    return {
        (replica.partition, log_dir.broker): replica.size_bytes
        for dirs in brokers
        for log_dir in dirs
        for replica in log_dir.replicas
        if not replica.future
    }


def volumes(dirs: Iterable[LogDir]) -> tuple[Volume, ...]:
    """Return the file systems of a broker's log dirs. Log dirs on one file system report the same sizes, and count
    once; log dirs that are offline do not count."""
    told = {
        (log_dir.total_bytes, log_dir.usable_bytes)
        for log_dir in dirs
        if not log_dir.error and log_dir.total_bytes and log_dir.usable_bytes is not None
    }
    return tuple(
        Volume(total, max(0, total - usable)) for total, usable in sorted(told, key=str) if total and usable is not None
    )
