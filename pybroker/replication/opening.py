"""Where the log of each replica lies or will lie, and how it is opened from there.

    on record, and there ──> it is opened             no record, and nowhere ──> it is made: its creation was cut short
    on record, not there ──> offline, until it is back or given up by name; what is made in its place begins at 0
    files missing, at its start or end ──> offline as well; given up, what is there is used

Everything here waits for the disk, but for `place`.
"""

import contextlib
import logging
import os
import secrets
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from pybroker import core
from pybroker.cluster.image import PartitionState
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.replication import damage
from pybroker.replication.checkpoints import CLEANED, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from pybroker.replication.disk_space import LACKS
from pybroker.replication.logdirs import Found, LogDir, StartError, remove
from pybroker.replication.replica import Replica

log = logging.getLogger(__name__)

NAME_MAX = 255
"""Bytes of a file's name."""


def give_up(name: object) -> str:
    """How a person says that what is missing does not come back."""
    return f"pybroker serve --give-up {name}"


class Wanted(NamedTuple):
    """A replica that is to be held here: its topic's own settings, the directory.id on record, and the state in which
    it is led here alone; None: it has no role yet."""

    key: TopicPartition
    topic_id: bytes
    config: Mapping[str, str]
    directory: str | None
    state: PartitionState | None


class Opening(NamedTuple):
    """A replica to open, and whether nothing of it can be on disk."""

    replica: Replica
    state: PartitionState | None
    new: bool


