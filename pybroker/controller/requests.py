"""Requests to a cluster's controller, each executed in its turn in the inbox.

AlterPartition (KIP-497, 903), ControlledShutdown, ElectLeaders (KIP-460).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from pybroker import errors
from pybroker.controller.broker_channel import Stop
from pybroker.controller.context import ControllerContext
from pybroker.controller.controller import Controller
from pybroker.decisions import election as elections
from pybroker.decisions.image import PartitionState
from pybroker.decisions.orders import AlteredIsr, AlteredTopic, AskedIsr, AskedTopic, IsrState
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

UNCLEAN = 1
NOT_KNOWN = -1


def _context(controller: Controller) -> ControllerContext:
    if controller.context is None:
        raise KafkaError(errors.NOT_CONTROLLER, "this broker is no longer the controller")
    return controller.context


def _check_broker(context: ControllerContext, broker: int, epoch: int) -> None:
    """Raise STALE_BROKER_EPOCH unless this is the broker's current registration."""
    if context.epochs.get(broker) != epoch:
        known = context.epochs.get(broker)
        why = f"it sent broker epoch {epoch}, but is registered with {known}"
        if context.fenced.get(broker) != epoch:  # the broker repeats its request until it has registered again
            context.fenced[broker] = epoch
            event(log, logging.WARNING, "broker fenced", broker=broker, broker_epoch=epoch, cause=why)
        raise KafkaError(errors.STALE_BROKER_EPOCH, f"broker {broker}: {why}")


def check_asker(controller: Controller, broker: int, epoch: int) -> None:
    """Check that this is the controller, and the epoch the broker's current one. Raises NOT_CONTROLLER,
    STALE_BROKER_EPOCH."""
    _check_broker(_context(controller), broker, epoch)


# -- AlterPartition --------------------------------------------------------------------------------------------------


async def alter_partition(
    controller: Controller, broker: int, broker_epoch: int, asked: Sequence[AskedTopic]
) -> list[AlteredTopic]:
    """Change the ISR of partitions as their leader requests. Raises NOT_CONTROLLER, STALE_BROKER_EPOCH."""
    return await controller.ask(lambda: _alter_partition(controller, broker, broker_epoch, asked))


async def _alter_partition(
    controller: Controller, broker: int, broker_epoch: int, asked: Sequence[AskedTopic]
) -> list[AlteredTopic]:
    context = _context(controller)
    _check_broker(context, broker, broker_epoch)
    names = {topic.id: name for name, topic in context.topics.items()}
    named = [(names.get(topic.id) if topic.id is not None else topic.name, topic) for topic in asked]
    changes: dict[TopicPartition, PartitionState] = {}
    refused: list[list[int]] = []
    fenced: list[tuple[TopicPartition, AskedIsr]] = []
    for name, topic in named:
        codes: list[int] = []
        refused.append(codes)
        for p in topic.partitions:
            key = TopicPartition(name or "", p.partition)
            try:
                if name is None:
                    raise KafkaError(errors.UNKNOWN_TOPIC_ID, "no topic has this id")
                if _is_ahead(context, broker, key, p):
                    controller.restoration.suspect(key)
                after = _asked_isr(context, broker, key, p)
                if after is not None:
                    changes[key] = after
                codes.append(errors.NONE)
            except KafkaError as problem:
                codes.append(problem.code)
                if problem.code == errors.FENCED_LEADER_EPOCH:
                    fenced.append((key, p))
    _say_fenced(context, broker, fenced)
    done = await controller.change(changes, f"requested by broker {broker}")

    def outcome(name: str | None, index: int, code: int) -> AlteredIsr:
        key = TopicPartition(name or "", index)
        state = None if code else context.state(key)
        if not code and (state is None or (key in changes and key not in done)):
            code, state = errors.INVALID_UPDATE_VERSION, None
        if state is None:
            return AlteredIsr(index, code, None)
        return AlteredIsr(index, code, IsrState(state.leader, state.leader_epoch, state.isr, state.partition_epoch))

    return [
        AlteredTopic(
            name or topic.name,
            [outcome(name, p.partition, code) for p, code in zip(topic.partitions, codes, strict=True)],
        )
        for (name, topic), codes in zip(named, refused, strict=True)
    ]


def _leads(state: PartitionState) -> str:
    return f"{state.leader} leads in epoch {state.leader_epoch}"


def _say_fenced(
    context: ControllerContext, broker: int, fenced: Sequence[tuple[TopicPartition, AskedIsr]]
) -> None:
    """Log in one line that a broker's requests came from a former leader, which has not yet seen the new one."""
    for key, asked in fenced[:1]:
        state = context.state(key)
        assert state is not None, "FENCED_LEADER_EPOCH without a state"
        event(
            log, logging.INFO, "leader fenced", leader=broker, partitions=len(fenced), first=key,
            leader_epoch=asked.leader_epoch, cause=_leads(state),
        )  # fmt: skip


def _is_ahead(context: ControllerContext, broker: int, key: TopicPartition, asked: AskedIsr) -> bool:
    """True if the broker of a replica, which leads, sent later epochs than those in the store, or leads in the leader
    epoch that the store has for another leader."""
    state = context.state(key)
    if state is None or broker not in state.replicas:
        return False
    if asked.leader_epoch == state.leader_epoch and broker != state.leader:
        return True
    return (asked.leader_epoch, asked.partition_epoch) > (state.leader_epoch, state.partition_epoch)


