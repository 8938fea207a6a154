"""What brokers and clients ask of a cluster's controller, as the wire has it: each in its turn in the inbox.

AlterPartition (KIP-497, 903), ControlledShutdown, ElectLeaders (KIP-460).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from pybroker import errors
from pybroker.cluster import election as elections
from pybroker.cluster.image import PartitionState
from pybroker.controller.broker_channel import Stop
from pybroker.controller.cluster_context import ClusterContext
from pybroker.controller.controller import Controller
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

log = logging.getLogger(__name__)

EPOCHS_VERSION = 3
"""From here on AlterPartition says under which epoch each member is registered."""
IDS_VERSION = 2
UNCLEAN = 1
NOT_KNOWN = -1


def _context(controller: Controller) -> ClusterContext:
    if controller.context is None:
        raise KafkaError(errors.NOT_CONTROLLER, "this broker is the controller no more")
    return controller.context


def _check_broker(context: ClusterContext, broker: int, epoch: int) -> None:
    """Raises STALE_BROKER_EPOCH unless this is the broker's present registration."""
    if context.epochs.get(broker) != epoch:
        known = context.epochs.get(broker)
        why = f"it says epoch {epoch}, and is registered as {known}"
        if context.fenced.get(broker) != epoch:  # it asks again and again, until it has registered or heard of that
            context.fenced[broker] = epoch
            event(log, logging.WARNING, "broker fenced", broker=broker, broker_epoch=epoch, cause=why)
        raise KafkaError(errors.STALE_BROKER_EPOCH, f"broker {broker}: {why}")


def check_asker(controller: Controller, broker: int, epoch: int) -> None:
    """See that a broker asks the controller, in its present registration. Raises NOT_CONTROLLER, STALE_BROKER_EPOCH."""
    _check_broker(_context(controller), broker, epoch)


# -- AlterPartition --------------------------------------------------------------------------------------------------


async def alter_partition(controller: Controller, request: Any, version: int) -> Any:
    """Change the ISR of partitions as their leader asks. Raises KafkaError: NOT_CONTROLLER, STALE_BROKER_EPOCH."""
    return await controller.ask(lambda: _alter_partition(controller, request, version))


async def _alter_partition(controller: Controller, request: Any, version: int) -> Any:
    context = _context(controller)
    _check_broker(context, request.broker_id, request.broker_epoch)
    names = {topic.id: name for name, topic in context.topics.items()}
    kind = m.AlterPartitionResponse.Topics
    changes: dict[TopicPartition, PartitionState] = {}
    answers: list[tuple[TopicPartition, Any]] = []
    response = m.AlterPartitionResponse(topics=[])
    fenced: list[tuple[TopicPartition, Any]] = []
    for topic in request.topics:
        name = names.get(topic.topic_id) if version >= IDS_VERSION else topic.topic_name
        told = kind(topic_id=topic.topic_id, topic_name=name or topic.topic_name, partitions=[])
        response.topics.append(told)
        for p in topic.partitions:
            answer = kind.Partitions(partition_index=p.partition_index)
            told.partitions.append(answer)
            key = TopicPartition(name or "", p.partition_index)
            try:
                if name is None:
                    raise KafkaError(errors.UNKNOWN_TOPIC_ID, "no topic has this id")
                if _is_ahead(context, request.broker_id, key, p):
                    controller.restoration.suspect(key)
                after = _asked_isr(context, request.broker_id, key, p, version)
                answers.append((key, answer))
                if after is not None:
                    changes[key] = after
            except KafkaError as problem:
                answer.error_code = problem.code
                if problem.code == errors.FENCED_LEADER_EPOCH:
                    fenced.append((key, p))
    _say_fenced(context, request.broker_id, fenced)
    done = await controller.change(changes, f"broker {request.broker_id} asked for it")
    for key, answer in answers:
        state = context.state(key)
        if state is None or (key in changes and key not in done):
            answer.error_code = errors.INVALID_UPDATE_VERSION
        else:
            answer.leader_id, answer.leader_epoch = state.leader, state.leader_epoch
            answer.isr, answer.partition_epoch = list(state.isr), state.partition_epoch
    return response


def _leads(state: PartitionState) -> str:
    return f"{state.leader} leads in epoch {state.leader_epoch}"


def _say_fenced(context: ClusterContext, broker: int, fenced: Sequence[tuple[TopicPartition, Any]]) -> None:
    """Log that a broker asked as the leader that it was: in one line, for the change of leaders is on its way to it."""
    for key, asked in fenced[:1]:
        state = context.state(key)
        assert state is not None, "it was refused by its state"
        event(
            log, logging.INFO, "leader fenced", leader=broker, partitions=len(fenced), first=key,
            leader_epoch=asked.leader_epoch, cause=_leads(state),
        )  # fmt: skip


def _is_ahead(context: ClusterContext, broker: int, key: TopicPartition, asked: Any) -> bool:
    """True if the broker of a replica sent later epochs than the store has."""
    state = context.state(key)
    if state is None or broker not in state.replicas:
        return False
    return bool((asked.leader_epoch, asked.partition_epoch) > (state.leader_epoch, state.partition_epoch))


