"""The group coordinator: the partitions of __consumer_offsets that this broker leads, and the groups in them.

This broker leads a partition in one leader epoch, then resigns it; late changes of an older epoch are ignored.
`members.py` and `offsets.py` handle the requests of a group. Everything runs on the event loop, so a group needs no
lock; only the log of a partition is read and written on threads. Sessions use the loop's clock, stored times the wall
clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial

from pybroker import core, errors
from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.config.settings import shown
from pybroker.decisions.group import Cause
from pybroker.decisions.image import OFFSETS_TOPIC
from pybroker.errors import KafkaError
from pybroker.groups.loading import load
from pybroker.groups.members import Members
from pybroker.groups.offsets import Offsets
from pybroker.groups.shard import GroupEntry, Shard
from pybroker.groups.writer import OffsetsLog, Writer
from pybroker.logs import event
from pybroker.retries import keep_up

LOAD_AGAIN_S = 0.1
LOAD_AGAIN_S_MAX = 10.0

log = logging.getLogger(__name__)


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, wrapped to 32 bits."""
    value = 0
    units = text.encode("utf-16-be")
    for i in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_of(key: str, partitions: int) -> int:
    """The partition of an internal topic for a group or transactional id (Kafka's Utils.abs, not murmur2)."""
    value = java_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


def random_uuid() -> object:
    """The suffix of a new member's id. The import is local to keep it out of the broker's start."""
    import uuid

    return uuid.uuid4()


