"""Where groups stand: offsets are committed, forgotten, expire; and groups end.

A decision is made on what is committed and what is on its way to the log; it becomes a write, which shows once it is
committed. Writes wait side by side: nobody is held back but who asks for a group whose end is being written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

from pybroker import errors
from pybroker.cluster import rebalance
from pybroker.cluster.group import Group, State, check_commit
from pybroker.cluster.offsets import Committed, expired
from pybroker.config import BrokerConfig
from pybroker.config.settings import shown
from pybroker.errors import KafkaError
from pybroker.groups import records
from pybroker.groups.shard import Entry, Shard, loop_ms
from pybroker.groups.writer import OFFSETS_ERRORS, Write
from pybroker.model import TopicPartition

SWEEP_GROUPS = 32
"""So many groups are swept at a time: clients' writes queue behind no more."""


class Offsets:
    """The offsets of the groups that are coordinated here."""

    def __init__(self, config: BrokerConfig, shard_of: Callable[[str], Shard], wall_ms: Callable[[], int]) -> None:
        self._shard_of = shard_of
        self._wall_ms = wall_ms
        self._metadata_bytes_max: int = config["offset.metadata.max.bytes"]
        self._retention_ms: int = config["offsets.retention.minutes"] * 60_000

    async def _open(self, group_id: str) -> tuple[Shard, Entry | None]:
        """A group, if there is one; where its end is being written, as it is after that. Raises as shard_of, and 15."""
        while True:
            shard = self._shard_of(group_id)
            entry = shard.entries.get(group_id)
            if entry is None or entry.ending is None:
                return shard, entry
            error = await entry.ending.answered()
            if error and entry.ending is not None:
                raise KafkaError(OFFSETS_ERRORS.get(error, error), f"the end of group {shown(group_id)} is not stored")

    async def commit(self, group_id: str, member_id: str, instance_id: str | None, generation: int,
               offsets: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, int]:  # fmt: skip
        """Store where a group stands; an error code for each partition. Raises KafkaError for the whole."""
        shard, entry = await self._open(group_id)
        if entry is None:
            if generation >= 0:
                raise KafkaError(errors.GROUP_ID_NOT_FOUND, f"group {shown(group_id)} has no generation {generation}")
            entry = Entry(Group(group_id), since_ms=self._wall_ms())  # known once something is to be written
        error = check_commit(entry.group, member_id, instance_id, generation)
        if error:
            raise KafkaError(error, f"group {shown(group_id)} takes no offsets of member {shown(member_id)}")
        rebalance.touch(entry.group, loop_ms(), member_id)
        answers = dict.fromkeys(offsets, errors.NONE)
        for key, committed in offsets.items():
            if len(committed.metadata.encode()) > self._metadata_bytes_max:
                answers[key] = errors.OFFSET_METADATA_TOO_LARGE
        good = {key: committed for key, committed in offsets.items() if answers[key] == errors.NONE}
        if not good:
            return answers
        shard.entries[group_id] = entry  # before the write: who joins meanwhile joins this one
        error = await self._move(shard, entry, good).answer
        return answers | dict.fromkeys(good, OFFSETS_ERRORS.get(error, error))

    @staticmethod
    def _move(shard: Shard, entry: Entry, offsets: Mapping[TopicPartition, Committed]) -> Write:
        def settled(in_log: bool) -> None:
            if in_log:
                entry.offsets.update(offsets)
            else:
                shard.drop_if_nothing(entry)

        pairs = [records.offset_record(entry.group.id, key, committed) for key, committed in offsets.items()]
        return shard.write(entry, pairs, settled, offsets)

    async def forget(self, group_id: str, keys: Collection[TopicPartition]) -> int:
        """Forget committed offsets; NONE or an error code. Raises as _open."""
        shard, entry = await self._open(group_id)
        places = set(entry.places()) if entry is not None else set()
        known = [key for key in keys if key in places]
        if entry is None or not known:
            return errors.NONE
        error = await self._forget(shard, entry, known).answer
        return OFFSETS_ERRORS.get(error, error)

    @staticmethod
    def _forget(shard: Shard, entry: Entry, keys: Collection[TopicPartition]) -> Write:
        def settled(in_log: bool) -> None:
            if in_log:
                for key in keys:
                    entry.offsets.pop(key, None)
                entry.unstable.difference_update(keys)

        pairs = [records.offset_record(entry.group.id, key, None) for key in keys]
        return shard.write(entry, pairs, settled, keys)

    async def delete(self, group_id: str) -> int:
        """Remove a group that has no members, with its offsets. Raises as _open."""
        shard, entry = await self._open(group_id)
        if entry is None:
            return errors.GROUP_ID_NOT_FOUND
        if entry.group.state is not State.EMPTY:
            return errors.NON_EMPTY_GROUP
        error = await self._end(shard, entry).answered()
        return OFFSETS_ERRORS.get(error, error)

    @staticmethod
    def _end(shard: Shard, entry: Entry) -> Write:
        """Write that a group is gone from wherever it stands; nobody joins it meanwhile."""

        def settled(in_log: bool) -> None:
            entry.ending = None
            if in_log:
                shard.remove(entry)
            else:
                entry.group.state = State.EMPTY  # it stays until the log takes its end

        entry.group.state = State.DEAD
        name, places = entry.group.id, entry.places()
        pairs = [*(records.offset_record(name, key, None) for key in places), (records.group_key(name), None)]
        entry.ending = shard.write(entry, pairs, settled, places)
        return entry.ending

    async def expire(self, shard: Shard, now_ms: int) -> int:
        """Forget the offsets of a partition whose time is over, and the groups that keep none; how many offsets."""

        def over(entry: Entry) -> list[TopicPartition]:
            topics = records.subscribed_topics(entry.group)
            keys = expired(entry.group, entry.offsets, topics, entry.since_ms, now_ms, self._retention_ms)
            return [key for key in keys if key not in entry.moving]  # what is on its way may be newer

        return await self._sweep(shard, over)

    def forget_topics(self, shard: Shard, topics: Collection[str]) -> Awaitable[object]:
        """Topics were deleted. A group that has no members, and stood nowhere else, goes with them.

        Where groups stand now is forgotten, one after the other: others may have the names already, and what is
        committed from now on is of those. What is on its way is of the deleted ones, and is forgotten at once."""
        stood: dict[str, dict[TopicPartition, Committed | None]] = {}
        at_once = []
        for group_id, entry in shard.entries.items():
            keys = [key for key in entry.places() if key.topic in topics]
            if moving := [key for key in keys if key in entry.moving]:
                at_once.append(self._forget(shard, entry, moving))
            if still := {key: entry.offsets.get(key) for key in keys if key not in entry.moving}:
                stood[group_id] = still

        def there(entry: Entry) -> list[TopicPartition]:
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

    async def _sweep(self, shard: Shard, choose: Callable[[Entry], Collection[TopicPartition]]) -> int:
        """Forget what `choose` names of each group, and each group that is over; how many offsets were forgotten."""
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
            await asyncio.sleep(0)  # whoever waits for an answer goes first
        return gone

    def _end_if_over(self, shard: Shard, entry: Entry) -> Write | None:
        """A group that is over is forgotten, in the log too if it ever stood there."""
        shard.drop_if_nothing(entry)
        return self._end(shard, entry) if shard.is_over(entry) else None
