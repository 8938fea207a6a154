"""Commits, deletes and expires the offsets of groups, and deletes groups.

Each decision considers committed offsets and pending writes, and becomes a write, which takes effect once committed.
Writes do not wait for each other: only requests for a group that is being deleted wait for that write.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping

from pybroker import errors
from pybroker.config import BrokerConfig
from pybroker.config.settings import shown
from pybroker.decisions import rebalance
from pybroker.decisions.group import Group, State, check_commit
from pybroker.decisions.offsets import Committed, expired
from pybroker.errors import KafkaError
from pybroker.groups import records
from pybroker.groups.shard import GroupEntry, InTransaction, PendingOffset, Shard, loop_ms
from pybroker.groups.stored_errors import OFFSETS_ERRORS
from pybroker.model import TopicPartition
from pybroker.state_log.log import StateLog
from pybroker.state_log.writer import Write

SWEEP_GROUPS = 32
"""Groups whose offsets are expired at a time, so that clients' writes queue behind no more of them."""


class Offsets:
    """Handles the offsets of the groups that this broker coordinates."""

    def __init__(self, config: BrokerConfig, shard_of: Callable[[str], Shard], wall_ms: Callable[[], int]) -> None:
        self._shard_of = shard_of
        self._wall_ms = wall_ms
        self._metadata_bytes_max: int = config["offset.metadata.max.bytes"]
        self._retention_ms: int = config["offsets.retention.minutes"] * 60_000

    async def _open(self, group_id: str) -> tuple[Shard, GroupEntry | None]:
        """The group, or None; waits for the write if the group is being deleted. Raises as shard_of, and
        COORDINATOR_NOT_AVAILABLE."""
        while True:
            shard = self._shard_of(group_id)
            entry = shard.entries.get(group_id)
            if entry is None or entry.ending is None:
                return shard, entry
            error = await entry.ending.answered()
            if error and entry.ending is not None:
                words = f"the deletion of group {shown(group_id)} could not be stored"
                raise KafkaError(OFFSETS_ERRORS.get(error, error), words)

    async def commit(self, group_id: str, member_id: str, instance_id: str | None, generation: int,
               offsets: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, int]:  # fmt: skip
        """Store a group's offsets. Return the error code of each partition. Raises KafkaError for all of them."""
        shard, entry = await self._open(group_id)
        if entry is None:
            if generation >= 0:
                raise KafkaError(errors.GROUP_ID_NOT_FOUND, f"group {shown(group_id)} has no generation {generation}")
            entry = GroupEntry(Group(group_id), since_ms=self._wall_ms())  # added below, if there is anything to write
        error = check_commit(entry.group, member_id, instance_id, generation)
        if error:
            raise KafkaError(error, f"group {shown(group_id)} refuses offsets of member {shown(member_id)}")
        rebalance.touch(entry.group, loop_ms(), member_id)
        answers, good = self._fitting(offsets)
        if not good:
            return answers
        shard.entries[group_id] = entry  # before the write: members that join meanwhile join this group
        error = await self._move(shard, entry, good).answer
        return answers | dict.fromkeys(good, OFFSETS_ERRORS.get(error, error))

    async def commit_in_transaction(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int,
        offsets: Mapping[TopicPartition, Committed], producer: tuple[int, int],
        verify: Callable[[StateLog], Awaitable[int]],
    ) -> dict[TopicPartition, int]:  # fmt: skip
        """Store offsets that count once the producer's transaction is committed. Return the error code of each
        partition. `verify` returns the guard of the group's partition for the transaction. Raises KafkaError for all
        of them.

        A client that sends no member id and no generation is not checked, also if the group has members (KIP-447)."""
        guard = await verify(self._shard_of(group_id).replica)
        shard, entry = await self._open(group_id)
        if entry is None:
            if generation >= 0:
                raise KafkaError(errors.ILLEGAL_GENERATION, f"group {shown(group_id)} has no generation {generation}")
            entry = GroupEntry(Group(group_id), since_ms=self._wall_ms())  # added below, if there is anything to write
        if generation >= 0 or member_id or instance_id is not None:
            error = check_commit(entry.group, member_id, instance_id, generation)
            if error:
                raise KafkaError(error, f"group {shown(group_id)} refuses offsets of member {shown(member_id)}")
            rebalance.touch(entry.group, loop_ms(), member_id)
        answers, good = self._fitting(offsets)
        if not good:
            return answers
        shard.entries[group_id] = entry
        error = await self._enter(shard, entry, good, InTransaction(*producer, guard)).answer
        return answers | dict.fromkeys(good, OFFSETS_ERRORS.get(error, error))

    @staticmethod
    def _enter(
        shard: Shard, entry: GroupEntry, offsets: Mapping[TopicPartition, Committed], by: InTransaction
    ) -> Write:
        """Write offsets in a transaction. They are unstable from now on: a consumer that takes a partition over must
        not begin at the offset before."""
        entry.entering.update(offsets.keys())

        def settled(in_log: bool) -> None:
            at = shard.next_at()
            entry.entering -= Counter(offsets.keys())  # drops what has become 0
            if not in_log:
                shard.drop_if_nothing(entry)
                return
            pending = entry.in_transaction.setdefault(by.producer_id, {})
            pending.update((key, PendingOffset(committed, at)) for key, committed in offsets.items())

        pairs = [records.offset_record(entry.group.id, key, committed) for key, committed in offsets.items()]
        return shard.write(entry, pairs, settled, offsets, by)

    def _fitting(
        self, offsets: Mapping[TopicPartition, Committed]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Committed]]:
        """The error code of each partition, and the offsets whose metadata is not too large."""
        answers = dict.fromkeys(offsets, errors.NONE)
        for key, committed in offsets.items():
            if len(committed.metadata.encode()) > self._metadata_bytes_max:
                answers[key] = errors.OFFSET_METADATA_TOO_LARGE
        return answers, {key: committed for key, committed in offsets.items() if answers[key] == errors.NONE}

    @staticmethod
    def _move(shard: Shard, entry: GroupEntry, offsets: Mapping[TopicPartition, Committed]) -> Write:
        def settled(in_log: bool) -> None:
            at = shard.next_at()
            if not in_log:
                shard.drop_if_nothing(entry)
            for key, committed in offsets.items() if in_log else ():
                entry.show(key, committed, at)

        pairs = [records.offset_record(entry.group.id, key, committed) for key, committed in offsets.items()]
        return shard.write(entry, pairs, settled, offsets)

    async def forget(self, group_id: str, keys: Collection[TopicPartition]) -> int:
        """Delete committed offsets. Return NONE or an error code. Raises as _open."""
        shard, entry = await self._open(group_id)
        places = set(entry.places()) if entry is not None else set()
        known = [key for key in keys if key in places]
        if entry is None or not known:
            return errors.NONE
        error = await self._forget(shard, entry, known).answer
        return OFFSETS_ERRORS.get(error, error)

    @staticmethod
    def _forget(shard: Shard, entry: GroupEntry, keys: Collection[TopicPartition]) -> Write:
        def settled(in_log: bool) -> None:
            at = shard.next_at()
            for key in keys if in_log else ():
                entry.show(key, None, at)

        pairs = [records.offset_record(entry.group.id, key, None) for key in keys]
        return shard.write(entry, pairs, settled, keys)

    async def delete(self, group_id: str) -> int:
        """Delete a group without members, and its offsets. Return NONE or an error code. Raises as _open."""
        shard, entry = await self._open(group_id)
        if entry is None:
            return errors.GROUP_ID_NOT_FOUND
        if entry.group.state is not State.EMPTY or entry.unstable:  # the transaction may commit offsets still
            return errors.NON_EMPTY_GROUP
        error = await self._end(shard, entry).answered()
        return OFFSETS_ERRORS.get(error, error)

    @staticmethod
    def _end(shard: Shard, entry: GroupEntry) -> Write:
        """Write tombstones of a group and its offsets; the group cannot be joined meanwhile."""

        def settled(in_log: bool) -> None:
            entry.ending = None
            if in_log:
                shard.remove(entry)
            else:
                entry.group.state = State.EMPTY  # the write failed: the group stays

        entry.group.state = State.DEAD
        name, places = entry.group.id, entry.places()
        pairs = [*(records.offset_record(name, key, None) for key in places), (records.group_key(name), None)]
        entry.ending = shard.write(entry, pairs, settled, places)
        return entry.ending

    async def expire(self, shard: Shard, now_ms: int) -> int:
        """Remove expired offsets in a partition, and groups without any left. Return the number of offsets."""

        def over(entry: GroupEntry) -> list[TopicPartition]:
            topics = records.subscribed_topics(entry.group)
            keys = expired(entry.group, entry.offsets, topics, entry.since_ms, now_ms, self._retention_ms)
            unstable = entry.unstable if keys else ()
            return [key for key in keys if key not in entry.moving and key not in unstable]  # these may be newer

        return await self._sweep(shard, over)

    def forget_topics(self, shard: Shard, topics: Collection[str]) -> Awaitable[object]:
        """Remove all offsets of deleted topics, and groups without members that have no others.

        Only offsets that exist now are removed, group by group: new topics may already have these names, and later
        commits belong to those. Pending writes belong to the deleted topics, and get a tombstone at once."""
        stood: dict[str, dict[TopicPartition, Committed | None]] = {}
        at_once = []
        for group_id, entry in shard.entries.items():
            keys = [key for key in entry.places() if key.topic in topics]
            if moving := [key for key in keys if key in entry.moving]:
                at_once.append(self._forget(shard, entry, moving))
            if still := {key: entry.offsets.get(key) for key in keys if key not in entry.moving}:
                stood[group_id] = still

        def there(entry: GroupEntry) -> list[TopicPartition]:
            places, before = set(entry.places()), stood.get(entry.group.id, {})
            return [
                key
                for key, at in before.items()
                if key in places and key not in entry.moving and entry.offsets.get(key) is at
            ]

        async def go_on() -> None:
            for write in at_once:
                await write.answer
            await self._sweep(shard, there)

        return go_on()

    async def _sweep(self, shard: Shard, choose: Callable[[GroupEntry], Collection[TopicPartition]]) -> int:
        """Remove the offsets that `choose` returns for each group, and empty groups. Return the number of offsets."""
        gone = 0
        entries = list(shard.entries.values())
        for first in range(0, len(entries), SWEEP_GROUPS):
            some = entries[first : first + SWEEP_GROUPS]
            chosen = [(entry, keys) for entry in some if (keys := choose(entry))]
            for write, count in [(self._forget(shard, entry, keys), len(keys)) for entry, keys in chosen]:
                gone += 0 if await write.answer else count
            for ending in [self._end_if_over(shard, entry) for entry in some]:
                if ending is not None:
                    await ending.answered()
            await asyncio.sleep(0)  # let waiting requests run first
        return gone

    def _end_if_over(self, shard: Shard, entry: GroupEntry) -> Write | None:
        """Remove a group that is empty, also from the log if it was ever stored."""
        shard.drop_if_nothing(entry)
        return self._end(shard, entry) if shard.is_over(entry) else None
