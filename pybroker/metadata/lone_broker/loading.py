"""Reads a lone broker's topics and log dirs from its store at a start, and bumps the leader epoch of each partition.

Any broker calls `prepare`, which creates the parents of all other nodes. An elected controller reads topics in its own
context (controller/context.py).
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from pybroker.coordination.commit import until_answered
from pybroker.coordination.store import Create, NodeExists, NoNode, Op, Session, Set, Stat, StoreFailed
from pybroker.decisions.topics import Topic
from pybroker.metadata import nodes
from pybroker.metadata.controllership import Fence, write
from pybroker.metadata.stored_topic import StateNode, judge, judge_node
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


class LoadedTopics(NamedTuple):
    """The topics in the store, without and with a pending deletion. The leader epoch of a partition is -1 if its state
    is not written yet."""

    topics: list[Topic]
    deleted: list[Topic]


async def load(session: Session) -> LoadedTopics:
    """Read every topic. Raises StoreError."""
    names, _ = await session.children(nodes.TOPICS)
    wishes = set((await session.children(nodes.DELETIONS))[0])
    datas = [data for data, _ in await _read(session, map(nodes.topic, names))]
    found = [judge_node(name, data) for name, data in zip(names, datas, strict=True)]
    configs = [nodes.load_config(data) for data, _ in await _read(session, map(nodes.topic_config, names))]
    paths = [nodes.state(n, index) for n, node in zip(names, found, strict=True) for index in range(len(node.replicas))]
    states = iter(await asyncio.gather(*(_state_at(session, path) for path in paths)))
    loaded = LoadedTopics([], [])
    for name, node, config in zip(names, found, configs, strict=True):
        held = list(itertools.islice(states, len(node.replicas)))
        topic = replace(judge(name, node, held, alone=True), config=config)
        (loaded.deleted if name in wishes else loaded.topics).append(topic)
    return loaded


async def _state_at(session: Session, path: str) -> StateNode | None:
    try:
        data, stat = await session.get(path)
    except NoNode:  # the broker ended between the creation of the topic and its first states
        return None
    return StateNode(data, stat.version)


async def _read(session: Session, paths: Iterable[str]) -> list[tuple[bytes, Stat]]:
    """Read nodes in parallel. Raises the first StoreError; other failures are dropped."""
    return await asyncio.gather(*map(session.get, paths))


class RecordedEpoch(Protocol):
    """The last leader epoch in the checkpoint of a log; -1 for none."""

    @property
    def leader_epoch(self) -> int: ...


async def lead_again(
    session: Session, fence: Fence, topics: Iterable[Topic], found: Mapping[TopicPartition, RecordedEpoch],
    broker_id: int,
) -> list[Topic]:  # fmt: skip
    """Bump the leader epoch of every partition of this lone broker, to fence requests from before its restart.

    The new epoch is also above the one recorded beside the log: if the store lost its latest writes, batches of later
    epochs would count as corrupt. One write has up to OPS_PER_WRITE partitions. Return the new topics. Raises
    KafkaError."""
    led, ops = [], list[Op]()
    for topic in topics:
        partitions = list(topic.partitions)
        for index, state in enumerate(partitions):
            if broker_id in state.replicas and state.leader_epoch >= 0:
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
    """The number of partitions in each log dir: {directory.id: partitions}. Raises StoreError."""
    names, _ = await session.children(nodes.TOPICS)
    counted: Counter[str] = Counter()
    for data, _ in await _read(session, map(nodes.topic, names)):
        counted.update(nodes.load_topic(data).directories.values())
    return counted


async def known_log_dirs(session: Session, broker_id: int) -> dict[str, str]:
    """All log dirs that a broker has had, except those given up: {directory.id: last path}. Raises StoreError."""
    try:
        return nodes.load_log_dirs((await session.get(nodes.log_dirs(broker_id)))[0])
    except NoNode:
        return {}


async def record_log_dirs(session: Session, fence: Fence, broker_id: int, paths: Mapping[str, str]) -> None:
    """Replace the record of a broker's log dirs. Raises KafkaError."""
    path, data = nodes.log_dirs(broker_id), nodes.dump_log_dirs(paths)
    there = await until_answered(lambda: session.exists(path))
    await write(session, fence, [Create(path, data) if there is None else Set(path, data, there.version)])
