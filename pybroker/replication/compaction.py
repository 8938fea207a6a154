"""Compaction of this broker's logs, on the caller's thread and the others of log.cleaner.threads.

A log in which a round met damage is left alone until the next start: a damaged segment must not be replaced by a
compacted copy of it.
"""

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from pybroker import core
from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.decisions.compaction import Dirt, dirt, first_dirty, is_due
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.protocol.compression import PLAIN_BYTES_MAX, compress, decompress_stored
from pybroker.replication.disks.checkpoints import CLEANED
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas

log = logging.getLogger(__name__)

NO_LIMIT = 1 << 62
FIRST_BATCH_BYTES = 1


class DirtyLog(NamedTuple):
    """A log that is due for compaction, and its dirty part."""

    replica: Replica
    log: core.Partition
    dirt: Dirt


class Compactor:
    """`run()` compacts the dirtiest log, then the next, until none is dirty enough."""

    def __init__(self, replicas: Replicas, config: BrokerConfig) -> None:
        self._replicas = replicas
        self._config = config
        self._damaged: set[TopicPartition] = set()
        self._threads = 1
        self._choosing = threading.Lock()  # so that two threads of a run do not choose the same log

    def run(self) -> None:
        """Compact every log that is due, each at most once. Ends early if the broker is stopping."""
        done: set[TopicPartition] = set()
        self._threads = self._config["log.cleaner.threads"]
        with ThreadPoolExecutor(self._threads, "log-cleaner") as others:
            rounds = [others.submit(self._rounds, done) for _ in range(self._threads - 1)]
            self._rounds(done)
        for ended in rounds:
            ended.result()

    def _choose(self, done: set[TopicPartition]) -> DirtyLog | None:
        """Return the dirtiest log that is not in `done`, and add it there; None if there is none."""
        with self._choosing:
            found = max(self._due(done), key=lambda found: found.dirt.ratio, default=None)
            if found is not None:
                done.add(found.replica.key)
            return found

    def _rounds(self, done: set[TopicPartition]) -> None:
        while found := self._choose(done):
            try:
                if not self._clean(found):
                    return
            except core.LogError as problem:
                if found.replica.gone:  # deleted meanwhile; a new topic may have its name
                    continue
                self._damaged.add(found.replica.key)
                event(log, logging.ERROR, "log not compacted", partition=found.replica.key, reason=problem)

    def _due(self, done: set[TopicPartition]) -> Iterator[DirtyLog]:
        for replica in self._replicas:
            partition = replica.log
            if partition is None or replica.gone or partition.offline or replica.key in done | self._damaged:
                continue
            if "compact" in replica.config["cleanup.policy"]:
                there_is = self._dirt(replica, partition)
                overdue = self._is_overdue(replica, partition, there_is)
                if is_due(there_is, min_ratio=replica.config["min.cleanable.dirty.ratio"], overdue=overdue):
                    yield DirtyLog(replica, partition, there_is)

    def _dirt(self, replica: Replica, partition: core.Partition) -> Dirt:
        assert replica.directory is not None
        recorded = replica.directory.recorded[CLEANED].get(replica.key)
        return dirt(
            partition.segments(),
            first_dirty(recorded, partition.log_start_offset, partition.log_end_offset),
            min(partition.recovery_point, partition.last_stable_offset),
            now_ms=wall_ms(),
            min_lag_ms=replica.config["min.compaction.lag.ms"],
        )

    def _is_overdue(self, replica: Replica, partition: core.Partition, there_is: Dirt) -> bool:
        """True if the first record that a round would read is older than max.compaction.lag.ms."""
        lag_ms: int = replica.config["max.compaction.lag.ms"]
        if lag_ms >= NO_LIMIT or not there_is.dirty_bytes:
            return False
        piece = partition.read(there_is.first_dirty, FIRST_BATCH_BYTES).slice
        if piece is None:
            return False
        try:
            return core.check_batch(piece.tobytes()).max_timestamp < wall_ms() - lag_ms
        finally:
            piece.close()

    def _clean(self, found: DirtyLog) -> bool:
        """Compact one log; False if the broker is stopping. Raises core.LogError."""
        started = time.monotonic()
        key, directory = found.replica.key, found.replica.directory
        assert directory is not None

        def is_gone() -> bool:
            return found.replica.gone

        try:
            if key not in directory.recorded[CLEANED]:
                # Recorded first: even a round that fails may have replaced segments, so that offsets have gaps.
                directory.record_cleaned(key, found.dirt.first_dirty, is_gone)
            done = core.clean(
                found.log,
                first_dirty=found.dirt.first_dirty,
                end=found.dirt.end,
                now_ms=wall_ms(),
                delete_retention_ms=found.replica.config["delete.retention.ms"],
                map_bytes=self._config["log.cleaner.dedupe.buffer.size"] // self._threads,
                decompress=lambda codec, data: decompress_stored(codec, data, PLAIN_BYTES_MAX),
                compress=compress,
                bytes_per_s=int(min(self._config["log.cleaner.io.max.bytes.per.second"] / self._threads, NO_LIMIT)),
            )
            if done is not None:
                directory.record_cleaned(key, done.first_dirty, is_gone)
        except OSError as problem:  # a full disk: the next run may find room
            event(log, logging.ERROR, "log not compacted", partition=key, reason=problem)
            return True
        if done is None:
            return not self._replicas.ending
        event(
            log,
            logging.INFO,
            "log compacted",
            partition=key,
            up_to=done.first_dirty,
            bytes_before=done.bytes_before,
            bytes_after=done.bytes_after,
            records_dropped=done.records_dropped,
            seconds=round(time.monotonic() - started, 3),
        )
        return True