def _asked_isr(
    context: ClusterContext, broker: int, key: TopicPartition, asked: Any, version: int
) -> PartitionState | None:
    """The state with the ISR that a leader asks for; None if that is its ISR already. Raises KafkaError."""
    state = context.state(key)
    if state is None or key.topic in context.deleting:
        raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {key}")
    members = {e.broker_id: e.broker_epoch for e in asked.new_isr_with_epochs} if version >= EPOCHS_VERSION else None
    isr = tuple(asked.new_isr) if members is None else tuple(e.broker_id for e in asked.new_isr_with_epochs)
    if asked.leader_epoch > state.leader_epoch or asked.partition_epoch > state.partition_epoch:
        raise KafkaError(errors.NOT_CONTROLLER, f"the leader of {key} knows more than this controller")
    if asked.leader_epoch < state.leader_epoch or state.leader != broker:
        raise KafkaError(errors.FENCED_LEADER_EPOCH, f"{key}: {_leads(state)}")
    if isr == state.isr:
        return None
    if asked.partition_epoch < state.partition_epoch:
        raise KafkaError(errors.INVALID_UPDATE_VERSION, f"{key} is at partition epoch {state.partition_epoch}")
    is_one = len(set(isr)) == len(isr) and broker in isr and set(isr) <= set(state.replicas)
    if getattr(asked, "leader_recovery_state", 0) or not is_one:
        raise KafkaError(errors.INVALID_REQUEST, f"{isr} is no ISR of {key}, whose replicas are {state.replicas}")
    live = context.live(key) - context.leaving_of(key)
    for member in set(isr) - set(state.isr):
        epoch = NOT_KNOWN if members is None else members[member]
        if member not in live or epoch not in (NOT_KNOWN, context.epochs[member]):
            raise KafkaError(errors.INELIGIBLE_REPLICA, f"broker {member} cannot join the ISR of {key} now")
    return state._replace(isr=isr)


# -- ControlledShutdown ----------------------------------------------------------------------------------------------


async def controlled_shutdown(controller: Controller, request: Any) -> Any:
    """Move what a broker leads to others, and take it out of the ISRs. Raises KafkaError: 41, 77."""
    return await controller.ask(lambda: _controlled_shutdown(controller, request))


async def _controlled_shutdown(controller: Controller, request: Any) -> Any:
    context = _context(controller)
    broker = request.broker_id
    _check_broker(context, broker, request.broker_epoch)
    context.leaving.add(broker)
    held = [key for key, state in context.states() if broker in state.replicas and len(state.replicas) > 1]
    moved = set(held)
    changes = context.decide(lambda key, state: _without(context, broker, key, state) if key in moved else None)
    await controller.change(changes, f"broker {broker} shuts down")
    stops = {}
    left = []
    kind = m.ControlledShutdownResponse.RemainingPartitions
    for key in held:
        state = context.state(key)
        if state is None:
            continue
        if state.leader == broker:
            left.append(kind(topic_name=key.topic, partition_index=key.partition))
        else:
            stops[key] = Stop(state.leader_epoch, False)
    if stops and broker in controller.channels:
        controller.channels[broker].stop_replicas(stops)
    return m.ControlledShutdownResponse(error_code=errors.NONE, remaining_partitions=left)


def _without(context: ClusterContext, broker: int, key: TopicPartition, state: PartitionState) -> PartitionState | None:
    """The state once a broker no longer leads a partition; a replica with a full log dir leads rather than none."""
    live = context.live(key)
    after = elections.after_change(state, live, leaving=context.leaving_of(key))
    if (after or state).leader == broker:
        after = elections.after_change(state, live, leaving=context.leaving)
    return after


# -- ElectLeaders ----------------------------------------------------------------------------------------------------


async def elect_leaders(
    controller: Controller, keys: Iterable[TopicPartition] | None, election_type: int
) -> dict[TopicPartition, int]:
    """Elect preferred replicas, or with type 1 any that is alive; the code for each partition, for all with None.

    Raises KafkaError: NOT_CONTROLLER."""
    found: dict[TopicPartition, int] = await controller.ask(lambda: _elect_leaders(controller, keys, election_type))
    return found


async def _elect_leaders(
    controller: Controller, keys: Iterable[TopicPartition] | None, election_type: int
) -> dict[TopicPartition, int]:
    context = _context(controller)
    codes: dict[TopicPartition, int] = {}
    changes: dict[TopicPartition, PartitionState] = {}
    forced = context.doubted & set(keys or context.doubted) if election_type == UNCLEAN else set[TopicPartition]()
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
            after = None if state.leader in live else elections.after_change(state, live, unclean=True)
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
    done = await controller.change(changes, "it was asked for")
    for key in changes.keys() - done:
        codes[key] = errors.NOT_CONTROLLER
    return codes
