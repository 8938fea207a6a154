"""The broker's chores: retention, compaction, producer expiry, checkpoints, flushes; each has a thread.

Chores that wait for one disk have a thread for each log dir, so that a slow disk delays no flush on another. A failed
chore is logged and runs again after its interval. Chores are threads, not tasks, because they block on the disk.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.replication.compaction import Compactor
from pybroker.replication.disks.logdirs import LogDir, remove
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.replication.scrub import Scrubber

log = logging.getLogger(__name__)

NEVER_MS = threading.TIMEOUT_MAX * 1000
JOIN_SECONDS = 10.0
LOG_DIR_CHECK_MS = 1_000
"""Interval of checks for removed log dirs; until the next check records may go to files that were deleted."""
SPACE_LOOK_MS = 200
"""Interval of checks for full log dirs; until the next check the broker may go on leading there."""
SCRUB_LOOK_MS = 1_000
"""Interval of checks whether a log dir needs scrubbing, by schedule or because a read found damage."""
IDLE_FILES_MS = 30_000
"""Files of sealed segments are closed once they have not been read for this time, at the latest after twice it."""


class Chore(NamedTuple):
    """Work to do every `interval_ms`, which is called again each time."""

    name: str
    interval_ms: Callable[[], int]
    work: Callable[[], object]


class Scheduler:
    """The threads of the chores, from start() to stop()."""

    def __init__(self, chores: Iterable[Chore], interrupt: Callable[[], object] = lambda: None) -> None:
        """`interrupt` is called at a stop, to end long-running chores."""
        self._chores = list(chores)
        self._interrupt = interrupt
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for chore in self._chores:
            if chore.interval_ms() < NEVER_MS:
                thread = threading.Thread(target=self._repeat, args=(chore,), name=chore.name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def stop(self) -> None:
        """Start no more chores, and wait for running ones."""
        self._stopping.set()
        self._interrupt()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def _repeat(self, chore: Chore) -> None:
        while not self._stopping.wait(min(chore.interval_ms(), NEVER_MS) / 1000):
            try:
                chore.work()
            except Exception as problem:  # other chores, and the next run of this one, must go on
                event(log, logging.ERROR, "background task failed", task=chore.name, reason=problem, exc_info=problem)


def chores(replicas: Replicas, config: BrokerConfig) -> list[Chore]:
    """The chores of a broker, at the intervals of Kafka's settings."""

    def every(setting: str) -> Callable[[], int]:
        return lambda: int(config[setting])

    compaction = Chore("log-cleaner", every("log.cleaner.backoff.ms"), Compactor(replicas, config).run)
    return [
        *([compaction] if config["log.cleaner.enable"] else []),
        Chore(
            "producer-expiry",
            every("producer.id.expiration.check.interval.ms"),
            lambda: replicas.each(lambda partition: partition.expire_producers(wall_ms())),
        ),
        Chore("scrub", lambda: SCRUB_LOOK_MS, Scrubber(replicas, config).run),
        Chore("idle-files", lambda: IDLE_FILES_MS, replicas.close_idle_files),
        *(chore for log_dir in replicas.log_dirs for chore in chores_of(log_dir, replicas, every)),
    ]


def chores_of(log_dir: LogDir, replicas: Replicas, every: Callable[[str], Callable[[], int]]) -> list[Chore]:
    """The chores that wait for the disk of one log dir."""
    return [
        Chore("log-dir-check", lambda: LOG_DIR_CHECK_MS, log_dir.check),
        Chore("disk-space", lambda: SPACE_LOOK_MS, log_dir.space.look),
        Chore("retention", every("log.retention.check.interval.ms"), lambda: retain(replicas, log_dir)),
        Chore(
            "high-watermark-checkpoint",
            every("replica.high.watermark.checkpoint.interval.ms"),
            lambda: replicas.recorder.record_high_watermarks(log_dir),
        ),
        Chore(
            "recovery-point-checkpoint",
            every("log.flush.offset.checkpoint.interval.ms"),
            lambda: replicas.recorder.record_recovery_points(log_dir),
        ),
        Chore(
            "log-start-checkpoint",
            every("log.flush.start.offset.checkpoint.interval.ms"),
            lambda: replicas.recorder.record_log_starts({}, log_dir),
        ),
        Chore("flush", every("log.flush.scheduler.interval.ms"), Flusher(replicas, log_dir).run),
    ]


def retain(replicas: Replicas, log_dir: LogDir) -> None:
    """Delete the segments of a log dir that exceed retention.ms or retention.bytes."""
    deleted = 0

    def enforce(replica: Replica) -> None:
        nonlocal deleted
        if replica.log is not None and "delete" in replica.config["cleanup.policy"]:
            deleted += replica.log.enforce_retention(wall_ms())

    replicas.each_replica(enforce, log_dir)
    if deleted:
        event(log, logging.INFO, "retention deleted segments", count=deleted)


class Flusher:
    """Flushes partitions with unflushed records once flush.ms has passed since their last flush."""

    def __init__(self, replicas: Replicas, log_dir: LogDir) -> None:
        self._replicas = replicas
        self._log_dir = log_dir
        self._flushed_at: dict[TopicPartition, float] = {}

    def run(self) -> None:
        before, self._flushed_at = self._flushed_at, {}  # drops deleted partitions
        self._replicas.each_replica(lambda replica: self._flush(replica, before), self._log_dir)

    def _flush(self, replica: Replica, before: Mapping[TopicPartition, float]) -> None:
        now = time.monotonic()
        since = self._flushed_at[replica.key] = before.get(replica.key, now)
        if replica.log is None or (now - since) * 1000 < replica.config["flush.ms"]:
            return
        self._flushed_at[replica.key] = now
        if replica.log.recovery_point < replica.log.log_end_offset:
            replica.log.flush()


def finish_deletions(log_dirs: Iterable[LogDir]) -> None:
    """Remove directories that an earlier run renamed to -delete, and log those that were set aside."""
    for log_dir in log_dirs:
        if log_dir.failure:
            continue
        for directory in log_dir.set_aside():
            event(log, logging.WARNING, "directory set aside", directory=directory)
        for directory in log_dir.deleted():
            remove(directory)
