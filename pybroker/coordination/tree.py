"""The tree of nodes in one SQLite file: ZooKeeper's rules in SQL. One thread; no session timeouts, no watches.

The file: `node` has one row per node, with its parent's path and its own name as key, so that a node and the children
of a node are both one search. `creates` counts the children ever created: sequential nodes are numbered by it, and
ZooKeeper's cversion is 2 * creates - children. `meta` has the last zxid. Journal mode WAL with synchronous=FULL: a
commit is one write and one fsync, and a crash leaves the last commit or the one before. The exclusive lock keeps a
second process out.

Opening writes, on a full disk too: the log dir reserves space for that (pybroker/replication/disks/disk_space.py).
"""

import contextlib
import os
import sqlite3
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
    StoreDamaged,
    StoreError,
    StoreFailed,
    WatchEvent,
)

IN_MEMORY = ":memory:"
"""The path of a tree without a file."""
DAMAGED = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
APPLICATION_ID = 0x70796B76  # marks the file as ours
FORMAT = 1
FILE_MODE = 0o600
"""Only the broker's own user may read the file, whatever the umask allows."""
SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE node (
    parent TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL,
    czxid INTEGER NOT NULL, mzxid INTEGER NOT NULL, ctime_ms INTEGER NOT NULL, mtime_ms INTEGER NOT NULL,
    version INTEGER NOT NULL, creates INTEGER NOT NULL, owner INTEGER NOT NULL, children INTEGER NOT NULL,
    pzxid INTEGER NOT NULL, PRIMARY KEY (parent, name)
) WITHOUT ROWID;
CREATE INDEX node_of_session ON node (owner) WHERE owner != 0;
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO node VALUES ('', '', x'', 0, 0, 0, 0, 0, 0, 0, 0, 0);
INSERT INTO meta VALUES ('zxid', 0);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
COMMIT;
"""
STAT = "czxid, mzxid, ctime_ms, mtime_ms, version, 2 * creates - children, owner, length(data), children, pzxid"


def split(path: str) -> tuple[str, str]:
    """Return the (parent, name) of a path; the root is ("", "") and its children's parent is "/"."""
    head, _, name = path.rpartition("/")
    return (head or "/" if name else "", name)


