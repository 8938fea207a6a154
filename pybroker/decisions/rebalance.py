"""The transitions of a consumer group: join, sync, heartbeat, leave, and timeouts.

Each function changes the group and returns effects, which the caller executes, or an error code. Only one caller may
use a group at a time. A token identifies a waiting request to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pybroker import errors
from pybroker.decisions.group import (
    NEW_MEMBER_TIMEOUT_MS,
    PENDING_MEMBERS_MAX,
    Cause,
    Effect,
    Group,
    GroupLimits,
    Joined,
    Member,
    Rebalance,
    Rebalancing,
    State,
    StoreGroup,
    Synced,
    can_expire,
    check_member,
    has_room,
    listing,
    rebalance_timeout_ms,
    select_protocol,
    supports,
)

CAUSE_MAX = 1000
"""Characters of a cause, which is shown when the group is described."""


@dataclass(slots=True, frozen=True)
class Join:
    """A JoinGroup request. `fresh_id` is the id to give a member that has none yet."""

    token: object
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    fresh_id: str
    must_know_id: bool = True  # the client can answer MEMBER_ID_REQUIRED (KIP-394, version 4)
    can_skip: bool = True  # the client knows skip_assignment (KIP-814, version 9)
    reason: str = ""


# -- join ------------------------------------------------------------------------------------------------------------


def join(group: Group, now_ms: int, request: Join, limits: GroupLimits) -> list[Effect]:
    """Handle a JoinGroup of a new or known member."""
    error = _check_join(group, request, limits)
    if error:
        return [Joined(request.token, error, request.member_id)]
    if request.member_id:
        if request.member_id in group.pending_members:
            del group.pending_members[request.member_id]
            return _add(group, now_ms, request, request.member_id, limits)
        return _rejoin(group, now_ms, request, limits)
    if request.instance_id is not None:
        if request.instance_id in group.static:
            return _replace_static(group, now_ms, request, limits)
        return _add(group, now_ms, request, request.fresh_id, limits)
    if request.must_know_id:
        if len(group.pending_members) >= PENDING_MEMBERS_MAX:
            del group.pending_members[next(iter(group.pending_members))]
        group.pending_members[request.fresh_id] = now_ms + request.session_timeout_ms
        return [Joined(request.token, errors.MEMBER_ID_REQUIRED, request.fresh_id)]
    return _add(group, now_ms, request, request.fresh_id, limits)


def _check_join(group: Group, request: Join, limits: GroupLimits) -> int:
    if group.state is State.DEAD:
        return errors.COORDINATOR_NOT_AVAILABLE
    if not limits.session_timeout_min_ms <= request.session_timeout_ms <= limits.session_timeout_max_ms:
        return errors.INVALID_SESSION_TIMEOUT
    if not has_room(group, request.member_id, limits):
        return errors.GROUP_MAX_SIZE_REACHED
    if not supports(group, request.protocol_type, request.protocols):
        return errors.INCONSISTENT_GROUP_PROTOCOL
    if request.member_id and request.member_id not in group.pending_members:
        return check_member(group, request.member_id, request.instance_id)
    return errors.NONE


def _add(group: Group, now_ms: int, request: Join, member_id: str, limits: GroupLimits) -> list[Effect]:
    if not group.members:
        group.protocol_type = request.protocol_type
    member = Member(
        id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        joining=request.token,
        is_new=True,
        deadline_ms=now_ms + NEW_MEMBER_TIMEOUT_MS,
    )
    group.members[member_id] = member
    if request.instance_id is not None:
        group.static[request.instance_id] = member_id
    if group.leader is None:
        group.leader = member_id
    if group.rebalance is not None:
        group.rebalance.member_added = True
    return _prepare(group, now_ms, Cause.JOINED, _because(f"{member_id} joined", request.reason), limits)


def _rejoin(group: Group, now_ms: int, request: Join, limits: GroupLimits) -> list[Effect]:
    member = group.members[request.member_id]
    same = member.protocols == request.protocols
    if group.state is State.COMPLETING and same:
        return [_answer_join(group, member, request.token)]
    if group.state is State.STABLE and same and group.leader != member.id:
        return [_answer_join(group, member, request.token)]
    why = "rejoined as leader" if group.leader == member.id and same else "rejoined with changed metadata"
    effects = _supersede(member)
    _update(member, now_ms, request)
    cause = _because(f"{member.id} {why}", request.reason)
    return effects + _prepare(group, now_ms, Cause.REJOINED, cause, limits)


def _update(member: Member, now_ms: int, request: Join) -> None:
    member.protocols = request.protocols
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.joining = request.token
    if not member.is_new:  # a new member cannot send heartbeats: its first deadline stays
        member.deadline_ms = now_ms + request.session_timeout_ms


def _supersede(member: Member) -> list[Effect]:
    """Answer a member's earlier JoinGroup, which its client has given up, before a new one replaces it."""
    effects: list[Effect] = []
    if member.joining is not None:
        effects.append(Joined(member.joining, errors.REBALANCE_IN_PROGRESS, member.id))
        member.joining = None
    return effects


