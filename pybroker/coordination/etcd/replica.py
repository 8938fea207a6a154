"""The tree of a cluster on etcd: each session has a copy, and a transaction is a compare-and-set of one key.

    PREFIX/clock           the last zxid, and the writer's mark; every transaction puts it, and compares that it has
                           not moved. So a copy at the same clock is the whole truth, and its rules are the tree's
                           (node_tree.py): versions, sequences, parents, the first error of a multi
    PREFIX/sessions/ID     a session: a key of its lease, ID in hex. A transaction compares that its session is there
    PREFIX/tree/PATH       a node: a line of text, and then its data as it is. The line has these numbers:
                           czxid mzxid ctime_ms mtime_ms version creates pzxid owner

Each read asks for the clock and the sessions, in one transaction. The nodes of a session that ended are not deleted by
its lease, but by the sessions that see its key go, in a transaction as any other: all copies have the same transactions
in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pybroker.coordination.node_tree import ROOT, NodeTree, TreeNode
from pybroker.coordination.store import BadArguments, EventType, StoreDamaged, WatchEvent, check_path
from pybroker.coordination.tree import split

PATH_SHOWN_MAX: Final = 200
VERSION_MAX: Final = (1 << 31) - 1
"""ZooKeeper's versions have 32 bits, and the protocol's partition epochs."""
HEADER_BYTES_MAX: Final = 8 * 20
"""An upper bound for the line of numbers: each is below 2**63."""


class ReplicatedTree(NodeTree):
    """A copy of the tree. Work on it is done as in any tree, and is kept by `commit`, or undone by `rollback`."""

    def value(self, path: str) -> bytes | None:
        """The node as etcd has it; None if it does not exist."""
        node = self.node(path)
        return None if node is None else b"%d %d %d %d %d %d %d %d\n%s" % (*node[1:], node.data)

    def mark(self) -> tuple[int, int]:
        """Return what `undo` needs to come back to this state, until the next commit."""
        return len(self._before), self.zxid

    def undo(self, mark: tuple[int, int]) -> None:
        """Forget everything since `mark`."""
        self._undo(mark[0])
        self.zxid = mark[1]

    def follow(self, zxid: int, nodes: Iterable[tuple[str, bytes | None]]) -> list[WatchEvent]:
        """Apply a transaction of another session: the nodes that it wrote, or deleted (None). Return its events.

        Raises StoreDamaged for a node that is not as `value` writes it, or without its parent."""
        events: list[WatchEvent] = []
        nodes = list(nodes)
        for path, value in nodes:
            _check_path(path)
            node = None if value is None else _node(path, value)
            before = self.put(path, node)
            parent = split(path)[0]
            if before is not None and (node is None or node.czxid != before.czxid):
                events += WatchEvent(EventType.DELETED, path), WatchEvent(EventType.CHILDREN_CHANGED, parent)
            if node is not None and (before is None or node.czxid != before.czxid):
                events += WatchEvent(EventType.CREATED, path), WatchEvent(EventType.CHILDREN_CHANGED, parent)
            elif node is not None and before is not None and node.mzxid != before.mzxid:
                events.append(WatchEvent(EventType.DATA_CHANGED, path))
        for path, _ in nodes:  # afterwards: a transaction may have them in any order
            self._check_place(path)
        self.zxid = zxid
        self.commit()
        return events

    def _check_place(self, path: str) -> None:
        """Raise StoreDamaged if a node lacks its parent, or its children were left behind."""
        if self.node(path) is None and (path == ROOT or self._names.get(path)):
            raise StoreDamaged(path, "etcd has no key of this node, but of its children")
        if path != ROOT and self.node(path) is not None and self.node(split(path)[0]) is None:
            raise StoreDamaged(path, "etcd has no key of this node's parent")


def _check_path(path: str) -> None:
    """Raise StoreDamaged if a key below PREFIX/tree is that of no node."""
    try:
        check_path(path)
    except BadArguments as problem:
        said = f"etcd's key {path[:PATH_SHOWN_MAX]!a} below tree/ is not one of pybroker: {problem.detail}"
        raise StoreDamaged(detail=said) from None


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
        node = TreeNode(data, *numbers)
        if max(numbers) < 1 << 63 and node.version <= VERSION_MAX:
            return node
    raise StoreDamaged(path, "etcd's key of this node has not the form that pybroker writes")
