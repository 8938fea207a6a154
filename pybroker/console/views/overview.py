"""The overview: one sentence that is green or red, the brokers, their disks, and partitions in trouble."""

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from pybroker import errors
from pybroker.client.admin import LogDir
from pybroker.client.net.metadata import Node
from pybroker.console.clients import ViewerClients
from pybroker.console.guard import viewer_of
from pybroker.console.pages import ROWS_MAX, Pages
from pybroker.operations import health
from pybroker.operations.each_broker import Silent, ask_each
from pybroker.operations.health import ClusterHealth, times

FREE_SHARE_MIN: Final = 0.10
"""The share of a disk that is free, below which it is shown in red."""


class OverviewPage:
    """The first page."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def show(self, request: Request) -> Response:
        clients = viewer_of(request).clients
        with clients.admin() as admin:
            cluster = health.read(admin, settings_optional=True)
        reports = health.probe(cluster.nodes, clients.admin_at)
        disks, unread = log_dirs(clients, cluster.nodes)
        problems = health.problems(cluster, reports) + [words for words in map(disk_problem, disks) if words]
        lacks = cluster.troubled()
        return self._pages.page(
            request, "overview.html", cluster=cluster, reports=reports, problems=problems,
            sentence=sentence(cluster, problems), lacks=lacks[:ROWS_MAX], more=len(lacks) - ROWS_MAX,
            counts=health.counted(each.state for each in lacks), led=cluster.led(), held=cluster.held(),
            disks=disks, unread=unread, is_low=is_low, error_name=error_name,
        )  # fmt: skip


def sentence(cluster: ClusterHealth, problems: Sequence[str]) -> str:
    """Return the state of a cluster in one sentence."""
    if problems:
        more = f", and {times(len(problems) - 1, 'other problem')}" if len(problems) > 1 else ""
        return f"Degraded: {problems[0]}{more}."
    partitions = f"all {times(cluster.partitions, 'partition')} have a leader and every replica in sync"
    return f"Healthy: {times(len(cluster.nodes), 'broker')}, and {partitions if cluster.partitions else 'no topics'}."


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
