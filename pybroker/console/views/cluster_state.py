"""The state of a cluster, as the overview and the page of brokers show it: health, the brokers' reports, and disks."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.client.admin import LogDir
from pybroker.client.net.metadata import Node
from pybroker.console.clients import ViewerClients
from pybroker.operations import health
from pybroker.operations.each_broker import Silent, ask_each
from pybroker.operations.health import BrokerReports, ClusterHealth

FREE_SHARE_MIN: Final = 0.10
"""The share of a disk that is free, below which it is shown in red."""


class ClusterState(NamedTuple):
    """A cluster, the reports of its brokers, their log dirs, and a sentence for each broker that does not report its
    log dirs."""

    cluster: ClusterHealth
    reports: BrokerReports
    disks: Sequence[LogDir]
    unread: Sequence[str]

    def problems(self) -> list[str]:
        """The sentences of `pybroker cluster check`, and one for each log dir that is offline."""
        return health.problems(self.cluster, self.reports) + [words for words in map(disk_problem, self.disks) if words]


def read_state(clients: ViewerClients) -> ClusterState:
    """Read the state of the cluster. Raises KafkaError if no broker answers."""
    with clients.admin() as admin:
        cluster = health.read(admin, settings_optional=True)
    with ThreadPoolExecutor(1) as beside:
        reports = beside.submit(health.probe, cluster.nodes, clients.admin_at)
        disks, unread = log_dirs(clients, cluster.nodes)
        return ClusterState(cluster, reports.result(), disks, unread)


def log_dirs(clients: ViewerClients, nodes: Sequence[Node]) -> tuple[list[LogDir], list[str]]:
    """Return the log dirs of brokers, and a sentence for each broker that does not report its own."""

    def ask(node: Node) -> list[LogDir]:
        with clients.admin_at(node) as admin:
            return admin.log_dirs([node.id])

    found, unread = list[LogDir](), list[str]()
    for node, answer in ask_each(nodes, ask):
        if isinstance(answer, Silent):
            unread.append(f"broker {node.id} does not report its log dirs: {answer}")
        else:
            found += answer
    return found, unread


def error_name(code: int) -> str:
    """Return the name of an error code; "online" for none."""
    return errors.lookup(code).name if code else "online"


def is_low(disk: LogDir) -> bool:
    """True if little of a log dir's disk is free."""
    if disk.total_bytes is None or disk.usable_bytes is None:
        return False
    return disk.usable_bytes < disk.total_bytes * FREE_SHARE_MIN


def disk_problem(disk: LogDir) -> str:
    """Return a sentence about a log dir that is offline; empty for another."""
    return f"broker {disk.broker} has lost the log dir {disk.path}: {error_name(disk.error)}" if disk.error else ""
