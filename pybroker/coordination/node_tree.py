"""The tree of nodes in memory: ZooKeeper's rules on a dict of immutable nodes, with a log of what to undo.

tree.py has the same rules in SQL; the tests of a store run on both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .store import (
    ANY_VERSION,
    SEQUENCE_DIGITS,
    Answer,
    BadArguments,
    BadVersion,
    Check,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemerals,
    NodeCopy,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    Set,
    Stat,
    StoreError,
    WatchEvent,
)
from .tree import check_parents, split

ROOT = "/"


class TreeNode(NamedTuple):
    """A node's data and what is stored of its Stat. `creates` counts the children ever created: sequential nodes are
    numbered by it, and ZooKeeper's cversion is 2 * creates less the number of children."""

    data: bytes
    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int = 0
    creates: int = 0
    pzxid: int = 0
    owner: int = 0


class NodeTree:
    """A tree whose changes are kept by `commit`, or undone by `rollback`; writes collect the events of what they
    change."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self.zxid = 0
        self._committed_zxid = 0
        self._wall_ms = wall_ms
        self._nodes = {ROOT: TreeNode(b"", 0, 0, 0, 0)}
        self._names: dict[str, set[str]] = {ROOT: set()}
        """The names of the children of each node."""
        self._owned: dict[int, set[str]] = {}
        """The paths of the ephemeral nodes of each session."""
        self._before: list[tuple[str, TreeNode | None]] = []
        """Each node that was changed since the last commit, as it was; None: it did not exist."""

    # -- transactions -------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Keep everything since the last commit."""
        self._before.clear()
        self._committed_zxid = self.zxid

    def rollback(self) -> None:
        """Forget everything since the last commit."""
        self._undo(0)
        self.zxid = self._committed_zxid

    def write(self, op: Op, session: int, events: list[WatchEvent]) -> Answer:
        """Do one operation under a zxid of its own. Raises StoreError, and has changed nothing then."""
        answer = self._apply(op, session, self.zxid + 1, events)
        self.zxid += 1
        return answer

    def multi(self, ops: Sequence[Op], session: int, events: list[WatchEvent]) -> list[Answer]:
        """Do all of the operations or none, under one zxid; each sees the effect of those before. Raises StoreError."""
        answers: list[Answer] = []
        done, fired = len(self._before), len(events)
        try:
            for op in ops:
                answers.append(self._apply(op, session, self.zxid + 1, events))
        except StoreError as error:
            self._undo(done)
            del events[fired:]
            error.index = len(answers)
            raise
        self.zxid += 1
        return answers

    def end_session(self, session: int, events: list[WatchEvent]) -> None:
        """Delete the session's ephemeral nodes, in one transaction."""
        self.multi([Delete(path) for path in sorted(self._owned.get(session, ()))], session, events)

    def restore(self, copies: Sequence[NodeCopy], events: list[WatchEvent]) -> None:
        """Create or overwrite nodes as another store has them. Raises NoNode, and has changed nothing then."""
        check_parents(copies, self.stat)
        for each in copies:
            stat = each.stat
            made = TreeNode(
                each.data, stat.czxid, stat.mzxid, stat.ctime_ms, stat.mtime_ms, stat.version, each.creates, stat.pzxid
            )
            before = self.put(each.path, made)
            events.append(WatchEvent(EventType.CREATED if before is None else EventType.DATA_CHANGED, each.path))
        self.zxid = max([self.zxid, *(each.latest for each in copies)]) + 1

    # -- reading ------------------------------------------------------------------------------------------------------

    def owners(self) -> set[int]:
        """The sessions that own ephemeral nodes."""
        return set(self._owned)

    def node(self, path: str) -> TreeNode | None:
        """The node as it is stored."""
        return self._nodes.get(path)

    def stat(self, path: str) -> Stat | None:
        node = self._nodes.get(path)
        return None if node is None else self._stat(path, node)

    def get(self, path: str) -> tuple[bytes, Stat]:
        node = self._expect(path, ANY_VERSION)
        return node.data, self._stat(path, node)

    def children(self, path: str) -> tuple[list[str], Stat]:
        node = self._expect(path, ANY_VERSION)
        return sorted(self._names[path]), self._stat(path, node)

    def _stat(self, path: str, node: TreeNode) -> Stat:
        count = len(self._names[path])
        return Stat(
            node.czxid, node.mzxid, node.ctime_ms, node.mtime_ms, node.version, 2 * node.creates - count, node.owner,
            len(node.data), count, node.pzxid,
        )  # fmt: skip

    def _expect(self, path: str, version: int) -> TreeNode:
        """Return a node. Raises NoNode, and BadVersion if it is not at this version."""
        node = self._nodes.get(path)
        if node is None:
            raise NoNode(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(path, f"the node is at version {node.version}, not {version}")
        return node

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(self, path: str, node: TreeNode | None) -> TreeNode | None:
        """Replace a node, or delete it (None), without a check of the rules. Return the node before."""
        before = self._nodes.get(path)
        self._before.append((path, before))
        self._place(path, before, node)
        return before

    def _place(self, path: str, before: TreeNode | None, node: TreeNode | None) -> None:
        if node is None:
            self._nodes.pop(path, None)
        else:
            self._nodes[path] = node
        if (before is None) != (node is None) and path != ROOT:
            parent, name = split(path)
            names = self._names.setdefault(parent, set())
            if node is None:
                names.discard(name)
            else:
                names.add(name)
                self._names.setdefault(path, set())
            if node is None and not self._names.get(path):
                self._names.pop(path, None)
        was, is_now = before.owner if before is not None else 0, node.owner if node is not None else 0
        if was != is_now:
            self._disown(was, path)
            if is_now:
                self._owned.setdefault(is_now, set()).add(path)

    def _disown(self, session: int, path: str) -> None:
        if paths := self._owned.get(session):
            paths.discard(path)
            if not paths:
                del self._owned[session]

    def _undo(self, length: int) -> None:
        """Undo the latest changes until this many are left."""
        while len(self._before) > length:
            path, node = self._before.pop()
            self._place(path, self._nodes.get(path), node)

    def _apply(self, op: Op, session: int, zxid: int, events: list[WatchEvent]) -> Answer:
        match op:
            case Set():
                return self._set(op, zxid, events)
            case Create():
                return self._create(op, session, zxid, events)
            case Delete():
                self._delete(op, zxid, events)
            case Check():
                self._expect(op.path, op.version)
        return None

    def _create(self, op: Create, session: int, zxid: int, events: list[WatchEvent]) -> tuple[str, Stat]:
        head, _, name = op.path.rpartition("/")
        parent = head or ROOT
        above = self._nodes.get(parent)
        if above is None:
            raise NoNode(op.path)
        if op.sequential:
            name = f"{name}{above.creates:0{SEQUENCE_DIGITS}d}"
        path = f"{head}/{name}"
        if path in self._nodes:
            raise NodeExists(path)
        if above.owner:
            raise NoChildrenForEphemerals(path)
        now = self._wall_ms()
        made = TreeNode(op.data, zxid, zxid, now, now, pzxid=zxid, owner=session if op.ephemeral else 0)
        self.put(path, made)
        self.put(parent, above._replace(creates=above.creates + 1, pzxid=zxid))
        events += WatchEvent(EventType.CREATED, path), WatchEvent(EventType.CHILDREN_CHANGED, parent)
        return path, self._stat(path, made)

    def _set(self, op: Set, zxid: int, events: list[WatchEvent]) -> Stat:
        node = self._expect(op.path, op.version)
        made = node._replace(data=op.data, mzxid=zxid, mtime_ms=self._wall_ms(), version=node.version + 1)
        self.put(op.path, made)
        events.append(WatchEvent(EventType.DATA_CHANGED, op.path))
        return self._stat(op.path, made)

    def _delete(self, op: Delete, zxid: int, events: list[WatchEvent]) -> None:
        if op.path == ROOT:
            raise BadArguments(op.path, "the root cannot be deleted")
        self._expect(op.path, op.version)
        if self._names[op.path]:
            raise NotEmpty(op.path)
        parent = split(op.path)[0]
        self.put(op.path, None)
        self.put(parent, self._nodes[parent]._replace(pzxid=zxid))
        events += WatchEvent(EventType.DELETED, op.path), WatchEvent(EventType.CHILDREN_CHANGED, parent)