def _replace_static(group: Group, now_ms: int, request: Join, limits: GroupLimits) -> list[Effect]:
    """Handle a static member that rejoins with a new id: the old id is fenced, the assignment stays (KIP-345)."""
    assert request.instance_id is not None
    old = group.members[group.static[request.instance_id]]
    effects: list[Effect] = []
    if old.joining is not None:
        effects.append(Joined(old.joining, errors.FENCED_INSTANCE_ID, old.id))
    if old.syncing is not None:
        effects.append(Synced(old.syncing, errors.FENCED_INSTANCE_ID))
    old.joining = old.syncing = None
    old_leader = group.leader
    member = Member(
        id=request.fresh_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        assignment=old.assignment,
        deadline_ms=now_ms + request.session_timeout_ms,
        synced=old.synced,
    )
    _put_in_place(group, old, member)
    if group.state is State.STABLE and select_protocol(group) == group.protocol:
        skip = request.can_skip and group.leader == member.id
        leader = group.leader if request.can_skip else old_leader
        answer = Joined(
            request.token, errors.NONE, member.id, group.generation, group.protocol_type, group.protocol, leader or "",
            listing(group) if skip else (), skip,
        )  # fmt: skip
        return [*effects, StoreGroup(group.generation, answer, old)]
    member.joining = request.token
    cause = _because(f"static member {request.instance_id} came back as {member.id}", request.reason)
    return effects + _prepare(group, now_ms, Cause.RETURNED, cause, limits)


def _put_in_place(group: Group, out: Member, into: Member) -> None:
    """Replace one member of a static instance with another, which takes its position in the list and leadership."""
    assert into.instance_id is not None
    group.members = {(into.id if k == out.id else k): (into if k == out.id else v) for k, v in group.members.items()}
    group.static[into.instance_id] = into.id
    if group.leader == out.id:
        group.leader = into.id


def _because(what: str, reason: str) -> str:
    """The cause of a rebalance in one line, cut to CAUSE_MAX: clients choose the reason's length."""
    return (f"{what}: {reason}" if reason else what)[:CAUSE_MAX]


def _answer_join(group: Group, member: Member, token: object) -> Joined:
    return Joined(
        token, errors.NONE, member.id, group.generation, group.protocol_type, group.protocol, group.leader or "",
        listing(group) if group.leader == member.id else (),
    )  # fmt: skip


# -- the join phase --------------------------------------------------------------------------------------------------


def _prepare(group: Group, now_ms: int, kind: Cause, cause: str, limits: GroupLimits) -> list[Effect]:
    """Begin a rebalance unless one is in its join phase; complete it if all members have joined."""
    effects: list[Effect] = []
    if group.state is not State.PREPARING:
        for member in group.members.values():
            if member.syncing is not None:
                effects.append(Synced(member.syncing, errors.REBALANCE_IN_PROGRESS))
                member.syncing = None
                member.deadline_ms = now_ms + member.session_timeout_ms
        timeout = rebalance_timeout_ms(group)
        if group.state is State.EMPTY and limits.initial_delay_ms > 0:
            group.rebalance = Rebalance(now_ms + limits.initial_delay_ms, max(timeout - limits.initial_delay_ms, 0))
        else:
            group.rebalance = Rebalance(now_ms + timeout)
        group.sync_deadline_ms = None
        group.storing = False
        group.cause = cause
        group.state = State.PREPARING
        effects.append(Rebalancing(kind, cause))
    return effects + _complete_if_all_joined(group, now_ms)


def _complete_if_all_joined(group: Group, now_ms: int) -> list[Effect]:
    assert group.rebalance is not None
    if group.rebalance.initial_left_ms >= 0 or group.pending_members:
        return []
    if any(m.joining is None for m in group.members.values()):
        return []
    return _complete(group, now_ms)


