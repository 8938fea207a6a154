"""Follows a leader broker in core: the plane fetches and appends, and Python handles its events.

    assigned ──the plane copies──> copied, until the plane reports an event:
       │ the logs diverge ──> truncate to where they agree, copy on;
       │ below the leader's start, or beyond its end ──> continue where the leader has records;
       │ throttled, and behind ──> retry when the throttle allows it;
       │ its disk made the plane wait ──> fetched and appended by threads (SlowFetcher), until the disk is quick again;
       │ another error ──> retry after a pause;
       │ the leader's log start was raised ──> raise ours;
       └ the connection ends ──> connect again

The code that truncates logs, or continues them after a gap, is the Python fetcher's.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
from collections.abc import Awaitable, Callable

from pybroker import core, errors
from pybroker.errors import KafkaError, system_words
from pybroker.interbroker.link import Dialled, Link, hung_up
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.replication.disks.disk_space import LACKS
from pybroker.replication.fetcher import RETRY_S, WAIT, WAIT_S, Fetcher, FetcherContext, Followed
from pybroker.replication.replica import Replica
from pybroker.security.tls import NativeStream
from pybroker.tasks import cancel_and_wait

log = logging.getLogger(__name__)

Dial = Callable[[int], Awaitable[Dialled]]
"""Connects to a broker by its id. Raises OSError."""


class NativeFetcher(Fetcher):
    """Copies partitions from one leader, in core."""

    def __init__(
        self, context: FetcherContext, dial: Dial, open_fetcher: Callable[..., core.LeaderConnection]
    ) -> None:
        """`open_fetcher` is Replicas.open_fetcher."""
        self._dial = dial
        self._open_fetcher = open_fetcher
        self._native: core.LeaderConnection | None = None
        self._ended = asyncio.Event()
        self._heeding: dict[TopicPartition, asyncio.Task[None]] = {}  # the task of each partition's last event
        self._later: dict[TopicPartition, asyncio.TimerHandle] = {}
        self._pause_s = RETRY_S  # before the next connection; longer after an error than after a close
        self._link: Link | None = None  # for requests of Python's own
        self._seen: socket.socket | None = None  # a duplicate of core's socket, to see when its other end closes
        self._slow = SlowFetcher(self._copy, context)
        super().__init__(context)

    def start(self) -> None:
        super().start()
        self._slow.start()

    def follow(self, replica: Replica, leader_epoch: int) -> None:
        super().follow(replica, leader_epoch)
        self._copy(replica.key)

    def leave(self, key: TopicPartition) -> None:
        followed = self._followed.get(key)
        super().leave(key)
        self._slow.leave(key)
        if key in self._later:
            self._later.pop(key).cancel()
        if self._native is not None and followed is not None and followed.replica.log is not None:
            self._native.remove(followed.replica.log, wait=False)  # the next role waits for a running append

    def registered(self) -> None:
        if self._native is not None:
            self._native.broker_epoch = self._epoch()

    def look(self) -> None:
        if self._seen is not None and hung_up(self._seen.fileno()):
            self._suspects.add(self._leader)

    async def close(self) -> None:
        for timer in self._later.values():
            timer.cancel()
        await self._slow.close()
        if self._task is not None:
            await cancel_and_wait(self._task, *self._heeding.values())
        if self._native is not None:
            self._native.close()
        if self._link is not None:
            self._link.close()

    # -- the connection ----------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        told = False
        while True:
            if not self._followed:
                self._changed.clear()
                await self._changed.wait()
            try:
                sock = await self._dial(self._leader)
                self._suspects.discard(self._leader)
                self._pause_s = RETRY_S
                await self._copy_over(sock)
                told = False
            except OSError as problem:  # no connection, or no descriptor for one
                if not told:
                    event(log, logging.WARNING, "leader not reached", leader=self._leader, reason=system_words(problem))
                told = True
                await asyncio.sleep(RETRY_S)
                continue
            except Exception as problem:  # the task must go on, or copying from this leader would stop
                event(log, logging.ERROR, "fetch failed", leader=self._leader, reason=problem, exc_info=problem)
                self._pause_s = self._config["replica.fetch.backoff.ms"] / 1000
            self._suspects.add(self._leader)
            await asyncio.sleep(self._pause_s)

    async def _copy_over(self, dialled: Dialled) -> None:
        """Have the plane copy over a connection until it ends."""
        config = self._config
        sock, tls = (dialled.sock, dialled.tls) if isinstance(dialled, NativeStream) else (dialled, None)
        self._ended.clear()
        with sock, contextlib.ExitStack() as held:
            seen = held.enter_context(sock.dup())
            native = self._open_fetcher(
                sock.fileno(),
                self._hear,
                replica_id=self._broker_id,
                broker_epoch=self._epoch(),
                client_id=f"broker-{self._broker_id}-fetcher-0",
                max_wait_ms=config["replica.fetch.wait.max.ms"],
                min_bytes=config["replica.fetch.min.bytes"],
                response_bytes_max=config["replica.fetch.response.max.bytes"],
                partition_bytes_max=config["replica.fetch.max.bytes"],
                tls=tls,
            )
            sock.detach()  # the plane owns it now
            held.pop_all()
        self._native, self._seen = native, seen
        try:
            for key in list(self._followed):
                self._copy(key)
            await self._ended.wait()
        finally:
            self._native = self._seen = None
            seen.close()
            native.close()

    def _copy(self, key: TopicPartition) -> None:
        """Have the plane copy a partition, if it is still followed."""
        self._later.pop(key, None)
        if self._native is None or key not in self._followed:
            return
        self._slow.leave(key)
        replica, leader_epoch = self._followed[key].replica, self._followed[key].leader_epoch
        if replica.log is None or replica.offline or replica.gone:
            self._followed.pop(key)
            return
        self._followed[key] = Followed(replica, leader_epoch)
        self._native.add(replica.log, leader_epoch, begin=self._begins.get(key, 0))

    def _hear(self, kind: str, letter: bytes) -> None:
        if kind == "closed":
            self._ended.set()
            if letter:
                why = letter.decode()
                self._pause_s = self._config["replica.fetch.backoff.ms"] / 1000
                event(log, logging.WARNING, "connection to a leader closed", leader=self._leader, reason=why)
        elif self._native is not None and (what := self._native.read(letter)) is not None:
            self._heard(what)

    # -- events of the plane -----------------------------------------------------------------------------------------

    def _heard(self, what: core.FetcherEvent) -> None:
        """Start a task for an event. Events of one partition are handled in order, each partition on its own."""
        if what.partition is None:
            self._complain(what.code)
            return
        key = TopicPartition(what.partition.topic, what.partition.partition)
        followed = self._followed.get(key)
        if followed is None or followed.replica.log is not what.partition:
            return
        # Without the partition: a waiting event would keep its files open, even when they were deleted.
        work = self._heed(what._replace(partition=None), followed, self._heeding.get(key))
        task = self._heeding[key] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda done: self._heeding.pop(key) if self._heeding.get(key) is done else None)

    async def _heed(self, what: core.FetcherEvent, followed: Followed, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        key = followed.replica.key
        if self._followed.get(key) is not followed:
            return
        try:
            await self._do(what, followed)
        except (core.LogError, KafkaError, OSError) as problem:
            self._complaints.log(logging.WARNING, key, str(problem))
            self._retry(followed, self._config["replica.fetch.backoff.ms"] / 1000)
        except Exception as problem:  # an error of one partition must not stop the others
            event(log, logging.ERROR, "partition not followed", partition=key, reason=problem, exc_info=problem)
            self._retry(followed, self._config["replica.fetch.backoff.ms"] / 1000)

    async def _do(self, what: core.FetcherEvent, followed: Followed) -> None:
        replica = followed.replica
        if self._begins.get(replica.key, 0) <= replica.partition().log_end_offset:
            self._begins.pop(replica.key, None)  # the log has passed the gap; a later truncation must not bring it back
        if what.kind == "log_start":
            await self._raise_log_start(replica, what.offset)
            return
        if what.kind == "throttled":
            self._retry(followed, what.offset / 1000)
            return
        if what.kind == "slow":
            self._slow.take(replica, followed.leader_epoch, self._begins.get(replica.key))
            return
        before = self._goes_on_at(replica)
        if what.kind == "diverged":
            await self._cut(followed, what.epoch, what.offset)
        elif what.code == errors.OFFSET_OUT_OF_RANGE:
            await self._begin_again(await self._ask_beside(), followed)
        else:
            self._hold_off(followed, what.code)
            if what.code < 0:
                await self._raise_log_start(replica, what.offset)
            return
        if self._followed.get(replica.key) is not followed:
            return
        if self._goes_on_at(replica) == before:  # nothing changed: the leader would give the same answer at once
            self._retry(followed, self._config["replica.fetch.backoff.ms"] / 1000)
        else:
            self._copy(replica.key)

    def _goes_on_at(self, replica: Replica) -> tuple[int, int]:
        return replica.partition().log_end_offset, self._begins.get(replica.key, 0)

    async def _ask_beside(self) -> Link:
        if self._link is None or self._link.closed.done():
            self._link = await self._connect(self._leader)
        return self._link

    def _hold_off(self, followed: Followed, code: int) -> None:
        seconds = self._config["replica.fetch.backoff.ms"] / 1000
        if code in WAIT:
            seconds = min(seconds, WAIT_S)
        elif code >= errors.UNKNOWN_SERVER_ERROR:
            self._complaints.log(logging.WARNING, followed.replica.key, errors.lookup(code).name)
        elif -code not in LACKS:  # a lack of space is logged once, for the log dir
            self._complaints.log(logging.WARNING, followed.replica.key, os.strerror(-code).lower())
        self._retry(followed, seconds)

    def _retry(self, followed: Followed, seconds: float) -> None:
        """Copy a partition again after a pause, unless it is followed anew meanwhile."""
        key = followed.replica.key
        if self._followed.get(key) is not followed:
            return
        if key in self._later:
            self._later.pop(key).cancel()
        again = functools.partial(self._copy, key)
        self._later[key] = asyncio.get_running_loop().call_later(seconds, again)

    def _complain(self, code: int) -> None:
        event(log, logging.WARNING, "fetch refused", leader=self._leader, error=errors.lookup(code).name)


class SlowFetcher(Fetcher):
    """Copies partitions that the plane gave up because of a slow disk; appends run on threads that may block."""

    def __init__(self, give_back: Callable[[TopicPartition], object], context: FetcherContext) -> None:
        """`give_back` is called with a partition whose disk is quick again: it is no longer followed here."""
        self._give_back = give_back
        super().__init__(context)

    def take(self, replica: Replica, leader_epoch: int, begin: int | None) -> None:
        """Follow a partition; `begin`: the next offset, if that is not the log's end."""
        if begin is not None:
            self._begins[replica.key] = begin
        self.follow(replica, leader_epoch)

    async def _take(
        self, link: Link, followed: Followed, answer: m.FetchResponse.Responses.Partitions
    ) -> None:
        self._begin(followed, functools.partial(super()._take, link, answer=answer))

    async def _alone(self, followed: Followed, work: Callable[[Followed], Awaitable[object]]) -> None:
        await super()._alone(followed, work)
        key, written = followed.replica.key, followed.replica.log
        if written is not None and not written.slow_appends and self._followed.get(key) is followed:
            self.leave(key)
            self._give_back(key)
