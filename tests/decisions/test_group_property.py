"""Any interleaving of members, time and a slow log: the invariants of a group, and that it becomes stable.

The clients act as real ones: they join, send heartbeats, rejoin on REBALANCE_IN_PROGRESS, sync, leave. Some misbehave:
they crash, are stuck (heartbeats, but no join or sync), ask twice or too late, or as leaders take every partition. Some
return as a static instance. Invariants are checked after each event, and at last the live clients get time to settle.
"""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pybroker import errors
from pybroker.decisions import rebalance
from pybroker.decisions.group import Group, GroupLimits, Joined, State, StoreGroup, Synced, next_deadline_ms

SESSION_MS, REBALANCE_MS, BEAT_MS = 6_000, 15_000, 1_000
PARTITIONS = bytes(range(12))
SEATS = 5
STATIC = (3, 4)
"""The seats whose clients have an instance id, and so return as the same member."""
GREEDY = (1, 4)
"""The seats whose clients, as leaders, assign every partition to themselves."""
TOLD = {errors.NONE, errors.REBALANCE_IN_PROGRESS, errors.FENCED_INSTANCE_ID, errors.NOT_COORDINATOR}
"""The error codes of a correct client's join or sync, beside MEMBER_ID_REQUIRED."""


class World:
    """A group with its clock, its log, and all of its answers."""

    def __init__(self) -> None:
        self.group, self.limits, self.now = Group("g"), GroupLimits(initial_delay_ms=500), 0
        self.answers: dict[str, Joined | Synced] = {}
        self.asked: dict[str, tuple[str, int]] = {}  # token of a sync -> member, generation
        self.unanswered: set[str] = set()
        self.log: list[StoreGroup] = []  # stores that are not written yet
        self.log_says: int = errors.NONE
        self.joined: dict[int, set[str]] = {}  # generation -> members that were answered with it
        self.shares: dict[int, dict[str, bytes]] = {}  # generation -> its leader's assignment by member
        self.led: dict[int, set[str]] = {}  # generation -> its leader, under several ids if static
        self.fresh = 0

    def do(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Joined | Synced):
                assert effect.token in self.unanswered, "answered twice, or never asked"
                self.unanswered.discard(effect.token)
                self.answers[effect.token] = effect
                if isinstance(effect, Synced):
                    self.hand_out(effect)
                elif not effect.error:
                    self.joined.setdefault(effect.generation, set()).add(effect.member_id)
                    if effect.members:
                        self.led.setdefault(effect.generation, set()).add(effect.member_id)
            elif isinstance(effect, StoreGroup):
                self.log.append(effect)
        self.look()

    def hand_out(self, answer: Synced) -> None:
        member, generation = self.asked.pop(answer.token)
        if not answer.error:
            inherited = self.shares[generation].setdefault(member, answer.assignment)
            assert answer.assignment == inherited, "not what the leader of this generation gave"

    def write(self) -> None:
        """Complete, or refuse, the waiting stores."""
        while self.log:
            self.do(rebalance.stored(self.group, self.now, self.log.pop(0), self.log_says, self.limits))

    def join(self, token: str, member: str, instance: str | None) -> None:
        self.fresh += 1
        self.unanswered.add(token)
        request = rebalance.Join(
            token, member, instance, "c", "/h", SESSION_MS, REBALANCE_MS, "consumer", (("range", b"t"),),
            f"{instance or 'm'}-{self.fresh}",
        )  # fmt: skip
        self.do(rebalance.join(self.group, self.now, request, self.limits))

    def sync(self, token: str, member: str, instance: str | None, generation: int, shares: dict[str, bytes]) -> None:
        self.unanswered.add(token)
        self.asked[token] = member, generation
        leads = self.group.leader == member and self.group.generation == generation
        if leads and self.group.state is State.COMPLETING and not self.group.storing:
            absent = dict.fromkeys(self.group.members, b"")
            self.shares[generation] = absent | shares
        self.do(rebalance.sync(self.group, self.now, token, member, instance, generation, shares))

    def pass_ms(self, ms: int) -> None:
        end = self.now + ms
        while (due := next_deadline_ms(self.group)) is not None and due <= end:
            self.now = max(due, self.now)
            self.do(rebalance.tick(self.group, self.now, self.limits))
        self.now = end

    def look(self) -> None:
        """Check the invariants."""
        group = self.group
        waiting = [t for m in group.members.values() for t in (m.joining, m.syncing) if t is not None]
        assert all(deadline <= self.now + SESSION_MS for deadline in group.pending_members.values())
        replacing = [store.answer.token for store in self.log if store.answer is not None]
        assert sorted(waiting + replacing) == sorted(self.unanswered), "a request waits for no answer"
        assert not waiting or next_deadline_ms(group) is not None
        assert (group.rebalance is not None) == (group.state is State.PREPARING)
        assert {m.instance_id: m.id for m in group.members.values() if m.instance_id is not None} == group.static
        assert all(k == m.id for k, m in group.members.items())
        assert (group.leader in group.members) if group.members else (group.leader is None)
        if group.state is State.EMPTY:
            assert not group.members
        if group.state in (State.COMPLETING, State.STABLE):
            assert not any(m.joining for m in group.members.values())
            told = self.joined[group.generation]
            replaced = {store.answer.member_id for store in self.log if store.answer is not None}
            assert {m.id for m in group.members.values() if m.instance_id is None} <= told
            assert group.leader in self.led[group.generation] | replaced, "the leader does not know that it leads"


