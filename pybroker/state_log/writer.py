"""Writes the records of a coordinator to the log of one partition, one batch after the other.

    queued --appended--> in the log --the high watermark passed it--> committed
      |                    |
      |                    +--timeout--> the request times out; the write takes effect if committed
      +--refused--> failed
    queued, in the log --the partition is resigned--> dropped: requests get NOT_COORDINATOR

A write takes effect when it is committed, in log order, so a later coordinator that reads the log never has less. With
one replica the high watermark moves with the append, and nothing waits here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Final

from pybroker import core, errors
from pybroker.errors import KafkaError
from pybroker.protocol.compression import compress
from pybroker.state_log.log import ACKS_UNSAID, Pair, StateLog

Append = Callable[[int], Awaitable[core.Appended]]
"""Appends a batch in a leader epoch. Raises KafkaError, core.LogError, OSError."""


class Write:
    """One pending batch. `answer` is the log's error for the request, or NONE."""

    __slots__ = ("answer", "append", "in_log", "settled", "timer")

    def __init__(self, append: Append, settled: Callable[[bool], None], answer: asyncio.Future[int]) -> None:
        self.append = append
        self.settled = settled
        self.answer = answer
        self.in_log = False
        self.timer: asyncio.TimerHandle | None = None

    async def answered(self) -> int:
        """Wait for the answer; a cancelled caller does not cancel it for other callers."""
        return await asyncio.shield(self.answer)

    def tell(self, error: int) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if not self.answer.done():
            self.answer.set_result(error)


class Writer:
    """Executes all writes of one partition while this broker leads it."""

    def __init__(
        self,
        replica: StateLog,
        leader_epoch: int,
        codec: int,
        timeout_s: float,
        wall_ms: Callable[[], int],
        lost: Callable[[str], None],
        acks: int = ACKS_UNSAID,
    ) -> None:
        """`lost` is called with the reason if the outcome of writes can no longer be known from the log. `acks` -1:
        refuse writes while too few replicas are in sync."""
        self._acks = acks
        self._replica = replica
        self._leader_epoch = leader_epoch
        self._news = asyncio.Event()  # set by a new leader epoch, or by `close`
        self._codec = codec
        self._timeout_s = timeout_s
        self._wall_ms = wall_ms
        self._lost = lost
        self._closed = False
        self._queued: deque[Write] = deque()
        self._in_log: deque[tuple[int, Write]] = deque()  # each with its end offset
        self._appending: asyncio.Task[None] | None = None
        self._committing: asyncio.Task[None] | None = None

    def write(self, pairs: Sequence[Pair], settled: Callable[[bool], None]) -> Write:
        """Store records in one batch. `settled` is called once, before `answer` is set, with True if the log has the
        records; it is not called if the partition is resigned first."""
        now_ms = self._wall_ms()
        squeeze = partial(compress, self._codec) if self._codec else None
        batch = core.build_batch(
            [(now_ms, key, value, ()) for key, value in pairs], attributes=self._codec, compress=squeeze
        )
        return self.put(lambda epoch: self._replica.append(batch, now_ms, epoch, self._acks), settled)

    def put(self, append: Append, settled: Callable[[bool], None]) -> Write:
        """Append a batch in its turn, as `write` does."""
        write = Write(append, settled, asyncio.get_running_loop().create_future())
        if self._closed:
            write.tell(errors.NOT_COORDINATOR)
            return write
        self._queued.append(write)
        if self._appending is None:
            self._appending = self._start(self._append())
        return write

    def now_ms(self) -> int:
        """The time of records that are written now."""
        return self._wall_ms()

    @property
    def leader_epoch(self) -> int:
        """The leader epoch in which it appends."""
        return self._leader_epoch

    def _start(self, work: Coroutine[object, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._check)
        return task

    def _check(self, task: asyncio.Task[None]) -> None:
        """Resign the partition if a task ended unexpectedly, so that no request waits for ever."""
        if not task.cancelled() and (problem := task.exception()) is not None and not self._closed:
            self._lost(repr(problem))

    def lead_on(self, leader_epoch: int) -> None:
        """Continue in a new leader epoch of the same log."""
        self._leader_epoch = leader_epoch
        self._news.set()

    def close(self) -> None:
        """Resign the partition: answer waiting requests with NOT_COORDINATOR, and ignore the outcome of writes."""
        self._closed = True
        self._news.set()
        if self._committing is not None:
            self._committing.cancel()
        for write in (*self._queued, *(write for _, write in self._in_log)):
            write.tell(errors.NOT_COORDINATOR)
        self._queued.clear()
        self._in_log.clear()

    async def _append(self) -> None:
        """Append the queued batches. A batch being appended stays at the head, so that `close` can answer it if the log
        hangs. The log gets a new leader epoch shortly before this writer: a batch refused then is appended again."""
        while self._queued:
            write, epoch = self._queued[0], self._leader_epoch
            self._news.clear()
            try:
                appended = await write.append(epoch)
            except (KafkaError, core.LogError) as problem:
                error = problem.code
                if error == errors.FENCED_LEADER_EPOCH and await self._hears_of_an_epoch():
                    continue
            except OSError:
                error = errors.KAFKA_STORAGE_ERROR
            else:
                error = errors.NONE
            if self._closed:
                return
            self._queued.popleft()
            if error:
                self._settle(write, error)
            else:
                self._appended(write, appended.last_offset + 1)
        self._appending = None

    async def _hears_of_an_epoch(self) -> bool:
        """Wait for the new leader epoch that the log already has; False after a timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._news.wait()
        return self._news.is_set()

    def _appended(self, write: Write, end: int) -> None:
        write.in_log = True
        if not self._in_log and self._is_committed(end):
            self._settle(write, errors.NONE)
            return
        self._in_log.append((end, write))
        loop = asyncio.get_running_loop()
        write.timer = loop.call_later(self._timeout_s, write.tell, errors.REQUEST_TIMED_OUT)
        if self._committing is None:
            self._committing = self._start(self._commit())

    def _is_committed(self, end: int) -> bool:
        try:
            return self._replica.partition().high_watermark >= end
        except KafkaError:  # the log was closed meanwhile: `committed` raises the reason
            return False

    async def _commit(self) -> None:
        """Wait for the high watermark to pass the appended batches, in order."""
        while self._in_log:
            end, write = self._in_log[0]
            error = errors.NONE
            try:
                await self._replica.committed(end, self._leader_epoch)
            except KafkaError as problem:
                error = problem.code
                if error != errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                    self._committing = None
                    self._lost(problem.message)
                    return
            self._in_log.popleft()
            self._settle(write, error)
        self._committing = None

    def _settle(self, write: Write, error: int) -> None:
        write.settled(write.in_log)  # before the answer: the client may read the new state at once
        write.tell(error)


COORDINATOR_ERRORS: Final = {
    errors.UNKNOWN_TOPIC_OR_PARTITION: errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_ENOUGH_REPLICAS: errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND: errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_LEADER_OR_FOLLOWER: errors.NOT_COORDINATOR,
    errors.KAFKA_STORAGE_ERROR: errors.NOT_COORDINATOR,
    errors.FENCED_LEADER_EPOCH: errors.NOT_COORDINATOR,
    errors.UNKNOWN_LEADER_EPOCH: errors.NOT_COORDINATOR,
}
"""The error of a write -> the client's error; others are unchanged."""
