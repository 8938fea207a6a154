"""Moves replicas between the log dirs of this broker while they are in use (AlterReplicaLogDirs, KIP-113).

    begin ──> copied, in steps ──> it lacks nothing ──> settled ──> switched ──> the old directory is deleted
                └── cancelled, the disk fails or is full ──> the copy is deleted

The copy lies in topic-partition.<uuid>-future in its log dir, and core makes it (`core/moving.pyi`). For the switch the
checkpoints of both log dirs are locked: what they record of the replica moves with it. `unfinished_moves.py` has what
the next start makes of a move that was under way.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from pybroker import core
from pybroker.config import BrokerConfig
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.replication.disks.checkpoints import CLEANED, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from pybroker.replication.disks.directory_names import MARK, aside
from pybroker.replication.disks.disk_space import MARGIN_BYTES_MAX
from pybroker.replication.disks.logdirs import LogDir, remove
from pybroker.replication.replica import Replica

log = logging.getLogger(__name__)

STEP_BYTES = 16 << 20
"""Bytes of one step at most: a cancel and a stop take effect between steps."""
STEPS_PER_S = 10
"""Steps a second at least, at a rate."""
PAUSE_S = 0.02
"""Pause before the next attempt, when the log is being changed in a way that a step has to wait for."""
SWITCHES = 16
"""Attempts to switch while the checkpoints are locked."""
NICE = 10
"""Threads that serve clients go first."""


class LogDirMove:
    """A replica on its way to another log dir."""

    def __init__(self, replica: Replica, to: LogDir, after: "LogDirMove | None") -> None:
        self.replica = replica
        self.to = to
        self.after = after
        """The move of the same replica that this one replaced; it must have ended first."""
        self.copy: core.FutureLog | None = None
        self.stopped = threading.Event()
        self.ended = threading.Event()
        self.deciding = threading.Lock()
        """Held while it switches: after `stopped` is set and this was taken, it does not."""

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes copied, and how many offsets the copy lacks."""
        if self.copy is not None:
            return self.copy.progress
        log_ = self.replica.log
        return 0, 0 if log_ is None else log_.log_end_offset - log_.log_start_offset

    def problem(self) -> str:
        """Why it cannot go on; empty if it can."""
        if self.to.failure:
            return f"{self.to.path} is offline: {self.to.failure}"
        if self.to.space.lack:
            return f"{self.to.path} is full: {self.to.space.lack}"
        return f"the replica is offline: {self.replica.failure}" if self.replica.offline else ""


