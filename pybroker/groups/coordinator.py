"""The group coordinator: finds a group, lets `cluster.rebalance` decide, and does what it decided.

Everything runs on the event loop, so that one group is never in two hands; only the log of a partition is read and
written on threads. What is stored waits for its write, one after the other in each partition; joins, syncs and
heartbeats go on. A request that waits (join, sync) waits on a future that stands as token in the group's state.
Sessions count on the monotonic clock, what is stored carries the wall clock.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from pybroker import core, errors
from pybroker.clock import wall_ms
from pybroker.cluster import rebalance
from pybroker.cluster.group import (
    Cause,
    Effect,
    Group,
    Joined,
    Limits,
    Rebalancing,
    State,
    Store,
    Synced,
    check_commit,
    members_bytes,
    next_deadline_ms,
    protocols_bytes,
)
from pybroker.cluster.offsets import Committed, expired
from pybroker.config import BrokerConfig
from pybroker.config.settings import shown
from pybroker.errors import KafkaError
from pybroker.groups import records
from pybroker.groups.loading import load
from pybroker.groups.shard import Entry, OffsetsLog, Shard
from pybroker.logs import event
from pybroker.model import TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"
NAME_IN_ID_MAX = 255
"""Characters of a client's name that its members' ids begin with: with them an id still is a string of the protocol."""

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


class Coordinator:
    """The groups of the partitions that this broker leads."""

    def __init__(
        self,
        config: BrokerConfig,
        workers: Executor,
        *,
        wall_ms: Callable[[], int] = wall_ms,
        draw_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        """`wall_ms` dates what is stored, `draw_id` ends the id of a new member. Deadlines go by the loop that runs."""
        self._workers = workers
        self.wall_ms = wall_ms
        self._draw_id = draw_id
        self._read_bytes: int = config["offsets.load.buffer.size"]
        self._codec: int = config["offsets.topic.compression.codec"]
        self._metadata_bytes_max: int = config["offset.metadata.max.bytes"]
        self._retention_ms: int = config["offsets.retention.minutes"] * 60_000
        self._check_seconds: float = config["offsets.retention.check.interval.ms"] / 1000
        self._limits = Limits(
            session_timeout_min_ms=config["group.min.session.timeout.ms"],
            session_timeout_max_ms=config["group.max.session.timeout.ms"],
            initial_delay_ms=config["group.initial.rebalance.delay.ms"],
            size_max=config["group.max.size"],
        )
        self._members_bytes_max: int = config["group.metadata.memory.bytes"]
        self._members_bytes = 0
        self._shards: dict[int, Shard] = {}
        self._partitions = 0
        self._storing: set[asyncio.Task[None]] = set()  # writes of groups that are under way
        self._upkeep: asyncio.Task[None] | None = None
        self.rebalances: Counter[Cause] = Counter()  # begun since the start

    # -- partitions of the offsets topic -----------------------------------------------------------------------------

    async def lead(self, replicas: Sequence[OffsetsLog], partitions: int, deleted: Iterable[str] = ()) -> None:
        """Load the groups of these partitions; each can be used as soon as it is read.

        `deleted`: topics whose deletion was decided in an earlier life, and finished in this one."""
        self._partitions = partitions
        shards = [Shard(r.key.partition, r, self._codec, dict.fromkeys(deleted), self.wall_ms) for r in replicas]
        self._shards.update((shard.index, shard) for shard in shards)
        if self._upkeep is None:
            self._upkeep = asyncio.get_running_loop().create_task(self._keep_up())
        await asyncio.gather(*map(self._load, shards))

    async def _load(self, shard: Shard) -> None:
        loop = asyncio.get_running_loop()
        try:
            found, lost = await loop.run_in_executor(self._workers, load, shard.replica, self._read_bytes)
        except (KafkaError, core.LogError, OSError) as problem:
            shard.failure = str(problem)
            event(log, logging.ERROR, "groups not loaded", partition=shard.replica.key, reason=problem)
            return
        if self._shards.get(shard.index) is not shard or shard.replica.offline:  # resigned meanwhile, or about to be
            return
        now_ms = self._now_ms()
        for entry in found.values():
            for member in entry.group.members.values():
                member.deadline_ms = now_ms + member.session_timeout_ms
            self._count(entry)
            self._arm(shard, entry)
        shard.entries = found
        shard.loading = False
        unstable = sum(len(entry.unstable) for entry in found.values())
        if lost:
            event(log, logging.ERROR, "damaged records of groups skipped", partition=shard.replica.key, records=lost)
        if unstable:
            event(log, logging.WARNING, "offsets of open transactions", partition=shard.replica.key, offsets=unstable)
        for topic in shard.deleted_topics:
            await self._forget_topic(shard, topic)

    def resign(self) -> None:
        """The broker stops, or the topic is gone: tell everybody who waits to look for another coordinator."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            self._upkeep = None
        for shard in self._shards.values():
            self._let_go(shard)
        self._shards.clear()
        self._partitions = self._members_bytes = 0

    def resign_failed(self) -> None:
        """A log dir failed: the groups that are stored there are nobody's, until the broker is started again."""
        for shard in list(self._shards.values()):
            if shard.replica.offline and shard.failure is None:
                self._let_go(shard)
                # Another object: what is under way for the old one is not done to this.
                lost = self._shards[shard.index] = Shard(shard.index, shard.replica, self._codec, {}, self.wall_ms)
                lost.loading, lost.failure = False, "its log is offline"

    def _let_go(self, shard: Shard) -> None:
        """Forget the groups of a partition; whoever waits is told to look for another coordinator."""
        for entry in shard.entries.values():
            if entry.alarm is not None:
                entry.alarm.cancel()
            self._members_bytes -= entry.held_bytes
            for member in entry.group.members.values():
                for token, kind in ((member.joining, Joined), (member.syncing, Synced)):
                    if token is not None and not token.done():
                        token.set_result(kind(None, errors.NOT_COORDINATOR))
        shard.entries.clear()

    def is_lost(self, group_id: str) -> bool:
        """Can nobody coordinate a group, because its partition is offline?"""
        shard = self._shards.get(partition_of(group_id, self._partitions)) if self._partitions else None
        return shard is not None and shard.failed

    def shard_of(self, group_id: str) -> Shard:
        """The partition that a group lives in. Raises 14, 15, 16, 24."""
        if not self._partitions:
            raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} does not exist yet")
        shard = self._shards.get(partition_of(group_id, self._partitions))
        if shard is None:
            raise KafkaError(errors.NOT_COORDINATOR, f"this broker does not coordinate group {shown(group_id)}")
        shard.check()
        return shard

    def find(self, group_id: str) -> Entry | None:
        """A group that is here, or None. Raises as shard_of."""
        return self.shard_of(group_id).entries.get(group_id)

    def entries(self) -> list[Entry]:
        """All groups that are loaded; whoever asks may be on another thread, where each list is made at one blow."""
        return [entry for shard in list(self._shards.values()) for entry in list(shard.entries.values())]

    def loading(self) -> bool:
        return any(shard.loading and not shard.failed for shard in self._shards.values())

    # -- members -----------------------------------------------------------------------------------------------------

    async def join(self, group_id: str, fields: Mapping[str, Any]) -> Joined:
        """A JoinGroup; waits for the end of the join phase. `fields`: of rebalance.Join all but token and fresh_id."""
        if not group_id:
            raise KafkaError(errors.INVALID_GROUP_ID, "a group that is joined has a name")
        shard = self.shard_of(group_id)
        entry = shard.entries.get(group_id)
        old = entry.group.members.get(fields["member_id"]) if entry is not None else None
        self._check_memory(group_id, protocols_bytes(fields["protocols"]), protocols_bytes(old.protocols) if old else 0)
        if entry is None:
            if fields["member_id"]:
                raise KafkaError(errors.UNKNOWN_MEMBER_ID, f"group {shown(group_id)} has no members")
            entry = shard.entries[group_id] = Entry(Group(group_id), since_ms=self.wall_ms())
        future: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        name = fields["instance_id"] if fields["instance_id"] is not None else fields["client_id"]
        request = rebalance.Join(token=future, fresh_id=f"{name[:NAME_IN_ID_MAX]}-{self._draw_id()}", **fields)
        self._do(shard, entry, rebalance.join(entry.group, self._now_ms(), request, self._limits))
        return await future

    async def sync(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, assignments: Mapping[str, bytes],
        protocol_type: str | None, protocol: str | None,
    ) -> Synced:  # fmt: skip
        """A SyncGroup; waits for the leader's assignment."""
        try:
            shard, entry = self._existing(group_id)
        except KafkaError as problem:
            if problem.code == errors.COORDINATOR_LOAD_IN_PROGRESS:  # what was joined before is worth no more
                raise KafkaError(errors.REBALANCE_IN_PROGRESS, problem.message) from None
            raise
        old = sum(len(member.assignment) for member in entry.group.members.values()) if assignments else 0
        self._check_memory(group_id, sum(map(len, assignments.values())), old)
        future: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        effects = rebalance.sync(
            entry.group, self._now_ms(), future, member_id, instance_id, generation, assignments,
            protocol_type=protocol_type, protocol=protocol,
        )  # fmt: skip
        self._do(shard, entry, effects)
        return await future

    def _check_memory(self, group_id: str, new: int, old: int) -> None:
        """May a member hold `new` bytes instead of `old`? Raises GROUP_MAX_SIZE_REACHED."""
        others = self._members_bytes - old
        if new > old and others + new > self._members_bytes_max:
            reason = f"{new} bytes of a member of group {shown(group_id)}, beside {others} of others"
            event(log, logging.WARNING, "group refused", reason=f"{reason}, are over group.metadata.memory.bytes")
            raise KafkaError(errors.GROUP_MAX_SIZE_REACHED, reason)

    def _count(self, entry: Entry) -> None:
        """Count again what a group's members hold."""
        held = members_bytes(entry.group)
        self._members_bytes += held - entry.held_bytes
        entry.held_bytes = held

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """A sign of life: NONE, or what the member must do."""
        try:
            _, entry = self._existing(group_id)
        except KafkaError as problem:
            if problem.code == errors.COORDINATOR_LOAD_IN_PROGRESS:
                return errors.NONE  # the member need not do anything about it
            return problem.code
        return rebalance.heartbeat(entry.group, self._now_ms(), member_id, instance_id, generation)

    def leave(self, group_id: str, member_id: str, instance_id: str | None, reason: str) -> int:
        """A member goes; NONE or why it cannot. Raises as shard_of."""
        shard = self.shard_of(group_id)
        entry = shard.entries.get(group_id)
        if entry is None:
            return errors.UNKNOWN_MEMBER_ID
        error, effects = rebalance.leave(entry.group, self._now_ms(), member_id, instance_id, reason, self._limits)
        self._do(shard, entry, effects)
        return error

    def force_rebalance(self, group_id: str, cause: str) -> None:
        """Make the members of a group rejoin."""
        shard, entry = self._existing(group_id)
        self._do(shard, entry, rebalance.force(entry.group, self._now_ms(), cause, self._limits))

    def _existing(self, group_id: str) -> tuple[Shard, Entry]:
        shard = self.shard_of(group_id)
        entry = shard.entries.get(group_id)
        if entry is None:
            raise KafkaError(errors.UNKNOWN_MEMBER_ID, f"group {shown(group_id)} has no members")
        return shard, entry

    # -- offsets -----------------------------------------------------------------------------------------------------

    async def commit(self, group_id: str, member_id: str, instance_id: str | None, generation: int,
               offsets: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, int]:  # fmt: skip
        """Store where a group stands; an error code for each partition. Raises KafkaError for the whole."""
        shard = self.shard_of(group_id)
        async with shard.writing:
            return await self._commit(shard, group_id, member_id, instance_id, generation, offsets)

    async def _commit(self, shard: Shard, group_id: str, member_id: str, instance_id: str | None, generation: int,
                      offsets: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, int]:  # fmt: skip
        entry = shard.entries.get(group_id)
        if entry is None:
            if generation >= 0:
                raise KafkaError(errors.GROUP_ID_NOT_FOUND, f"group {shown(group_id)} has no generation {generation}")
            entry = Entry(Group(group_id), since_ms=self.wall_ms())  # known once something is to be written
        error = check_commit(entry.group, member_id, instance_id, generation)
        if error:
            raise KafkaError(error, f"group {shown(group_id)} takes no offsets of member {shown(member_id)}")
        rebalance.touch(entry.group, self._now_ms(), member_id)
        answers = dict.fromkeys(offsets, errors.NONE)
        for key, committed in offsets.items():
            if len(committed.metadata.encode()) > self._metadata_bytes_max:
                answers[key] = errors.OFFSET_METADATA_TOO_LARGE
        good = {key: committed for key, committed in offsets.items() if answers[key] == errors.NONE}
        if not good:
            return answers
        shard.entries[group_id] = entry  # before the write: who joins meanwhile joins this one
        error = await shard.write([records.offset_record(group_id, key, committed) for key, committed in good.items()])
        if error:
            self._drop_if_nothing(shard, entry)
            return answers | dict.fromkeys(good, error)
        entry.offsets.update(good)
        return answers

    async def forget(self, group_id: str, keys: Collection[TopicPartition]) -> int:
        """Forget committed offsets; NONE or an error code. Raises as shard_of."""
        shard = self.shard_of(group_id)
        async with shard.writing:
            entry = shard.entries.get(group_id)
            return errors.NONE if entry is None else await self._forget(shard, entry, keys)

    async def _forget(self, shard: Shard, entry: Entry, keys: Collection[TopicPartition]) -> int:
        """Under the shard's `writing`."""
        known = [key for key in keys if key in entry.offsets or key in entry.unstable]
        error = errors.NONE
        if known:
            error = await shard.write([records.offset_record(entry.group.id, key, None) for key in known])
        if not error:
            for key in known:
                entry.offsets.pop(key, None)
            entry.unstable.difference_update(known)
        return error

    async def delete(self, group_id: str) -> int:
        """Remove a group that has no members, with its offsets."""
        shard = self.shard_of(group_id)
        async with shard.writing:
            return await self._delete(shard, group_id)

    async def _delete(self, shard: Shard, group_id: str) -> int:
        entry = shard.entries.get(group_id)
        if entry is None or entry.group.state is State.DEAD:
            return errors.GROUP_ID_NOT_FOUND
        if entry.group.state is not State.EMPTY:
            return errors.NON_EMPTY_GROUP
        pairs = [records.offset_record(group_id, key, None) for key in entry.offsets]
        entry.group.state = State.DEAD  # nobody joins it while its end is written
        error = await shard.write([*pairs, (records.group_key(group_id), None)])
        if error:
            entry.group.state = State.EMPTY
        else:
            self._remove(shard, entry)
        return error

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(self._check_seconds)
            gone = await self.expire(self.wall_ms())
            if gone:
                event(log, logging.INFO, "offsets expired", offsets=gone)

    async def expire(self, now_ms: int) -> int:
        """Forget the offsets whose time is over, and the groups that keep none; how many offsets."""
        gone = 0
        for shard in list(self._shards.values()):
            for entry in [] if shard.loading else list(shard.entries.values()):
                topics = records.subscribed_topics(entry.group)
                keys = expired(entry.group, entry.offsets, topics, entry.since_ms, now_ms, self._retention_ms)
                async with shard.writing:
                    if keys and await self._forget(shard, entry, keys) == errors.NONE:
                        gone += len(keys)
                    await self._drop_if_over(shard, entry)
            await asyncio.sleep(0)  # whoever waits for an answer goes first
        return gone

    async def forget_topic(self, topic: str) -> None:
        """A topic was deleted: nobody stands anywhere in it, whatever is still to be read of its offsets."""
        for shard in list(self._shards.values()):
            if shard.loading:
                shard.deleted_topics[topic] = None
            else:
                await self._forget_topic(shard, topic)

    async def _forget_topic(self, shard: Shard, topic: str) -> None:
        """A group that has no members, and stood nowhere else, goes with the topic."""
        for entry in list(shard.entries.values()):
            async with shard.writing:
                keys = [k for k in dict.fromkeys([*entry.offsets, *sorted(entry.unstable)]) if k.topic == topic]
                await self._forget(shard, entry, keys)
                await self._drop_if_over(shard, entry)

    # -- doing what was decided --------------------------------------------------------------------------------------

    def _do(self, shard: Shard, entry: Entry, effects: Sequence[Effect]) -> None:
        todo = list(effects)
        while todo:
            effect = todo.pop(0)
            if isinstance(effect, Joined | Synced):
                if not effect.token.done():  # else the client went away meanwhile
                    # Without the token: a future in its own result waits for the garbage collector, metadata and all.
                    effect.token.set_result(replace(effect, token=None))
            elif isinstance(effect, Store):
                entry.since_ms = self.wall_ms()
                record = records.group_record(entry.group, entry.since_ms)
                task = asyncio.get_running_loop().create_task(self._store(shard, entry, effect, record))
                self._storing.add(task)
                task.add_done_callback(self._storing.discard)
            elif isinstance(effect, Rebalancing):
                self.rebalances[effect.kind] += 1
                entry.rebalanced_ms = self.wall_ms()
                event(log, logging.INFO, "rebalance", group=entry.group.id, generation=entry.group.generation,
                      members=len(entry.group.members), cause=effect.cause)  # fmt: skip
        self._count(entry)
        self._arm(shard, entry)
        if not shard.writing.locked():
            self._drop_if_nothing(shard, entry)  # its only join was refused

    async def _store(self, shard: Shard, entry: Entry, effect: Store, record: records.Pair) -> None:
        async with shard.writing:
            error = await shard.write([record])
        if self._shards.get(shard.index) is shard:  # else it was resigned, and who waits was told
            self._do(shard, entry, rebalance.stored(entry.group, self._now_ms(), effect, error, self._limits))

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _arm(self, shard: Shard, entry: Entry) -> None:
        """Set the group's timer to its next deadline; one that rings early only looks again."""
        due_ms = next_deadline_ms(entry.group)
        if due_ms is None or (entry.alarm is not None and entry.alarm_ms <= due_ms):
            return
        if entry.alarm is not None:
            entry.alarm.cancel()
        entry.alarm_ms = due_ms
        entry.alarm = asyncio.get_running_loop().call_at((due_ms + 1) / 1000, self._ring, shard, entry)

    def _ring(self, shard: Shard, entry: Entry) -> None:
        entry.alarm = None
        self._do(shard, entry, rebalance.tick(entry.group, self._now_ms(), self._limits))

    def _is_over(self, shard: Shard, entry: Entry) -> bool:
        """Has a group no members, offsets or pending ids?"""
        kept = entry.offsets or entry.unstable or entry.group.pending
        return entry.group.state is State.EMPTY and not kept and shard.entries.get(entry.group.id) is entry

    def _drop_if_nothing(self, shard: Shard, entry: Entry) -> None:
        """A group that is over, and of which the log knows nothing, is forgotten."""
        if not entry.group.generation and self._is_over(shard, entry):
            self._remove(shard, entry)

    async def _drop_if_over(self, shard: Shard, entry: Entry) -> None:
        """A group that is over is forgotten, in the log too if it ever stood there. Under the shard's `writing`."""
        if not self._is_over(shard, entry):
            return
        entry.group.state = State.DEAD  # nobody joins it while its end is written
        if entry.group.generation and await shard.write([(records.group_key(entry.group.id), None)]):
            entry.group.state = State.EMPTY  # it stays until the log takes the tombstone
        else:
            self._remove(shard, entry)

    def _remove(self, shard: Shard, entry: Entry) -> None:
        entry.group.state = State.DEAD
        if entry.alarm is not None:
            entry.alarm.cancel()
        del shard.entries[entry.group.id]
