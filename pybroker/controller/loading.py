"""From the store to the controller's context: what the topics are, and that their partitions are led again."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from pybroker.cluster.topics import Topic
from pybroker.controller import nodes
from pybroker.controller.election import Fence, write
from pybroker.controller.stored_topic import StateNode, judge, judge_node
from pybroker.controller.topics import Holders, topic_op, without
from pybroker.coordination.commit import until_answered
from pybroker.coordination.store import Create, NodeExists, NoNode, Op, Session, Set, Stat, StoreFailed
from pybroker.model import TopicPartition

OPS_PER_WRITE = 500


async def prepare(session: Session, paths: Sequence[str] = nodes.PERSISTENT) -> None:
    """Create the paths that everything else lies under, parents first. Raises StoreError."""

    async def create() -> None:
        made = await asyncio.gather(*(session.create(path) for path in paths), return_exceptions=True)
        for path, problem in zip(paths, made, strict=True):
            if not isinstance(problem, BaseException) or isinstance(problem, NodeExists):
                continue
            # ZooKeeper checks the right to create before it checks whether the node exists.
            if not isinstance(problem, StoreFailed) or await session.exists(path) is None:
                raise problem

    await until_answered(create)


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
    datas = [data for data, _ in await _read(session, map(nodes.topic, names))]
    found = [judge_node(name, data) for name, data in zip(names, datas, strict=True)]
    configs = [nodes.load_config(data) for data, _ in await _read(session, map(nodes.topic_config, names))]
    paths = [nodes.state(n, index) for n, node in zip(names, found, strict=True) for index in range(len(node.replicas))]
    states = iter(await _read(session, paths))
    loaded = Loaded([], [], [])
    for name, node, config in zip(names, found, configs, strict=True):
        read = itertools.islice(states, len(node.replicas))
        held = [StateNode(data, stat.version) for data, stat in read]
        topic = replace(judge(name, node, held, alone=True), config=config)
        if name in wishes:
            loaded.deleted.append(topic)
            continue
        if node.made_from is not None:
            loaded.unfinished.append((topic, node.made_from))
            topic = without(topic, node.made_from)
        if topic.partitions:
            loaded.topics.append(topic)
    return loaded


async def _read(session: Session, paths: Iterable[str]) -> list[tuple[bytes, Stat]]:
    """Nodes, asked for together. Raises the first StoreError; whatever else fails is not told by anybody."""
    return await asyncio.gather(*map(session.get, paths))


class Led(Protocol):
    """What is on record beside a log: the last leader epoch, -1 for none."""

    @property
    def leader_epoch(self) -> int: ...


async def lead_again(
    session: Session, fence: Fence, topics: Iterable[Topic], found: Mapping[TopicPartition, Led], broker_id: int
) -> list[Topic]:
    """Bump the leader epoch of every partition that this broker leads alone: what its earlier life left is fenced.

    Above what is beside the log, too: a store that lost its latest writes would have their batches taken for bad.
    A few hundred partitions go into one write. Returns the topics as they are then. Raises KafkaError."""
    led, ops = [], list[Op]()
    for topic in topics:
        partitions = list(topic.partitions)
        for index, state in enumerate(partitions):
            if broker_id in state.replicas:
                beside = found.get(TopicPartition(topic.name, index))
                epoch = max(state.leader_epoch, -1 if beside is None else beside.leader_epoch) + 1
                isr = state.isr or (broker_id,)
                state = state._replace(leader=broker_id, leader_epoch=epoch, isr=isr, controller_epoch=fence.epoch)
                ops.append(Set(nodes.state(topic.name, index), nodes.dump_state(state), state.partition_epoch))
                partitions[index] = state._replace(partition_epoch=state.partition_epoch + 1)
        led.append(replace(topic, partitions=tuple(partitions)))
    for first in range(0, len(ops), OPS_PER_WRITE):
        await write(session, fence, ops[first : first + OPS_PER_WRITE])
    return led


async def held(session: Session) -> Mapping[str, int]:
    """How many partitions lie in each log dir: {directory.id: partitions}. Raises StoreError."""
    names, _ = await session.children(nodes.TOPICS)
    counted: Counter[str] = Counter()
    for data, _ in await _read(session, map(nodes.topic, names)):
        counted.update(nodes.load_topic(data).directories.values())
    return counted


async def known_log_dirs(session: Session, broker_id: int) -> dict[str, str]:
    """The log dirs that a broker ever had and that were not given up: {directory.id: last path}. Raises StoreError."""
    try:
        return nodes.load_log_dirs((await session.get(nodes.log_dirs(broker_id)))[0])
    except NoNode:
        return {}


async def record_log_dirs(session: Session, fence: Fence, broker_id: int, paths: Mapping[str, str]) -> None:
    """Replace what is known of a broker's log dirs. Raises KafkaError."""
    path, data = nodes.log_dirs(broker_id), nodes.dump_log_dirs(paths)
    there = await until_answered(lambda: session.exists(path))
    await write(session, fence, [Create(path, data) if there is None else Set(path, data, there.version)])


async def record_directories(
    session: Session, fence: Fence, topics: Iterable[Topic], holders: Holders
) -> list[Topic]:
    """Write down where the partitions lie, of the topics of which that changed; the topics with it. Raises KafkaError.
    """
    placed, ops = [], list[Op]()
    for topic in topics:
        directories = holders.directories(topic)
        if directories != topic.directories:
            topic = replace(topic, directories=directories)
            ops.append(topic_op(topic))
        placed.append(topic)
    for first in range(0, len(ops), OPS_PER_WRITE):
        await write(session, fence, ops[first : first + OPS_PER_WRITE])
    return placed
