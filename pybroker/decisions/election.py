"""Kafka's leader elections, as functions of a partition's state and the live brokers.

Each returns the state to write, with the leader epoch raised by one, or None if nothing changes. The writer sets the
controller epoch and the partition epoch.

    offline              the leader is gone: the first live replica in the ISR; unclean: the first live replica
    controlled shutdown  the first live replica in the ISR that stays; the same if the leader's log dir is full
    preferred            the first replica, if it is alive and in the ISR
"""

from collections.abc import Collection, Container

from pybroker import errors
from pybroker.decisions.image import NO_LEADER, PartitionState

TAKES_NO_APPENDS = errors.INELIGIBLE_REPLICA
"""A broker's LeaderAndIsr error for a replica whose log dir is full. Kafka's controller ignores it: the broker remains
leader."""


def after_change(
    state: PartitionState, live: Container[int], *, unclean: bool = False, leaving: Container[int] = (),
    partial: bool = False,
) -> PartitionState | None:  # fmt: skip
    """The state when only the brokers in `live` are alive, and those in `leaving` (stopping, or full) should not lead.

    Dead and leaving brokers are dropped from the ISR. If all live members are leaving, one of them leads. If none is
    alive, the ISR stays, as each member has all acknowledged records; with `unclean` a live replica outside the ISR
    is elected instead: one that is being added only with `partial`, as its log is a copy of the beginning."""
    stays = [broker for broker in state.isr if broker in live and broker not in leaving]
    if state.leader in stays:
        return None if len(stays) == len(state.isr) else above(state, state.leader, stays)
    leader = next((broker for broker in state.replicas if broker in stays), NO_LEADER)
    if leader != NO_LEADER:
        return above(state, leader, stays)
    if any(broker in live for broker in state.isr):  # only leaving brokers can lead
        leader = state.leader if state.leader in live and state.leader in state.isr else NO_LEADER
        leader = leader if leader != NO_LEADER else next(b for b in state.replicas if b in live and b in state.isr)
        return None if leader == state.leader else above(state, leader, [b for b in state.isr if b in live])
    if unclean:
        able = [broker for broker in state.replicas if broker in live]
        whole = [broker for broker in able if broker not in state.adding]
        leader = next(iter(whole or (able if partial else ())), NO_LEADER)
        if leader != NO_LEADER:
            return above(state, leader, [leader])
    return None if state.leader == NO_LEADER else above(state, NO_LEADER, state.isr)


def preferred(state: PartitionState, live: Container[int]) -> PartitionState | None:
    """The state with the first replica as leader; None if it already leads, is dead or is not in the ISR."""
    first = state.replicas[0]
    if first == state.leader or first not in live or first not in state.isr:
        return None
    return above(state, first, state.isr)


def first(replicas: Collection[int], live: Container[int], controller_epoch: int) -> PartitionState:
    """The state of a new partition: the first live replica leads, and all live replicas are the ISR."""
    isr = tuple(broker for broker in replicas if broker in live)
    leader = isr[0] if isr else NO_LEADER
    return PartitionState(tuple(replicas), leader, 0, isr or tuple(replicas), controller_epoch, 0)


def imbalance(states: Collection[PartitionState], broker: int) -> float:
    """The share, 0 to 1, of the partitions with this broker as first replica that it does not lead."""
    its = [state for state in states if state.replicas[0] == broker]
    return sum(state.leader != broker for state in its) / len(its) if its else 0.0


def above(state: PartitionState, leader: int, isr: Collection[int]) -> PartitionState:
    """The state with this leader and ISR, in the next leader epoch."""
    return state._replace(leader=leader, isr=tuple(isr), leader_epoch=state.leader_epoch + 1)
