"""The group coordinator: which partitions of __consumer_offsets are led here, and the groups in them.

A partition is led under a leader epoch, and resigned; what comes late of an older epoch changes nothing. `members.py`
and `offsets.py` say what is done for a group. Everything runs on the event loop, so that one group is never in two
hands; only the log of a partition is read and written on threads. Sessions count on the loop's clock, what is stored
carries the wall clock.
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
from pybroker.cluster.group import Cause
from pybroker.cluster.image import OFFSETS_TOPIC
from pybroker.config import BrokerConfig
from pybroker.config.settings import shown
from pybroker.errors import KafkaError
from pybroker.groups.loading import load
from pybroker.groups.members import Members
from pybroker.groups.offsets import Offsets
from pybroker.groups.shard import Entry, Shard
from pybroker.groups.writer import OffsetsLog, Writer
from pybroker.logs import event
from pybroker.upkeep import keep_up

LOAD_AGAIN_S = 0.1
LOAD_AGAIN_S_MAX = 10.0

log = logging.getLogger(__name__)


def java_hash(text: str) -> int:
    """String.hashCode of Java: over UTF-16 code units, 32 bits with wrap."""
    value = 0
    units = text.encode("utf-16-be")
    for i in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_of(key: str, partitions: int) -> int:
    """The partition of an internal topic that a group or transactional id lives in (Kafka's Utils.abs, no murmur2)."""
    value = java_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


def random_uuid() -> object:
    """What ends the id of a new member; a broker starts without the module."""
    import uuid

    return uuid.uuid4()


class Coordinator:
    """The groups of the partitions that this broker leads. `partitions`: how many there are in all, 0 as long as
    nobody knows."""

    def __init__(
        self,
        config: BrokerConfig,
        workers: Executor,
        *,
        wall_ms: Callable[[], int] = wall_ms,
        draw_id: Callable[[], object] = random_uuid,
    ) -> None:
        """`wall_ms` dates what is stored, `draw_id` ends the id of a new member. Deadlines go by the loop that runs."""
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
        self._epochs: dict[int, int] = {}  # the latest leader epoch that was heard of each partition
        self._upkeep: asyncio.Task[None] | None = None

    @property
    def rebalances(self) -> Counter[Cause]:
        """Begun since the start."""
        return self.members.rebalances

    # -- partitions of the offsets topic -----------------------------------------------------------------------------

    def lead(
        self, index: int, leader_epoch: int, replica: OffsetsLog, deleted: Iterable[str] = (), *, led_on: bool = False
    ) -> None:
        """Coordinate the groups of a partition from now on; they are loaded first. No news of an epoch is news once.

        `deleted`: topics whose deletion was decided in an earlier life, and finished in this one. `led_on`: its log was
        led here all the while; then its groups do not notice that there is another epoch."""
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
        """Wait until no partition is being loaded, but for those where that has failed and is tried again."""
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
                )  # nothing is shown that a next leader may not have
                break
            except Exception as problem:  # it may pass: nobody else loads them while they are led here
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
            event(log, logging.ERROR, "damaged records of groups skipped", partition=shard.replica.key, records=lost)
        if unstable:
            event(log, logging.WARNING, "offsets of open transactions", partition=shard.replica.key, offsets=unstable)
        await self.offsets.forget_topics(shard, shard.deleted_topics)

    def resign(self, index: int, leader_epoch: int) -> None:
        """Another broker leads a partition under this epoch, or none: who waits is told to look for the coordinator."""
        if leader_epoch >= self._epochs.get(index, leader_epoch):
            self._epochs[index] = leader_epoch
            self._let_go(index)

    def begin_anew(self) -> None:
        """The offsets topic is another one by this name: its groups are, and its epochs begin again."""
        for index in list(self._shards):
            self._let_go(index)
        self._epochs.clear()

    def resign_all(self) -> None:
        """The broker stops, or the topic is gone, and with it all epochs of its partitions."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            self._upkeep = None
        self.begin_anew()
        self.partitions = 0

    def resign_failed(self) -> None:
        """A log dir failed: the groups that are stored there are nobody's, until they are led under another epoch."""
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
            # Another object: what is under way for the old one is not done to this.
            lost = self._shards[index] = self._shard(index, shard.replica)
            lost.loading, lost.failure = False, why

    def _let_go(self, index: int) -> None:
        """Forget the groups of a partition; whoever waits is told to look for another coordinator."""
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
        """Can nobody coordinate a group, because its partition is offline?"""
        shard = self._shards.get(partition_of(group_id, self.partitions)) if self.partitions else None
        return shard is not None and shard.failed

    def shard_of(self, group_id: str) -> Shard:
        """The partition that a group lives in. Raises 14, 15, 16, 24."""
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

    def find(self, group_id: str) -> Entry | None:
        """A group that is here, or None. Raises as shard_of."""
        return self.shard_of(group_id).entries.get(group_id)

    def entries(self) -> list[Entry]:
        """All groups that are loaded; whoever asks may be on another thread, where each list is made at one blow."""
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
        """Forget the offsets whose time is over, and the groups that keep none; how many offsets."""
        active = [shard for shard in self._shards.values() if not shard.loading]
        return sum([await self.offsets.expire(shard, now_ms) for shard in active])

    async def forget_topic(self, topic: str) -> None:
        """A topic was deleted: nobody stands anywhere in it, whatever is still to be read of its offsets."""
        under_way = []
        for shard in list(self._shards.values()):
            if shard.loading:
                shard.deleted_topics[topic] = None
            else:
                under_way.append(self.offsets.forget_topics(shard, (topic,)))
        for each in under_way:
            await each
