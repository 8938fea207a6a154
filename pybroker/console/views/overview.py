"""The overview: one sentence that is green or red, the brokers, their disks, and partitions in trouble."""

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from pybroker.console.guard import viewer_of
from pybroker.console.pages import ROWS_MAX, Pages
from pybroker.console.views.cluster_state import error_name, is_low, read_state
from pybroker.operations import health
from pybroker.operations.health import ClusterHealth, times

BEHIND_MAX: Final = 5
"""Groups of the overview: those that are furthest behind."""


class OverviewPage:
    """The first page."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def show(self, request: Request) -> Response:
        clients = viewer_of(request).clients
        state = read_state(clients)
        problems, lacks = state.problems(), state.cluster.troubled()
        return self._pages.page(
            request, "overview.html", state=state, problems=problems, sentence=sentence(state.cluster, problems),
            lacks=lacks[:ROWS_MAX], more=len(lacks) - ROWS_MAX, counts=health.counted(each.state for each in lacks),
            is_low=is_low, error_name=error_name,
            behind=clients.lags.furthest_behind(BEHIND_MAX),
        )  # fmt: skip


def sentence(cluster: ClusterHealth, problems: Sequence[str]) -> str:
    """Return the state of a cluster in one sentence."""
    if problems:
        more = f", and {times(len(problems) - 1, 'other problem')}" if len(problems) > 1 else ""
        return f"Degraded: {problems[0]}{more}."
    partitions = f"all {times(cluster.partitions, 'partition')} have a leader and every replica in sync"
    return f"Healthy: {times(len(cluster.nodes), 'broker')}, and {partitions if cluster.partitions else 'no topics'}."