class Opener:
    """Finds, places and opens the logs of one broker, over all of its log dirs."""

    def __init__(self, broker: core.Broker, log_dirs: Sequence[LogDir], given_up: Container[str]) -> None:
        """`given_up`: ids and paths of log dirs, and names of partitions, whose missing data nobody waits for."""
        self._core = broker
        self._dirs = log_dirs
        self._given_up = given_up
        self._found: dict[TopicPartition, Found] = {}  # directories, at start
        self.begun: dict[TopicPartition, LogDir] = {}
        """The log dir of each log that could not be made to its end and is to be made again."""

    def survey(self, ids: Mapping[str, bytes]) -> Mapping[TopicPartition, Found]:
        """Look what lies in the log dirs, but for partitions of deleted topics whose names others have now: `ids` has
        the ids of those. Raises StartError if a partition lies in two log dirs."""
        for log_dir in self.usable():
            for key, found in log_dir.partitions():
                if found.topic_id is not None and found.topic_id != ids.get(key.topic, found.topic_id):
                    path = os.path.join(log_dir.path, str(key))
                    event(log, logging.WARNING, "directory of a deleted topic ignored", directory=path)
                elif key in self._found:
                    raise StartError(
                        f"{key} lies in two log directories, {self._found[key].log_dir.path} and {log_dir.path}: "
                        "move the one that is not wanted away"
                    )
                else:
                    self._found[key] = found
        return self._found

    def usable(self) -> list[LogDir]:
        return [log_dir for log_dir in self._dirs if not log_dir.failure]

    def place(self, replica: Replica, recorded: str | None, new: bool) -> tuple[LogDir | None, bool]:
        """(Where it lies or will, whether it is made there); no log dir, and offline, where it should lie and does not.

        `recorded`: the directory.id on record. What is made goes where the fewest are, and onto a full disk only where
        there is no other; what could not be made to its end goes where it was begun."""
        found = self._found.get(replica.key)
        if found is not None and not new:
            return found.log_dir, found.topic_id not in (None, replica.topic_id)
        usable = self.usable()
        if not usable:
            replica.failure = "no log directory can be used"
            return None, False
        if new or str(replica.key) in self._given_up or (recorded is not None and recorded in self._given_up):
            return _emptiest(usable), True
        replica.failure = self._why_missing(replica, recorded)
        if replica.failure:
            return None, False
        return self.begun.pop(replica.key, None) or _emptiest(usable), False

    def _why_missing(self, replica: Replica, recorded: str | None) -> str:
        """Why a partition that is nowhere is not made anew; empty if it never was made."""
        if recorded is None:
            unusable = len(self.usable()) < len(self._dirs)
            return "it may lie in a log directory that cannot be used" if unusable else ""
        log_dir = next((d for d in self._dirs if d.id == recorded), None)
        if log_dir is None:
            return f"it lies in the log directory with directory.id {recorded}, which is not in log.dirs"
        if log_dir.failure:
            return f"it lies in the log directory {log_dir.path}, which is offline: {log_dir.failure}"
        replica.directory = log_dir
        log_dir.placed += 1
        reason = f"its directory is missing from {log_dir.path}"
        how = give_up(replica.key)
        event(log, logging.ERROR, "partition offline", partition=replica.key, reason=reason, given_up_by=how)
        return reason

    def open_share(self, log_dir: LogDir, share: Sequence[Opening]) -> None:
        """Open or make these; the names of those that are made are durable before the store says that they lie here."""
        for opening in share:
            replica = opening.replica
            replica.directory = log_dir
            try:
                log_dir.forget_clean_stop()
                replica.log = self._open_one(log_dir, opening)
                replica.tell_log()
                damage.remember(replica)
            except core.MissingFiles as problem:
                replica.failure = str(problem)
                how = give_up(replica.key)
                event(log, logging.ERROR, "partition offline", partition=replica.key, reason=problem, given_up_by=how)
            except (core.LogError, OSError) as problem:
                replica.failure = str(problem)
                event(log, logging.ERROR, "partition offline", partition=replica.key, reason=problem)
                if isinstance(problem, OSError):
                    replica.lacked = problem.errno in LACKS
                    log_dir.space.note(problem.errno)
        if any(opening.new or opening.replica.key not in self._found for opening in share):
            with contextlib.suppress(OSError):  # the log dir is offline then
                log_dir.sync()

    def _open_one(self, log_dir: LogDir, opening: Opening) -> core.Partition:
        key, new = opening.replica.key, opening.new
        if new:
            self.set_aside(key, "stray")  # nobody knows it, and it has the new partition's name
            log_dir.forget({key})
        recorded = log_dir.recorded
        opening.replica.copied = opening.state is None
        partition = self._core.open(
            log_dir.path,
            key.topic,
            key.partition,
            topic_id=opening.replica.topic_id,
            config=opening.replica.core_config,
            recovery_point=recorded[RECOVERY_POINTS].get(key, 0),
            log_start_offset=recorded[LOG_STARTS].get(key, 0),
            high_watermark=recorded[HIGH_WATERMARKS].get(key, 0 if opening.state is None else -1),
            clean=log_dir.clean and not new,
            epoch_max=-1 if opening.state is None else opening.state.leader_epoch,
            compacted=opening.replica.copied or key in recorded[CLEANED],
            written=0 if new else log_dir.written(key),
            given_up=str(key) in self._given_up,
        )
        if partition.recovery:
            event(log, logging.WARNING, "partition recovered", partition=key, repaired=partition.recovery)
        log_dir.lower(key, partition.log_end_offset)
        if opening.state is not None:
            partition.become_leader(opening.state.leader_epoch, opening.state.partition_epoch)
        return partition

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """What was found at the start does not lie there any more."""
        for key in keys:
            self._found.pop(key, None)
            self.begun.pop(key, None)

    def set_aside(self, key: TopicPartition, why: str) -> str | None:
        """Rename the directory of a partition that is not open, if there is one: what it is named then. The next start
        removes those set aside to `delete` that are left."""
        path = self.directory_of(key)
        if path is None:
            return None
        mark = f"-{key.partition}.{secrets.token_hex(16)}-{why}"
        aside = os.path.join(os.path.dirname(path), key.topic[: NAME_MAX - len(mark)] + mark)
        os.rename(path, aside)
        event(log, logging.WARNING, "directory set aside", directory=aside)
        return aside

    def directory_of(self, key: TopicPartition) -> str | None:
        """Where a partition lies, open or not; None if nowhere."""
        if os.sep in key.topic or "\0" in key.topic:
            return None
        paths = [os.path.join(log_dir.path, str(key)) for log_dir in self.usable()]
        return next((path for path in paths if os.path.isdir(path)), None)

    def delete(self, gone: Mapping[TopicPartition, Replica | None], plane: core.Plane | None) -> set[TopicPartition]:
        """Remove the files of replicas; those whose files may come back with their disk. Waits for the disk."""
        aside, failed = [], set()
        for key, replica in gone.items():
            try:
                if replica is not None and replica.log is not None:
                    if plane is not None:
                        plane.withdraw(replica.log)  # where a fetch of it may be at the disk
                    self._core.delete(replica.log)
                elif renamed := self.set_aside(key, "delete"):
                    aside.append(renamed)
            except (core.LogError, OSError) as problem:
                event(log, logging.ERROR, "partition not deleted", partition=key, reason=problem)
                failed.add(key)
        # A log that is not open may lie in any log dir; otherwise no other log dir's disk is waited for.
        anywhere = any(replica is None or replica.log is None for replica in gone.values())
        here = {replica.directory for replica in gone.values() if replica is not None}
        for log_dir in self.usable():
            if not anywhere and log_dir not in here:
                continue
            try:
                log_dir.sync()  # or a loss of power brings back directories of deleted topics
                log_dir.forget(gone.keys())
            except OSError as problem:
                event(log, logging.ERROR, "deletion not recorded", directory=log_dir.path, reason=problem)
                failed |= {key for key, replica in gone.items() if replica is None or replica.directory is log_dir}
        for directory in aside:
            remove(directory)
        return failed


def _emptiest(usable: Iterable[LogDir]) -> LogDir:
    """The log dir for a new partition."""
    return min(usable, key=lambda log_dir: (bool(log_dir.space.lack), log_dir.placed))
