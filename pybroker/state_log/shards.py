"""The partitions of an internal topic that this broker leads, each with its part of a coordinator's state.

    leader --all records read, and committed--> active --resigned--> (dropped: waiting requests get NOT_COORDINATOR)
                                                  --its log fails--> failed: all requests get NOT_COORDINATOR

While a partition loads, its requests get COORDINATOR_LOAD_IN_PROGRESS. This broker leads a partition in one leader
epoch, then resigns it; late changes of an older epoch are ignored. Everything runs on the event loop, so the state
needs no lock; only the log of a partition is read and written on threads.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import Generic, TypeVar

from pybroker import errors
from pybroker.config.settings import shown
from pybroker.errors import KafkaError
from pybroker.retries import keep_up
from pybroker.state_log.log import ACKS_UNSAID, StateLog
from pybroker.state_log.placement import partition_of
from pybroker.state_log.writer import Writer

LOAD_AGAIN_S = 0.1
LOAD_AGAIN_S_MAX = 10.0


class CoordinatedPartition:
    """The state in one partition, under one leader epoch."""

    def __init__(self, index: int, replica: StateLog, writer: Writer) -> None:
        self.index = index
        self.replica = replica
        self.writer = writer
        self.loading = True
        self.loader: asyncio.Task[None] | None = None
        self.failure: str | None = None
        self.resigned = False

    @property
    def failed(self) -> bool:
        """True if there is no coordinator here, because the log cannot be read or written."""
        return self.failure is not None or self.replica.offline

    def check(self) -> None:
        """Raise COORDINATOR_LOAD_IN_PROGRESS while loading, NOT_COORDINATOR if loading or the log has failed."""
        if self.failed:
            raise KafkaError(errors.NOT_COORDINATOR, f"{self.replica.key}: {self.failure or 'its log is offline'}")
        if self.loading:
            raise KafkaError(errors.COORDINATOR_LOAD_IN_PROGRESS, f"{self.replica.key} is being read")


S = TypeVar("S", bound=CoordinatedPartition)
L = TypeVar("L")


class CoordinatedPartitions(ABC, Generic[S, L]):
    """Leads and resigns partitions of one topic. `L` is the state that is read from a log.

    `partitions`: the partition count of the topic, 0 while unknown."""

    topic: str
    """The name of the topic."""
    keyed: str
    """The name of the keys by which the state is spread over the partitions: group."""

    def __init__(
        self, workers: Executor, codec: int, write_timeout_s: float, wall_ms: Callable[[], int], acks: int = ACKS_UNSAID
    ) -> None:
        """`codec`, `acks`: of the batches that are written; see Writer."""
        self._acks = acks
        self.wall_ms = wall_ms
        self.partitions = 0
        self._workers = workers
        self._codec = codec
        self._write_timeout_s = write_timeout_s
        self._shards: dict[int, S] = {}
        self._epochs: dict[int, int] = {}  # the latest known leader epoch of each partition
        self._upkeep: asyncio.Task[None] | None = None

    # -- what the coordinator adds -----------------------------------------------------------------------------------

    @abstractmethod
    def new_shard(self, index: int, replica: StateLog, writer: Writer) -> S:
        """The shard of a partition, without state yet."""

    @abstractmethod
    def read(self, replica: StateLog) -> tuple[L, int]:
        """Read the state from a log, and the offset up to which it was read. Runs on a thread. Raises KafkaError,
        core.LogError, OSError."""

    @abstractmethod
    async def begin(self, shard: S, state: L) -> None:
        """Take over the state that was loaded, and set `loading` to False."""

    @abstractmethod
    def end(self, shard: S) -> None:
        """Forget the state of a resigned shard; waiting requests get NOT_COORDINATOR."""

    @abstractmethod
    def not_loaded(self, shard: S, reason: Exception) -> None:
        """Log that a partition could not be loaded; this is tried again."""

    @abstractmethod
    def was_lost(self, shard: S, reason: str) -> None:
        """Log that a partition was resigned because its log failed."""

    @abstractmethod
    async def keep_up(self) -> None:
        """Do the regular work, from the first partition led until all are resigned."""

    # -- roles -------------------------------------------------------------------------------------------------------

    def take_lead(self, index: int, leader_epoch: int, replica: StateLog, *, led_on: bool = False) -> S | None:
        """Load and coordinate the state in a partition; return its new shard. Each leader epoch is acted on once;
        repeats are ignored.

        `led_on`: this broker has led the log without a break, so the state stays in the new epoch."""
        known = self._epochs.get(index)
        if known is not None and leader_epoch <= known:
            return None
        self._epochs[index] = leader_epoch
        led = self._shards.get(index) if led_on else None
        if led is not None and not led.failed:
            led.writer.lead_on(leader_epoch)
            return None
        self._let_go(index)
        shard = self._shards[index] = self._shard(index, replica)
        loop = asyncio.get_running_loop()
        shard.loader = loop.create_task(self._load(shard))
        if self._upkeep is None:
            self._upkeep = loop.create_task(keep_up(self.keep_up, f"upkeep of {self.topic}"))
        return shard

    async def loaded(self) -> None:
        """Wait until no partition is being loaded, except those whose loading has failed and is retried."""
        while loaders := [
            s.loader for s in self._shards.values() if s.loader and not s.loader.done() and s.failure is None
        ]:
            await asyncio.wait(loaders, timeout=LOAD_AGAIN_S)

    def _shard(self, index: int, replica: StateLog) -> S:
        leader_epoch, lost = self._epochs[index], partial(self._log_lost, index)
        writer = Writer(replica, leader_epoch, self._codec, self._write_timeout_s, self.wall_ms, lost, self._acks)
        return self.new_shard(index, replica, writer)

    async def _load(self, shard: S) -> None:
        loop, wait_s = asyncio.get_running_loop(), LOAD_AGAIN_S
        while True:
            try:
                state, end = await loop.run_in_executor(self._workers, self.read, shard.replica)
                # Show nothing that a next leader may lack.
                await shard.replica.committed(end, self._epochs[shard.index])
                break
            except Exception as problem:  # retry: no other broker loads the state while this one leads
                self.not_loaded(shard, problem)
                shard.failure = str(problem)
            if shard.replica.offline:
                return
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LOAD_AGAIN_S_MAX)
        shard.failure = None
        if not shard.replica.offline:  # otherwise about to be resigned
            await self.begin(shard, state)

    def resign(self, index: int, leader_epoch: int) -> None:
        """Drop the state of a partition that has another leader or none in this epoch; waiting requests get
        NOT_COORDINATOR."""
        if leader_epoch >= self._epochs.get(index, leader_epoch):
            self._epochs[index] = leader_epoch
            self._let_go(index)

    def begin_anew(self) -> None:
        """Drop all state and leader epochs, because the topic was deleted and created again."""
        for index in list(self._shards):
            self._let_go(index)
        self._epochs.clear()

    def resign_all(self) -> None:
        """Drop all state and leader epochs, because the broker stops or the topic is gone."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            self._upkeep = None
        self.begin_anew()
        self.partitions = 0

    def resign_failed(self) -> None:
        """Resign the partitions in a failed log dir, until they have a new leader epoch."""
        for shard in list(self._shards.values()):
            if shard.replica.offline and shard.failure is None:
                self._lose(shard.index, "its log is offline")

    def _log_lost(self, index: int, why: str) -> None:
        self.was_lost(self._shards[index], why)
        self._lose(index, why)

    def _lose(self, index: int, why: str) -> None:
        shard = self._shards.get(index)
        if shard is not None:
            self._let_go(index)
            # A new object, so that pending work on the old one does not change it.
            lost = self._shards[index] = self._shard(index, shard.replica)
            lost.loading, lost.failure = False, why

    def _let_go(self, index: int) -> None:
        """Forget the state of a partition; waiting requests get NOT_COORDINATOR."""
        shard = self._shards.pop(index, None)
        if shard is None:
            return
        shard.resigned = True
        if shard.loader is not None:
            shard.loader.cancel()
        self.end(shard)
        shard.writer.close()

    # -- look-ups ----------------------------------------------------------------------------------------------------

    def is_lost(self, key: str) -> bool:
        """True if a key has no coordinator, because its partition is offline."""
        shard = self._shards.get(partition_of(key, self.partitions)) if self.partitions else None
        return shard is not None and shard.failed

    def shard_of(self, key: str) -> S:
        """The partition of a key. Raises COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""
        if not self.partitions:
            raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE, f"{self.topic} does not exist yet")
        shard = self._shards.get(partition_of(key, self.partitions))
        if shard is None:
            raise KafkaError(errors.NOT_COORDINATOR, f"this broker does not coordinate {self.keyed} {shown(key)}")
        shard.check()
        return shard

    def logs(self, keys: Iterable[str] | None) -> list[StateLog]:
        """The partitions led here that hold these keys; None means all keys."""
        if keys is None:
            return [shard.replica for shard in self._shards.values()]
        indexes = {partition_of(name, self.partitions) for name in keys} if self.partitions else set()
        return [shard.replica for index, shard in self._shards.items() if index in indexes]

    def loading(self) -> bool:
        return any(shard.loading and not shard.failed for shard in self._shards.values())
