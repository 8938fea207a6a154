"""Writes the replicas of partitions into their topics' nodes, in one multi with the states that go with them, and logs
that they move."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pybroker.coordination.commit import read
from pybroker.coordination.store import BadVersion, NoNode, Op, Set, StoreDamaged
from pybroker.decisions.image import PartitionState
from pybroker.decisions.reassignment import is_under_way
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.metadata.controllership import write
from pybroker.model import TopicPartition

if TYPE_CHECKING:
    from pybroker.controller.context import ControllerContext

log = logging.getLogger(__name__)

STATES_PER_WRITE = 200
"""Partitions in one multi. Each multi has the topic's node, which grows with its partitions."""
States = dict[TopicPartition, PartitionState]


def note_move(key: TopicPartition, was: PartitionState, state: PartitionState) -> None:
    """Log that other brokers are, or become, the replicas of a partition."""
    before, now = is_under_way(was), is_under_way(state)
    what = "reassignment changed" if before and now else "reassignment started" if now else "reassignment completed"
    event(
        log, logging.INFO, what, partition=key, replicas=_names(state.replicas), adding=_names(state.adding),
        removing=_names(state.removing), isr=_names(state.isr), leader=state.leader, leader_epoch=state.leader_epoch,
    )  # fmt: skip


def _names(brokers: tuple[int, ...]) -> str | None:
    return ",".join(map(str, brokers)) or None


async def write_assignments(context: ControllerContext, changes: Mapping[TopicPartition, PartitionState]) -> States:
    """Write states with other replicas than the known ones, and return those that were written. A partition whose nodes
    another program has changed is read again, and the caller decides again. Raises KafkaError: NOT_CONTROLLER."""
    by_topic: dict[str, States] = {}
    for key, state in changes.items():
        by_topic.setdefault(key.topic, {})[key] = state
    done = await asyncio.gather(*(_write_topic(context, name, states) for name, states in by_topic.items()))
    return {key: state for written in done for key, state in written.items()}


async def _write_topic(context: ControllerContext, name: str, states: States) -> States:
    """Write one topic's partitions, one multi after another: each sets the topic's node."""
    done, keys = States(), list(states)
    for start in range(0, len(keys), STATES_PER_WRITE):
        share = {key: states[key] for key in keys[start : start + STATES_PER_WRITE]}
        with context.about(name):
            done |= await _write_share(context, name, share)
    return done


async def _write_share(context: ControllerContext, name: str, share: States) -> States:
    topic = context.topics[name]
    data, stat = await read(context.session, nodes.topic(name))
    if nodes.load_topic(data).id != topic.id:
        raise StoreDamaged(detail="its node has the id of another topic")  # until its watch has it read
    changed = nodes.with_replicas(data, {key.partition: state for key, state in share.items()})
    ops: list[Op] = [Set(nodes.topic(name), changed, stat.version)]
    done = States()
    for key, state in share.items():
        known = topic.partitions[key.partition]
        if state.leader_epoch == known.leader_epoch:  # only the topic's node changes
            done[key] = state
            continue
        after = state._replace(controller_epoch=context.fence.epoch)
        ops.append(Set(nodes.state(*key), context.dump(key, after), after.partition_epoch))
        done[key] = after._replace(partition_epoch=after.partition_epoch + 1)
    try:
        await write(context.session, context.fence, ops)
    except (BadVersion, NoNode) as problem:
        event(log, logging.WARNING, "partition state modified by another writer", topic=name, reason=problem)
        for key in share:
            context.put(await context.read_again(key, topic.partitions[key.partition]))
        return {}
    return done
