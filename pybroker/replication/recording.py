"""Writes the checkpoint files of each log dir: recovery points, log start offsets and high watermarks.

Offline replicas keep their recorded values, and a log dir that fails does not stop the others from being written.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Set

from pybroker import core
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.replication.disks.disk import DiskThreads
from pybroker.replication.disks.logdirs import Held, LogDir
from pybroker.replication.replica import Replica

log = logging.getLogger(__name__)


class Recorder:
    """Writes the checkpoints of all log dirs. Methods block on the disk, except coroutines."""

    def __init__(
        self, replicas: Iterable[Replica], usable: Callable[[], Iterable[LogDir]], disk: DiskThreads,
        lost_power: Callable[[], Set[LogDir | None]],
    ) -> None:  # fmt: skip
        """`lost_power` returns the log dirs with replicas that may lack their end."""
        self._replicas = replicas
        self._lost_power = lost_power
        self._usable = usable
        self._disk = disk

    def record_recovery_points(self, log_dir: LogDir | None = None) -> None:
        """Write the recovery points of one log dir, or of all."""
        self._record(LogDir.record_recovery_points, log_dir)

    def record_log_starts(self, raised: Mapping[core.Partition, int], log_dir: LogDir | None = None) -> list[LogDir]:
        """Write the log starts, then raise those in `raised`. Return the log dirs where that failed."""
        return self._record(functools.partial(LogDir.record_log_starts, raised=raised), log_dir)

    async def raise_log_starts(self, raised: Mapping[Replica, int]) -> Set[LogDir]:
        """Raise log starts once they are on disk, on threads of their log dirs. Return the log dirs that failed."""
        shares: dict[LogDir, dict[core.Partition, int]] = {}
        for replica, start in raised.items():
            if replica.directory is not None and replica.log is not None:
                shares.setdefault(replica.directory, {})[replica.log] = start
        work = [self._disk.run(d, self.record_log_starts, share, d) for d, share in shares.items()]
        failed = {log_dir for each in await asyncio.gather(*work) for log_dir in each}
        moved = {r: start for r, start in raised.items() if r.directory is not None and r.log is not None
                 and r.log not in shares.get(r.directory, ())}  # to another log dir meanwhile
        return failed | await self.raise_log_starts(moved) if moved else failed

    def record_high_watermarks(self, log_dir: LogDir | None = None) -> None:
        lost = self._lost_power()
        self._record(lambda each, held: each.record_high_watermarks(held, each not in lost), log_dir)

    def _record(self, write: Callable[[LogDir, Held], None], only: LogDir | None) -> list[LogDir]:
        """Write a checkpoint of each log dir; offline replicas keep their values. Return the log dirs that failed."""
        failed = []
        for log_dir in self._usable():
            if only not in (None, log_dir):
                continue
            try:
                write(log_dir, functools.partial(self._in, log_dir))
            except (core.LogError, OSError) as problem:
                event(log, logging.ERROR, "checkpoint not written", directory=log_dir.path, reason=problem)
                failed.append(log_dir)
        return failed

    def _in(self, log_dir: LogDir) -> tuple[list[core.Partition], Set[TopicPartition]]:
        """The online logs of a log dir, and the keys of all offline replicas."""
        replicas = list(self._replicas)
        offline = {r.key for r in replicas if r.log is None or r.log.offline}
        here = [r.log for r in replicas if r.log is not None and r.directory is log_dir and r.key not in offline]
        return here, offline