def _complete(group: Group, now_ms: int) -> list[Effect]:
    """End the join phase: remove dynamic members that did not rejoin, and send the new generation to the others."""
    assert group.rebalance is not None
    for member in [m for m in group.members.values() if m.joining is None and m.instance_id is None]:
        _forget(group, member)
    joined = [m for m in group.members.values() if m.joining is not None]
    if group.members and not joined:
        group.rebalance = Rebalance(now_ms + rebalance_timeout_ms(group))  # only absent static members: wait for one
        return []
    group.rebalance = None
    group.generation = group.generation + 1 if group.generation < 2_147_483_647 else 1
    if not group.members:
        group.protocol = group.leader = None
        group.state = State.EMPTY
        return [StoreGroup(group.generation)]
    if group.leader not in group.members or group.members[group.leader].joining is None:
        group.leader = joined[0].id
    group.protocol = select_protocol(group)
    group.state = State.COMPLETING
    group.sync_deadline_ms = now_ms + rebalance_timeout_ms(group)
    effects: list[Effect] = []
    for member in group.members.values():
        member.is_new = member.synced = False
        member.deadline_ms = now_ms + member.session_timeout_ms
        if member.joining is not None:
            effects.append(_answer_join(group, member, member.joining))
            member.joining = None
    return effects


def _forget(group: Group, member: Member) -> None:
    del group.members[member.id]
    if member.instance_id is not None and group.static.get(member.instance_id) == member.id:
        del group.static[member.instance_id]
    if group.leader == member.id:
        group.leader = next(iter(group.members), None)


# -- sync ------------------------------------------------------------------------------------------------------------


def sync(
    group: Group,
    now_ms: int,
    token: object,
    member_id: str,
    instance_id: str | None,
    generation: int,
    assignments: Mapping[str, bytes],
    *,
    protocol_type: str | None = None,
    protocol: str | None = None,
) -> list[Effect]:
    """Handle a SyncGroup: a member requests its assignment, the leader brings all assignments."""
    error = (
        errors.COORDINATOR_NOT_AVAILABLE if group.state is State.DEAD else check_member(group, member_id, instance_id)
    )
    if not error and generation != group.generation:
        error = errors.ILLEGAL_GENERATION
    if not error and protocol_type is not None and protocol_type != group.protocol_type:
        error = errors.INCONSISTENT_GROUP_PROTOCOL
    if not error and protocol is not None and protocol != group.protocol:
        error = errors.INCONSISTENT_GROUP_PROTOCOL
    if not error and group.state is State.PREPARING:
        error = errors.REBALANCE_IN_PROGRESS
    if error:
        return [Synced(token, error)]
    member = group.members[member_id]
    member.deadline_ms = now_ms + member.session_timeout_ms
    member.synced = True
    if group.state is State.STABLE:
        return [Synced(token, errors.NONE, member.assignment, group.protocol_type, group.protocol)]
    effects: list[Effect] = []
    if member.syncing is not None:
        effects.append(Synced(member.syncing, errors.REBALANCE_IN_PROGRESS))
    member.syncing = token
    if member_id == group.leader and not group.storing:
        for other in group.members.values():
            other.assignment = assignments.get(other.id, b"")
        group.storing = True
        effects.append(StoreGroup(group.generation))
    return effects


def stored(
    group: Group, now_ms: int, store: StoreGroup, error: int, limits: GroupLimits, *, in_log: bool = False
) -> list[Effect]:
    """Handle the outcome of a StoreGroup effect. `in_log`: the log has the group, although `error` is set."""
    if store.answer is not None:
        return _static_stored(group, store, store.answer, error, in_log=in_log)
    if group.state is not State.COMPLETING or store.generation != group.generation or not group.storing:
        return []
    group.storing = False
    if error:
        for member in group.members.values():
            member.assignment = b""
        cause = f"storing the group failed: {errors.lookup(error).name}"
        return _fail_sync(group, now_ms, error) + _prepare(group, now_ms, Cause.NOT_STORED, cause, limits)
    group.state = State.STABLE
    effects: list[Effect] = []
    for member in group.members.values():
        if member.syncing is not None:
            member.deadline_ms = now_ms + member.session_timeout_ms
            effects.append(Synced(member.syncing, 0, member.assignment, group.protocol_type, group.protocol))
            member.syncing = None
    return effects


def _static_stored(group: Group, store: StoreGroup, answer: Joined, error: int, *, in_log: bool) -> list[Effect]:
    """Answer a static member that rejoined. If the write failed, the old member replaces it, unless the log has it."""
    if not error:
        return [answer]
    member = group.members.get(answer.member_id)
    if not in_log and member is not None and store.old is not None:
        _put_in_place(group, member, store.old)
    return [Joined(answer.token, error)]


def _fail_sync(group: Group, now_ms: int, error: int) -> list[Effect]:
    effects: list[Effect] = []
    for member in group.members.values():
        if member.syncing is not None:
            member.deadline_ms = now_ms + member.session_timeout_ms
            effects.append(Synced(member.syncing, error))
            member.syncing = None
    return effects


