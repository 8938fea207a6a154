"""Decides the next state of a partition after the store lost its latest writes, from the states that brokers have.

If the store was restored from an older copy, or a state was changed or deleted by hand, its leader epoch is below the
brokers', and its ISR may be too large or too small. Brokers have newer information:

    state   of a running broker: the leader epoch and ISR that a controller wrote last
    log     of a broker that restarted since: the last leader epoch in its log, and the log end

The next leader epoch is above all known ones. A controller that did not know may have used one twice: two states then
have the same leader epoch with different leaders, or the same partition epoch with different ISRs. A state that a
broker has is as good as the lost one, and the usual election uses it. If only logs have a later epoch, all acknowledged
records are in the log with the latest epoch, among several the longest: that replica was in the ISR of that epoch's
leader. As an absent replica may have this log, the controller waits for all replicas, unless unclean elections are
allowed. Until then the partition is doubted, which is stored with its state. Then the replica with the best log becomes
leader and the only ISR member; the others catch up before they join.

A store from before a reassignment names replicas whose logs are deleted. Brokers that are not among them, and have a
later log than all of them, become replicas again; the operator decides which stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pybroker.decisions import election
from pybroker.decisions.image import NO_LEADER, PartitionState


class Known(NamedTuple):
    """A live broker's state of a partition whose replica it is. `isr` is empty if unknown."""

    leader_epoch: int
    partition_epoch: int
    leader: int
    isr: tuple[int, ...]
    log_epoch: int
    """The last leader epoch in its log; -1 for none."""
    log_end: int
    """The end of its log; -1 if the log is unusable."""
    power_lost: bool = False
    """True if the log may lack its end: power was lost before that was synced, and the replica was not in sync since.
    See last_replica.py."""


NOTHING = Known(-1, -1, NO_LEADER, (), -1, 0, power_lost=True)
"""The state of a broker without a log of the partition. A member of the ISR has lost its directory with the power."""
UNUSABLE = NOTHING._replace(log_end=-1, power_lost=False)


def is_ahead(known: Known, state: PartitionState) -> bool:
    """True if a broker has a later state than the store's `state`, or one that the store has lost and whose epochs were
    given again. A missing state has leader epoch -1."""
    if state.leader_epoch < 0:
        return known.leader_epoch >= 0 or known.log_end > 0
    if known.leader_epoch != state.leader_epoch:
        return known.leader_epoch > state.leader_epoch
    if known.leader != NO_LEADER and known.leader != state.leader:
        return True
    if known.partition_epoch != state.partition_epoch:
        return known.partition_epoch > state.partition_epoch
    return bool(known.isr) and set(known.isr) != set(state.isr)


def restored(
    state: PartitionState, known: Mapping[int, Known], live: Collection[int], *, unclean: bool, doubted: bool = False
) -> tuple[PartitionState, bool]:
    """The next state of a partition, above all known leader epochs, and True if it is doubted, without a leader.

    `known` is by broker, and not empty. `doubted`: the stored state is doubted, so its ISR is unknown."""
    state = _with_moved(state, known, live)
    facts = {broker: known[broker] for broker in state.replicas if broker in known and broker in live}
    newest = known[max(known, key=lambda broker: (*known[broker][:2], known[broker].leader == broker))]
    top = max(newest.leader_epoch, state.leader_epoch)
    isr = tuple(broker for broker in newest.isr if broker in state.replicas)
    if isr and newest.leader_epoch == top and not doubted:
        leader = newest.leader if newest.leader in isr else NO_LEADER
        told = state._replace(leader=leader, isr=isr, leader_epoch=top)
        return election.after_change(told, live, unclean=unclean) or election.above(told, told.leader, isr), False
    raised = state._replace(leader_epoch=top)
    if not facts or (not unclean and len(facts) < len(state.replicas)):
        return election.above(raised, NO_LEADER, state.replicas), True
    best = max(facts, key=lambda broker: (facts[broker].log_epoch, facts[broker].log_end))
    return election.above(raised, best, (best,)), False


def _with_moved(state: PartitionState, known: Mapping[int, Known], live: Collection[int]) -> PartitionState:
    """The state with the live brokers as further replicas that have a later log than all replicas have. A partition
    whose state is missing gets none."""
    if state.leader_epoch < 0:
        return state
    best = max((known[broker].log_epoch for broker in state.replicas if broker in known), default=-1)
    more = sorted(
        broker for broker, its in known.items()
        if broker not in state.replicas and broker in live and its.log_end > 0 and its.log_epoch > best
    )  # fmt: skip
    given_up = tuple(broker for broker in state.given_up if broker not in more)
    return state._replace(replicas=(*state.replicas, *more), given_up=given_up) if more else state
