"""The tree of a cluster on etcd: each session has a copy, and a transaction is a compare-and-set of one key.

    PREFIX/clock           the last zxid, and the writer's mark; every transaction puts it, and compares that it has
                           not moved. So a copy at the same clock is the whole truth, and its rules are the tree's
                           (node_tree.py): versions, sequences, parents, the first error of a multi
    PREFIX/sessions/ID     a session: a key of its lease, ID in hex. A transaction compares that its session is there
    PREFIX/tree/PATH       a node: a line of text, and then its data as it is. The line has these numbers:
                           czxid mzxid ctime_ms mtime_ms version creates pzxid owner

The order of these keys is used: the clock and the sessions are one range, which each read asks for. The nodes of a
session that ended are not deleted by its lease, but by the sessions that see its key go, in a transaction as any other:
all copies have the same transactions in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pybroker.coordination.node_tree import NodeTree, TreeNode
from pybroker.coordination.store import EventType, StoreDamaged, WatchEvent
from pybroker.coordination.tree import split

HEADER_BYTES_MAX: Final = 8 * 20
"""An upper bound for the line of numbers: each is below 2**63."""


class ReplicatedTree(NodeTree):
    """A copy of the tree. Work on it is done as in any tree, and is kept by `commit`, or undone by `rollback`."""

    def value(self, path: str) -> bytes | None:
        """The node as etcd has it; None if it does not exist."""
        node = self.node(path)
        return None if node is None else b"%d %d %d %d %d %d %d %d\n%s" % (*node[1:], node.data)

    def follow(self, zxid: int, nodes: Iterable[tuple[str, bytes | None]]) -> list[WatchEvent]:
        """Apply a transaction of another session: the nodes that it wrote, or deleted (None). Return its events.

        Raises StoreDamaged for a node that is not as `value` writes it."""
        events: list[WatchEvent] = []
        for path, value in nodes:
            node = None if value is None else _node(path, value)
            before = self.put(path, node)
            parent = split(path)[0]
            if before is not None and (node is None or node.czxid != before.czxid):
                events += WatchEvent(EventType.DELETED, path), WatchEvent(EventType.CHILDREN_CHANGED, parent)
            if node is not None and (before is None or node.czxid != before.czxid):
                events += WatchEvent(EventType.CREATED, path), WatchEvent(EventType.CHILDREN_CHANGED, parent)
            elif node is not None and before is not None and node.mzxid != before.mzxid:
                events.append(WatchEvent(EventType.DATA_CHANGED, path))
        self.zxid = zxid
        self.commit()
        return events


def _node(path: str, value: bytes) -> TreeNode:
    """A node as etcd has it. Raises StoreDamaged if it has not the form that `value` writes."""
    line, end, data = value.partition(b"\n")
    words = line.split(b" ")
    if (
        end
        and len(line) <= HEADER_BYTES_MAX
        and len(words) == len(TreeNode._fields) - 1
        and all(map(bytes.isdigit, words))
    ):
        numbers = list(map(int, words))
        if max(numbers) < 1 << 63:
            return TreeNode(data, *numbers)
    raise StoreDamaged(path, "etcd's key of this node has not the form that pybroker writes")
