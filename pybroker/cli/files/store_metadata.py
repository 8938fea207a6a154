"""Compare a coordination store with the log dirs that `pybroker doctor` examines.

    directory of an unknown topic           a start takes it over, if it has a topic id and was not deleted.
    directory of an earlier topic           a start leaves it alone.
    partition without its directory         offline after a start, until restored or given up by name.

Only named log dirs are examined: partitions in others are not missed.
"""

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pybroker.cli.files.finding import Finding
from pybroker.coordination.store import StoreDamaged, StoreFailed
from pybroker.coordination.tree import DAMAGED
from pybroker.metadata import nodes
from pybroker.model import TopicPartition
from pybroker.replication.disks import checkpoints
from pybroker.replication.disks.checkpoints import Malformed, Meta
from pybroker.replication.disks.directory_names import KRAFT_LOG
from pybroker.replication.opening import give_up

STORE_FILE: Final = "coordination.sqlite"
_PARTITION: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})")
MOVE: Final = "move it away unless you need it: a start ignores it"


class StoreContents(NamedTuple):
    """The content of a coordination store."""

    log_dir: Path
    cluster_id: str | None
    broker_ids: set[int]
    paths: dict[str, str]  # paths of log dirs by id
    topics: dict[str, nodes.TopicNode]
    deletions: set[str]  # topics whose deletion is not finished
    deleted: set[bytes]  # topic ids


def partitions_in(directory: Path) -> Iterator[tuple[TopicPartition, Path]]:
    """Yield the directories of partitions in a log dir."""
    for path in sorted(directory.iterdir()):
        match = _PARTITION.fullmatch(path.name)
        if match and path.is_dir() and match["topic"] != KRAFT_LOG:
            yield TopicPartition(match["topic"], int(match["partition"])), path


def read(log_dir: Path) -> StoreContents | None:
    """Read the store of a log dir; None if there is none. Raises StoreDamaged, and StoreFailed if it cannot be read."""
    path = log_dir / STORE_FILE
    if not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=0)) as sql:
            (said,) = sql.execute("PRAGMA quick_check(1)").fetchone()
            if said != "ok":
                raise StoreDamaged(detail=f"the coordination store is damaged: {' '.join(said.split())}")
            if not sql.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                raise StoreDamaged(detail="the coordination store is empty")

            def children(parent: str) -> dict[str, bytes]:
                return dict(sql.execute("SELECT name, data FROM node WHERE parent = ?", (parent,)).fetchall())

            cluster = children("/cluster").get("id")
            log_dirs = children(nodes.LOG_DIRS)
            topics = {name: nodes.load_topic(data) for name, data in children(nodes.TOPICS).items()}
            replicas = {broker for topic in topics.values() for held in topic.replicas for broker in held}
            return StoreContents(
                log_dir,
                nodes.load_cluster_id(cluster) if cluster else None,
                {int(name) for name in log_dirs} or replicas,
                {key: path for data in log_dirs.values() for key, path in nodes.load_log_dirs(data).items()},
                topics,
                set(children(nodes.DELETIONS)),
                {nodes.id_bytes(text) for text in children(nodes.DELETED)},
            )
    except sqlite3.Error as problem:
        if problem.sqlite_errorcode & 0xFF in DAMAGED:
            raise StoreDamaged(detail=f"the coordination store is damaged: {problem}") from None
        raise StoreFailed(detail=f"the coordination store cannot be read: {problem}") from None
    except (ValueError, TypeError, AttributeError):
        raise StoreDamaged(detail="the coordination store is damaged: a node is not as it was written") from None


def _read(log_dir: Path) -> StoreContents | None:
    try:
        return read(log_dir)
    except StoreFailed:
        return None


