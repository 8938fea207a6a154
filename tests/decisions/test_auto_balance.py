"""The continuous balancer's decisions: when it moves, what, why, and when it stays still."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.decisions.planning.auto_balance import BalanceBatch, Rules, Situation, next_batch, why_not
from pybroker.decisions.planning.snapshot import ClusterSnapshot, PlanBroker, PlanPartition, Volume
from pybroker.model import TopicPartition
from tests.decisions.clusters import random_cluster
from tests.rows import with_each

MB, GB = 10**6, 10**9
ROUNDS_MAX = 2_000


def after(snapshot: ClusterSnapshot, batch: BalanceBatch) -> ClusterSnapshot:
    """The cluster once the moves of a batch are made."""
    moved = {move.partition: move.after for move in batch.moves}
    used = Counter[int]()
    for move in batch.moves:
        used.update(dict.fromkeys(move.adding, move.size_bytes))
        used.subtract(dict.fromkeys(set(move.before) - set(move.after), move.size_bytes))
    return ClusterSnapshot(
        tuple(
            b._replace(volumes=tuple(v._replace(used_bytes=v.used_bytes + used[b.id]) for v in b.volumes))
            for b in snapshot.brokers
        ),
        tuple(
            p._replace(replicas=moved[p.partition], isr=moved[p.partition], leader=moved[p.partition][0])
            if p.partition in moved else p
            for p in snapshot.partitions
        ),
    )  # fmt: skip


Moved = frozenset[TopicPartition]
NONE = Moved()


def run(snapshot: ClusterSnapshot, rules: Rules, moved: Moved = NONE) -> tuple[ClusterSnapshot, list[BalanceBatch]]:
    """Make batch after batch, as the controller does, until there is nothing to move."""
    made: list[BalanceBatch] = []
    while (batch := next_batch(snapshot, rules, going_on=bool(made), pinned=moved)).moves:
        assert len(made) < ROUNDS_MAX
        made.append(batch)
        moved |= {move.partition for move in batch.moves}
        snapshot = after(snapshot, batch)
    return snapshot, made


def loads(snapshot: ClusterSnapshot) -> dict[int, int]:
    held = {broker.id: 0 for broker in snapshot.brokers}
    for p in snapshot.partitions:
        for broker in p.replicas:
            held[broker] += p.size_bytes
    return held


def cluster(*sizes: int, brokers: int = 4, factor: int = 2, on: int = 3) -> ClusterSnapshot:
    """Partitions of these sizes in turn on the first `on` brokers."""
    return ClusterSnapshot(
        tuple(PlanBroker(b, f"host{b}") for b in range(1, brokers + 1)),
        tuple(
            PlanPartition(TopicPartition("t", i), r := tuple((i + k) % on + 1 for k in range(factor)), r[0], size, r)
            for i, size in enumerate(sizes)
        ),
    )


def test_a_new_broker_gets_its_share_and_each_move_says_why() -> None:
    """Three brokers are full and the fourth is empty: replicas move there, each with a sentence, and then no more."""
    start = cluster(*[GB] * 12)
    first = next_batch(start, Rules(partitions_max=1))
    [move] = first.moves
    assert move.adding == (4,)
    (gone,) = set(move.before) - {*move.after}
    assert first.why == (
        f"broker 4 holds 100 % fewer bytes than its share: {move.partition} (1.0 GB) moves from {gone} to 4",
    )
    assert first.left_bytes == 6 * GB
    ended, made = run(start, Rules(partitions_max=2))
    assert set(loads(ended).values()) == {6 * GB}
    assert all(len(batch.moves) <= 2 for batch in made)
    assert next_batch(ended, Rules()).idle == "all brokers are within 20 % of their share"


def test_it_starts_above_the_threshold_and_ends_well_below() -> None:
    """A broker that holds less than the threshold too much is left alone; one that moves goes on to the planner's own
    limit."""
    slightly = cluster(*[GB] * 30, *[GB // 2] * 6, brokers=3)
    grown = slightly._replace(
        partitions=tuple(
            p._replace(size_bytes=p.size_bytes * 13 // 10) if 1 in p.replicas else p for p in slightly.partitions
        )
    )
    held = loads(grown)
    share = sum(held.values()) / 3
    worst = max(abs(n / share - 1) for n in held.values())
    assert not next_batch(grown, Rules(threshold=worst + 0.001)).moves
    ended, made = run(grown, Rules(threshold=worst - 0.001)) if worst > 0.1 else (grown, [])
    assert bool(made) == (worst > 0.1)
    assert all(abs(n / share - 1) <= max(0.1001, 0.0) for n in loads(ended).values()) or not made


def test_small_differences_are_not_worth_a_move() -> None:
    """Brokers whose bytes differ by a few megabytes stay as they are, whatever share that is."""
    assert next_batch(cluster(3 * MB, 2, 2, brokers=3, factor=1), Rules()).idle
    assert next_batch(cluster(30 * MB, *[2 * MB] * 8, brokers=3, factor=1), Rules()).moves


@given(
    seed=st.integers(0, 10**6), brokers=st.integers(2, 12), partitions=st.integers(1, 120),
    racks=st.sampled_from([0, 3]), empty=st.integers(0, 2), at_once=st.sampled_from([1, 3, 10]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_random_clusters_come_to_rest(
    seed: int, brokers: int, partitions: int, racks: int, empty: int, at_once: int
) -> None:
    """Batch after batch, each partition moves once at most, racks and factors stay, no broker gets further from its
    share than the worst was, and the cluster that is reached is a fixed point."""
    factor = Random(seed).randint(1, min(3, max(1, brokers - empty)))
    if racks and factor > brokers - empty:
        racks = 0
    start = random_cluster(seed, brokers + empty, partitions, factor, racks=racks, empty=empty)
    rules = Rules(partitions_max=at_once)
    ended, made = run(start, rules)
    moved = Counter(move.partition for batch in made for move in batch.moves)
    assert not moved or max(moved.values()) == 1
    assert all(len(set(p.replicas)) == factor for p in ended.partitions)
    rack_of = {broker.id: broker.rack for broker in start.brokers}
    if racks:
        for before, now in zip(start.partitions, ended.partitions, strict=True):
            assert len({rack_of[b] for b in now.replicas}) >= len({rack_of[b] for b in before.replicas})
    share = sum(loads(start).values()) / len(start.brokers)

    def furthest(snapshot: ClusterSnapshot) -> float:
        return max(abs(n - share) for n in loads(snapshot).values())

    assert furthest(ended) <= max(furthest(start), 0.1001 * share)
    last = next_batch(ended, rules, going_on=True, pinned=frozenset(moved))
    again, more = run(ended, rules, NONE if last.even else frozenset(moved))
    assert not more, [batch.why for batch in more]
    assert again == ended


def test_no_disk_is_filled_above_the_limit() -> None:
    """A broker whose disk would be over the limit gets nothing, though it holds least."""
    start = cluster(*[GB] * 12)
    small = tuple(
        b._replace(volumes=(Volume(8 * GB if b.id < 4 else 2 * GB, loads(start)[b.id]),)) for b in start.brokers
    )
    ended, _ = run(start._replace(brokers=small), Rules(disk_limit=0.85))
    assert loads(ended)[4] <= 0.85 * 2 * GB
    full = start._replace(
        brokers=tuple(b._replace(volumes=(Volume(100 * GB, (90 if b.id == 4 else 1) * GB),)) for b in start.brokers)
    )
    assert loads(run(full, Rules())[0])[4] == 0


def test_what_an_excluded_broker_holds_is_no_share_of_the_others() -> None:
    """The others become even among themselves, and then stay so."""
    start = cluster(*[GB] * 12, brokers=4, factor=1, on=1)
    kept = tuple(PlanPartition(TopicPartition("kept", i), (4,), 4, GB, (4,)) for i in range(60))
    rules = Rules(excluded=frozenset({4}), partitions_max=3)
    ended, made = run(start._replace(partitions=(*start.partitions, *kept)), rules)
    assert loads(ended) == {1: 4 * GB, 2: 4 * GB, 3: 4 * GB, 4: 60 * GB}
    assert made[0].why[0].startswith("broker 1 holds 200 % more bytes than its share")
    assert next_batch(ended, rules).even


def test_the_rack_of_an_excluded_broker_counts() -> None:
    """A partition with a replica on an excluded broker does not move its other one into the same rack."""
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "a"}
    start = ClusterSnapshot(
        tuple(PlanBroker(broker, f"host{broker}", rack) for broker, rack in racks.items()),
        tuple(PlanPartition(TopicPartition("t", i), (5, 3), 5, GB, (5, 3)) for i in range(12)),
    )
    ended, made = run(start, Rules(excluded=frozenset({5})))
    assert made and all(len({racks[broker] for broker in p.replicas}) == 2 for p in ended.partitions)
    assert [loads(ended)[broker] for broker in (1, 2, 5)] == [0, 0, 12 * GB]


def test_excluded_brokers_get_nothing() -> None:
    """A drained broker stays empty, and what an excluded broker still holds stays there."""
    start = cluster(*[GB] * 12)
    assert not next_batch(start, Rules(excluded=frozenset({4}))).moves
    ended, _ = run(cluster(*[GB] * 12, *[1] * 3, brokers=5), Rules(excluded=frozenset({5})))
    assert loads(ended)[5] == 0 and loads(ended)[4] > 0


HEALTHY = Situation(
    frozenset({1, 2, 3}), (PlanPartition(TopicPartition("t", 0), (1, 2), 1, 0, (2, 1)),)
)  # fmt: skip
T0 = TopicPartition("t", 0)


@with_each(
    ("now", "words"),
    [
        (HEALTHY, ""),
        (HEALTHY._replace(live=frozenset({1, 3})), "broker 2 has replicas and is not there"),
        (HEALTHY._replace(leaving=frozenset({3})), "broker 3 shuts down"),
        (HEALTHY._replace(under_way=frozenset({T0})), "t-0 is being moved, not by the balancer"),
        (HEALTHY._replace(offline=frozenset({(1, T0)})), "broker 1 cannot use its log of t-0, or append to it"),
        (HEALTHY._replace(unreadable=frozenset({"u"})), "topic u cannot be read in the store"),
        (
            HEALTHY._replace(partitions=(HEALTHY.partitions[0]._replace(isr=(1,)),)),
            "t-0 is under-replicated: broker 2 is not in sync",
        ),
        (HEALTHY._replace(partitions=(HEALTHY.partitions[0]._replace(leader=-1),)), "t-0 has no leader"),
    ],
)
def test_nothing_moves_while_the_cluster_is_not_whole(now: Situation, words: str) -> None:
    """An absent broker, a replica out of sync, moves of others: each keeps the balancer still, and is its reason."""
    assert why_not(now) == words
