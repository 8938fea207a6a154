"""A consumer group of the classic protocol: its members, and the questions that a coordinator asks of it.

    Empty --join--> PreparingRebalance --all joined--> CompletingRebalance --leader synced--> Stable
      ^                 |      ^                              |                                 |
      +----nobody-------+      +--------join, leave, crash, changed metadata--------------------+
    any --deleted or unloaded--> Dead

The transitions stand in `rebalance.py`. Nothing here knows a clock, a socket or a log: time comes in as `now_ms`, and
what is to be done goes out as effects. Source: Kafka's classic group protocol, KIP-62, KIP-345, KIP-394, KIP-814.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pybroker import errors

NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000  # a member that waits for its first answer; its client may be gone
PENDING_MEMBERS_MAX = 5_000
"""So many ids may wait for their first use: whoever asks for more of them makes the oldest worthless."""


class State(StrEnum):
    """The states under the names that ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Cause(StrEnum):
    """The kinds of reasons that a rebalance may have: few, so that rebalances can be counted by them."""

    JOINED = "member_joined"
    REJOINED = "member_rejoined"  # its metadata changed, or the leader asks for a new assignment
    RETURNED = "static_member_returned"
    LEFT = "member_left"
    SILENT = "session_timed_out"
    NOT_SYNCED = "sync_timed_out"
    NOT_STORED = "not_stored"
    FORCED = "forced"


@dataclass(slots=True)
class Limits:
    """What the broker's configuration says about groups; times in ms."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_delay_ms: int = 3_000
    size_max: int = 2_147_483_647


@dataclass(slots=True)
class Member:
    """One member; `joining` and `syncing` hold the token of a request that waits for its answer."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    joining: Any = None
    syncing: Any = None
    is_new: bool = False
    synced: bool = False
    deadline_ms: int = 0  # of its session; while it waits in join or sync only a new member's counts

    def metadata(self, protocol: str | None) -> bytes:
        """What the member said under the selected protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")


@dataclass(slots=True)
class Rebalance:
    """A join phase under way."""

    deadline_ms: int
    initial_left_ms: int = -1  # of an empty group's first: how much longer it may still be drawn out; -1 not the first
    member_added: bool = False


@dataclass(slots=True)
class Group:
    """The whole state of one group, its offsets left out (see `offsets.py`)."""

    id: str
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)  # in the order of joining
    static: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    pending_members: dict[str, int] = field(default_factory=dict)  # ids handed out with MEMBER_ID_REQUIRED -> deadline
    rebalance: Rebalance | None = None
    sync_deadline_ms: int | None = None  # members that have not synced by then are removed
    storing: bool = False  # the leader's assignment is on its way to the log
    cause: str = ""  # of the last rebalance

    def is_simple(self) -> bool:
        """No member protocol was ever spoken: only offsets are kept."""
        return self.protocol_type is None


# -- effects: what the caller is to do -------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Joined:
    """The answer to the JoinGroup that waits under `token`."""

    token: Any
    error: int
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()  # (member id, instance id, metadata), for the leader
    skip_assignment: bool = False


@dataclass(slots=True, frozen=True)
class Synced:
    """The answer to the SyncGroup that waits under `token`."""

    token: Any
    error: int
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(slots=True, frozen=True)
class Store:
    """Write the group to the log, then tell `rebalance.stored` how that ended.

    `answer` is due then to a static member that came back; if the log does not take it, `old` has its place again."""

    generation: int
    answer: Joined | None = None
    old: Member | None = None


@dataclass(slots=True, frozen=True)
class Rebalancing:
    """A rebalance began: of which kind is its cause, and the whole of it in one line."""

    kind: Cause
    cause: str


Effect = Joined | Synced | Store | Rebalancing


# -- questions -------------------------------------------------------------------------------------------------------


def supports(group: Group, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
    """Can a member with these protocols live in the group? One protocol must be common to all members."""
    if not protocol_type or not protocols:
        return False
    if not group.members:
        return True
    return group.protocol_type == protocol_type and bool(candidates(group) & {name for name, _ in protocols})


def candidates(group: Group) -> set[str]:
    """The protocols that every member supports."""
    return set.intersection(*({name for name, _ in m.protocols} for m in group.members.values()))


def select_protocol(group: Group) -> str:
    """The common protocol with most votes; each member votes for its first common one, ties go to the earliest vote."""
    common = candidates(group)
    votes: dict[str, int] = {}
    for member in group.members.values():
        choice = next(name for name, _ in member.protocols if name in common)
        votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=lambda name: votes[name])


def check_member(group: Group, member_id: str, instance_id: str | None) -> int:
    """NONE, FENCED_INSTANCE_ID or UNKNOWN_MEMBER_ID."""
    if instance_id is not None:
        if instance_id not in group.static:
            return errors.UNKNOWN_MEMBER_ID
        if group.static[instance_id] != member_id:
            return errors.FENCED_INSTANCE_ID
    return errors.NONE if member_id in group.members else errors.UNKNOWN_MEMBER_ID


def has_room(group: Group, member_id: str, limits: Limits) -> bool:
    """May one more join? A member that is counted already always may."""
    if group.state is State.EMPTY:
        return True
    member = group.members.get(member_id)
    if group.state is State.PREPARING:
        waiting = sum(m.joining is not None for m in group.members.values())
        return (member is not None and member.joining is not None) or waiting < limits.size_max
    return member is not None or len(group.members) < limits.size_max


def rebalance_timeout_ms(group: Group) -> int:
    """The longest that any member asks for."""
    return max((m.rebalance_timeout_ms for m in group.members.values()), default=0)


def protocols_bytes(protocols: tuple[tuple[str, bytes], ...]) -> int:
    """What a member's protocols take."""
    return sum(len(name) + len(data) for name, data in protocols)


def members_bytes(group: Group) -> int:
    """What the members take by what they and their leader said, which is as long as they like."""
    return sum(protocols_bytes(m.protocols) + len(m.assignment) for m in group.members.values())


def listing(group: Group) -> tuple[tuple[str, str | None, bytes], ...]:
    """The members as the leader is told of them."""
    return tuple((m.id, m.instance_id, m.metadata(group.protocol)) for m in group.members.values())


def check_commit(group: Group, member_id: str, instance_id: str | None, generation: int) -> int:
    """May this member commit offsets? Generation -1 is a client that manages its partitions itself."""
    if group.state is State.DEAD:
        return errors.COORDINATOR_NOT_AVAILABLE
    if generation < 0 and group.state is State.EMPTY:
        return errors.NONE
    if generation >= 0 or member_id or instance_id is not None:
        error = check_member(group, member_id, instance_id)
        if error:
            return error
        if generation != group.generation:
            return errors.ILLEGAL_GENERATION
    else:
        return errors.UNKNOWN_MEMBER_ID
    return errors.REBALANCE_IN_PROGRESS if group.state is State.COMPLETING else errors.NONE


def next_deadline_ms(group: Group) -> int | None:
    """When `rebalance.tick` has something to do next; None if only a request can bring it."""
    times = list(group.pending_members.values())
    if group.rebalance is not None:
        times.append(group.rebalance.deadline_ms)
    if group.sync_deadline_ms is not None:
        times.append(group.sync_deadline_ms)
    times += [m.deadline_ms for m in group.members.values() if can_expire(m)]
    return min(times, default=None)


def can_expire(member: Member) -> bool:
    """A member that waits for an answer is alive as far as we know; a new one may still be given up."""
    return member.is_new or (member.joining is None and member.syncing is None)
