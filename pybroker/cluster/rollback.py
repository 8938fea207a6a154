"""The next state of a partition where the store went back in time, by what its replicas know beyond it.

A store that was restored from an older copy, or a state that was set back or deleted by hand, has leader epochs behind
those that brokers know, and its ISR is a claim about the past: it may be too large or too small. Newer facts are

    told   the state that a controller wrote last, as a running broker has it: its leader epoch, and its ISR
    log    of a broker that restarted since: the last leader epoch that its log has, and where the log ends

A leader epoch is never used twice: the next one is above all that is known. The state that a broker has is as good as
the store that was lost, and the usual election goes by it. Where logs alone know more, all that was acknowledged is in
the log with the latest epoch, and among those of one epoch in the longest: it is in the ISR of that epoch's leader.
Nothing shows which replicas these were. So all of them are waited for, unless unclean elections are allowed: until then
the partition is doubted, which is on record with its state. The best log leads, alone in the ISR, and the others follow
it before they join.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pybroker.cluster import election
from pybroker.cluster.image import NO_LEADER, PartitionState


class Known(NamedTuple):
    """A live broker's knowledge of a partition that it holds. `isr` is empty where it knows none."""

    leader_epoch: int
    partition_epoch: int
    leader: int
    isr: tuple[int, ...]
    log_epoch: int
    """The last leader epoch that its log has; -1: none."""
    log_end: int
    """-1 where it has a log that it cannot use."""


NOTHING = Known(-1, -1, NO_LEADER, (), -1, 0)
"""Of a broker that has no log of the partition."""
UNUSABLE = NOTHING._replace(log_end=-1)


def is_ahead(known: Known, state: PartitionState) -> bool:
    """True if a broker knows what came after this state of the store. A state that is missing has the epoch -1."""
    if state.leader_epoch < 0:
        return known.leader_epoch >= 0 or known.log_end > 0
    return (known.leader_epoch, known.partition_epoch) > (state.leader_epoch, state.partition_epoch)


def restored(
    state: PartitionState, known: Mapping[int, Known], live: Collection[int], *, unclean: bool, doubted: bool = False
) -> tuple[PartitionState, bool]:
    """The next state of a partition, above all that live brokers know, and True if it is doubted, and has no leader.

    `known` is by broker, and not empty; `doubted`: the state is on record as such, and its ISR is no fact."""
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