def _asked_isr(
    context: ControllerContext, broker: int, key: TopicPartition, asked: AskedIsr
) -> PartitionState | None:
    """The state with the ISR that a leader requests; None if it already has that ISR. Raises KafkaError."""
    state = context.state(key)
    if state is None or key.topic in context.deleting:
        raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"partition {key} does not exist")
    isr, members = asked.isr, asked.epochs
    if asked.leader_epoch > state.leader_epoch or asked.partition_epoch > state.partition_epoch:
        raise KafkaError(errors.NOT_CONTROLLER, f"the leader of {key} has later epochs than this controller")
    if asked.leader_epoch < state.leader_epoch or state.leader != broker:
        raise KafkaError(errors.FENCED_LEADER_EPOCH, f"{key}: {_leads(state)}")
    if isr == state.isr:
        return None
    if asked.partition_epoch < state.partition_epoch:
        raise KafkaError(errors.INVALID_UPDATE_VERSION, f"{key} is at partition epoch {state.partition_epoch}")
    is_one = len(set(isr)) == len(isr) and broker in isr and set(isr) <= set(state.replicas)
    if asked.recovering or not is_one:
        raise KafkaError(errors.INVALID_REQUEST, f"{isr} is not an ISR of {key}, whose replicas are {state.replicas}")
    live = context.live(key) - context.leaving_of(key)
    for member in set(isr) - set(state.isr):
        epoch = NOT_KNOWN if members is None else members[member]
        if member not in live or epoch not in (NOT_KNOWN, context.epochs[member]):
            raise KafkaError(errors.INELIGIBLE_REPLICA, f"broker {member} cannot join the ISR of {key} now")
    return state._replace(isr=isr)


# -- ControlledShutdown ----------------------------------------------------------------------------------------------


async def controlled_shutdown(controller: Controller, broker: int, broker_epoch: int) -> list[TopicPartition]:
    """Move leadership away from a broker, and take it out of the ISRs. Return the partitions that it still leads.
    Raises NOT_CONTROLLER, STALE_BROKER_EPOCH."""
    return await controller.ask(lambda: _controlled_shutdown(controller, broker, broker_epoch))


async def _controlled_shutdown(controller: Controller, broker: int, broker_epoch: int) -> list[TopicPartition]:
    context = _context(controller)
    _check_broker(context, broker, broker_epoch)
    context.leaving.add(broker)
    held = [key for key, state in context.states() if broker in state.replicas and len(state.replicas) > 1]
    moved = set(held)
    changes = context.decide(lambda key, state: _without(context, broker, key, state) if key in moved else None)
    # Leaders first: clients wait for these, and for all others only the ISR changes.
    led = {key for key in changes if (was := context.state(key)) is not None and was.leader == broker}
    for is_first in (True, False):
        share = {key: after for key, after in changes.items() if (key in led) == is_first}
        await controller.change(share, f"broker {broker} shuts down")
    stops = {}
    left = []
    for key in held:
        state = context.state(key)
        if state is None:
            continue
        if state.leader == broker:
            left.append(key)
        else:
            stops[key] = Stop(state.leader_epoch, False)
    if stops and broker in controller.channels:
        controller.channels[broker].stop_replicas(stops)
    return left


def _without(
    context: ControllerContext, broker: int, key: TopicPartition, state: PartitionState
) -> PartitionState | None:
    """The state without a broker as leader; a replica with a full log dir becomes leader rather than none."""
    live = context.live(key)
    after = elections.after_change(state, live, leaving=context.leaving_of(key))
    if (after or state).leader == broker:
        after = elections.after_change(state, live, leaving=context.leaving)
    return after


# -- ElectLeaders ----------------------------------------------------------------------------------------------------


async def elect_leaders(
    controller: Controller, keys: Iterable[TopicPartition] | None, election_type: int
) -> dict[TopicPartition, int]:
    """Elect preferred replicas, or with type UNCLEAN any live replica, of these partitions, or with None of all. Return
    the error code of each. Raises NOT_CONTROLLER."""
    found: dict[TopicPartition, int] = await controller.ask(lambda: _elect_leaders(controller, keys, election_type))
    return found


async def _elect_leaders(
    controller: Controller, keys: Iterable[TopicPartition] | None, election_type: int
) -> dict[TopicPartition, int]:
    context = _context(controller)
    codes: dict[TopicPartition, int] = {}
    changes: dict[TopicPartition, PartitionState] = {}
    waiting = context.doubted | context.power_lost.keys()
    forced = waiting & set(keys or waiting) if election_type == UNCLEAN else set[TopicPartition]()
    done = await controller.restoration.force(forced)
    codes |= {key: errors.NONE if key in done else errors.ELIGIBLE_LEADERS_NOT_AVAILABLE for key in forced}
    for key in [key for key, _ in context.states()] if keys is None else keys:
        state = context.state(key)
        if key in forced:
            continue
        if state is None or key.topic in context.deleting:
            codes[key] = errors.UNKNOWN_TOPIC_OR_PARTITION
            continue
        live = context.live(key) - (context.leaving if election_type == UNCLEAN else context.leaving_of(key))
        if election_type == UNCLEAN:
            after = None if state.leader in live else elections.after_change(state, live, unclean=True, partial=True)
            refused = errors.ELECTION_NOT_NEEDED if state.leader in live else errors.ELIGIBLE_LEADERS_NOT_AVAILABLE
        else:
            after = elections.preferred(state, live)
            led = state.leader == state.replicas[0]
            refused = errors.ELECTION_NOT_NEEDED if led else errors.PREFERRED_LEADER_NOT_AVAILABLE
        if after is None or after.leader < 0:
            codes[key] = refused
        else:
            changes[key] = after
            codes[key] = errors.NONE
    done = await controller.change(changes, "requested by a client")
    for key in changes.keys() - done:
        codes[key] = errors.NOT_CONTROLLER
    return codes
