"""Consumer groups without a clock and without a broker: members join, leave and are fenced."""

from __future__ import annotations

from typing import Any

from pybroker import errors
from pybroker.decisions import rebalance
from pybroker.decisions.group import (
    PENDING_MEMBERS_MAX,
    Group,
    GroupLimits,
    Joined,
    Rebalancing,
    State,
    StoreGroup,
    Synced,
    next_deadline_ms,
)

SESSION_MS = 10_000
REBALANCE_MS = 60_000
NO_DELAY = GroupLimits(initial_delay_ms=0)


class Stage:
    """A group with its clock and its answers by request; the log completes every store at once."""

    def __init__(self, limits: GroupLimits = NO_DELAY) -> None:
        self.group, self.limits, self.now = Group("g"), limits, 0
        self.answers: dict[Any, Any] = {}
        self.causes: list[str] = []
        self.fresh = 0
        self.log_says = errors.NONE

    def do(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Joined | Synced):
                assert effect.token not in self.answers, "a request was answered twice"
                self.answers[effect.token] = effect
            elif isinstance(effect, Rebalancing):
                self.causes.append(effect.cause)
            elif isinstance(effect, StoreGroup):
                self.do(rebalance.stored(self.group, self.now, effect, self.log_says, self.limits))

    def join(self, token: str, member: str = "", instance: str | None = None, **over: Any) -> Any:
        self.fresh += 1
        fields: dict[str, Any] = {
            "client_id": "c", "client_host": "/127.0.0.1", "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS, "protocol_type": "consumer", "protocols": (("range", b"t"),),
            "fresh_id": f"{instance or 'm'}-{self.fresh}", "must_know_id": False,
        }  # fmt: skip
        request = rebalance.Join(token, member, instance, **(fields | over))
        self.do(rebalance.join(self.group, self.now, request, self.limits))
        return self.answers.get(token)

    def sync(self, token: str, member: str, generation: int, assignments: dict[str, bytes] | None = None) -> Any:
        self.do(rebalance.sync(self.group, self.now, token, member, None, generation, assignments or {}))
        return self.answers.get(token)

    def pass_ms(self, ms: int) -> None:
        """Advance the clock, stopping at each deadline of the group."""
        end = self.now + ms
        while (due := next_deadline_ms(self.group)) is not None and due <= end:
            self.now = max(due, self.now)
            self.do(rebalance.tick(self.group, self.now, self.limits))
        self.now = end

    def stable(self, *tokens: str) -> list[str]:
        """Join and sync these members, and return their ids."""
        for token in tokens:
            self.join(token)
        self.pass_ms(0)
        if any(t not in self.answers for t in tokens):  # the later members wait for the first to rejoin
            for token in tokens:
                if token in self.answers:
                    self.join(f"{token}'", self.answers[token].member_id)
        last = [self.answers.get(f"{t}'") or self.answers[t] for t in tokens]
        ids = [a.member_id for a in last]
        generation = self.group.generation
        for i, member in enumerate(ids):
            shares = {k: k.encode() for k in ids} if i == 0 else None
            self.sync(f"sync-{member}-{generation}", member, generation, shares)
        assert self.group.state is State.STABLE
        return ids


def test_first_member_leads_and_gets_what_it_assigns() -> None:
    """The first member joins, is the leader, assigns itself, and the group is stable."""
    stage = Stage()
    joined = stage.join("a")
    assert (joined.error, joined.generation, joined.leader) == (0, 1, joined.member_id)
    assert joined.members == ((joined.member_id, None, b"t"),)
    assert stage.sync("s", joined.member_id, 1, {joined.member_id: b"all"}).assignment == b"all"
    assert stage.group.state is State.STABLE


