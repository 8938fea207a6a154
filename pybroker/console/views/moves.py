"""The moves of replicas that are under way, with what each new replica has copied; and the changes of a topic."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from pybroker import errors
from pybroker.client.admin import LogDir
from pybroker.client.net.metadata import Node
from pybroker.console.guard import viewer_of
from pybroker.console.pages import ROWS_MAX, Pages, topic_of
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.operations import partition_changes
from pybroker.operations.each_broker import Silent, ask_each

SizeOf = Mapping[tuple[TopicPartition, int], int]
CHANGED_PARTITIONS_MAX: Final = 50
"""Partitions of a topic whose changes are shown: each broker is asked for each of them."""


class ReplicaMove(NamedTuple):
    """A partition whose replicas move; sizes are None where they are not reported."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    copied_bytes: int | None
    total_bytes: int | None

    @property
    def share(self) -> str:
        """The share that is copied."""
        if self.copied_bytes is None or not self.total_bytes:
            return "-"
        return f"{min(100, 100 * self.copied_bytes // self.total_bytes)} %"


class MovePages:
    """The pages about moves and changes."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def moves(self, request: Request) -> Response:
        clients = viewer_of(request).clients
        with clients.admin() as admin:
            under_way = sorted(admin.list_partition_reassignments().items())
            nodes = admin.describe_cluster().nodes
        shown = under_way[:ROWS_MAX]
        topics = sorted({tp.topic for tp, _ in shown})

        def ask(node: Node) -> list[LogDir]:
            with clients.admin_at(node) as admin:
                return admin.log_dirs([node.id], topics)

        found = [dirs for _, dirs in ask_each(nodes, ask) if not isinstance(dirs, Silent)] if topics else []
        sizes = {
            (r.partition, each.broker): r.size_bytes
            for dirs in found for each in dirs for r in each.replicas if not r.future
        }  # fmt: skip
        moves = [
            ReplicaMove(tp, move.replicas, move.adding, move.removing, *_copied(tp, move.replicas, move.adding, sizes))
            for tp, move in shown
        ]
        return self._pages.page(request, "moves.html", moves=moves, more=len(under_way) - ROWS_MAX)

    def changes(self, request: Request) -> Response:
        name = topic_of(request)
        clients = viewer_of(request).clients
        with clients.admin() as admin:
            (topic,) = admin.topics([name])
            nodes = admin.describe_cluster().nodes
        if topic.error:
            raise KafkaError(topic.error, f"topic {name}: {errors.lookup(topic.error).name}")
        partitions = [TopicPartition(name, p.partition) for p in topic.partitions[:CHANGED_PARTITIONS_MAX]]
        found, silent = partition_changes.changes(nodes, clients.admin_at, partitions)
        rows = [
            (str(each["time"]), tp.partition, each["broker"], *(_text(each.get(key)) for key in _COLUMNS))
            for tp, changes in found.items()
            for each in changes
        ]
        rows.sort(reverse=True)
        return self._pages.page(
            request, "changes.html", name=name, rows=rows[:ROWS_MAX], more=len(rows) - ROWS_MAX, silent=silent,
            left_out=len(topic.partitions) - CHANGED_PARTITIONS_MAX,
        )  # fmt: skip


_COLUMNS: Final = ("what", "leader", "leader_epoch", "isr", "cause")


def _text(value: object) -> str:
    """Return a value of a broker's JSON as text for a cell."""
    if isinstance(value, list):
        return ", ".join(map(str, value))[:500]
    return "-" if value is None else str(value)[:500]


def _copied(
    tp: TopicPartition, replicas: tuple[int, ...], adding: tuple[int, ...], sizes: SizeOf
) -> tuple[int | None, int | None]:
    """Return the bytes that the new replicas have, and those that they will have."""
    old = [sizes[tp, broker] for broker in replicas if broker not in adding and (tp, broker) in sizes]
    new = [sizes.get((tp, broker), 0) for broker in adding]
    return (sum(new), max(old) * len(new)) if old and new else (None, None)
