"""Decides what the continuous balancer moves next, and why: a pure function of the cluster at one moment.

    even ──a broker is further from its share than the threshold──> uneven: batch after batch, each planned anew
      ^                                                                │
      └──the planner finds nothing to move: all are within BAND────────┘

The goals are those of `pybroker reassign plan --spread`. The threshold is above BAND, so that an even cluster stays as
it is until it has changed much. A partition moves once at most on the way from uneven to even.

Nothing moves while a broker is absent, a partition is not fully replicated, or others move replicas.
"""

from collections.abc import Sequence
from math import ceil, floor
from typing import Final, NamedTuple

from pybroker.decisions.planning.draft import BAND, Draft
from pybroker.decisions.planning.planner import plan
from pybroker.decisions.planning.snapshot import ClusterSnapshot, Goals, PlanPartition, Reassigned
from pybroker.model import TopicPartition, bytes_text, percent_text

WORTH_BYTES: Final = 10_000_000
"""A broker's bytes are no reason to move replicas if they are nearer to its share than this."""


class Situation(NamedTuple):
    """The cluster at one moment. `partitions` have their targets as replicas, `under_way` are those that are being
    moved, `offline` the (broker, partition) whose log cannot be used or is full; `leaving` brokers shut down."""

    live: frozenset[int]
    partitions: tuple[PlanPartition, ...]
    under_way: frozenset[TopicPartition] = frozenset()
    offline: frozenset[tuple[int, TopicPartition]] = frozenset()
    leaving: frozenset[int] = frozenset()
    unreadable: frozenset[str] = frozenset()
    """Topics whose nodes cannot be read."""


class Rules(NamedTuple):
    """The limits of the balancer. `threshold` and `disk_limit` are shares; `excluded` brokers get no replicas."""

    threshold: float = 0.2
    disk_limit: float = 0.85
    partitions_max: int = 10
    excluded: frozenset[int] = frozenset()


class BalanceBatch(NamedTuple):
    """The moves to begin now, each with the sentence that says why; `left_bytes` are copied by the whole plan. Without
    moves, `idle` says why, and the cluster is `even` or cannot be made so."""

    moves: tuple[Reassigned, ...] = ()
    why: tuple[str, ...] = ()
    left_bytes: int = 0
    idle: str = ""
    even: bool = False


def why_not(now: Situation) -> str:
    """Return why nothing may move now, as a sentence; "" if it may."""
    if now.unreadable:
        return f"topic {min(now.unreadable)} cannot be read in the store"
    absent = {broker for p in now.partitions for broker in p.replicas} - now.live
    if absent:
        return f"broker {min(absent)} has replicas and is not there"
    if now.leaving:
        return f"broker {min(now.leaving)} shuts down"
    if now.under_way:
        return f"{min(now.under_way)} is being moved, not by the balancer"
    if now.offline:
        broker, partition = min(now.offline)
        return f"broker {broker} cannot use its log of {partition}, or append to it"
    for p in now.partitions:
        if p.leader < 0:
            return f"{p.partition} has no leader"
        if not set(p.replicas) <= set(p.isr):
            return f"{p.partition} is under-replicated: broker {min(set(p.replicas) - set(p.isr))} is not in sync"
    return ""


def next_batch(
    snapshot: ClusterSnapshot, rules: Rules, *, going_on: bool = False, pinned: frozenset[TopicPartition] = frozenset()
) -> BalanceBatch:
    """Return the moves to begin now. `going_on`: moves have been made since the cluster was uneven, and it is to become
    even. Partitions that are `pinned` stay as they are."""
    goals = Goals(
        spread=True, spared=rules.excluded, disk_limit=rules.disk_limit, pinned=pinned, search=False
    )  # fmt: skip
    draft = Draft(snapshot, goals)
    if len(draft.targets) < 2:
        return BalanceBatch(idle="fewer than two brokers may get replicas")
    even = not _uneven(draft, rules.threshold)
    if even and not going_on:
        return BalanceBatch(idle=f"all brokers are within {percent_text(rules.threshold)} of their share", even=True)
    made = plan(snapshot, goals)
    changes = [move for move in made.moves if move.adding or move.partition not in pinned]  # else leaders swing
    if made.refused or not changes:
        return BalanceBatch(idle="; ".join(made.refused or made.notes) or "all brokers have their share", even=even)
    moves = tuple(changes[: rules.partitions_max])
    return BalanceBatch(moves, tuple(_why(draft, move) for move in moves), made.copied_bytes)


def _uneven(draft: Draft, threshold: float) -> bool:
    """True if a broker's bytes, or its number of replicas, are further from its share than the threshold."""
    for broker in draft.targets:
        share, load = draft.share(broker), draft.load[broker]
        if abs(load - share) > max(WORTH_BYTES, share * threshold):
            return True
        count, fair = len(draft.on[broker]), _fair_count(draft, broker)
        if not floor(fair * (1 - threshold)) <= count <= ceil(fair * (1 + threshold)):
            return True
    return False


def _fair_count(draft: Draft, broker: int) -> float:
    return draft.count * draft.weight[broker] / draft.weights


def _why(draft: Draft, move: Reassigned) -> str:
    """The sentence for one move: what is uneven before it, and what moves where."""
    name, size = move.partition, bytes_text(move.size_bytes)
    sources = [broker for broker in move.before if broker not in move.after]
    if not move.adding:
        return (
            f"broker {move.after[0]} is the preferred leader of {draft.led[move.after[0]]} partitions, broker "
            f"{move.before[0]} of {draft.led[move.before[0]]}: {name} prefers {move.after[0]} to {move.before[0]}"
        )
    moved = f"{name} ({size}) moves from {_ids(sources)} to {_ids(move.adding)}"
    reasons = [_bytes_off(draft, broker) for broker in (*sources, *move.adding) if broker in draft.weight]
    by, reason = max(reasons, default=(0.0, ""))
    if by > BAND:
        return f"{reason}: {moved}"
    source, target = sources[0], move.adding[0]
    return f"broker {target} has {len(draft.on[target]):,} replicas, broker {source} {len(draft.on[source]):,}: {moved}"


def _bytes_off(draft: Draft, broker: int) -> tuple[float, str]:
    """Return the distance of a broker's bytes from its share, as a number and as words."""
    share = draft.share(broker)
    off = draft.load[broker] / share - 1 if share >= 1 else 0.0
    by = f"{percent_text(abs(off))} {'more' if off > 0 else 'fewer'}"
    return abs(off), f"broker {broker} holds {by} bytes than its share"


def _ids(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers))
