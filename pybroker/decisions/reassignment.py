"""Decides the steps in which the replicas of one partition move to other brokers (KIP-455), as functions of its state.

    begin     replicas = target + present ones: those added copy the log, in a new leader epoch
    advance   the target is in the ISR: replicas = target, which leads; the others are out of the ISR
    forget    the log of a replica that was given up is deleted

Each step is one write, and its state is in the store, so that the next controller continues with the next step. A
cancel is a `begin` with the original replicas. The state has, as in Kafka's topic node, the replicas with the target
first, and those that are being added or removed; and, which Kafka has not, those that are given up:

    adding    in the target, not an original replica: outside the ISR its log is a partial copy
    removing  not in the target: it is a full replica until the target is in sync
    given_up  its log is to be deleted: no longer a replica, or added by a target that was replaced, and still in sync

A replica leaves the ISR only in a state in which others hold all acknowledged records, and its log is deleted only
after that state was written. If too few others are in sync, a replica that was added stays, even after a cancel.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence

from pybroker import errors
from pybroker.decisions import election
from pybroker.decisions.image import NO_LEADER, PartitionState
from pybroker.errors import KafkaError

REPLICAS_MAX = 1000
"""The most replicas in a request: more are an error, and far above any use."""


def is_under_way(state: PartitionState) -> bool:
    """True if replicas of the partition are being added or removed."""
    return bool(state.adding or state.removing)


def target(state: PartitionState) -> tuple[int, ...]:
    """The replicas at the end of the reassignment; without one, the present replicas."""
    return _without(state.replicas, state.removing)


def original(state: PartitionState) -> tuple[int, ...]:
    """The replicas before the reassignment, to which a cancel returns."""
    return _without(state.replicas, {*state.adding, *state.given_up})


def check(state: PartitionState, wanted: Sequence[int], live: Container[int], *, same_factor: bool) -> None:
    """Check the target of a request as Kafka does: replicas that it adds must be alive. `same_factor`: the replication
    factor may not change. Raises INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR."""
    if not wanted:
        raise _bad("the list of replicas is empty")
    if len(wanted) > REPLICAS_MAX:
        raise _bad(f"the list of replicas has {len(wanted)} brokers, the limit is {REPLICAS_MAX}")
    if len(set(wanted)) < len(wanted):
        raise _bad(f"the list of replicas names a broker twice: {list(wanted)}")
    if min(wanted) < 0:
        raise _bad(f"the list of replicas names a broker with a negative id: {list(wanted)}")
    kept = original(state)
    dead = [broker for broker in wanted if broker not in kept and broker not in live]
    if dead:
        raise _bad(f"broker {dead[0]} is not alive")
    if same_factor and len(wanted) != len(kept):
        why = f"the replication factor would change from {len(kept)} to {len(wanted)}"
        raise KafkaError(errors.INVALID_REPLICATION_FACTOR, why)


def begin(state: PartitionState, wanted: Sequence[int]) -> PartitionState | None:
    """The state in which the replicas move to `wanted`, in the next leader epoch; None if they do already.

    Replicas that an earlier target added and this one does not need are given up. They go on as replicas while they are
    in sync, until `advance` finds that others suffice."""
    kept = original(state)
    needed = (*wanted, *_without(kept, wanted))
    unneeded = _without(state.replicas, needed)
    staying = tuple(broker for broker in unneeded if broker in state.isr)
    after = state._replace(
        replicas=(*needed, *staying),
        adding=_without(wanted, kept),
        removing=(*_without(kept, wanted), *staying),
        given_up=_without(dict.fromkeys((*state.given_up, *unneeded)), wanted),
    )
    return None if after == state else election.above(after, state.leader, state.isr)


def advance(
    state: PartitionState, live: Container[int], *, leaving: Container[int] = (), min_isr: int = 1
) -> PartitionState | None:
    """The state after the next step, in the next leader epoch; None while the target is not in sync.

    `live` are the brokers that can use their replica, `leaving` those that should not lead. A replica that was added
    and is no longer needed stays until `min_isr` others are in sync, or the target is."""
    if not is_under_way(state) or state.leader == NO_LEADER:
        return None
    goal = target(state)
    if all(broker in state.isr and broker in live for broker in goal):
        return _with_replicas(state, goal, live, leaving)
    others = _without(state.replicas, {*state.removing} & {*state.given_up})
    suffice = sum(broker in state.isr and broker in live for broker in others) >= max(1, min(min_isr, len(goal)))
    return _with_replicas(state, others, live, leaving) if suffice and others != state.replicas else None


def forget(state: PartitionState, deleted: Collection[int]) -> PartitionState | None:
    """The state without these replicas that were given up and whose logs are deleted; None if it has none of them. The
    leader epoch stays: no replica has to know."""
    left = tuple(broker for broker in state.given_up if broker in state.replicas or broker not in deleted)
    return None if left == state.given_up else state._replace(given_up=left)


def to_delete(state: PartitionState) -> tuple[int, ...]:
    """The brokers whose logs of the partition are to be deleted now."""
    return _without(state.given_up, state.replicas)


def partial(state: PartitionState) -> tuple[int, ...]:
    """The replicas whose logs are partial copies: they are being added, and are not in sync yet."""
    return _without(state.adding, state.isr) if state.adding else ()


def _with_replicas(
    state: PartitionState, replicas: tuple[int, ...], live: Container[int], leaving: Container[int]
) -> PartitionState:
    """The state with only these of its replicas; one of them that is in sync leads, and the others are given up."""
    gone = _without(state.replicas, replicas)
    isr = _without(state.isr, gone)
    able = [broker for broker in replicas if broker in isr and broker in live]
    leader = state.leader
    if leader not in able:
        leader = next((broker for broker in able if broker not in leaving), able[0])
    done = not set(state.removing) - set(gone)
    after = state._replace(
        replicas=replicas,
        adding=() if done and set(state.adding) <= set(isr) else state.adding,
        removing=_without(state.removing, gone),
        given_up=tuple(dict.fromkeys((*state.given_up, *gone))),
    )
    return election.above(after, leader, isr)


def _without(brokers: Iterable[int], others: Container[int]) -> tuple[int, ...]:
    return tuple(broker for broker in brokers if broker not in others)


def _bad(why: str) -> KafkaError:
    return KafkaError(errors.INVALID_REPLICA_ASSIGNMENT, why)