class Client:
    """A consumer that does at each step what its last answer requires."""

    def __init__(self, world: World, name: str, instance: str | None, greedy: bool) -> None:
        self.world, self.name, self.instance, self.greedy = world, name, instance, greedy
        self.turn, self.member, self.generation, self.waiting = 0, "", -1, ""
        self.owned: bytes | None = None
        self.stuck = False

    def step(self) -> None:
        """Take an answer that came, or send a heartbeat."""
        answer = self.world.answers.get(self.waiting) if self.waiting else None
        if self.waiting and answer is None:
            return
        self.waiting = ""
        if answer is None:
            self.beat()
        elif isinstance(answer, Joined):
            self.take_join(answer)
        elif answer.error:
            assert answer.error in TOLD
            self.rejoin()
        else:
            self.owned = answer.assignment

    def beat(self) -> None:
        if not self.member:
            self.rejoin()
            return
        world = self.world
        code = rebalance.heartbeat(world.group, world.now, self.member, self.instance, self.generation)
        if world.group.state is State.PREPARING and not self.stuck:
            assert code in (errors.REBALANCE_IN_PROGRESS, errors.FENCED_INSTANCE_ID), "no rejoin is requested"
        assert self.stuck or code in TOLD, "timely heartbeats keep a member"
        if code or self.owned is None:
            self.rejoin()

    def rejoin(self) -> None:
        self.owned = None
        if self.stuck:
            return
        self.turn += 1
        self.waiting = f"{self.name}-{self.turn}"
        self.world.join(self.waiting, self.member, self.instance)

    def take_join(self, answer: Joined) -> None:
        if answer.error:
            assert answer.error in TOLD | {errors.MEMBER_ID_REQUIRED}
            if answer.error == errors.MEMBER_ID_REQUIRED:
                self.member = answer.member_id
            self.rejoin()
            return
        self.member, self.generation = answer.member_id, answer.generation
        assert bool(answer.members) == (answer.leader == answer.member_id)
        if self.stuck:
            return
        names = [name for name, _, _ in answer.members]
        shares = {name: PARTITIONS[at :: len(names)] for at, name in enumerate(names)}
        self.turn += 1
        self.waiting = f"{self.name}-{self.turn}"
        given = {self.member: PARTITIONS} if self.greedy else shares
        self.world.sync(self.waiting, self.member, self.instance, self.generation, given)


class Town:
    """The clients of one run, each in a numbered seat."""

    def __init__(self) -> None:
        self.world = World()
        self.clients: dict[int, Client] = {}
        self.serial = 0

    def event(self, what: str, seat: int) -> None:
        client = self.clients.get(seat)
        if what == "come" and client is None:
            self.serial += 1
            instance = f"i{seat}" if seat in STATIC else None
            self.clients[seat] = Client(self.world, f"{seat}.{self.serial}", instance, seat in GREEDY)
        elif what == "time":
            self.time((seat + 1) * 1_500)
        elif what == "log":
            self.world.log_says = errors.NOT_COORDINATOR if seat == 0 else errors.NONE
            self.world.write()
        elif client is not None and what != "come":
            getattr(self, what)(seat, client)

    def crash(self, seat: int, client: Client) -> None:
        del self.clients[seat]

    def leave(self, seat: int, client: Client) -> None:
        del self.clients[seat]
        world = self.world
        world.do(rebalance.leave(world.group, world.now, client.member, client.instance, "", world.limits)[1])

    def stick(self, seat: int, client: Client) -> None:
        client.stuck = True

    def sync_late(self, seat: int, client: Client) -> None:
        """Sync a past generation, with assignments that have no owner."""
        token, generation = f"late {self.serial}", client.generation - 1
        self.serial += 1
        if client.generation > 1:
            shares = {client.member: b"late"}
            self.world.sync(token, client.member, client.instance, generation, shares)
            assert self.world.answers[token].error

    def again(self, seat: int, client: Client) -> None:
        """Join again before the first join is answered, or without need."""
        if client.member and not client.stuck:
            client.rejoin()

    def step(self, seat: int, client: Client) -> None:
        client.step()

    def time(self, ms: int) -> None:
        """Let time pass while all clients send heartbeats."""
        for _ in range(0, ms, BEAT_MS // 2):
            for client in list(self.clients.values()):
                client.step()
            self.world.write()
            self.world.pass_ms(BEAT_MS // 2)


STUCK_ONE_AFTER_THE_OTHER = [
    ("come", 0), ("come", 1), ("come", 3), ("come", 4), ("time", 1),
    ("stick", 0), ("again", 3), ("stick", 3), ("again", 4), ("crash", 4),
]  # fmt: skip
EVENTS = ("come", "come", "crash", "leave", "stick", "sync_late", "again", "step", "step", "log", "time")


@example(STUCK_ONE_AFTER_THE_OTHER)
@settings(max_examples=250, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, SEATS - 1)), min_size=20, max_size=80))
def test_any_interleaving_ends_stable_with_every_partition_owned_once(events: list[tuple[str, int]]) -> None:
    """Any interleaving ends stable: each partition has exactly one live owner.

    Each crashed or stuck member may cost a rebalance timeout and a session timeout."""
    town = Town()
    for what, seat in events:
        town.event(what, seat)
    town.world.log_says = errors.NONE
    town.time((SEATS + 1) * (REBALANCE_MS + SESSION_MS))
    group = town.world.group
    owned = {client.member: client.owned for client in town.clients.values() if client.owned is not None}
    # A static one that is stuck may delay a rebalance, or be assigned partitions by its instance without asking.
    stuck = {client.member for client in town.clients.values() if client.stuck}
    assert set(owned) <= set(group.members) <= set(owned) | stuck
    assert all(client.owned is not None for client in town.clients.values() if not client.stuck)
    if not owned:
        assert group.state is State.EMPTY or group.members
        return
    assert group.state is State.STABLE
    unasked = [member.assignment for name, member in group.members.items() if name not in owned]
    assert sorted(b"".join([*owned.values(), *unasked])) == list(PARTITIONS)
