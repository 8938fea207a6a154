"""From the store to the image, and from the logs of an earlier Kafka into the store."""

import contextlib
import logging
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple, Protocol

from pybroker.cluster.image import INTERNAL_TOPICS, PartitionState, Topic
from pybroker.cluster.topics import PARTITIONS_MAX
from pybroker.controller import nodes
from pybroker.controller.election import Fence, write
from pybroker.controller.topics import Holders, creation, topic_op, without
from pybroker.coordination.store import Create, NodeExists, NoNode, Op, Session, Set
from pybroker.logs import event
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

OPS_PER_WRITE = 500


async def prepare(session: Session) -> None:
    """Create the paths that everything else lies under. Raises StoreError."""
    made = [session.create(path) for path in nodes.PERSISTENT]
    for future in made:
        with contextlib.suppress(NodeExists):
            await future


class Loaded(NamedTuple):
    """What the store knows of topics: those that are there, those that are to be deleted, and what is to be undone."""

    topics: list[Topic]
    deleted: list[Topic]
    unfinished: list[tuple[Topic, int]]
    """What was being created or grown, and from which partition on. Those that grew are among `topics` as they were."""


async def load(session: Session) -> Loaded:
    """Read every topic. Raises StoreError."""
    names, _ = await session.children(nodes.TOPICS)
    wishes = set((await session.children(nodes.DELETIONS))[0])
    topic_reads = [session.get(nodes.topic(name)) for name in names]
    config_reads = [session.get(nodes.topic_config(name)) for name in names]
    loaded = Loaded([], [], [])
    states = []
    for name, read in zip(names, topic_reads, strict=True):
        node = nodes.load_topic((await read)[0])
        states.append((name, node, [session.get(nodes.state(name, index)) for index in range(len(node.replicas))]))
    for (name, node, reads), config_read in zip(states, config_reads, strict=True):
        partitions = []
        for replicas, read in zip(node.replicas, reads, strict=True):
            data, stat = await read
            partitions.append(nodes.load_state(data, replicas, stat.version))
        config = nodes.load_config((await config_read)[0])
        topic = Topic(name, node.id, partitions, config, node.directories)
        if name in wishes:
            loaded.deleted.append(topic)
            continue
        if node.made_from is not None:
            loaded.unfinished.append((topic, node.made_from))
            topic = without(topic, node.made_from)
        if topic.partitions:
            loaded.topics.append(topic)
    return loaded


async def lead_again(session: Session, fence: Fence, topics: Iterable[Topic], broker_id: int) -> None:
    """Bump the leader epoch of every partition that this broker leads alone: what its earlier life left is fenced.

    A few hundred partitions go into one write. Raises KafkaError."""
    pending: list[tuple[str, PartitionState]] = []
    for topic in topics:
        for index, state in enumerate(topic.partitions):
            if broker_id in state.replicas:
                state.leader, state.isr = broker_id, state.isr or (broker_id,)
                state.leader_epoch += 1
                state.controller_epoch = fence.epoch
                pending.append((nodes.state(topic.name, index), state))
    for first in range(0, len(pending), OPS_PER_WRITE):
        some = pending[first : first + OPS_PER_WRITE]
        ops: list[Op] = [Set(path, nodes.dump_state(state), state.partition_epoch) for path, state in some]
        await write(session, fence, ops)
        for _, state in some:
            state.partition_epoch += 1


async def known_log_dirs(session: Session, broker_id: int) -> dict[str, str]:
    """The log dirs that a broker ever had and that were not given up: {directory.id: last path}. Raises StoreError."""
    try:
        return nodes.load_log_dirs((await session.get(nodes.log_dirs(broker_id)))[0])
    except NoNode:
        return {}


async def record_log_dirs(session: Session, fence: Fence, broker_id: int, paths: Mapping[str, str]) -> None:
    """Replace what is known of a broker's log dirs. Raises KafkaError."""
    path, data = nodes.log_dirs(broker_id), nodes.dump_log_dirs(paths)
    there = await session.exists(path)
    await write(session, fence, [Create(path, data) if there is None else Set(path, data)])


async def record_directories(session: Session, fence: Fence, topics: Iterable[Topic], holders: Holders) -> None:
    """Write down where the partitions lie, of the topics of which that changed. Raises KafkaError."""
    ops: list[Op] = []
    for topic in topics:
        directories = holders.directories(topic)
        if directories != topic.directories:
            topic.directories = directories
            ops.append(topic_op(topic))
    for first in range(0, len(ops), OPS_PER_WRITE):
        await write(session, fence, ops[first : first + OPS_PER_WRITE])


class Remains(Protocol):
    """What is on record of a partition: topic id, if any, last leader epoch, -1 for none, whether it was compacted."""

    @property
    def topic_id(self) -> bytes | None: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def compacted(self) -> bool: ...


async def adopt(
    session: Session, fence: Fence, found: Mapping[TopicPartition, Remains], known: Container[str], broker_id: int
) -> None:
    """Take the topics that lie in the log dirs of an earlier broker into the new store. Raises KafkaError.

    A topic without an id gets one; partitions that are missing between others will be made, empty. Its settings are not
    in the logs, but whether it is compacted is: in such a log gaps are no damage."""
    by_name: dict[str, dict[int, Remains]] = {}
    for (name, index), remains in found.items():
        if name not in known:
            by_name.setdefault(name, {})[index] = remains
    for name, partitions in sorted(by_name.items()):
        ids = {remains.topic_id for remains in partitions.values() if remains.topic_id is not None}
        if len(ids) > 1:
            event(log, logging.ERROR, "topic not adopted", topic=name, reason="its partitions have different topic ids")
            continue
        if max(partitions) >= PARTITIONS_MAX:
            reason = f"a topic has at most {PARTITIONS_MAX} partitions, and a directory is of number {max(partitions)}"
            event(log, logging.ERROR, "topic not adopted", topic=name, reason=reason)
            continue
        topic_id = ids.pop() if ids else nodes.draw_id()
        epochs = [max(0, partitions[i].leader_epoch) if i in partitions else 0 for i in range(max(partitions) + 1)]
        states = [PartitionState((broker_id,), broker_id, epoch, (broker_id,), fence.epoch, 0) for epoch in epochs]
        compacted = name in INTERNAL_TOPICS or any(remains.compacted for remains in partitions.values())
        topic = Topic(name, topic_id, states, {"cleanup.policy": "compact"} if compacted else {})
        await write(session, fence, creation(topic))
        event(log, logging.INFO, "topic adopted", topic=name, partitions=len(states))
