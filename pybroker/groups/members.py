"""Who is in a group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the timer that expires who is silent.

`cluster.rebalance` decides; what it decided is done here. A request that waits (join, sync) waits on a future that
stands as token in the group's state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pybroker import errors
from pybroker.cluster import rebalance
from pybroker.cluster.group import (
    Cause,
    Effect,
    Group,
    Joined,
    Limits,
    Rebalancing,
    Store,
    Synced,
    members_bytes,
    next_deadline_ms,
    protocols_bytes,
)
from pybroker.config import BrokerConfig
from pybroker.config.settings import shown
from pybroker.errors import KafkaError
from pybroker.groups import records
from pybroker.groups.shard import Entry, Shard, loop_ms
from pybroker.groups.writer import GROUP_ERRORS, Write
from pybroker.logs import event

NAME_IN_ID_MAX = 255
"""Characters of a client's name that its members' ids begin with: with them an id still is a string of the protocol."""

LATE_MS = 100
"""A timer that fires later than this shows that the event loop stood still, and heard no member meanwhile."""
EXCUSED_MS_MAX = 60_000
"""How much longer, at most, members get in a row because of that."""

log = logging.getLogger(__name__)


class Members:
    """The members of the groups that are coordinated here."""

    def __init__(
        self,
        config: BrokerConfig,
        shard_of: Callable[[str], Shard],
        wall_ms: Callable[[], int],
        draw_id: Callable[[], object],
    ) -> None:
        self._shard_of = shard_of
        self._wall_ms = wall_ms
        self._draw_id = draw_id
        self._limits = Limits(
            session_timeout_min_ms=config["group.min.session.timeout.ms"],
            session_timeout_max_ms=config["group.max.session.timeout.ms"],
            initial_delay_ms=config["group.initial.rebalance.delay.ms"],
            size_max=config["group.max.size"],
        )
        self._bytes_max: int = config["group.metadata.memory.bytes"]
        self._bytes = 0
        self.rebalances: Counter[Cause] = Counter()  # begun since the start

    def welcome(self, shard: Shard, entries: Mapping[str, Entry]) -> None:
        """The groups of a partition were loaded: their members have a whole session to show themselves."""
        now_ms = loop_ms()
        for entry in entries.values():
            for member in entry.group.members.values():
                member.deadline_ms = now_ms + member.session_timeout_ms
            self._count(entry)
            self._arm(shard, entry)

    def dismiss(self, shard: Shard) -> None:
        """The groups of a partition are coordinated elsewhere: whoever waits is told to look for the coordinator."""
        for entry in shard.entries.values():
            if entry.alarm is not None:
                entry.alarm.cancel()
            self._bytes -= entry.held_bytes
            for member in entry.group.members.values():
                for token, kind in ((member.joining, Joined), (member.syncing, Synced)):
                    if token is not None and not token.done():
                        token.set_result(kind(None, errors.NOT_COORDINATOR))

    async def join(self, group_id: str, fields: Mapping[str, Any]) -> Joined:
        """A JoinGroup; waits for the end of the join phase. `fields`: of rebalance.Join all but token and fresh_id."""
        if not group_id:
            raise KafkaError(errors.INVALID_GROUP_ID, "a group that is joined has a name")
        shard = self._shard_of(group_id)
        entry = shard.entries.get(group_id)
        old = entry.group.members.get(fields["member_id"]) if entry is not None else None
        self._check_memory(group_id, protocols_bytes(fields["protocols"]), protocols_bytes(old.protocols) if old else 0)
        if entry is None:
            if fields["member_id"]:
                raise KafkaError(errors.UNKNOWN_MEMBER_ID, f"group {shown(group_id)} has no members")
            entry = shard.entries[group_id] = Entry(Group(group_id), since_ms=self._wall_ms())
        future: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        name = fields["instance_id"] if fields["instance_id"] is not None else fields["client_id"]
        request = rebalance.Join(token=future, fresh_id=f"{name[:NAME_IN_ID_MAX]}-{self._draw_id()}", **fields)
        self._do(shard, entry, rebalance.join(entry.group, loop_ms(), request, self._limits))
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
            entry.group, loop_ms(), future, member_id, instance_id, generation, assignments,
            protocol_type=protocol_type, protocol=protocol,
        )  # fmt: skip
        self._do(shard, entry, effects)
        return await future

    def _check_memory(self, group_id: str, new: int, old: int) -> None:
        """May a member hold `new` bytes instead of `old`? Raises GROUP_MAX_SIZE_REACHED."""
        others = self._bytes - old
        if new > old and others + new > self._bytes_max:
            reason = f"{new} bytes of a member of group {shown(group_id)}, beside {others} of others"
            event(log, logging.WARNING, "group refused", reason=f"{reason}, are over group.metadata.memory.bytes")
            raise KafkaError(errors.GROUP_MAX_SIZE_REACHED, reason)

    def _count(self, entry: Entry) -> None:
        """Count again what a group's members hold."""
        held = members_bytes(entry.group)
        self._bytes += held - entry.held_bytes
        entry.held_bytes = held

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """A sign of life: NONE, or what the member must do."""
        try:
            _, entry = self._existing(group_id)
        except KafkaError as problem:
            if problem.code == errors.COORDINATOR_LOAD_IN_PROGRESS:
                return errors.NONE  # the member need not do anything about it
            return problem.code
        return rebalance.heartbeat(entry.group, loop_ms(), member_id, instance_id, generation)

    def leave(self, group_id: str, member_id: str, instance_id: str | None, reason: str) -> int:
        """A member goes; NONE or why it cannot. Raises as shard_of."""
        shard = self._shard_of(group_id)
        entry = shard.entries.get(group_id)
        if entry is None:
            return errors.UNKNOWN_MEMBER_ID
        error, effects = rebalance.leave(entry.group, loop_ms(), member_id, instance_id, reason, self._limits)
        self._do(shard, entry, effects)
        return error

    def force_rebalance(self, group_id: str, cause: str) -> None:
        """Make the members of a group rejoin."""
        shard, entry = self._existing(group_id)
        self._do(shard, entry, rebalance.force(entry.group, loop_ms(), cause, self._limits))

    def _existing(self, group_id: str) -> tuple[Shard, Entry]:
        shard = self._shard_of(group_id)
        entry = shard.entries.get(group_id)
        if entry is None:
            raise KafkaError(errors.UNKNOWN_MEMBER_ID, f"group {shown(group_id)} has no members")
        return shard, entry

    # -- doing what was decided --------------------------------------------------------------------------------------

    def _do(self, shard: Shard, entry: Entry, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Joined | Synced):
                if not effect.token.done():  # else the client went away meanwhile
                    # Without the token: a future in its own result waits for the garbage collector, metadata and all.
                    effect.token.set_result(replace(effect, token=None))
            elif isinstance(effect, Store):
                entry.since_ms = self._wall_ms()
                record = records.group_record(entry.group, entry.since_ms)
                write = shard.write(entry, [record], lambda _: None)
                write.answer.add_done_callback(partial(self._stored, shard, entry, effect, write))
            elif isinstance(effect, Rebalancing):
                self.rebalances[effect.kind] += 1
                entry.rebalanced_ms = self._wall_ms()
                event(log, logging.INFO, "rebalance", group=entry.group.id, generation=entry.group.generation,
                      members=len(entry.group.members), cause=effect.cause)  # fmt: skip
        self._count(entry)
        self._arm(shard, entry)
        shard.drop_if_nothing(entry)  # its only join was refused

    def _stored(self, shard: Shard, entry: Entry, store: Store, write: Write, answer: asyncio.Future[int]) -> None:
        """A generation is committed, or its members are told why they cannot have it."""
        error = answer.result()
        if not shard.resigned:
            error = GROUP_ERRORS.get(error, error)
            effects = rebalance.stored(entry.group, loop_ms(), store, error, self._limits, in_log=write.in_log)
            self._do(shard, entry, effects)
        elif store.answer is not None and not store.answer.token.done():  # the only one that no member waits by
            store.answer.token.set_result(Joined(None, errors.NOT_COORDINATOR))

    def _arm(self, shard: Shard, entry: Entry) -> None:
        """Set the group's timer to its next deadline; one that rings early only looks again."""
        due_ms = next_deadline_ms(entry.group)
        if due_ms is None or (entry.alarm is not None and entry.alarm_ms <= due_ms):
            return
        if entry.alarm is not None:
            entry.alarm.cancel()
        self._set(shard, entry, due_ms)

    def _set(self, shard: Shard, entry: Entry, due_ms: int) -> None:
        entry.alarm_ms = due_ms
        entry.alarm = asyncio.get_running_loop().call_at((due_ms + 1) / 1000, self._ring, shard, entry)

    def _ring(self, shard: Shard, entry: Entry) -> None:
        entry.alarm = None
        now_ms = loop_ms()
        late_ms = now_ms - entry.alarm_ms
        if late_ms > LATE_MS and entry.excused_ms < EXCUSED_MS_MAX:
            entry.excused_ms += late_ms
            self._set(shard, entry, now_ms + min(late_ms, EXCUSED_MS_MAX))
            return
        entry.excused_ms = 0
        self._do(shard, entry, rebalance.tick(entry.group, loop_ms(), self._limits))
