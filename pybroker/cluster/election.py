"""Who leads a partition: Kafka's elections as functions of its state and of who is alive.

Each gives the state as it is to be written, with the leader epoch raised by one, or None where nothing changes. The
controller epoch and the partition epoch are the writer's.

    offline              the leader is gone: the first replica that is alive and in sync; unclean: the first alive
    controlled shutdown  the first that is alive, in sync and stays; likewise where the leader's log dir is full
    preferred            the first replica of all, if it is alive and in sync
"""

from collections.abc import Collection, Container

from pybroker import errors
from pybroker.cluster.image import NO_LEADER, PartitionState

TAKES_NO_APPENDS = errors.INELIGIBLE_REPLICA
"""The code that a broker answers to LeaderAndIsr for a replica whose log dir is full. Kafka's controller ignores it:
the broker leads on."""


def after_change(
    state: PartitionState, live: Container[int], *, unclean: bool = False, leaving: Container[int] = ()
) -> PartitionState | None:
    """The state once only the brokers in `live` are alive, and those in `leaving` (they stop, or are full) should not
    lead.

    Brokers that are not alive, or that leave, are dropped from the ISR. If no other member of the ISR is alive, the
    leaving ones lead on. If none is alive at all, the ISR stays, for each member has all acknowledged records; with
    `unclean` a live replica that is not in sync is elected instead."""
    stays = [broker for broker in state.isr if broker in live and broker not in leaving]
    if state.leader in stays:
        return None if len(stays) == len(state.isr) else above(state, state.leader, stays)
    leader = next((broker for broker in state.replicas if broker in stays), NO_LEADER)
    if leader != NO_LEADER:
        return above(state, leader, stays)
    if any(broker in live for broker in state.isr):  # those that leave lead on: nobody else can
        leader = state.leader if state.leader in live and state.leader in state.isr else NO_LEADER
        leader = leader if leader != NO_LEADER else next(b for b in state.replicas if b in live and b in state.isr)
        return None if leader == state.leader else above(state, leader, [b for b in state.isr if b in live])
    if unclean:
        leader = next((broker for broker in state.replicas if broker in live), NO_LEADER)
        if leader != NO_LEADER:
            return above(state, leader, [leader])
    return None if state.leader == NO_LEADER else above(state, NO_LEADER, state.isr)


def preferred(state: PartitionState, live: Container[int]) -> PartitionState | None:
    """The first replica leads, if it may and does not."""
    first = state.replicas[0]
    if first == state.leader or first not in live or first not in state.isr:
        return None
    return above(state, first, state.isr)


def first(replicas: Collection[int], live: Container[int], controller_epoch: int) -> PartitionState:
    """The state of a new partition: the first replica that is alive leads, and all that are alive are in sync."""
    isr = tuple(broker for broker in replicas if broker in live)
    leader = isr[0] if isr else NO_LEADER
    return PartitionState(tuple(replicas), leader, 0, isr or tuple(replicas), controller_epoch, 0)


def imbalance(states: Collection[PartitionState], broker: int) -> float:
    """The share of the partitions that a broker is the first replica of, and does not lead; 0 to 1."""
    its = [state for state in states if state.replicas[0] == broker]
    return sum(state.leader != broker for state in its) / len(its) if its else 0.0


def above(state: PartitionState, leader: int, isr: Collection[int]) -> PartitionState:
    """The state with this leader and ISR, in the next leader epoch."""
    return state._replace(leader=leader, isr=tuple(isr), leader_epoch=state.leader_epoch + 1)