class Tree:
    """The open file. Nothing is durable before `commit`; writes collect the events of what they change."""

    def __init__(self, path: str, wall_ms: Callable[[], int]) -> None:
        """Open or create the file, and delete the ephemeral nodes of earlier processes. Raises StoreFailed."""
        self.path = path
        self._wall_ms = wall_ms
        if path != IN_MEMORY:
            _see_to_files(path)
        is_file = path != IN_MEMORY
        self._sql = sqlite3.connect(
            path, timeout=0, isolation_level=None, cached_statements=64, check_same_thread=is_file
        )
        if not is_file:  # from 3.13 on, Python warns about a database that was not closed
            weakref.finalize(self, self._sql.close)
        try:
            self._open()
            self.zxid: int = self._one("SELECT value FROM meta WHERE name = 'zxid'")[0]
            self._durable_zxid = self.zxid
            for (owner,) in self._sql.execute("SELECT DISTINCT owner FROM node WHERE owner != 0").fetchall():
                self.end_session(owner)
            self.commit()
        except sqlite3.Error as error:
            self._sql.close()
            kind = StoreDamaged if error.sqlite_errorcode & 0xFF in DAMAGED else StoreFailed
            raise kind(detail=f"the coordination store {path} {_why(error)}") from None
        except StoreFailed:
            self._sql.close()
            raise

    def _open(self) -> None:
        self._sql.execute("PRAGMA locking_mode = EXCLUSIVE")
        if (mark := self._one("PRAGMA application_id")[0]) != APPLICATION_ID:
            if mark or self._one("SELECT count(*) FROM sqlite_schema")[0]:
                raise StoreFailed(detail=f"{self.path} is a database of another program, not a coordination store")
            self._sql.execute("PRAGMA journal_mode = WAL")
            self._sql.execute("PRAGMA synchronous = FULL")
            self._sql.executescript(SCHEMA)
        if (version := self._one("PRAGMA user_version")[0]) != FORMAT:
            raise StoreFailed(
                detail=f"the coordination store {self.path} has format {version}; this pybroker reads {FORMAT}"
            )
        self._sql.execute("PRAGMA synchronous = FULL")
        (checked,) = self._one("PRAGMA quick_check(1)")
        if checked != "ok":
            raise StoreDamaged(detail=f"the coordination store {self.path} is damaged: {' '.join(checked.split())}")
        with contextlib.suppress(sqlite3.OperationalError):
            self._one("PRAGMA wal_checkpoint(RESTART)")  # reuse the journal that a killed process left

    def _one(self, sql: str) -> tuple[Any, ...]:
        return tuple(self._sql.execute(sql).fetchone())

    # -- transactions -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._sql.in_transaction:
            self._sql.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Make everything since the last commit durable. Raises sqlite3.Error; the caller must `rollback` then."""
        if self._sql.in_transaction:
            self._sql.execute("UPDATE meta SET value = ? WHERE name = 'zxid'", (self.zxid,))
            self._sql.execute("COMMIT")
        self._durable_zxid = self.zxid

    def rollback(self) -> None:
        """Forget everything since the last commit."""
        if self._sql.in_transaction:  # SQLite rolls back by itself when the disk is full
            self._sql.execute("ROLLBACK")
        self.zxid = self._durable_zxid

    def close(self) -> None:
        self._sql.close()

    def write(self, op: Op, session: int, events: list[WatchEvent]) -> Answer:
        """Do one operation under a zxid of its own. Raises StoreError, and has changed nothing then."""
        self._begin()
        answer = self._apply(op, session, self.zxid + 1, events)
        self.zxid += 1
        return answer

    def multi(self, ops: Sequence[Op], session: int, events: list[WatchEvent]) -> list[Answer]:
        """Do all of the operations or none, under one zxid; each sees the effect of those before. Raises StoreError."""
        self._begin()
        self._sql.execute("SAVEPOINT multi")
        answers: list[Answer] = []
        fired = len(events)
        try:
            for op in ops:
                answers.append(self._apply(op, session, self.zxid + 1, events))
        except StoreError as error:
            self._sql.execute("ROLLBACK TO multi")
            self._sql.execute("RELEASE multi")
            del events[fired:]
            error.index = len(answers)
            raise
        self._sql.execute("RELEASE multi")
        self.zxid += 1
        return answers

    def restore(self, copies: Sequence[NodeCopy], events: list[WatchEvent]) -> None:
        """Create or overwrite nodes as another store has them. Raises NoNode, and has changed nothing then."""
        check_parents(copies, self.stat)
        self._begin()
        for each in copies:
            key, is_new = split(each.path), self.stat(each.path) is None
            if is_new:
                self._sql.execute("INSERT INTO node VALUES (?, ?, x'', 0, 0, 0, 0, 0, 0, 0, 0, 0)", key)
                sql = "UPDATE node SET children = children + 1 WHERE parent = ? AND name = ?"
                self._sql.execute(sql, split(key[0]))
            czxid, mzxid, ctime_ms, mtime_ms, version, *_, pzxid = each.stat
            self._sql.execute(
                "UPDATE node SET data = ?, czxid = ?, mzxid = ?, ctime_ms = ?, mtime_ms = ?, version = ?, creates = ?, "
                "pzxid = ?, owner = 0 WHERE parent = ? AND name = ?",
                (each.data, czxid, mzxid, ctime_ms, mtime_ms, version, each.creates, pzxid, *key),
            )
            events.append(WatchEvent(EventType.CREATED if is_new else EventType.DATA_CHANGED, each.path))
        self.zxid = max([self.zxid, *(each.latest for each in copies)]) + 1

    def new_session(self) -> int:
        """Return a new session id: the zxid of its creation, so that no two are alike, even after restarts."""
        self._begin()
        self.zxid += 1
        return self.zxid

    def end_session(self, session: int, events: list[WatchEvent] | None = None) -> None:
        """Delete the session's ephemeral nodes, in one transaction."""
        rows = self._sql.execute("SELECT parent, name FROM node WHERE owner = ? ORDER BY 1, 2", (session,)).fetchall()
        deletes = [Delete(f"{'' if parent == '/' else parent}/{name}") for parent, name in rows]
        self.multi(deletes, session, [] if events is None else events)

    # -- reading ------------------------------------------------------------------------------------------------------

    def stat(self, path: str) -> Stat | None:
        row = self._sql.execute(f"SELECT {STAT} FROM node WHERE parent = ? AND name = ?", split(path)).fetchone()
        return None if row is None else Stat._make(row)

    def get(self, path: str) -> tuple[bytes, Stat]:
        sql = f"SELECT data, {STAT} FROM node WHERE parent = ? AND name = ?"
        row = self._sql.execute(sql, split(path)).fetchone()
        if row is None:
            raise NoNode(path)
        return row[0], Stat._make(row[1:])

    def children(self, path: str) -> tuple[list[str], Stat]:
        stat = self._expect(path, ANY_VERSION)
        rows = self._sql.execute("SELECT name FROM node WHERE parent = ? ORDER BY name", (path,))
        return [name for (name,) in rows], stat

    def _expect(self, path: str, version: int) -> Stat:
        """Return the Stat of a node. Raises NoNode, and BadVersion if it is not at this version."""
        stat = self.stat(path)
        if stat is None:
            raise NoNode(path)
        if version not in (ANY_VERSION, stat.version):
            raise BadVersion(path, f"the node is at version {stat.version}, not {version}")
        return stat

    # -- writing ------------------------------------------------------------------------------------------------------

    def _apply(self, op: Op, session: int, zxid: int, events: list[WatchEvent]) -> Answer:
        match op:
            case Create():
                return self._create(op, session, zxid, events)
            case Set():
                return self._set(op, zxid, events)
            case Delete():
                self._delete(op, zxid, events)
            case Check():
                self._expect(op.path, op.version)
        return None

    def _create(self, op: Create, session: int, zxid: int, events: list[WatchEvent]) -> tuple[str, Stat]:
        head, _, name = op.path.rpartition("/")
        parent = head or "/"
        row = self._sql.execute(
            "SELECT owner, creates FROM node WHERE parent = ? AND name = ?", split(parent)
        ).fetchone()
        if row is None:
            raise NoNode(op.path)
        owner, creates = row
        if op.sequential:
            name = f"{name}{creates:0{SEQUENCE_DIGITS}d}"
        path = f"{'' if parent == '/' else parent}/{name}"
        if self.stat(path) is not None:
            raise NodeExists(path)
        if owner:
            raise NoChildrenForEphemerals(path)
        now, mine = self._wall_ms(), session if op.ephemeral else 0
        values = (parent, name, op.data, zxid, zxid, now, now, 0, 0, mine, 0, zxid)
        self._sql.execute("INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        self._adopt(parent, zxid, created=1, children=1)
        events += WatchEvent(EventType.CREATED, path), WatchEvent(EventType.CHILDREN_CHANGED, parent)
        return path, Stat(zxid, zxid, now, now, 0, 0, mine, len(op.data), 0, zxid)

    def _set(self, op: Set, zxid: int, events: list[WatchEvent]) -> Stat:
        stat, now = self._expect(op.path, op.version), self._wall_ms()
        self._sql.execute(
            "UPDATE node SET data = ?, mzxid = ?, mtime_ms = ?, version = version + 1 WHERE parent = ? AND name = ?",
            (op.data, zxid, now, *split(op.path)),
        )
        events.append(WatchEvent(EventType.DATA_CHANGED, op.path))
        return stat._replace(mzxid=zxid, mtime_ms=now, version=stat.version + 1, data_length=len(op.data))

    def _delete(self, op: Delete, zxid: int, events: list[WatchEvent]) -> None:
        if op.path == "/":
            raise BadArguments(op.path, "the root cannot be deleted")
        if self._expect(op.path, op.version).num_children:
            raise NotEmpty(op.path)
        parent, name = split(op.path)
        self._sql.execute("DELETE FROM node WHERE parent = ? AND name = ?", (parent, name))
        self._adopt(parent, zxid, created=0, children=-1)
        events += WatchEvent(EventType.DELETED, op.path), WatchEvent(EventType.CHILDREN_CHANGED, parent)

    def _adopt(self, parent: str, zxid: int, *, created: int, children: int) -> None:
        """Count in the parent that a child was created or deleted."""
        self._sql.execute(
            "UPDATE node SET creates = creates + ?, children = children + ?, pzxid = ? WHERE parent = ? AND name = ?",
            (created, children, zxid, *split(parent)),
        )


def check_parents(copies: Sequence[NodeCopy], stat: Callable[[str], Stat | None]) -> None:
    """Raise NoNode for a copy whose parent is neither in the tree (`stat`) nor copied before it."""
    known = {"/"}
    for each in copies:
        parent = each.path.rpartition("/")[0] or "/"
        if parent not in known and stat(parent) is None:
            raise NoNode(each.path)
        known |= {parent, each.path}


def _see_to_files(path: str) -> None:
    """Create the file if it is missing. Raises StoreFailed."""
    if not Path(path).parent.is_dir():
        raise StoreFailed(detail=f"the coordination store {path} cannot be opened: its directory does not exist")
    _make(path)


def _make(path: str) -> None:
    """Create the file, empty, if it is missing: SQLite gives its journals the same mode. SQLite reports any failure.

    An existing file is not opened: closing it would release the locks that this process holds on it (fcntl(2))."""
    with contextlib.suppress(OSError), open(path, "xb", opener=_for_owner):
        pass


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def _why(error: sqlite3.Error) -> str:
    """Return why the file could not be opened, as the end of a sentence."""
    if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
        return "is in use by another process"
    if error.sqlite_errorcode & 0xFF in DAMAGED:
        return f"is damaged, or is not an SQLite database: {error}"
    return f"cannot be opened: {error}"
