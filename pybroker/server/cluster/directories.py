"""Identifies log dirs by the ids in their meta.properties (KIP-858), and compares them with the store.

of a broker of a cluster ──> refused by a lone broker, as other brokers have its partitions.
known and present ──> used, wherever it is mounted now.
known, with partitions, but missing ──> offline, until a later start finds it or it is given up by name.
empty, at the path of a known one ──> the disk is not mounted, so it is offline and left empty.
empty otherwise ──> a new log dir, which gets an id.
"""

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from random import Random

from pybroker.clock import wall_ms
from pybroker.errors import StartError
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.model import TopicPartition
from pybroker.replication.disks.checkpoints import Meta
from pybroker.replication.disks.logdirs import LogDir
from pybroker.replication.opening import give_up

log = logging.getLogger(__name__)

ZOOKEEPER = "zookeeper"
"""The coordination id of a broker of a cluster, whose store is in none of the log dirs."""
STORE_FILE = "coordination.sqlite"
"""A file in the first log dir, or in the one that had it before; Kafka's tools ignore files in log dirs."""


def owner(log_dirs: Iterable[LogDir]) -> Meta:
    """The cluster id and broker id of the log dirs. Raises StartError if they disagree."""
    found = Meta(None, None)
    for log_dir in log_dirs:
        meta = log_dir.meta or Meta(None, None)
        for field, mine, other in zip(("cluster.id", "broker.id"), meta, found, strict=False):
            if mine is not None and other is not None and mine != other:
                raise StartError(
                    f"the log directories belong to different brokers: {log_dir.path} has {field} {mine}, "
                    f"another has {other}"
                )
        found = Meta(meta.cluster_id or found.cluster_id, found.broker_id if meta.broker_id is None else meta.broker_id)
    return found


def with_store(log_dirs: Sequence[LogDir], given_up: Set[str]) -> LogDir:
    """The log dir that holds the coordination store, or will hold it. Raises StartError if the store is missing."""
    usable = [log_dir for log_dir in log_dirs if not log_dir.failure]
    holding = [log_dir for log_dir in usable if os.path.exists(os.path.join(log_dir.path, STORE_FILE))]
    if len(holding) > 1:
        paths = " and ".join(log_dir.path for log_dir in holding)
        raise StartError(f"{paths} both hold a coordination store: move the file {STORE_FILE} of the wrong one away")
    if holding:
        return holding[0]
    by_id = {log_dir.id: log_dir for log_dir in usable}
    for log_dir in usable:
        holder = log_dir.meta.coordination_id if log_dir.meta is not None else None
        if holder == ZOOKEEPER and holder not in given_up:
            raise StartError(
                f"{log_dir.path} belongs to a broker of a cluster: start it with --zookeeper or --etcd, or leave the "
                f"cluster for good and continue alone with the data in these log directories: {give_up(ZOOKEEPER)}"
            )
        if holder in by_id and holder is not None:
            return by_id[holder]
        if holder is not None and holder not in given_up:
            failed = "".join(f" ({d.path}: {d.failure})" for d in log_dirs if d.failure)
            raise StartError(
                f"the coordination store in the log directory with directory.id {holder} is missing{failed}: mount "
                f"it, or continue with the data in the other log directories: {give_up(holder)}"
            )
    if log_dirs[0].failure and not given_up:
        first = log_dirs[0]
        raise StartError(f"{first.path}, which holds the coordination store, cannot be used: {first.failure}")
    return usable[0]


def had_store(log_dirs: Iterable[LogDir]) -> bool:
    """True if a meta.properties names a coordination store: there was one, with settings of topics."""
    metas = [log_dir.meta for log_dir in log_dirs if log_dir.meta is not None]
    return any(meta.coordination_id not in (None, ZOOKEEPER) for meta in metas)


def set_store_aside(path: str, problem: object) -> None:
    """Rename a damaged store, and its journal. Raises OSError."""
    aside = f"{path}.{wall_ms()}.damaged"
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + suffix, aside + suffix)
    event(log, logging.ERROR, "coordination store set aside", file=aside, reason=problem)


def ids_of(names: Iterable[str], known: Mapping[str, str]) -> Set[str]:
    """Return the names, and the ids of log dirs that are named by path."""
    given = {os.path.abspath(name) if os.sep in name else name for name in names}
    return given | {directory for directory, path in known.items() if path in given}


def warn_of_unknown(
    given_up: Set[str], known: Mapping[str, str], log_dirs: Iterable[LogDir], partitions: Iterable[TopicPartition]
) -> None:
    """Warn of names to give up that match no log dir and no partition: they are probably mistyped."""
    holders = {log_dir.meta.coordination_id for log_dir in log_dirs if log_dir.meta is not None}
    others = {ZOOKEEPER, *known.values(), *holders, *map(str, partitions)}
    for name in sorted(given_up - known.keys() - others):
        reason = "no log dir has this directory.id or path, and no partition has this name"
        event(log, logging.WARNING, "nothing to give up", given=name, reason=reason)


def settle(
    log_dirs: Sequence[LogDir], known: Mapping[str, str], held: Mapping[str, int], given_up: Set[str]
) -> list[LogDir]:
    """Take log dirs offline that were replaced by empty ones, and return missing ones, offline.

    `known`: {directory.id: last path}; `held`: {directory.id: number of partitions}. Raises StartError if two log dirs
    have the same id, OSError."""
    there: dict[str, LogDir] = {}
    for one in log_dirs:
        if one.id is not None and (other := there.setdefault(one.id, one)) is not one:
            raise StartError(f"{other.path} and {one.path} both have the directory.id {one.id}: one is a copy")
    by_path = {log_dir.path: log_dir for log_dir in log_dirs}
    missing = []
    for directory, path in known.items():
        if directory in there or directory in given_up or not held.get(directory):
            continue
        what = f"{held[directory]} partitions lie in directory.id {directory}; {_ways_out(directory)}"
        log_dir = by_path.get(path)
        if log_dir is None or log_dir.id is not None:
            log_dir = LogDir(path)
            log_dir.fail(f"it is not in log.dirs: {what}")
            missing.append(log_dir)
        elif not log_dir.failure and log_dir.blank:
            log_dir.fail(f"it is empty: {what}")
        log_dir.id = directory  # also if its meta.properties is missing, or the log dir cannot be used
    return missing


def _ways_out(directory: str) -> str:
    return f"mount it, or give them up with {give_up(directory)}"


def claim(
    log_dirs: Iterable[LogDir], cluster_id: str, broker_id: int, store: LogDir | None, random: Random
) -> dict[str, str]:
    """Write the ids of cluster, broker, log dir and store into each log dir; return {directory.id: path}.

    `store` is None for a broker of a cluster. Raises OSError."""
    ordered = sorted(log_dirs, key=lambda log_dir: log_dir is not store)  # the store's first: others record its id
    for log_dir in ordered:
        if not log_dir.failure:
            directory = log_dir.id or nodes.id_text(nodes.draw_id(random))
            holder = ZOOKEEPER if store is None else directory if log_dir is store else store.id
            log_dir.claim(Meta(cluster_id, broker_id, directory, holder))
    return {log_dir.id: log_dir.path for log_dir in ordered if log_dir.id is not None}
