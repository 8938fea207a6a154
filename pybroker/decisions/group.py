"""A consumer group of the classic protocol: its members, and the coordinator's queries.

    Empty --join--> PreparingRebalance --all joined--> CompletingRebalance --leader synced--> Stable
      ^                 |      ^                              |                                 |
      +---no members----+      +--------join, leave, crash, changed metadata--------------------+
    any --deleted or unloaded--> Dead

The transitions are in `rebalance.py`. Neither uses a clock, a socket or a log: the time is passed as `now_ms`, and the
actions for the caller are returned as effects. Source: Kafka's classic group protocol, KIP-62, KIP-345, KIP-394,
KIP-814.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pybroker import errors

NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000  # for a member that waits for its first response: its client may be gone
PENDING_MEMBERS_MAX = 5_000
"""Member ids handed out and not yet used; beyond this number, the oldest becomes invalid."""


class State(StrEnum):
    """The states, with their names in ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Cause(StrEnum):
    """The kinds of rebalance causes, by which rebalances are counted."""

    JOINED = "member_joined"
    REJOINED = "member_rejoined"  # its metadata changed, or the leader wants a new assignment
    RETURNED = "static_member_returned"
    LEFT = "member_left"
    SILENT = "session_timed_out"
    NOT_SYNCED = "sync_timed_out"
    NOT_STORED = "not_stored"
    FORCED = "forced"


@dataclass(slots=True)
class GroupLimits:
    """The broker's settings for groups; times in ms."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_delay_ms: int = 3_000
    size_max: int = 2_147_483_647


@dataclass(slots=True)
class Member:
    """One member; `joining` and `syncing` are tokens of requests that wait for a response."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    joining: object = None
    syncing: object = None
    is_new: bool = False
    synced: bool = False
    deadline_ms: int = 0  # of its session; ignored while the member waits in join or sync, unless it is new

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for the selected protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")


@dataclass(slots=True)
class Rebalance:
    """A join phase in progress."""

    deadline_ms: int
    initial_left_ms: int = -1  # ms by which an empty group's first join phase may be extended; -1: not the first
    member_added: bool = False


@dataclass(slots=True)
class Group:
    """The state of one group, without its offsets (see `offsets.py`)."""

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
    storing: bool = False  # the leader's assignment is being written to the log
    cause: str = ""  # of the last rebalance

    def is_simple(self) -> bool:
        """True if the group never had members: it only has offsets."""
        return self.protocol_type is None


# -- effects: actions for the caller ---------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Joined:
    """The response to the JoinGroup that waits under `token`."""

    token: object
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
    """The response to the SyncGroup that waits under `token`."""

    token: object
    error: int
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(slots=True, frozen=True)
class StoreGroup:
    """Write the group to the log, then call `rebalance.stored` with the outcome.

    `answer` is then sent to a static member that rejoined; if the write fails, `old` replaces that member again."""

    generation: int
    answer: Joined | None = None
    old: Member | None = None


@dataclass(slots=True, frozen=True)
class Rebalancing:
    """A rebalance began; `kind` is the kind of its cause, `cause` one line of text."""

    kind: Cause
    cause: str


Effect = Joined | Synced | StoreGroup | Rebalancing


# -- queries ---------------------------------------------------------------------------------------------------------


def supports(group: Group, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
    """True if a member with these protocols may join: one protocol must be common to all members."""
    if not protocol_type or not protocols:
        return False
    if not group.members:
        return True
    return group.protocol_type == protocol_type and bool(candidates(group) & {name for name, _ in protocols})


def candidates(group: Group) -> set[str]:
    """The protocols that every member supports."""
    return set.intersection(*({name for name, _ in m.protocols} for m in group.members.values()))


def select_protocol(group: Group) -> str:
    """The common protocol with most votes: each member votes for its first common one, the earliest vote wins a tie."""
    common = candidates(group)
    votes: dict[str, int] = {}
    for member in group.members.values():
        choice = next(name for name, _ in member.protocols if name in common)
        votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=lambda name: votes[name])


def check_member(group: Group, member_id: str, instance_id: str | None) -> int:
    """Return NONE, FENCED_INSTANCE_ID or UNKNOWN_MEMBER_ID."""
    if instance_id is not None:
        if instance_id not in group.static:
            return errors.UNKNOWN_MEMBER_ID
        if group.static[instance_id] != member_id:
            return errors.FENCED_INSTANCE_ID
    return errors.NONE if member_id in group.members else errors.UNKNOWN_MEMBER_ID


def has_room(group: Group, member_id: str, limits: GroupLimits) -> bool:
    """True if the group's size allows this member to join; members already counted always may."""
    if group.state is State.EMPTY:
        return True
    member = group.members.get(member_id)
    if group.state is State.PREPARING:
        waiting = sum(m.joining is not None for m in group.members.values())
        return (member is not None and member.joining is not None) or waiting < limits.size_max
    return member is not None or len(group.members) < limits.size_max


def rebalance_timeout_ms(group: Group) -> int:
    """The longest rebalance timeout of any member."""
    return max((m.rebalance_timeout_ms for m in group.members.values()), default=0)


def protocols_bytes(protocols: tuple[tuple[str, bytes], ...]) -> int:
    """The size of a member's protocols."""
    return sum(len(name) + len(data) for name, data in protocols)


def members_bytes(group: Group) -> int:
    """The size of all members' protocols and assignments, whose length clients choose."""
    return sum(protocols_bytes(m.protocols) + len(m.assignment) for m in group.members.values())


def listing(group: Group) -> tuple[tuple[str, str | None, bytes], ...]:
    """The members as listed in the leader's JoinGroup response."""
    return tuple((m.id, m.instance_id, m.metadata(group.protocol)) for m in group.members.values())


def check_commit(group: Group, member_id: str, instance_id: str | None, generation: int) -> int:
    """The error of an offset commit, or NONE. Generation -1 is a client that assigns its partitions itself."""
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
    """The next time for `rebalance.tick`; None if only a request can change the group."""
    times = list(group.pending_members.values())
    if group.rebalance is not None:
        times.append(group.rebalance.deadline_ms)
    if group.sync_deadline_ms is not None:
        times.append(group.sync_deadline_ms)
    times += [m.deadline_ms for m in group.members.values() if can_expire(m)]
    return min(times, default=None)


def can_expire(member: Member) -> bool:
    """True unless the member waits for a response, which counts as alive; a new member can always expire."""
    return member.is_new or (member.joining is None and member.syncing is None)
