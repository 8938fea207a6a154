"""Stories of consumer groups: who joins, who leaves, who is fenced, told without a clock and without a broker."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker import errors
from pybroker.cluster import rebalance
from pybroker.cluster.group import Group, Joined, Limits, Rebalancing, State, Store, Synced, next_deadline_ms

SESSION_MS = 10_000
REBALANCE_MS = 60_000
NO_DELAY = Limits(initial_delay_ms=0)


class Stage:
    """A group, its clock, and what was answered to whom; the log takes every store at once."""

    def __init__(self, limits: Limits = NO_DELAY) -> None:
        self.group, self.limits, self.now = Group("g"), limits, 0
        self.answers: dict[Any, Any] = {}
        self.causes: list[str] = []
        self.fresh = 0

    def do(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Joined | Synced):
                assert effect.token not in self.answers, "a request was answered twice"
                self.answers[effect.token] = effect
            elif isinstance(effect, Rebalancing):
                self.causes.append(effect.cause)
            elif isinstance(effect, Store):
                self.do(rebalance.stored(self.group, self.now, effect.generation, 0, self.limits))

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
        """Let time pass, stopping wherever the group has something to do."""
        end = self.now + ms
        while (due := next_deadline_ms(self.group)) is not None and due <= end:
            self.now = max(due, self.now)
            self.do(rebalance.tick(self.group, self.now, self.limits))
        self.now = end

    def stable(self, *tokens: str) -> list[str]:
        """Join and sync these members; their ids."""
        for token in tokens:
            self.join(token)
        self.pass_ms(0)
        if any(t not in self.answers for t in tokens):  # the later ones wait for the first to rejoin
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
    """One member: joins, is the leader, assigns itself, is stable."""
    stage = Stage()
    joined = stage.join("a")
    assert (joined.error, joined.generation, joined.leader) == (0, 1, joined.member_id)
    assert joined.members == ((joined.member_id, None, b"t"),)
    assert stage.sync("s", joined.member_id, 1, {joined.member_id: b"all"}).assignment == b"all"
    assert stage.group.state is State.STABLE


def test_a_second_member_waits_until_the_first_rejoins() -> None:
    """The join phase ends when everybody is in, and only the leader hears who that is."""
    stage = Stage()
    (first,) = stage.stable("a")
    assert stage.join("b") is None
    assert rebalance.heartbeat(stage.group, 0, first, None, 1) == errors.REBALANCE_IN_PROGRESS
    again = stage.join("a2", first)
    assert again.generation == stage.answers["b"].generation == 2
    assert len(again.members) == 2 and stage.answers["b"].members == ()


def test_empty_group_waits_for_others_before_its_first_generation() -> None:
    """group.initial.rebalance.delay.ms: three members that come within it share one generation."""
    stage = Stage(Limits(initial_delay_ms=3_000))
    for token in "abc":
        assert stage.join(token) is None
        stage.pass_ms(1_000)
    stage.pass_ms(6_000)
    assert {stage.answers[t].generation for t in "abc"} == {1}
    assert len(stage.causes) == 1


def test_member_id_is_required_first_and_expires() -> None:
    """KIP-394: the id is handed out before the member counts; unused it is forgotten and holds nobody up."""
    stage = Stage()
    answer = stage.join("a", must_know_id=True)
    assert answer.error == errors.MEMBER_ID_REQUIRED and not stage.group.members
    assert stage.join("a2", answer.member_id).error == 0
    other = stage.join("b", must_know_id=True)
    stage.pass_ms(SESSION_MS)
    assert other.member_id not in stage.group.pending
    assert stage.join("b2", other.member_id).error == errors.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed_and_the_cause_is_kept() -> None:
    """A crash: the session runs out, the rest rebalance, and the group says why."""
    stage = Stage()
    first, second = stage.stable("a", "b")
    stage.pass_ms(SESSION_MS - 1)
    assert rebalance.heartbeat(stage.group, stage.now, first, None, stage.group.generation) == 0
    stage.pass_ms(1)
    assert list(stage.group.members) == [first]
    assert second in stage.group.cause and "heartbeat" in stage.group.cause


def test_static_member_returns_without_a_rebalance() -> None:
    """KIP-345: the same instance under a new id keeps its assignment; the old id is fenced."""
    stage = Stage()
    joined = stage.join("a", instance="i1")
    stage.sync("s", joined.member_id, 1, {joined.member_id: b"mine"})
    causes = len(stage.causes)
    back = stage.join("a2", instance="i1")
    assert (back.error, back.generation, back.skip_assignment) == (0, 1, True)
    assert len(stage.causes) == causes
    assert stage.sync("s2", back.member_id, 1).assignment == b"mine"
    assert rebalance.heartbeat(stage.group, 0, joined.member_id, "i1", 1) == errors.FENCED_INSTANCE_ID


def test_wrong_generation_type_and_protocol_are_refused() -> None:
    """Each mistake has Kafka's own code."""
    stage = Stage()
    (first,) = stage.stable("a")
    assert stage.sync("s1", first, 7).error == errors.ILLEGAL_GENERATION
    assert stage.sync("s2", "nobody", 1).error == errors.UNKNOWN_MEMBER_ID
    assert stage.join("x", protocol_type="connect").error == errors.INCONSISTENT_GROUP_PROTOCOL
    assert stage.join("y", protocols=(("sticky", b""),)).error == errors.INCONSISTENT_GROUP_PROTOCOL
    assert stage.join("z", session_timeout_ms=1).error == errors.INVALID_SESSION_TIMEOUT


