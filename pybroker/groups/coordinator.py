"""The group coordinator: the partitions of __consumer_offsets that this broker leads, and the groups in them.

`members.py` and `offsets.py` handle the requests of a group, `state_log/shards.py` leads and resigns partitions.
Sessions use the loop's clock, stored times the wall clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from pybroker import core, errors
from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.decisions.group import Cause
from pybroker.decisions.image import OFFSETS_TOPIC
from pybroker.errors import KafkaError
from pybroker.groups.loading import LoadedGroups, load
from pybroker.groups.members import Members
from pybroker.groups.offsets import Offsets
from pybroker.groups.shard import GroupEntry, Shard
from pybroker.logs import event
from pybroker.protocol import messages as m
from pybroker.state_log.log import StateLog
from pybroker.state_log.shards import CoordinatedPartitions
from pybroker.state_log.writer import Writer

log = logging.getLogger(__name__)


def random_uuid() -> object:
    """The suffix of a new member's id. The import is local to keep it out of the broker's start."""
    import uuid

    return uuid.uuid4()


class Coordinator(CoordinatedPartitions[Shard, LoadedGroups]):
    """Coordinates the groups of the partitions that this broker leads."""

    topic, keyed = OFFSETS_TOPIC, "group"

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
        commit_timeout_s = config["offsets.commit.timeout.ms"] / 1000
        super().__init__(workers, config["offsets.topic.compression.codec"], commit_timeout_s, wall_ms)
        self.members = Members(config, self.shard_of, wall_ms, draw_id)
        self.offsets = Offsets(config, self.shard_of, wall_ms)
        self._read_bytes: int = config["offsets.load.buffer.size"]
        self._check_s: float = config["offsets.retention.check.interval.ms"] / 1000

    @property
    def rebalances(self) -> Counter[Cause]:
        """The rebalances begun since the start, by cause."""
        return self.members.rebalances

    # -- partitions of the offsets topic -----------------------------------------------------------------------------

    def lead(
        self, index: int, leader_epoch: int, replica: StateLog, deleted: Iterable[str] = (), *, led_on: bool = False
    ) -> None:
        """Load and coordinate the groups of a partition, as `take_lead`. `deleted`: topics whose deletion was requested
        before this start, and completed after it."""
        shard = self.take_lead(index, leader_epoch, replica, led_on=led_on)
        if shard is not None:
            shard.deleted_topics.update(dict.fromkeys(deleted))

    def new_shard(self, index: int, replica: StateLog, writer: Writer) -> Shard:
        return Shard(index, replica, writer)

    def read(self, replica: StateLog) -> tuple[LoadedGroups, int]:
        found = load(replica, self._read_bytes)
        return found, found.end

    async def begin(self, shard: Shard, state: LoadedGroups) -> None:
        found, lost, end = state
        self.members.welcome(shard, found)
        shard.begin(found, end)
        unstable = sum(len(entry.unstable) for entry in found.values())
        if lost:
            event(log, logging.ERROR, "damaged group records skipped", partition=shard.replica.key, records=lost)
        if unstable:
            event(log, logging.INFO, "offsets of open transactions", partition=shard.replica.key, offsets=unstable)
        await self.offsets.forget_topics(shard, shard.deleted_topics)

    async def write_marker(self, index: int, marker: m.WriteTxnMarkersRequest.Markers) -> int:
        """End a producer's transaction in a partition of the offsets topic. Return the error code for the coordinator
        of the transaction, NONE once the marker is committed and the offsets are in effect."""
        shard = self._shards.get(index)
        if shard is None or shard.failed or shard.loading:
            return errors.NOT_LEADER_OR_FOLLOWER
        now_ms = self.wall_ms()
        write = shard.writer.put(
            lambda _: shard.replica.append_marker(
                marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, marker.transaction_result, now_ms
            ),
            lambda in_log: shard.end_transaction(marker.producer_id, marker.transaction_result) if in_log else None,
        )
        error = await write.answered()
        return errors.NOT_LEADER_OR_FOLLOWER if error == errors.NOT_COORDINATOR else error

    def end(self, shard: Shard) -> None:
        self.members.dismiss(shard)
        shard.entries.clear()

    def not_loaded(self, shard: Shard, reason: Exception) -> None:
        known = isinstance(reason, (KafkaError, core.LogError, OSError))
        event(
            log, logging.ERROR, "groups not loaded", partition=shard.replica.key, reason=reason,
            exc_info=None if known else reason,
        )  # fmt: skip

    def was_lost(self, shard: Shard, reason: str) -> None:
        event(log, logging.ERROR, "groups resigned", partition=shard.replica.key, reason=reason)

    def find(self, group_id: str) -> GroupEntry | None:
        """The group, or None if it does not exist. Raises as shard_of."""
        return self.shard_of(group_id).entries.get(group_id)

    def entries(self) -> list[GroupEntry]:
        """All loaded groups; each list is copied atomically, so other threads may call this."""
        return [entry for shard in list(self._shards.values()) for entry in list(shard.entries.values())]

    # -- chores ------------------------------------------------------------------------------------------------------

    async def keep_up(self) -> None:
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