# -- heartbeat, leave, time ------------------------------------------------------------------------------------------


def heartbeat(group: Group, now_ms: int, member_id: str, instance_id: str | None, generation: int) -> int:
    """Handle a heartbeat; after REBALANCE_IN_PROGRESS the member rejoins."""
    if group.state is State.DEAD:
        return errors.COORDINATOR_NOT_AVAILABLE
    error = check_member(group, member_id, instance_id)
    if error:
        return error
    if generation != group.generation:
        return errors.ILLEGAL_GENERATION
    touch(group, now_ms, member_id)
    return errors.REBALANCE_IN_PROGRESS if group.state is State.PREPARING else errors.NONE


def touch(group: Group, now_ms: int, member_id: str) -> None:
    """Extend a member's session, as any valid request counts as a heartbeat."""
    member = group.members.get(member_id)
    if member is not None and not member.is_new:
        member.deadline_ms = now_ms + member.session_timeout_ms


def leave(
    group: Group, now_ms: int, member_id: str, instance_id: str | None, reason: str, limits: GroupLimits
) -> tuple[int, list[Effect]]:
    """Handle a LeaveGroup; an administrator names a static member by its instance id."""
    if group.state is State.DEAD:
        return errors.COORDINATOR_NOT_AVAILABLE, []
    if instance_id is not None and not member_id:
        member_id = group.static.get(instance_id, "")
    if instance_id is None and member_id in group.pending_members:
        del group.pending_members[member_id]
        return errors.NONE, _complete_if_all_joined(group, now_ms) if group.state is State.PREPARING else []
    error = check_member(group, member_id, instance_id)
    if error:
        return error, []
    cause = _because(f"{member_id} left", reason)
    return errors.NONE, _remove(group, now_ms, group.members[member_id], Cause.LEFT, cause, limits)


def _remove(group: Group, now_ms: int, member: Member, kind: Cause, cause: str, limits: GroupLimits) -> list[Effect]:
    effects: list[Effect] = []
    if member.joining is not None:
        effects.append(Joined(member.joining, errors.UNKNOWN_MEMBER_ID, member.id))
    if member.syncing is not None:
        effects.append(Synced(member.syncing, errors.UNKNOWN_MEMBER_ID))
    _forget(group, member)
    if group.state is State.PREPARING:
        return effects + _complete_if_all_joined(group, now_ms)
    return effects + _prepare(group, now_ms, kind, cause, limits)


def tick(group: Group, now_ms: int, limits: GroupLimits) -> list[Effect]:
    """Handle timeouts: expired sessions, and join and sync phases past their deadline."""
    effects: list[Effect] = []
    for member_id in [k for k, deadline in group.pending_members.items() if deadline <= now_ms]:
        del group.pending_members[member_id]
        if group.state is State.PREPARING:
            effects += _complete_if_all_joined(group, now_ms)
    for member in [m for m in group.members.values() if can_expire(m) and m.deadline_ms <= now_ms]:
        if member.id in group.members:
            cause = f"{member.id} sent no heartbeat for {member.session_timeout_ms} ms"
            effects += _remove(group, now_ms, member, Cause.SILENT, cause, limits)
    if group.rebalance is not None and group.rebalance.deadline_ms <= now_ms:
        effects += _join_phase_over(group, now_ms, limits)
    if group.sync_deadline_ms is not None and group.sync_deadline_ms <= now_ms:
        group.sync_deadline_ms = None
        for member in [m for m in group.members.values() if not m.synced]:
            if member.id in group.members and group.state in (State.COMPLETING, State.STABLE, State.PREPARING):
                cause = f"{member.id} did not sync in time"
                effects += _remove(group, now_ms, member, Cause.NOT_SYNCED, cause, limits)
    return effects


def _join_phase_over(group: Group, now_ms: int, limits: GroupLimits) -> list[Effect]:
    """Handle a join phase's deadline; an empty group's first one is extended while members keep joining."""
    first = group.rebalance
    assert first is not None
    if first.initial_left_ms > 0 and first.member_added:
        delay = min(limits.initial_delay_ms, first.initial_left_ms)
        group.rebalance = Rebalance(now_ms + delay, first.initial_left_ms - delay)
        return []
    first.initial_left_ms = -1
    return _complete(group, now_ms)


def force(group: Group, now_ms: int, cause: str, limits: GroupLimits) -> list[Effect]:
    """Begin a rebalance for an external reason (a test, an administrator)."""
    if group.state not in (State.STABLE, State.COMPLETING):
        return []
    return _prepare(group, now_ms, Cause.FORCED, cause, limits)
