"""The members of groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the timer that expires silent members.

`decisions/rebalance.py` decides; the effects are executed here. A JoinGroup or SyncGroup waits on a future, which is
its token in the group's state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pybroker import errors
from pybroker.config import BrokerConfig
from pybroker.config.settings import shown
from pybroker.decisions import rebalance
from pybroker.decisions.group import (
    Cause,
    Effect,
    Group,
    GroupLimits,
    Joined,
    Rebalancing,
    StoreGroup,
    Synced,
    members_bytes,
    next_deadline_ms,
    protocols_bytes,
)
from pybroker.errors import KafkaError
from pybroker.groups import records
from pybroker.groups.shard import GroupEntry, Shard, loop_ms
from pybroker.groups.stored_errors import GROUP_ERRORS
from pybroker.logs import event
from pybroker.state_log.writer import Write

NAME_IN_ID_MAX = 255
"""Characters of the client id or instance id that begin a member id, so that it fits a string of the protocol."""

LATE_MS = 100
"""If a timer fires later than this, the event loop was blocked and could not read heartbeats."""
EXCUSED_MS_MAX = 60_000
"""The most by which late timers in a row extend the members' sessions."""

log = logging.getLogger(__name__)


class Members:
    """Handles the members of the groups that this broker coordinates."""

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
        self._limits = GroupLimits(
            session_timeout_min_ms=config["group.min.session.timeout.ms"],
            session_timeout_max_ms=config["group.max.session.timeout.ms"],
            initial_delay_ms=config["group.initial.rebalance.delay.ms"],
            size_max=config["group.max.size"],
        )
        self._bytes_max: int = config["group.metadata.memory.bytes"]
        self._bytes = 0
        self.rebalances: Counter[Cause] = Counter()  # begun since the start

    def welcome(self, shard: Shard, entries: Mapping[str, GroupEntry]) -> None:
        """Start the sessions of members of a partition's groups that were just loaded."""
        now_ms = loop_ms()
        for entry in entries.values():
            for member in entry.group.members.values():
                member.deadline_ms = now_ms + member.session_timeout_ms
            self._count(entry)
            self._arm(shard, entry)

    def dismiss(self, shard: Shard) -> None:
        """Drop the groups of a partition that this broker no longer coordinates; waiting requests get NOT_COORDINATOR.
        """
        for entry in shard.entries.values():
            if entry.alarm is not None:
                entry.alarm.cancel()
            self._bytes -= entry.held_bytes
            for member in entry.group.members.values():
                for token, kind in ((member.joining, Joined), (member.syncing, Synced)):
                    if isinstance(token, asyncio.Future) and not token.done():
                        token.set_result(kind(None, errors.NOT_COORDINATOR))

    async def join(self, group_id: str, asked: rebalance.Join) -> Joined:
        """Handle a JoinGroup; waits for the end of the join phase. `asked` has neither token nor fresh_id yet."""
        if not group_id:
            raise KafkaError(errors.INVALID_GROUP_ID, "the group id is empty")
        shard = self._shard_of(group_id)
        entry = shard.entries.get(group_id)
        old = entry.group.members.get(asked.member_id) if entry is not None else None
        self._check_memory(group_id, protocols_bytes(asked.protocols), protocols_bytes(old.protocols) if old else 0)
        if entry is None:
            if asked.member_id:
                raise KafkaError(errors.UNKNOWN_MEMBER_ID, f"group {shown(group_id)} has no members")
            entry = shard.entries[group_id] = GroupEntry(Group(group_id), since_ms=self._wall_ms())
        future: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        name = asked.instance_id if asked.instance_id is not None else asked.client_id
        request = replace(asked, token=future, fresh_id=f"{name[:NAME_IN_ID_MAX]}-{self._draw_id()}")
        self._do(shard, entry, rebalance.join(entry.group, loop_ms(), request, self._limits))
        return await future

    async def sync(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, assignments: Mapping[str, bytes],
        protocol_type: str | None, protocol: str | None,
    ) -> Synced:  # fmt: skip
        """Handle a SyncGroup; waits for the leader's assignment."""
        try:
            shard, entry = self._existing(group_id)
        except KafkaError as problem:
            if problem.code == errors.COORDINATOR_LOAD_IN_PROGRESS:  # the generation joined before is lost
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
        """Raise GROUP_MAX_SIZE_REACHED if a member may not hold `new` bytes instead of `old`."""
        others = self._bytes - old
        if new > old and others + new > self._bytes_max:
            reason = f"{new} bytes for a member of group {shown(group_id)}, with {others} bytes of other members"
            event(log, logging.WARNING, "group refused", reason=f"{reason}, exceed group.metadata.memory.bytes")
            raise KafkaError(errors.GROUP_MAX_SIZE_REACHED, reason)

    def _count(self, entry: GroupEntry) -> None:
        """Update the bytes that a group's members hold."""
        held = members_bytes(entry.group)
        self._bytes += held - entry.held_bytes
        entry.held_bytes = held

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """Handle a heartbeat. Return NONE, or the error that shows the member what to do."""
        try:
            _, entry = self._existing(group_id)
        except KafkaError as problem:
            if problem.code == errors.COORDINATOR_LOAD_IN_PROGRESS:
                return errors.NONE  # the member need not do anything
            return problem.code
        return rebalance.heartbeat(entry.group, loop_ms(), member_id, instance_id, generation)

    def leave(self, group_id: str, member_id: str, instance_id: str | None, reason: str) -> int:
        """Handle a LeaveGroup. Return NONE or the error. Raises as shard_of."""
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

    def _existing(self, group_id: str) -> tuple[Shard, GroupEntry]:
        shard = self._shard_of(group_id)
        entry = shard.entries.get(group_id)
        if entry is None:
            raise KafkaError(errors.UNKNOWN_MEMBER_ID, f"group {shown(group_id)} has no members")
        return shard, entry

    # -- executing effects -------------------------------------------------------------------------------------------

    def _do(self, shard: Shard, entry: GroupEntry, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Joined | Synced):
                assert isinstance(effect.token, asyncio.Future)
                if not effect.token.done():  # done: the client disconnected meanwhile
                    # Without the token: a future in its own result is freed only by the garbage collector.
                    effect.token.set_result(replace(effect, token=None))
            elif isinstance(effect, StoreGroup):
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

    def _stored(
        self, shard: Shard, entry: GroupEntry, store: StoreGroup, write: Write, answer: asyncio.Future[int]
    ) -> None:
        """Handle the outcome of a group's write: complete the sync phase, or answer with the error."""
        error = answer.result()
        if not shard.resigned:
            error = GROUP_ERRORS.get(error, error)
            effects = rebalance.stored(entry.group, loop_ms(), store, error, self._limits, in_log=write.in_log)
            self._do(shard, entry, effects)
        elif store.answer is not None:  # `dismiss` cannot reach this request: no member has its token
            token = store.answer.token
            assert isinstance(token, asyncio.Future)
            if not token.done():
                token.set_result(Joined(None, errors.NOT_COORDINATOR))

    def _arm(self, shard: Shard, entry: GroupEntry) -> None:
        """Set the group's timer to its next deadline; a timer that fires early only sets the next one."""
        due_ms = next_deadline_ms(entry.group)
        if due_ms is None or (entry.alarm is not None and entry.alarm_ms <= due_ms):
            return
        if entry.alarm is not None:
            entry.alarm.cancel()
        self._set(shard, entry, due_ms)

    def _set(self, shard: Shard, entry: GroupEntry, due_ms: int) -> None:
        entry.alarm_ms = due_ms
        entry.alarm = asyncio.get_running_loop().call_at((due_ms + 1) / 1000, self._ring, shard, entry)

    def _ring(self, shard: Shard, entry: GroupEntry) -> None:
        entry.alarm = None
        now_ms = loop_ms()
        late_ms = now_ms - entry.alarm_ms
        if late_ms > LATE_MS and entry.excused_ms < EXCUSED_MS_MAX:
            entry.excused_ms += late_ms
            self._set(shard, entry, now_ms + min(late_ms, EXCUSED_MS_MAX))
            return
        entry.excused_ms = 0
        self._do(shard, entry, rebalance.tick(entry.group, loop_ms(), self._limits))