def test_a_second_member_waits_until_the_first_rejoins() -> None:
    """A second member waits until the first rejoins: the join phase ends when all are in, and only the leader gets the
    members."""
    stage = Stage()
    (first,) = stage.stable("a")
    assert stage.join("b") is None
    assert rebalance.heartbeat(stage.group, 0, first, None, 1) == errors.REBALANCE_IN_PROGRESS
    again = stage.join("a2", first)
    assert again.generation == stage.answers["b"].generation == 2
    assert len(again.members) == 2 and stage.answers["b"].members == ()


def test_empty_group_waits_for_others_before_its_first_generation() -> None:
    """An empty group waits for group.initial.rebalance.delay.ms: three members that join within it share one
    generation."""
    stage = Stage(GroupLimits(initial_delay_ms=3_000))
    for token in "abc":
        assert stage.join(token) is None
        stage.pass_ms(1_000)
    stage.pass_ms(6_000)
    assert {stage.answers[t].generation for t in "abc"} == {1}
    assert len(stage.causes) == 1


def test_member_id_is_required_first_and_expires() -> None:
    """A member id is required first and expires (KIP-394): until it is used it is no member; then it is forgotten and
    delays no rebalance."""
    stage = Stage()
    answer = stage.join("a", must_know_id=True)
    assert answer.error == errors.MEMBER_ID_REQUIRED and not stage.group.members
    assert stage.join("a2", answer.member_id).error == 0
    other = stage.join("b", must_know_id=True)
    stage.pass_ms(SESSION_MS)
    assert other.member_id not in stage.group.pending_members
    assert stage.join("b2", other.member_id).error == errors.UNKNOWN_MEMBER_ID


