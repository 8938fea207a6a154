"""Finds or chooses the log dir of each replica, and opens its log there.

    recorded, and there ──> it is opened             not recorded, and nowhere ──> created: its creation was interrupted
    recorded, not there ──> offline, until it is back or given up by name; a new log in its place begins at 0
    files missing at its start or end ──> offline as well; given up, the existing files are used

All functions here block on the disk, except `place`.
"""

import contextlib
import logging
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from pybroker import core
from pybroker.errors import StartError
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.replication.disks import damage, unfinished_moves
from pybroker.replication.disks.checkpoints import CLEANED, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from pybroker.replication.disks.directory_names import aside
from pybroker.replication.disks.disk_space import LACKS
from pybroker.replication.disks.logdirs import FoundPartition, LogDir, remove
from pybroker.replication.replica import Replica

log = logging.getLogger(__name__)

PREFERRED_MAX = 10_000
"""The most partitions whose log dir is remembered before they come."""


def give_up(name: object) -> str:
    """The command by which an operator declares that missing data does not come back."""
    return f"pybroker serve --give-up {name}"


class WantedReplica(NamedTuple):
    """A replica to open or create here, without a role, and its topic's own settings."""

    key: TopicPartition
    topic_id: bytes
    config: Mapping[str, str]
    new: bool = False
    """True if its topic, or this partition, was just created: it cannot be on disk yet."""
    directory: str | None = None
    """The recorded directory.id; None if there is none."""
    sole_epoch: int | None = None
    """The leader epoch of a partition that only this broker has ever led; None if others may have."""


class Assignments(Protocol):
    """The recorded log dir of each partition, for a broker that leads all of its partitions alone."""

    def directory(self, topic_id: bytes, partition: int) -> str | None:
        """The recorded directory.id of a partition; None if there is none."""

    def sole_epoch(self, topic_id: bytes, partition: int) -> int:
        """The latest leader epoch in which the partition was led."""

    async def record(self, placed: Iterable[tuple[str, bytes, int, str]]) -> None:
        """Record log dirs, as (topic, topic id, partition, directory.id), if they are not recorded. Raises
        KafkaError."""


class Opening(NamedTuple):
    """A replica to open; `new`: create its log."""

    replica: Replica
    sole_epoch: int | None
    new: bool