class Coordinator:
    """Coordinates the groups of the partitions that this broker leads. `partitions`: the partition count of the offsets
    topic, 0 while unknown."""

    def __init__(
        self,
        config: BrokerConfig,
        workers: Executor,
        *,
        wall_ms: Callable[[], int] = wall_ms,
        draw_id: Callable[[], object] = random_uuid,
    ) -> None:
        """`wall_ms` is the time in stored records, `draw_id` returns the suffix of a new member's id. Deadlines use the
        running loop's clock."""
        self.wall_ms = wall_ms
        self.members = Members(config, self.shard_of, wall_ms, draw_id)
        self.offsets = Offsets(config, self.shard_of, wall_ms)
        self.partitions = 0
        self._workers = workers
        self._read_bytes: int = config["offsets.load.buffer.size"]
        self._codec: int = config["offsets.topic.compression.codec"]
        self._commit_timeout_s: float = config["offsets.commit.timeout.ms"] / 1000
        self._check_s: float = config["offsets.retention.check.interval.ms"] / 1000
        self._shards: dict[int, Shard] = {}
        self._epochs: dict[int, int] = {}  # the latest known leader epoch of each partition
        self._upkeep: asyncio.Task[None] | None = None

    @property
    def rebalances(self) -> Counter[Cause]:
        """The rebalances begun since the start, by cause."""
        return self.members.rebalances

    # -- partitions of the offsets topic -----------------------------------------------------------------------------

    def lead(
        self, index: int, leader_epoch: int, replica: OffsetsLog, deleted: Iterable[str] = (), *, led_on: bool = False
    ) -> None:
        """Load and coordinate the groups of a partition. Each leader epoch is acted on once; repeats are ignored.

        `deleted`: topics whose deletion was requested before this start, and completed after it. `led_on`: this broker
        has led the log without a break, so its groups continue in the new epoch."""
        known = self._epochs.get(index)
        if known is not None and leader_epoch <= known:
            return
        self._epochs[index] = leader_epoch
        led = self._shards.get(index) if led_on else None
        if led is not None and not led.failed:
            led.writer.lead_on(leader_epoch)
            return
        self._let_go(index)
        shard = self._shards[index] = self._shard(index, replica)
        shard.deleted_topics.update(dict.fromkeys(deleted))
        loop = asyncio.get_running_loop()
        shard.loader = loop.create_task(self._load(shard))
        if self._upkeep is None:
            self._upkeep = loop.create_task(keep_up(self._keep_up, "expiry of offsets"))

    async def loaded(self) -> None:
        """Wait until no partition is being loaded, except those whose loading has failed and is retried."""
        while loaders := [
            s.loader for s in self._shards.values() if s.loader and not s.loader.done() and s.failure is None
        ]:
            await asyncio.wait(loaders, timeout=LOAD_AGAIN_S)

    def _shard(self, index: int, replica: OffsetsLog) -> Shard:
        leader_epoch, lost = self._epochs[index], partial(self._log_lost, index)
        writer = Writer(replica, leader_epoch, self._codec, self._commit_timeout_s, self.wall_ms, lost)
        return Shard(index, replica, writer)

    async def _load(self, shard: Shard) -> None:
        loop, wait_s = asyncio.get_running_loop(), LOAD_AGAIN_S
        while True:
            try:
                found, lost, end = await loop.run_in_executor(self._workers, load, shard.replica, self._read_bytes)
                await shard.replica.committed(
                    end, self._epochs[shard.index]
                )  # show nothing that a next leader may lack
                break
            except Exception as problem:  # retry: no other broker loads the groups while this one leads
                known = isinstance(problem, (KafkaError, core.LogError, OSError))
                event(
                    log, logging.ERROR, "groups not loaded", partition=shard.replica.key, reason=problem,
                    exc_info=None if known else problem,
                )  # fmt: skip
                shard.failure = str(problem)
            if shard.replica.offline:
                return
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LOAD_AGAIN_S_MAX)
        shard.failure = None
        if shard.replica.offline:  # about to be resigned
            return
        self.members.welcome(shard, found)
        shard.entries = found
        shard.loading = False
        unstable = sum(len(entry.unstable) for entry in found.values())
        if lost:
            event(log, logging.ERROR, "damaged group records skipped", partition=shard.replica.key, records=lost)
        if unstable:
            event(log, logging.WARNING, "offsets of open transactions", partition=shard.replica.key, offsets=unstable)
        await self.offsets.forget_topics(shard, shard.deleted_topics)

    def resign(self, index: int, leader_epoch: int) -> None:
        """Drop the groups of a partition that has another leader or none in this epoch; waiting requests get
        NOT_COORDINATOR."""
        if leader_epoch >= self._epochs.get(index, leader_epoch):
            self._epochs[index] = leader_epoch
            self._let_go(index)

    def begin_anew(self) -> None:
        """Drop all groups and leader epochs, because the offsets topic was deleted and created again."""
        for index in list(self._shards):
            self._let_go(index)
        self._epochs.clear()

    def resign_all(self) -> None:
        """Drop all groups and leader epochs, because the broker stops or the offsets topic is gone."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            self._upkeep = None
        self.begin_anew()
        self.partitions = 0

    def resign_failed(self) -> None:
        """Resign the groups stored in a failed log dir, until their partitions have a new leader epoch."""
        for shard in list(self._shards.values()):
            if shard.replica.offline and shard.failure is None:
                self._lose(shard.index, "its log is offline")

    def _log_lost(self, index: int, why: str) -> None:
        event(log, logging.ERROR, "groups resigned", partition=self._shards[index].replica.key, reason=why)
        self._lose(index, why)

    def _lose(self, index: int, why: str) -> None:
        shard = self._shards.get(index)
        if shard is not None:
            self._let_go(index)
            # A new object, so that pending work on the old one does not change it.
            lost = self._shards[index] = self._shard(index, shard.replica)
            lost.loading, lost.failure = False, why

    def _let_go(self, index: int) -> None:
        """Forget the groups of a partition; waiting requests get NOT_COORDINATOR."""
        shard = self._shards.pop(index, None)
        if shard is None:
            return
        shard.resigned = True
        if shard.loader is not None:
            shard.loader.cancel()
        self.members.dismiss(shard)
        shard.writer.close()
        shard.entries.clear()

    def is_lost(self, group_id: str) -> bool:
        """True if a group has no coordinator, because its partition is offline."""
        shard = self._shards.get(partition_of(group_id, self.partitions)) if self.partitions else None
        return shard is not None and shard.failed

    def shard_of(self, group_id: str) -> Shard:
        """The partition of a group. Raises COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""
        if not self.partitions:
            raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} does not exist yet")
        shard = self._shards.get(partition_of(group_id, self.partitions))
        if shard is None:
            raise KafkaError(errors.NOT_COORDINATOR, f"this broker does not coordinate group {shown(group_id)}")
        shard.check()
        return shard

    def logs(self, group_ids: Iterable[str] | None) -> list[OffsetsLog]:
        """The partitions led here that hold these groups; None means all groups."""
        if group_ids is None:
            return [shard.replica for shard in self._shards.values()]
        indexes = {partition_of(name, self.partitions) for name in group_ids} if self.partitions else set()
        return [shard.replica for index, shard in self._shards.items() if index in indexes]

    def find(self, group_id: str) -> GroupEntry | None:
        """The group, or None if it does not exist. Raises as shard_of."""
        return self.shard_of(group_id).entries.get(group_id)

    def entries(self) -> list[GroupEntry]:
        """All loaded groups; each list is copied atomically, so other threads may call this."""
        return [entry for shard in list(self._shards.values()) for entry in list(shard.entries.values())]

    def loading(self) -> bool:
        return any(shard.loading and not shard.failed for shard in self._shards.values())

    # -- chores ------------------------------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(self._check_s)
            gone = await self.expire(self.wall_ms())
            if gone:
                event(log, logging.INFO, "offsets expired", offsets=gone)

    async def expire(self, now_ms: int) -> int:
        """Remove expired offsets, and groups without any left. Return the number of offsets."""
        active = [shard for shard in self._shards.values() if not shard.loading]
        return sum([await self.offsets.expire(shard, now_ms) for shard in active])

    async def forget_topic(self, topic: str) -> None:
        """Remove all groups' offsets of a deleted topic, including those still to be loaded."""
        under_way = []
        for shard in list(self._shards.values()):
            if shard.loading:
                shard.deleted_topics[topic] = None
            else:
                under_way.append(self.offsets.forget_topics(shard, (topic,)))
        for each in under_way:
            await each
