"""Measures a cluster for a plan: its partitions, and what lies on each broker's disks."""

from collections.abc import Sequence
from typing import NamedTuple

from pybroker.cli.each_broker import Silent, admin_at, ask_each
from pybroker.client.admin import Admin, LogDir
from pybroker.client.net.metadata import Node
from pybroker.decisions.planning.measuring import size_of, sizes_of, volumes
from pybroker.decisions.planning.snapshot import ClusterSnapshot, PlanBroker, PlanPartition
from pybroker.model import TopicPartition


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
            size_of(sizes, tp, p.leader, p.replicas),
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
