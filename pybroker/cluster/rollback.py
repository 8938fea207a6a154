"""The next state of a partition when the store went back in time, from what the replicas' brokers know.

If a store was restored from an older copy, or a state was set back or deleted by hand, its leader epochs are behind
those that brokers know, and its ISR may be out of date: too large or too small. Brokers know newer facts:

    state   a running broker: the leader epoch and ISR that a controller wrote last
    log     a broker that restarted since: the last leader epoch in its log, and where the log ends

A leader epoch is never used twice: the next one is above all that are known. A state that a broker has is as good as
the lost one, and the usual election uses it. If only logs know more, all acknowledged records are in the log with the
latest epoch, among several the longest: that replica was in the ISR of that epoch's leader. Nothing shows which
replicas have this log. So the controller waits for all of them, unless unclean elections are allowed. Until then the
partition is doubted, which is stored with its state. Then the best log leads, alone in the ISR, and the other replicas
follow it before they join.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pybroker.cluster import election
from pybroker.cluster.image import NO_LEADER, PartitionState


class Known(NamedTuple):
    """A live broker's knowledge of a partition that it holds. `isr` is empty if it knows none."""

    leader_epoch: int
    partition_epoch: int
    leader: int
    isr: tuple[int, ...]
    log_epoch: int
    """The last leader epoch in its log; -1 if there is none."""
    log_end: int
    """The end of its log; -1 if it has a log that it cannot use."""


NOTHING = Known(-1, -1, NO_LEADER, (), -1, 0)
"""The knowledge of a broker that has no log of the partition."""
UNUSABLE = NOTHING._replace(log_end=-1)


def is_ahead(known: Known, state: PartitionState) -> bool:
    """True if a broker knows a later state than this one of the store. A missing state has the leader epoch -1."""
    if state.leader_epoch < 0:
        return known.leader_epoch >= 0 or known.log_end > 0
    return (known.leader_epoch, known.partition_epoch) > (state.leader_epoch, state.partition_epoch)


def restored(
    state: PartitionState, known: Mapping[int, Known], live: Collection[int], *, unclean: bool, doubted: bool = False
) -> tuple[PartitionState, bool]:
    """The next state of a partition, above all that live brokers know, and whether it is doubted, without a leader.

    `known` is by broker, and not empty. `doubted`: the stored state is doubted, and its ISR says nothing."""
    facts = {broker: known[broker] for broker in state.replicas if broker in known and broker in live}
    newest = max(known.values(), key=lambda each: (each.leader_epoch, each.partition_epoch))
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
