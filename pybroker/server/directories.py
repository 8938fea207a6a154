"""Which log dir is which: by the ids in their meta.properties (KIP-858), and by what the store knows of each.

of a cluster ──> no lone broker's: others hold its partitions, and go on without it
known and there ──> used, wherever it is mounted now
known, holds partitions, not there ──> offline: back at a later start, or given up by name
blank, at the path of one that is known ──> the disk is not mounted: offline, and left blank
blank otherwise ──> a new one, with an id of its own
"""

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from random import Random

from pybroker.clock import wall_ms
from pybroker.controller import nodes
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.replication.checkpoints import Meta
from pybroker.replication.logdirs import LogDir, StartError
from pybroker.replication.opening import give_up

log = logging.getLogger(__name__)

ZOOKEEPER = "zookeeper"
"""In place of an id, of a broker of a cluster: its coordination store is in none of the log dirs."""
STORE_FILE = "coordination.sqlite"
"""In the first log dir, or in the one that had it before; Kafka's tools look at directories there and pass files by."""


def with_store(log_dirs: Sequence[LogDir], given_up: Set[str]) -> LogDir:
    """The log dir that holds the coordination store, or will. Raises StartError where the store is elsewhere."""
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
                f"{log_dir.path} is of a broker of a cluster: start it with --zookeeper, or part from the cluster for "
                f"good, and go on alone with what lies here: {give_up(ZOOKEEPER)}"
            )
        if holder in by_id and holder is not None:
            return by_id[holder]
        if holder is not None and holder not in given_up:
            failed = "".join(f" ({d.path}: {d.failure})" for d in log_dirs if d.failure)
            raise StartError(
                f"the coordination store is in the log directory with directory.id {holder}, and not there{failed}: "
                f"mount it, or go on with what lies in the other log directories: {give_up(holder)}"
            )
    if log_dirs[0].failure and not given_up:
        first = log_dirs[0]
        raise StartError(f"{first.path}, which holds the coordination store, cannot be used: {first.failure}")
    return usable[0]


def had_store(log_dirs: Iterable[LogDir]) -> bool:
    """Does one of them say where the coordination store is? Then there was one, and settings of topics in it."""
    metas = [log_dir.meta for log_dir in log_dirs if log_dir.meta is not None]
    return any(meta.coordination_id not in (None, ZOOKEEPER) for meta in metas)


def set_store_aside(path: str, problem: object) -> None:
    """Give a damaged store another name, with its journal. Raises OSError."""
    aside = f"{path}.{wall_ms()}.damaged"
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + suffix, aside + suffix)
    event(log, logging.ERROR, "coordination store set aside", file=aside, reason=problem)


def ids_of(names: Iterable[str], known: Mapping[str, str]) -> Set[str]:
    """These names, and the ids of those that are paths of log dirs."""
    given = {os.path.abspath(name) if os.sep in name else name for name in names}
    return given | {directory for directory, path in known.items() if path in given}


def warn_of_unknown(
    given_up: Set[str], known: Mapping[str, str], log_dirs: Iterable[LogDir], partitions: Iterable[TopicPartition]
) -> None:
    """Say which of the names given up are no log dir and no partition: they are most likely mistyped."""
    holders = {log_dir.meta.coordination_id for log_dir in log_dirs if log_dir.meta is not None}
    others = {ZOOKEEPER, *known.values(), *holders, *map(str, partitions)}
    for name in sorted(given_up - known.keys() - others):
        reason = "no log dir has this directory.id or path, and no partition has this name"
        event(log, logging.WARNING, "nothing to give up", given=name, reason=reason)


def settle(
    log_dirs: Sequence[LogDir], known: Mapping[str, str], held: Mapping[str, int], given_up: Set[str]
) -> list[LogDir]:
    """Take those offline that are not what they were; those that are to be there as well, and are not: offline too.

    `known`: {directory.id: last path}; `held`: {directory.id: partitions}. Raises StartError where two have one id,
    OSError."""
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
            log_dir.fail(f"it is in none of log.dirs: {what}")
            missing.append(log_dir)
        elif not log_dir.failure and log_dir.blank:
            log_dir.fail(f"it is empty: {what}")
        log_dir.id = directory  # also that of one whose meta.properties is gone, or of one that cannot be used
    return missing


def _ways_out(directory: str) -> str:
    return f"mount it, or go on without them with {give_up(directory)}"


def claim(
    log_dirs: Iterable[LogDir], cluster_id: str, broker_id: int, store: LogDir | None, random: Random
) -> dict[str, str]:
    """Record in each log dir whose it is, its id, and where the store is, None for a cluster's; {directory.id: path} of
    all. Raises OSError."""
    ordered = sorted(log_dirs, key=lambda log_dir: log_dir is not store)  # the store's first: others name its id
    for log_dir in ordered:
        if not log_dir.failure:
            directory = log_dir.id or nodes.id_text(nodes.draw_id(random))
            holder = ZOOKEEPER if store is None else directory if log_dir is store else store.id
            log_dir.claim(Meta(cluster_id, broker_id, directory, holder))
    return {log_dir.id: log_dir.path for log_dir in ordered if log_dir.id is not None}
