"""The groups, and one group: its members, its lag, and why it last rebalanced."""

from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from pybroker import errors
from pybroker.console.charts import lag_chart
from pybroker.console.guard import viewer_of
from pybroker.console.lags import SAMPLE_S, group_lags, partition_ends
from pybroker.console.pages import ROWS_MAX, NotFound, Pages
from pybroker.console.views.changes import KINDS
from pybroker.console.views.topics import page_of
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

PAGE_GROUPS: Final = 100


class GroupPosition(NamedTuple):
    """A group's position in a partition; None for what is unknown."""

    partition: TopicPartition
    committed: int | None
    end: int | None
    member: int | None
    """The number of the member that reads it, from 1."""

    @property
    def lag(self) -> int | None:
        return max(0, self.end - self.committed) if self.end is not None and self.committed is not None else None


class GroupPages:
    """The pages about groups."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def all(self, request: Request) -> Response:
        find = request.query_params.get("find", "")[:249]
        with viewer_of(request).clients.admin() as admin:
            found = sorted(group for group in admin.groups() if find in group.id)
            at = page_of(request, len(found), PAGE_GROUPS)
            shown = found[at * PAGE_GROUPS : (at + 1) * PAGE_GROUPS]
            lags = group_lags(admin, [group.id for group in shown])
        return self._pages.page(
            request, "groups.html", groups=shown, total=len(found), at=at, pages=-(-len(found) // PAGE_GROUPS),
            find=find, lags=lags,
        )  # fmt: skip

    def one(self, request: Request) -> Response:
        name = request.query_params.get("id", "")
        clients = viewer_of(request).clients
        with clients.admin() as admin:
            try:
                (group,) = admin.describe_groups([name])
            except KafkaError as error:
                if error.code == errors.GROUP_ID_NOT_FOUND:
                    raise NotFound(f"Group {name} does not exist.") from error
                raise
            committed = admin.group_offsets([name])[name]
            owners = {tp: number for number, m in enumerate(group.members, 1) for tp in m.assignment}
            ends = partition_ends(admin, {tp.topic for tp in (*owners, *committed)})
        partitions = [
            GroupPosition(tp, committed[tp].offset if tp in committed else None, ends.get(tp), owners.get(tp))
            for tp in sorted({*owners, *committed})
        ]
        partitions.sort(key=lambda each: -(each.lag or 0))
        return self._pages.page(
            request, "group.html", group=group, partitions=partitions[:ROWS_MAX], more=len(partitions) - ROWS_MAX,
            lag=sum(each.lag or 0 for each in partitions),
            topics=sorted({each.partition.topic for each in partitions}), kinds=KINDS,
            chart=lag_chart(clients.lags.of(name), SAMPLE_S),
        )  # fmt: skip