class LogDirMoves:
    """The moves of one broker's replicas. Methods are for the event loop's thread; `here` is for any."""

    def __init__(
        self, config: BrokerConfig, log_dirs: int, on_switched: Callable[[TopicPartition, LogDir], object]
    ) -> None:
        """`log_dirs`: how many this broker has. `on_switched` is called on any thread, as soon as a replica is in
        another log dir."""
        self._config = config
        self._on_switched = on_switched
        self._moves: dict[TopicPartition, LogDirMove] = {}
        self._latest: dict[TopicPartition, LogDirMove] = {}  # with those that were stopped and have not ended
        threads = config["num.replica.alter.log.dirs.threads"] or max(log_dirs, 1)
        self._threads = ThreadPoolExecutor(threads, "log-dir-move", initializer=_yield_to_others)
        self._stopping = False
        self._pacing = threading.Lock()
        self._free_at_s = 0.0
        self._switching = threading.Lock()
        self._on_moved: Callable[[Replica, LogDir], object] = lambda replica, before: None

    def report_to(self, on_moved: Callable[[Replica, LogDir], object]) -> None:
        """Have `on_moved` called on the event loop with each replica that has moved, and the log dir that it left."""
        self._on_moved = on_moved

    def of(self, key: TopicPartition) -> LogDirMove | None:
        """The move of a replica that is under way."""
        return self._moves.get(key)

    def here(self, log_dir: LogDir) -> list[tuple[TopicPartition, int, int]]:
        """The copies in a log dir: the partition, its bytes so far, and how many offsets it lacks."""
        return [(move.replica.key, *move.progress) for move in list(self._moves.values()) if move.to is log_dir]

    def begin(self, replica: Replica, to: LogDir) -> None:
        """Move a replica to a log dir, instead of where it moves now; if it is there already, it stays."""
        move = self._moves.get(replica.key)
        if self._stopping or (move is not None and move.to is to):
            return
        self.cancel(replica.key)
        if replica.directory is to:
            return
        move = LogDirMove(replica, to, self._latest.get(replica.key))
        self._moves[replica.key] = self._latest[replica.key] = move
        loop = asyncio.get_running_loop()
        self._threads.submit(self._run, move, loop)

    def cancel(self, key: TopicPartition) -> LogDirMove | None:
        """Stop the move of a replica, and delete the copy; return the move."""
        if (move := self._moves.pop(key, None)) is not None:
            move.stopped.set()
        return move

    def stop(self) -> None:
        """Stop all moves; the next start begins them again. Waits for the disks."""
        self._stopping = True
        for move in list(self._moves.values()):
            move.stopped.set()
        self._threads.shutdown()

    def _rate(self) -> int:
        """The most bytes a second, of all moves together."""
        rate: int = self._config["replica.alter.log.dirs.io.max.bytes.per.second"]
        return max(rate, 1)

    # -- on a thread of its own ----------------------------------------------------------------------------------------

    def _run(self, move: LogDirMove, loop: asyncio.AbstractEventLoop) -> None:
        """Move a replica. What goes wrong is logged, and ends only this move."""
        key, before = move.replica.key, move.replica.directory
        began_s = time.monotonic()
        try:
            if move.after is not None:
                move.after.ended.wait()
                move.after = None
            before = move.replica.directory
            if before is None or before is move.to or move.stopped.is_set():
                return
            event(log, logging.INFO, "replica move begun", partition=key, directory=before.path, to=move.to.path)
            self._check_room(move)
            with contextlib.suppress(FileNotFoundError):  # of an earlier move: two marks would decide nothing
                os.unlink(os.path.join(move.replica.partition().directory, MARK))
            move.copy = core.FutureLog(move.replica.partition(), os.path.join(move.to.path, aside(key, "future")))
            if self._follow(move, before):
                seconds, held_ms = round(time.monotonic() - began_s, 1), move.copy.held_us / 1000
                size = move.copy.progress[0]
                event(log, logging.INFO, "replica moved", partition=key, directory=move.to.path, bytes=size,
                      seconds=seconds, appends_waited_ms=held_ms)  # fmt: skip
        except Exception as problem:  # other moves go on, whatever it was
            if not move.stopped.is_set():
                event(log, logging.ERROR, "replica not moved", partition=key, to=move.to.path, reason=problem)
        finally:
            self._end(move, before, loop)

    def _check_room(self, move: LogDirMove) -> None:
        """Raise OSError if the log dir has too little room for the replica."""
        size, free = move.replica.partition().size, _free_bytes(move.to.path)
        if size + MARGIN_BYTES_MAX > free:
            raise OSError(f"{move.to.path} has {free} bytes free, and the replica has {size}")

    def _follow(self, move: LogDirMove, before: LogDir) -> bool:
        """Copy until the copy can take the log's place. False if the move was stopped."""
        copy = move.copy
        assert copy is not None
        while not move.stopped.is_set():
            if problem := move.problem():
                raise OSError(problem)
            copied = copy.copy(min(STEP_BYTES, self._rate() // STEPS_PER_S + 1))
            self._pace(move, max(copied, -1 - copied))
            if copied < 0 and copy.settle() and self._switch(move, before):
                return True
            if copied <= 0:
                move.stopped.wait(PAUSE_S)
        return False

    def _pace(self, move: LogDirMove, copied: int) -> None:
        """Wait until the next step is due by the rate."""
        now = time.monotonic()
        with self._pacing:
            self._free_at_s = max(self._free_at_s, now) + copied / self._rate()
            wait_s = self._free_at_s - now
        if wait_s > 0:
            move.stopped.wait(wait_s)

    def _switch(self, move: LogDirMove, before: LogDir) -> bool:
        """Have the settled copy take the log's place, unless the log has changed too much meanwhile."""
        copy, replica, key = move.copy, move.replica, move.replica.key
        partition = replica.partition()
        assert copy is not None
        with self._switching, move.deciding, _recording(before, move.to), move.to.expecting(key):
            start = _record_at(move.to, key, partition, before)
            for _ in range(SWITCHES):
                while (copied := copy.copy(STEP_BYTES)) > 0 and not move.stopped.is_set():
                    pass
                if move.stopped.is_set() or replica.gone:
                    return False
                if copied < 0 and copy.switch(start, os.path.join(before.path, aside(key, "delete"))):
                    replica.directory = move.to
                    self._on_switched(key, move.to)
                    return True
        return False

    def _end(self, move: LogDirMove, before: LogDir | None, loop: asyncio.AbstractEventLoop) -> None:
        copy, key = move.copy, move.replica.key
        if copy is not None and copy.switched and before is not None:
            with contextlib.suppress(OSError):  # what stays of it does no harm, and the log dir is offline
                before.forget({key})
        elif copy is not None and not self._stopping and before is not None and not before.failure:
            remove(copy.directory)  # else it may be all that is left of the replica
        move.ended.set()
        with contextlib.suppress(RuntimeError):  # the loop has ended: so has the broker
            loop.call_soon_threadsafe(self._ended, move, before)

    def _ended(self, move: LogDirMove, before: LogDir | None) -> None:
        for moves in (self._moves, self._latest):
            if moves.get(move.replica.key) is move:
                del moves[move.replica.key]
        if move.copy is not None and move.copy.switched and before is not None and not self._stopping:
            self._on_moved(move.replica, before)


def _record_at(to: LogDir, key: TopicPartition, partition: core.Partition, before: LogDir) -> int:
    """Record in a log dir what the next start has to know of a replica that is about to move there. Return the log
    start that is on record then. Raises OSError."""
    start, first = partition.log_start_offset, partition.segments()[0][0]
    to.assign(RECOVERY_POINTS, key, partition.recovery_point)
    to.assign(HIGH_WATERMARKS, key, partition.high_watermark)
    to.assign(LOG_STARTS, key, start if start > first else None)
    to.assign(CLEANED, key, before.recorded[CLEANED].get(key))
    to.record_damage(key, before.damage.get(key, frozenset()))
    return start


@contextlib.contextmanager
def _recording(*log_dirs: LogDir) -> Iterator[None]:
    """Lock the checkpoints of these log dirs, in an order that is the same for all."""
    with contextlib.ExitStack() as locked:
        for log_dir in sorted(log_dirs, key=lambda log_dir: log_dir.path):
            locked.enter_context(log_dir.recording())
        yield


def _free_bytes(path: str) -> int:
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def _yield_to_others() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
