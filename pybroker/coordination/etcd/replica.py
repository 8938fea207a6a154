"""The tree of a cluster on etcd: each session has a copy, and a transaction is a compare-and-set of one key.

    PREFIX/clock           the last zxid, and the writer's mark; every transaction puts it, and compares that it has
                           not moved. So a copy at the same clock is the whole truth, and its rules are the tree's
                           (tree.py): versions, sequences, parents, the first error of a multi
    PREFIX/sessions/ID     a session: a key of its lease, ID in hex. A transaction compares that its session is there
    PREFIX/tree/PATH       a node: a line of text, and then its data as it is. The line has these numbers:
                           czxid mzxid ctime_ms mtime_ms version creates pzxid owner

The order of these keys is used: the clock and the sessions are one range, which each read asks for. The nodes of a
session that ended are not deleted by its lease, but by the sessions that see its key go, in a transaction as any other:
all copies have the same transactions in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from pybroker.coordination.store import EventType, StoreDamaged, WatchEvent
from pybroker.coordination.tree import IN_MEMORY, Tree, split

NUMBERS: Final = 8
COLUMNS: Final = "czxid, mzxid, ctime_ms, mtime_ms, version, creates, pzxid, owner"
HEADER_BYTES_MAX: Final = 8 * 20
"""An upper bound for the line of numbers: each is below 2**63."""


class ReplicatedTree(Tree):
    """A copy of the tree. Work on it is done as in any tree, and is kept by `commit`, or undone by `rollback`."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        super().__init__(IN_MEMORY, wall_ms)

    def value(self, path: str) -> bytes | None:
        """The node as etcd has it; None if it does not exist."""
        sql = f"SELECT data, {COLUMNS} FROM node WHERE parent = ? AND name = ?"
        row = self._sql.execute(sql, split(path)).fetchone()
        return None if row is None else b"%s\n%s" % (" ".join(map(str, row[1:])).encode(), row[0])

    def owners(self) -> set[int]:
        """The sessions that own ephemeral nodes."""
        return {owner for (owner,) in self._sql.execute("SELECT DISTINCT owner FROM node WHERE owner != 0")}

    def follow(self, zxid: int, nodes: Iterable[tuple[str, bytes | None]]) -> list[WatchEvent]:
        """Apply a transaction of another session: the nodes that it wrote, or deleted (None). Return its events.

        Raises StoreDamaged for a node that is not as `value` writes it."""
        events: list[WatchEvent] = []
        self._begin()
        for path, value in nodes:
            if value is None:
                self._drop(path, events)
            else:
                self._put(path, value, events)
        self.zxid = zxid
        self.commit()
        return events

    def _drop(self, path: str, events: list[WatchEvent]) -> None:
        parent, name = split(path)
        if self._sql.execute("DELETE FROM node WHERE parent = ? AND name = ?", (parent, name)).rowcount:
            self._count(parent, -1)
            events += WatchEvent(EventType.DELETED, path), WatchEvent(EventType.CHILDREN_CHANGED, parent)

    def _put(self, path: str, value: bytes, events: list[WatchEvent]) -> None:
        parent, name = split(path)
        line, end, data = value.partition(b"\n")
        numbers = _numbers(line) if end else None
        if numbers is None:
            raise StoreDamaged(path, "etcd's key of this node has not the form that pybroker writes")
        czxid, mzxid = numbers[:2]
        sql = "SELECT czxid, mzxid FROM node WHERE parent = ? AND name = ?"
        before = self._sql.execute(sql, (parent, name)).fetchone()
        if before is None:
            sql = f"INSERT INTO node ({COLUMNS}, data, parent, name, children) VALUES (?,?,?,?,?,?,?,?,?,?,?,0)"
            self._count(parent, 1)
        else:
            sets = ", ".join(f"{column} = ?" for column in COLUMNS.split(", "))
            sql = f"UPDATE node SET {sets}, data = ? WHERE parent = ? AND name = ?"
        self._sql.execute(sql, (*numbers, data, parent, name))
        if before is not None and before[0] != czxid:
            events += WatchEvent(EventType.DELETED, path), WatchEvent(EventType.CHILDREN_CHANGED, parent)
        if before is None or before[0] != czxid:
            events += WatchEvent(EventType.CREATED, path), WatchEvent(EventType.CHILDREN_CHANGED, parent)
        elif before[1] != mzxid:
            events.append(WatchEvent(EventType.DATA_CHANGED, path))

    def _count(self, parent: str, children: int) -> None:
        sql = "UPDATE node SET children = children + ? WHERE parent = ? AND name = ?"
        self._sql.execute(sql, (children, *split(parent)))


def _numbers(line: bytes) -> list[int] | None:
    """The numbers of a node; None if the line has not the form that `value` writes."""
    words = line.split(b" ")
    if len(line) > HEADER_BYTES_MAX or len(words) != NUMBERS or not all(word.isdigit() for word in words):
        return None
    numbers = list(map(int, words))
    return numbers if max(numbers) < 1 << 63 else None