def test_group_size_is_limited() -> None:
    """group.max.size at the limit and one above."""
    stage = Stage(Limits(initial_delay_ms=0, size_max=2))
    stage.stable("a", "b")
    assert stage.join("c").error == errors.GROUP_MAX_SIZE_REACHED


def test_leaving_members_empty_the_group() -> None:
    """The last one out leaves an empty group of the next generation."""
    stage = Stage()
    (first,) = stage.stable("a")
    error, effects = rebalance.leave(stage.group, 0, first, None, "bye", NO_DELAY)
    stage.do(effects)
    assert error == 0 and stage.group.state is State.EMPTY and stage.group.generation == 2


def test_member_that_never_syncs_is_removed() -> None:
    """Between join and sync a member may die too: the rebalance timeout ends the wait."""
    stage = Stage()
    joined = stage.join("a")
    stage.group.members[joined.member_id].session_timeout_ms = 10 * REBALANCE_MS
    stage.group.members[joined.member_id].deadline_ms = 10 * REBALANCE_MS
    stage.pass_ms(REBALANCE_MS)
    assert stage.group.state is State.EMPTY


def test_failed_store_fails_the_waiting_syncs() -> None:
    """If the log does not take the assignment, nobody gets it and the group starts over."""
    stage = Stage()
    joined = stage.join("a")
    effects = rebalance.sync(stage.group, 0, "s", joined.member_id, None, 1, {joined.member_id: b"x"})
    assert effects == [Store(1)]
    stage.do(rebalance.stored(stage.group, 0, 1, errors.NOT_COORDINATOR, NO_DELAY))
    assert stage.answers["s"].error == errors.NOT_COORDINATOR and stage.group.state is State.PREPARING


class Client:
    """A consumer that behaves: it joins, syncs, beats, and rejoins when it is told to."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage, self.name, self.turn = stage, name, 0
        self.member, self.generation, self.owned, self.waiting = "", -1, None, ""

    def _token(self) -> str:
        self.turn += 1
        return f"{self.name}-{self.turn}"

    def step(self) -> None:
        answer = self.stage.answers.get(self.waiting) if self.waiting else None
        if self.waiting and answer is None:
            return
        self.waiting = ""
        if answer is None:
            group, now = self.stage.group, self.stage.now
            if self.owned is None or rebalance.heartbeat(group, now, self.member, None, self.generation):
                self.rejoin()
        elif isinstance(answer, Joined):
            self.joined(answer)
        elif answer.error:
            self.rejoin()
        else:
            self.owned = frozenset(answer.assignment)

    def rejoin(self) -> None:
        self.owned, self.waiting = None, self._token()
        if self.member and self.member not in self.stage.group.members:
            self.member = ""
        self.stage.join(self.waiting, self.member)

    def joined(self, answer: Joined) -> None:
        if answer.error:
            self.member = "" if answer.error == errors.UNKNOWN_MEMBER_ID else self.member
            return self.rejoin()
        self.member, self.generation = answer.member_id, answer.generation
        names = [m for m, _, _ in answer.members]
        shares = {m: bytes(p for p in range(12) if p % len(names) == i) for i, m in enumerate(names)}
        self.waiting = self._token()
        self.stage.sync(self.waiting, self.member, self.generation, shares)
        return None


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["come", "crash", "leave", "step", "time"]), st.integers(0, 5)), max_size=60))
def test_any_interleaving_ends_stable_with_every_partition_owned_once(events: list[tuple[str, int]]) -> None:
    """Whatever members do and in whatever order, once they are left alone each partition has exactly one live owner."""
    stage = Stage(Limits(initial_delay_ms=500))
    clients: dict[int, Client] = {}
    for serial, (what, who) in enumerate(events):
        client = clients.get(who)
        if what == "come" and client is None:
            clients[who] = Client(stage, f"{who}.{serial}")
        elif what == "crash" and client is not None:
            del clients[who]
        elif what == "leave" and client is not None:
            del clients[who]
            stage.do(rebalance.leave(stage.group, stage.now, client.member, None, "", stage.limits)[1])
        elif what == "step" and client is not None:
            client.step()
        elif what == "time":
            stage.pass_ms(who * 1_500)
    for _ in range(300):
        for client in clients.values():
            client.step()
        stage.pass_ms(2_500)
    if not clients:
        assert stage.group.state is State.EMPTY and not stage.group.members
        return
    assert stage.group.state is State.STABLE
    owned = [p for c in clients.values() for p in c.owned or ()]
    assert sorted(owned) == list(range(12))