def test_a_new_member_that_asks_twice_waits_as_long_as_one_that_asked_once() -> None:
    """A new member that asks twice waits as long as one that asked once: its first request is answered, and its second
    waits for the others."""
    stage = Stage()
    first, _ = stage.stable("a", "b")
    new = stage.join("c", must_know_id=True).member_id
    assert stage.join("c2", new) is None
    assert stage.join("c3", new) is None
    assert stage.answers["c2"].error == errors.REBALANCE_IN_PROGRESS
    for _ in range(4):
        stage.pass_ms(SESSION_MS // 2)
        assert rebalance.heartbeat(stage.group, stage.now, first, None, 2) == errors.REBALANCE_IN_PROGRESS
    assert new in stage.group.members and "c3" not in stage.answers
    stage.join("a2", first)
    stage.pass_ms(REBALANCE_MS)
    assert stage.answers["c3"].error == 0


def test_a_silent_member_is_removed_and_the_cause_is_kept() -> None:
    """A silent member is removed when its session expires, the rest rebalance, and the group has the reason."""
    stage = Stage()
    first, second = stage.stable("a", "b")
    stage.pass_ms(SESSION_MS - 1)
    assert rebalance.heartbeat(stage.group, stage.now, first, None, stage.group.generation) == 0
    stage.pass_ms(1)
    assert list(stage.group.members) == [first]
    assert second in stage.group.cause and "heartbeat" in stage.group.cause


def test_static_member_returns_without_a_rebalance() -> None:
    """A static member returns without a rebalance (KIP-345): under a new id it keeps its assignment, and the old id is
    fenced."""
    stage = Stage()
    joined = stage.join("a", instance="i1")
    stage.sync("s", joined.member_id, 1, {joined.member_id: b"mine"})
    causes = len(stage.causes)
    back = stage.join("a2", instance="i1")
    assert (back.error, back.generation, back.skip_assignment) == (0, 1, True)
    assert len(stage.causes) == causes
    assert stage.sync("s2", back.member_id, 1).assignment == b"mine"
    assert rebalance.heartbeat(stage.group, 0, joined.member_id, "i1", 1) == errors.FENCED_INSTANCE_ID


def test_a_static_member_is_not_back_while_the_log_says_no() -> None:
    """A static member whose store fails is refused with the error: the old id stays leader with its assignment, and a
    retry may succeed."""
    stage = Stage()
    old = stage.join("a", instance="i1")
    stage.sync("s", old.member_id, 1, {old.member_id: b"mine"})
    stage.log_says = errors.NOT_COORDINATOR
    assert stage.join("a2", instance="i1").error == errors.NOT_COORDINATOR
    assert list(stage.group.members) == [stage.group.leader] == [old.member_id]
    assert rebalance.heartbeat(stage.group, 0, old.member_id, "i1", 1) == 0
    stage.log_says = errors.NONE
    back = stage.join("a3", instance="i1")
    assert (back.error, back.generation) == (0, 1)
    assert stage.sync("s2", back.member_id, 1).assignment == b"mine"


def test_ids_that_nobody_uses_are_bounded() -> None:
    """Unused member ids are bounded: further requests for ids invalidate the oldest, and the newest stay valid."""
    stage = Stage()
    first = stage.join("first", must_know_id=True)
    for n in range(PENDING_MEMBERS_MAX):
        last = stage.join(f"t{n}", must_know_id=True)
    assert len(stage.group.pending_members) == PENDING_MEMBERS_MAX
    assert stage.join("x", first.member_id).error == errors.UNKNOWN_MEMBER_ID
    stage.group.pending_members = {last.member_id: stage.group.pending_members[last.member_id]}
    assert stage.join("y", last.member_id).error == errors.NONE


def test_wrong_generation_type_and_protocol_are_refused() -> None:
    """A wrong generation, type or protocol is refused with Kafka's own code."""
    stage = Stage()
    (first,) = stage.stable("a")
    assert stage.sync("s1", first, 7).error == errors.ILLEGAL_GENERATION
    assert stage.sync("s2", "nobody", 1).error == errors.UNKNOWN_MEMBER_ID
    assert stage.join("x", protocol_type="connect").error == errors.INCONSISTENT_GROUP_PROTOCOL
    assert stage.join("y", protocols=(("sticky", b""),)).error == errors.INCONSISTENT_GROUP_PROTOCOL
    assert stage.join("z", session_timeout_ms=1).error == errors.INVALID_SESSION_TIMEOUT


def test_group_size_is_limited() -> None:
    """group.max.size limits a group: a member at the limit joins, and the next is refused."""
    stage = Stage(GroupLimits(initial_delay_ms=0, size_max=2))
    stage.stable("a", "b")
    assert stage.join("c").error == errors.GROUP_MAX_SIZE_REACHED


def test_leaving_members_empty_the_group() -> None:
    """The last member that leaves leaves an empty group of the next generation."""
    stage = Stage()
    (first,) = stage.stable("a")
    error, effects = rebalance.leave(stage.group, 0, first, None, "bye", NO_DELAY)
    stage.do(effects)
    assert error == 0 and stage.group.state is State.EMPTY and stage.group.generation == 2


def test_member_that_never_syncs_is_removed() -> None:
    """A member that never syncs is removed: the rebalance timeout ends the wait."""
    stage = Stage()
    joined = stage.join("a")
    stage.group.members[joined.member_id].session_timeout_ms = 10 * REBALANCE_MS
    stage.group.members[joined.member_id].deadline_ms = 10 * REBALANCE_MS
    stage.pass_ms(REBALANCE_MS)
    assert stage.group.state is State.EMPTY


def test_failed_store_fails_the_waiting_syncs() -> None:
    """A failed store fails the waiting syncs: no member gets the assignment, and the group rebalances."""
    stage = Stage()
    joined = stage.join("a")
    effects = rebalance.sync(stage.group, 0, "s", joined.member_id, None, 1, {joined.member_id: b"x"})
    assert effects == [StoreGroup(1)]
    stage.do(rebalance.stored(stage.group, 0, StoreGroup(1), errors.NOT_COORDINATOR, NO_DELAY))
    assert stage.answers["s"].error == errors.NOT_COORDINATOR and stage.group.state is State.PREPARING