class KnownLogDirs:
    """The records of a broker's log dirs about each other, and those of the store in one of them."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._metas = {directory: _meta(directory) for directory in directories}
        self._store = next((store for directory in directories if (store := _read(directory)) is not None), None)

    def meta_of(self, directory: Path) -> Meta | None:
        """Return the content of the log dir's meta.properties, as far as other files know it; None if they do not name
        the broker."""
        others = [meta for meta in self._metas.values() if meta is not None]
        clusters = {meta.cluster_id for meta in others if meta.cluster_id}
        brokers = {meta.broker_id for meta in others if meta.broker_id is not None}
        holders = {meta.coordination_id for meta in others if meta.coordination_id}
        if self._store is not None and self._store.cluster_id:
            clusters.add(self._store.cluster_id)
            brokers |= self._store.broker_ids
        if len(clusters) != 1 or len(brokers) != 1 or len(holders) > 1:
            return None
        mine = self._id_of(directory)
        holder = self._id_of(self._store.log_dir) if self._store is not None else None
        return Meta(clusters.pop(), brokers.pop(), mine, holder or next(iter(holders), None))

    def _id_of(self, directory: Path) -> str | None:
        """The directory.id of a log dir: its own, else that which the store has for its path."""
        meta = self._metas[directory]
        if meta is not None and meta.directory_id:
            return meta.directory_id
        theirs = {meta.directory_id for meta in self._metas.values() if meta is not None}
        paths = {} if self._store is None else self._store.paths
        found = [key for key, path in paths.items() if path == os.path.abspath(directory) and key not in theirs]
        return found[0] if len(found) == 1 else None

    # -- the store against the log dirs --------------------------------------------------------------------------------

    def findings(self) -> Iterator[Finding]:
        """Yield disagreements of the store and the log dirs, and partitions that are in two log dirs. Raises
        OSError."""
        there: dict[TopicPartition, Path] = {}
        store = self._store if self._store is not None and self._store.cluster_id else None
        for directory in self._directories:
            for key, path in partitions_in(directory):
                finding = self._of_directory(store, key, path) if store is not None else None
                if finding is not None:
                    yield finding
                if finding is not None and finding.cure == MOVE:
                    continue
                if key in there:
                    yield Finding(path, f"it lies in {there[key].parent} too", "move the wrong one away", None)
                there[key] = path
        if store is not None:
            yield from self._missing(store, there)

    @staticmethod
    def _of_directory(store: StoreContents, key: TopicPartition, path: Path) -> Finding | None:
        topic, topic_id = store.topics.get(key.topic), _topic_id(path)
        if key.topic in store.deletions:
            return None
        if topic is not None and topic_id not in (None, topic.id):
            return Finding(path, "it belongs to an earlier topic of the same name", MOVE, None)
        if topic is not None and key.partition < len(topic.replicas):
            return None
        if topic_id in store.deleted:
            return Finding(path, "its topic was deleted", MOVE, None)
        if topic_id is None:
            return Finding(path, "the coordination store does not know it, and it has no topic id", MOVE, None)
        cure = "the next start takes it over, with retention off: start the broker, or move the directory away"
        return Finding(path, "the coordination store does not know it", cure, None)

    def _missing(self, store: StoreContents, there: dict[TopicPartition, Path]) -> Iterator[Finding]:
        ids = {self._id_of(directory): directory for directory in self._directories}
        for name, topic in sorted(store.topics.items()):
            for index, directory_id in sorted(topic.directories.items()):
                key = TopicPartition(name, index)
                if name in store.deletions or key in there or directory_id not in ids:
                    continue
                cure = f"restore it, or go on without its records: {give_up(key)}"
                what = "the coordination store knows it, and it is missing"
                yield Finding(ids[directory_id] / str(key), what, cure, None)


def _meta(directory: Path) -> Meta | None:
    try:
        return checkpoints.read_meta((directory / checkpoints.META).read_text("utf-8"))
    except (FileNotFoundError, UnicodeDecodeError, Malformed):
        return None


def _topic_id(path: Path) -> bytes | None:
    try:
        return checkpoints.read_topic_id((path / checkpoints.PARTITION_METADATA).read_text("utf-8"))
    except (FileNotFoundError, UnicodeDecodeError, Malformed):
        return None
