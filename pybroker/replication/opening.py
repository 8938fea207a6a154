"""Where the log of each replica lies or will lie, and how it is opened from there.

Everything here waits for the disk, but for `place`.
"""

import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pybroker import core
from pybroker.cluster.image import PartitionState
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.replication.checkpoints import CLEANED, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from pybroker.replication.logdirs import Found, LogDir, StartError
from pybroker.replication.replica import Replica

log = logging.getLogger(__name__)


class Opening(NamedTuple):
    """A replica to open, and whether nothing of it can be on disk."""

    replica: Replica
    state: PartitionState
    new: bool


class Opener:
    """Finds, places and opens the logs of one broker, over all of its log dirs."""

    def __init__(self, broker: core.Broker, log_dirs: Sequence[LogDir]) -> None:
        self._core = broker
        self._dirs = log_dirs
        self._found: dict[TopicPartition, Found] = {}  # directories, at start

    def survey(self) -> Mapping[TopicPartition, Found]:
        """Look what lies in the log dirs. Raises StartError if a partition lies in two of them."""
        for log_dir in self.usable():
            for key, found in log_dir.partitions():
                if key in self._found:
                    raise StartError(
                        f"{key} lies in two log directories, {self._found[key].log_dir.path} and {log_dir.path}: "
                        "move the one that is not wanted away"
                    )
                self._found[key] = found
        return self._found

    def usable(self) -> list[LogDir]:
        return [log_dir for log_dir in self._dirs if not log_dir.failure]

    def place(self, replica: Replica, new: bool) -> LogDir | None:
        """Where it lies or will: the dir with the fewest. None, and offline, if a dir that may have it failed."""
        found = self._found.get(replica.key)
        if found is not None and not new:
            return found.log_dir
        usable = self.usable()
        if not new and len(usable) < len(self._dirs):
            replica.failure = "it may lie in a log directory that cannot be used"
            return None
        return min(usable, key=lambda log_dir: log_dir.placed)

    def open_share(self, log_dir: LogDir, share: Sequence[Opening]) -> None:
        for opening in share:
            replica = opening.replica
            replica.directory, replica.leader_epoch = log_dir, opening.state.leader_epoch
            try:
                replica.log = self._open_one(log_dir, opening)
            except (core.LogError, OSError) as problem:
                replica.failure = str(problem)
                event(log, logging.ERROR, "partition offline", partition=replica.key, reason=problem)

    def _open_one(self, log_dir: LogDir, opening: Opening) -> core.Partition:
        key, new = opening.replica.key, opening.new
        if new:
            self.set_aside(key, "stray")  # nobody knows it, and it has the new partition's name
            log_dir.forget({key})
        recorded = log_dir.recorded
        partition = self._core.open(
            log_dir.path,
            key.topic,
            key.partition,
            topic_id=opening.replica.topic_id,
            config=opening.replica.core_config,
            recovery_point=recorded[RECOVERY_POINTS].get(key, 0),
            log_start_offset=recorded[LOG_STARTS].get(key, 0),
            high_watermark=recorded[HIGH_WATERMARKS].get(key, -1),
            clean=log_dir.clean and not new,
            epoch_max=opening.state.leader_epoch,
            compacted=key in recorded[CLEANED],
        )
        if partition.recovery:
            event(log, logging.WARNING, "partition recovered", partition=key, repaired=partition.recovery)
        partition.become_leader(opening.state.leader_epoch, opening.state.partition_epoch)
        return partition

    def set_aside(self, key: TopicPartition, why: str) -> None:
        """Rename the directory of a partition that is not open; the next start removes those set aside to `delete`."""
        path = self.directory_of(key)
        if path is not None:
            aside = f"{path}.{uuid.uuid4().hex}-{why}"
            os.rename(path, aside)
            event(log, logging.WARNING, "directory set aside", directory=aside)

    def directory_of(self, key: TopicPartition) -> str | None:
        """Where a partition lies, open or not; None if nowhere."""
        paths = [os.path.join(log_dir.path, str(key)) for log_dir in self.usable()]
        return next((path for path in paths if os.path.isdir(path)), None)