class Opener:
    """Finds, places and opens the logs of one broker, over all of its log dirs."""

    def __init__(self, broker: core.LogManager, log_dirs: Sequence[LogDir], given_up: Container[str]) -> None:
        """`given_up`: ids and paths of log dirs, and names of partitions, whose missing data does not come back."""
        self._core = broker
        self._dirs = log_dirs
        self._given_up = given_up
        self._found: dict[TopicPartition, FoundPartition] = {}  # directories, at start
        self.moving: dict[TopicPartition, LogDir] = {}
        """The log dirs that replicas were being moved to, at start."""
        self.preferred: dict[TopicPartition, LogDir] = {}
        """The log dirs that an operator chose for replicas that are not here yet."""
        self.begun: dict[TopicPartition, LogDir] = {}
        """The log dir of each log whose creation failed half-way and will be repeated."""

    def survey(self, ids: Mapping[str, bytes]) -> Mapping[TopicPartition, FoundPartition]:
        """Find the partitions in the log dirs, except those of deleted topics whose names other topics have now: `ids`
        has the topic ids by name. Raises StartError if a partition is in two log dirs."""
        self.moving = unfinished_moves.settle(self._dirs, self.usable())
        for log_dir in self.usable():
            for key, found in log_dir.partitions():
                if found.topic_id is not None and found.topic_id != ids.get(key.topic, found.topic_id):
                    path = os.path.join(log_dir.path, str(key))
                    event(log, logging.WARNING, "directory of a deleted topic ignored", directory=path)
                elif key in self._found:
                    raise StartError(
                        f"{key} is in two log directories, {self._found[key].log_dir.path} and {log_dir.path}: "
                        "move the one that is not wanted away"
                    )
                else:
                    self._found[key] = found
        return self._found

    def found(self, key: TopicPartition, topic_id: bytes) -> bool:
        """True if the start found a log that may be this partition's: it has the topic's id, or none."""
        there = self._found.get(key)
        return there is not None and there.topic_id in (None, topic_id)

    def usable(self) -> list[LogDir]:
        return [log_dir for log_dir in self._dirs if not log_dir.failure]

    def place(self, replica: Replica, recorded: str | None, new: bool) -> tuple[LogDir | None, bool]:
        """Return (log dir, True if the log is created there). If the log is missing: no log dir, and the replica has
        its failure set.

        `recorded`: the recorded directory.id. A new log goes to the log dir with the fewest partitions, to a full one
        only if all are full; a log whose creation failed half-way goes to the same log dir again."""
        found = self._found.get(replica.key)
        if found is not None and not (new and found.topic_id != replica.topic_id):
            return found.log_dir, found.topic_id not in (None, replica.topic_id)
        usable = self.usable()
        if not usable:
            replica.failure = "no log directory can be used"
            return None, False
        if replica.key in self.begun:
            return self.begun.pop(replica.key), False
        if new or str(replica.key) in self._given_up or (recorded is not None and recorded in self._given_up):
            return self._choose(replica.key, usable), True
        replica.failure = self._why_missing(replica, recorded)
        if replica.failure:
            return None, False
        return self._choose(replica.key, usable), False

    def _choose(self, key: TopicPartition, usable: Sequence[LogDir]) -> LogDir:
        """The log dir for a new log: the one that an operator chose for it, or the emptiest."""
        preferred = self.preferred.pop(key, None)
        return preferred if preferred is not None and preferred in usable else _emptiest(usable)

    def moved(self, key: TopicPartition, log_dir: LogDir) -> None:
        """Note that a replica is in another log dir now."""
        if (found := self._found.get(key)) is not None:
            self._found[key] = found._replace(log_dir=log_dir)

    def prefer(self, key: TopicPartition, log_dir: LogDir) -> None:
        """Create the log of a partition in this log dir, if it comes here; of the latest PREFERRED_MAX partitions."""
        self.preferred.pop(key, None)
        self.preferred[key] = log_dir
        if len(self.preferred) > PREFERRED_MAX:
            del self.preferred[next(iter(self.preferred))]

    def _why_missing(self, replica: Replica, recorded: str | None) -> str:
        """The reason why a missing log must not be created again; empty if it was never created."""
        if recorded is None:
            unusable = len(self.usable()) < len(self._dirs)
            return "it may be in a log directory that cannot be used" if unusable else ""
        log_dir = next((d for d in self._dirs if d.id == recorded), None)
        if log_dir is None:
            return f"it is in the log directory with directory.id {recorded}, which is not in log.dirs"
        if log_dir.failure:
            return f"it is in the log directory {log_dir.path}, which is offline: {log_dir.failure}"
        replica.directory = log_dir
        log_dir.placed += 1
        reason = f"its directory is missing from {log_dir.path}"
        how = give_up(replica.key)
        event(log, logging.ERROR, "partition offline", partition=replica.key, reason=reason, given_up_by=how)
        return reason

    def open_share(self, log_dir: LogDir, share: Sequence[Opening]) -> None:
        """Open or create these logs. The names of new ones are durable before the store records that they are here."""
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
            self.set_aside(key, "stray")  # an unknown directory with the new partition's name
            log_dir.forget({key})
        recorded, alone = log_dir.recorded, opening.sole_epoch is not None
        opening.replica.copied = not alone
        partition = self._core.open(
            log_dir.path,
            key.topic,
            key.partition,
            topic_id=opening.replica.topic_id,
            config=opening.replica.core_config,
            recovery_point=recorded[RECOVERY_POINTS].get(key, 0),
            log_start_offset=recorded[LOG_STARTS].get(key, 0),
            high_watermark=recorded[HIGH_WATERMARKS].get(key, -1 if alone else 0),
            clean=log_dir.clean and not new,
            epoch_max=-1 if opening.sole_epoch is None else opening.sole_epoch,
            compacted=opening.replica.copied or key in recorded[CLEANED],
            written=0 if new else log_dir.written(key),
            given_up=str(key) in self._given_up,
        )
        opening.replica.power_lost = log_dir.lost_power and opening.replica.copied and not new
        if partition.recovery:
            event(log, logging.WARNING, "partition recovered", partition=key, repaired=partition.recovery)
        log_dir.lower(key, partition.log_end_offset)
        return partition

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """Forget the directories of these partitions that were found at the start."""
        for key in keys:
            self._found.pop(key, None)
            self.begun.pop(key, None)

    def set_aside(self, key: TopicPartition, why: str) -> str | None:
        """Rename the directory of a partition that is not open, if there is one. Return its new path. The next start
        removes those set aside as `delete` that remain."""
        path = self.directory_of(key)
        if path is None:
            return None
        to = os.path.join(os.path.dirname(path), aside(key, why))
        os.rename(path, to)
        event(log, logging.WARNING, "directory set aside", directory=to)
        return to

    def directory_of(self, key: TopicPartition) -> str | None:
        """The directory of a partition, open or not; None if there is none."""
        if os.sep in key.topic or "\0" in key.topic:
            return None
        paths = [os.path.join(log_dir.path, str(key)) for log_dir in self.usable()]
        return next((path for path in paths if os.path.isdir(path)), None)

    def delete(self, gone: Mapping[TopicPartition, Replica | None], plane: core.Plane | None) -> set[TopicPartition]:
        """Remove the files of replicas. Return those whose files may come back with their disk. Waits for the disk."""
        renamed_ones, failed = [], set()
        for key, replica in gone.items():
            try:
                if replica is not None and replica.log is not None:
                    if plane is not None:
                        plane.withdraw(replica.log)  # a fetch of it may still be reading from the disk
                    self._core.delete(replica.log)
                elif renamed := self.set_aside(key, "delete"):
                    renamed_ones.append(renamed)
            except (core.LogError, OSError) as problem:
                event(log, logging.ERROR, "partition not deleted", partition=key, reason=problem)
                failed.add(key)
        # A log that is not open may be in any log dir; otherwise do not wait for other disks.
        anywhere = any(replica is None or replica.log is None for replica in gone.values())
        here = {replica.directory for replica in gone.values() if replica is not None}
        for log_dir in self.usable():
            if not anywhere and log_dir not in here:
                continue
            try:
                log_dir.sync()  # else a loss of power could bring back directories of deleted topics
                log_dir.forget(gone.keys())
            except OSError as problem:
                event(log, logging.ERROR, "deletion not recorded", directory=log_dir.path, reason=problem)
                failed |= {key for key, replica in gone.items() if replica is None or replica.directory is log_dir}
        for directory in renamed_ones:
            remove(directory)
        return failed


def _emptiest(usable: Iterable[LogDir]) -> LogDir:
    """The log dir for a new partition: one with room and the fewest partitions."""
    return min(usable, key=lambda log_dir: (bool(log_dir.space.lack), log_dir.placed))
