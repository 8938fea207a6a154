"""The broker's chores: retention, compaction, forgotten producers, checkpoints, flushes; each has a thread.

Each log dir has threads of its own for what waits for its disk: a slow one delays no flush on another. A chore that
fails is logged and done again the next time. Threads, not tasks: every chore waits for the disk.
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
from pybroker.replication.logdirs import LogDir, remove
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.replication.scrub import Scrubber

log = logging.getLogger(__name__)

NEVER_MS = threading.TIMEOUT_MAX * 1000
JOIN_SECONDS = 10.0
LOG_DIR_CHECK_MS = 1_000
"""Between two looks at a log dir: how long records may go into files that somebody removed."""
SPACE_LOOK_MS = 200
"""Time between two looks whether a log dir is full: so long the broker may go on leading there."""
SCRUB_LOOK_MS = 1_000
"""Between two looks whether a log dir is to be scrubbed, or a read met damage."""
IDLE_FILES_MS = 30_000
"""Sealed segments that nobody read from for so long, or twice as long, let go of their files."""


class Chore(NamedTuple):
    """Something to do every `interval_ms`, which is asked for again each time."""

    name: str
    interval_ms: Callable[[], int]
    work: Callable[[], object]


class Scheduler:
    """The threads of the chores, from start() to stop()."""

    def __init__(self, chores: Iterable[Chore], interrupt: Callable[[], object] = lambda: None) -> None:
        """`interrupt` ends at once what may take long."""
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
        """Begin no more chores and wait for those under way."""
        self._stopping.set()
        self._interrupt()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def _repeat(self, chore: Chore) -> None:
        while not self._stopping.wait(min(chore.interval_ms(), NEVER_MS) / 1000):
            try:
                chore.work()
            except Exception as problem:  # the next time may go better, and the other chores go on
                event(log, logging.ERROR, "background task failed", task=chore.name, reason=problem, exc_info=problem)


def chores(replicas: Replicas, config: BrokerConfig) -> list[Chore]:
    """What a broker does at intervals, by Kafka's settings."""

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
    """Those that wait for the disk of one log dir."""
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
    """Delete the segments of a log dir that are too old or too many."""
    deleted = 0

    def enforce(replica: Replica) -> None:
        nonlocal deleted
        if replica.log is not None and "delete" in replica.config["cleanup.policy"]:
            deleted += replica.log.enforce_retention(wall_ms())

    replicas.each_replica(enforce, log_dir)
    if deleted:
        event(log, logging.INFO, "retention", segments_deleted=deleted)


class Flusher:
    """flush.ms: a partition with records that are not on disk is flushed when that long has passed since it was."""

    def __init__(self, replicas: Replicas, log_dir: LogDir) -> None:
        self._replicas = replicas
        self._log_dir = log_dir
        self._flushed_at: dict[TopicPartition, float] = {}

    def run(self) -> None:
        before, self._flushed_at = self._flushed_at, {}  # of those that are there still
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
    """Remove what an earlier life renamed to -delete and had no time to remove; show what was set aside."""
    for log_dir in log_dirs:
        if log_dir.failure:
            continue
        for directory in log_dir.set_aside():
            event(log, logging.WARNING, "directory set aside", directory=directory)
        for directory in log_dir.deleted():
            remove(directory)
