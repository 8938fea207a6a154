"""Scrubbing: the CRCs of all batches in sealed segments are checked from time to time; reads then skip the bad ones.

    due ──> each sealed segment of a log dir, step by step ──> scrub-checkpoint: when the pass began
     └── log.scrub.interval.ms after the last pass, or on request (`pybroker scrub` writes a 0 there)

The checkpoint is written when the pass is done. It has the time when the pass began, as damage from before is found,
and the number of segments and partitions that could not be read. A request for an offline log dir is answered so, too.

A request that comes during a pass is overwritten with an earlier time, so that the command sees it and asks again.

A segment that a read found bad is checked at once. The rate limits all log dirs of a broker together.
"""

import functools
import itertools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from pybroker import core
from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.replication.disks import checkpoints, damage
from pybroker.replication.disks.checkpoints import Pass
from pybroker.replication.disks.logdirs import LogDir
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas

log = logging.getLogger(__name__)

STEP_BYTES = 1 << 20
LOOK_S = 0.5
"""A waiting pass checks at this interval whether the rate was changed or the broker is stopping."""


class Scrubber:
    """`run()` scrubs the log dirs that are due."""

    def __init__(self, replicas: Replicas, config: BrokerConfig) -> None:
        self._replicas = replicas
        self._config = config

    def run(self) -> None:
        """Check the segments that reads found bad, then the log dirs that are due. Ends early if the broker stops."""
        for partition, base in self._replicas.take_suspects():
            replica = self._replicas.get(partition.topic, partition.partition)
            if replica is not None and replica.log is partition:
                self._try(replica, functools.partial(damage.look, replica, base))
        for log_dir in self._replicas.log_dirs:
            try:
                if log_dir.failure:
                    self._refuse(log_dir)
                elif self._is_due(log_dir):
                    self._scrub(log_dir)
            except OSError as problem:
                if os.path.isdir(log_dir.path):  # a missing directory is logged by the check of the log dir
                    event(log, logging.ERROR, "log dir not scrubbed", directory=log_dir.path, reason=problem)

    def _is_due(self, log_dir: LogDir) -> bool:
        last_ms = read_last_ms(log_dir.path)
        if last_ms is None:  # the interval of a new log dir begins now
            self._record(log_dir, Pass(wall_ms()))
            return False
        self._replicas.scrubbed.last_pass_s[log_dir.path] = last_ms / 1000
        interval_ms: int = self._config["log.scrub.interval.ms"]
        return last_ms == 0 or (interval_ms > 0 and wall_ms() - last_ms >= interval_ms)

    def _record(self, log_dir: LogDir, done: Pass) -> None:
        core.write_atomic(checkpoint_of(log_dir.path), checkpoints.write_scrubbed(done).encode())
        self._replicas.scrubbed.last_pass_s[log_dir.path] = done.began_ms / 1000

    def _refuse(self, log_dir: LogDir) -> None:
        """Answer a request for an offline log dir: record that none of its partitions was checked."""
        if read_last_ms(log_dir.path) == 0:
            here = sum(replica.directory is log_dir for replica in self._replicas)
            self._record(log_dir, Pass(wall_ms(), max(1, here)))

    def _scrub(self, log_dir: LogDir) -> None:
        began_ms, unchecked = wall_ms(), 0
        begun, bytes_before = time.monotonic(), self._replicas.scrubbed.bytes
        for replica in self._replicas:
            if replica.directory is log_dir and not replica.gone:
                unchecked += self._check(replica)
            if self._replicas.ending or log_dir.failure:
                return
        self._record(log_dir, Pass(began_ms, unchecked))
        spots = sum(map(len, log_dir.damage.values()))
        seconds, size = round(time.monotonic() - begun, 3), self._replicas.scrubbed.bytes - bytes_before
        event(log, logging.INFO, "log dir scrubbed", directory=log_dir.path, bytes=size, damaged=spots, seconds=seconds)

    def _try(self, replica: Replica, work: Callable[[], object]) -> bool:
        """Do `work`; False if it failed and the partition is not deleted."""
        try:
            work()
        except (core.LogError, KafkaError, OSError) as problem:
            if not replica.gone:
                event(log, logging.ERROR, "log not scrubbed", partition=replica.key, reason=problem)
                return False
        return True

    def _check(self, replica: Replica) -> int:
        """Check the sealed segments of a log. Return how many could not be checked, 1 for an offline partition."""
        if replica.log is None:
            return 1
        failed = 0
        for base, following in itertools.pairwise(_bases(replica.log)):
            failed += not self._try(replica, functools.partial(self._check_segment, replica, base, following))
        return failed + (not self._try(replica, functools.partial(damage.note, replica)))

    def _check_segment(self, replica: Replica, base: int, following: int) -> None:
        try:
            scan = damage.scan_of(replica, base, following)
        except FileNotFoundError:
            if base in _bases(replica.partition()):
                raise
            return  # retention removed the segment
        while not (scan.done or self._replicas.ending or replica.gone):
            at, began = scan.position, time.monotonic()
            scan.step(min(STEP_BYTES, self._rate))
            self._replicas.scrubbed.bytes += scan.position - at
            self._pause(replica, scan.position - at, began)

    @property
    def _rate(self) -> int:
        rate: int = self._config["log.scrub.io.max.bytes.per.second"]
        return rate

    def _pause(self, replica: Replica, done: int, began: float) -> None:
        """Wait until `done` bytes since `began` are within the rate, which may change meanwhile."""
        while (left := done / self._rate - (time.monotonic() - began)) > 0:
            if self._replicas.ending or replica.gone:
                return
            time.sleep(min(left, LOOK_S))


def _bases(partition: core.Partition) -> list[int]:
    return [base for base, *_ in partition.segments()]


def ask(path: str | Path) -> int:
    """Request a pass over a log dir from the broker that uses it. Return the request's time, in ms since the epoch.

    A running pass may overwrite the request with the time of its own beginning, which is earlier. Raises OSError;
    FileNotFoundError if the broker has not checked the log dir yet."""
    import tempfile  # a broker does not need it

    checkpoint = checkpoint_of(path)
    known = os.stat(checkpoint)
    asked_ms = wall_ms()
    made, name = tempfile.mkstemp(prefix=f"{checkpoints.SCRUBBED}.", suffix=".tmp", dir=path)
    try:
        with open(made, "w") as file:
            file.write(checkpoints.write_scrubbed(Pass(0)))
        if (known.st_uid, known.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(name, known.st_uid, known.st_gid)  # if root runs this, the broker must be able to read the file
        os.replace(name, checkpoint)
    except BaseException:
        os.unlink(name)
        raise
    return asked_ms


def checkpoint_of(path: str | Path) -> str:
    return os.path.join(path, checkpoints.SCRUBBED)


def read_last_ms(path: str | Path) -> int | None:
    """The time when the last pass over a log dir began; 0 if a pass is requested, None if unknown. Raises OSError."""
    last = read_last(path)
    return None if last is None else last.began_ms


def read_last(path: str | Path) -> Pass | None:
    """The last pass over a log dir; None if unknown. Raises OSError."""
    try:
        return checkpoints.read_scrubbed(Path(checkpoint_of(path)).read_text("utf-8"))
    except (FileNotFoundError, UnicodeDecodeError, checkpoints.Malformed):
        return None
