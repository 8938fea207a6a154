"""A lone broker's store moved into ZooKeeper: all that a cluster's controller goes by, as Kafka writes it.

    checks ──> a mark in the embedded store ──> nodes, parents first ──> cluster id ──> another mark

The cluster id comes last: until it is there no broker joins, and a move that was cut short is done again. Once the
second mark is written the lone broker refuses to start, for its topics are the cluster's. A cluster that is there
already is taken for what this move has made only where the first mark says so, which a lone broker takes back that goes
on: its records and the cluster's would be two histories at the same offsets and epochs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.controller import identity, loading, nodes
from pybroker.coordination.commit import commit, until_answered
from pybroker.coordination.store import Create, Delete, NodeExists, NoNode, Session
from pybroker.errors import KafkaError

MIGRATED: Final = "/migrated"
"""In the embedded store alone: where its topics are now, as zookeeper.connect has it."""
MIGRATING: Final = "/migrating"
"""In the embedded store alone: where they are being moved to."""
CONFIGS: Final = "/config"
AT_ONCE: Final = 500


class Moved(NamedTuple):
    """What was moved."""

    cluster_id: str
    broker_id: int
    topics: int
    partitions: int
    again: bool
    """An earlier move had done all of it."""


async def moved_to(lone: Session) -> str | None:
    """Where the topics of an embedded store are now; None if they are its own. Raises StoreError."""
    try:
        return (await lone.get(MIGRATED))[0].decode()
    except NoNode:
        return None


async def goes_on(lone: Session) -> str | None:
    """A lone broker starts: a move that was cut short is to be begun anew. As `moved_to`, where it may not."""
    if (elsewhere := await moved_to(lone)) is None:
        with contextlib.suppress(NoNode):
            await commit(lone, [Delete(MIGRATING)])
    return elsewhere


async def migrate(lone: Session, cluster: Session, connect: str) -> Moved:
    """Move what an embedded store knows into a ZooKeeper at `connect` that knows of no cluster yet. The logs stay where
    they are. Raises KafkaError in one sentence for a person, StoreError."""
    cluster_id = await identity.cluster_id(lone)
    broker_id = await identity.stored_broker(lone)
    if cluster_id is None or broker_id is None:
        raise KafkaError(errors.INVALID_CONFIG, "the data directory is of no broker that has ever run: nothing to move")
    found = await loading.load(lone)
    if found.deleted or found.unfinished:
        raise KafkaError(
            errors.INVALID_CONFIG, "a topic's creation or deletion is not finished: start the broker once, and stop it"
        )
    count = sum(len(topic.partitions) for topic in found.topics)
    known = await until_answered(lambda: identity.cluster_id(cluster))
    if known not in (None, cluster_id):
        raise KafkaError(
            errors.INCONSISTENT_CLUSTER_ID,
            f"ZooKeeper at {connect} is that of the cluster {known}, and the data of {cluster_id}: name another chroot",
        )
    again, begun = await moved_to(lone) is not None, await lone.exists(MIGRATING) is not None
    if known is not None and not (again or begun):
        raise KafkaError(
            errors.INVALID_CONFIG,
            f"ZooKeeper at {connect} knows the cluster {cluster_id} already, which has gone on without what lies here: "
            "name another chroot",
        )
    if known is None:
        await loading.prepare(cluster, nodes.OF_A_CLUSTER)
        there = set((await until_answered(lambda: cluster.children(nodes.TOPICS)))[0])
        if foreign := sorted(there - {topic.name for topic in found.topics}):
            raise KafkaError(
                errors.INVALID_CONFIG,
                f"ZooKeeper at {connect} has topics that are not this broker's ({foreign[0]}): name another chroot",
            )
        if not begun:
            await commit(lone, [Create(MIGRATING, connect.encode())])
        await _write(cluster, await _nodes(lone, found))
        await _draw_ids(lone, cluster)
        await identity.record_cluster_id(cluster, cluster_id)
    if not again:
        await commit(lone, [Create(MIGRATED, connect.encode()), Delete(MIGRATING)])
    return Moved(cluster_id, broker_id, len(found.topics), count, again)


async def _nodes(lone: Session, found: loading.Loaded) -> dict[str, bytes]:
    """What a cluster's store is to have."""
    wanted: dict[str, bytes] = {}
    for topic in found.topics:
        replicas = [state.replicas for state in topic.partitions]
        wanted[nodes.topic(topic.name)] = nodes.dump_assignment(topic.id, replicas)
        wanted[nodes.partitions(topic.name)] = b""
        for index, state in enumerate(topic.partitions):
            wanted[nodes.partition(topic.name, index)] = b""
            wanted[nodes.state(topic.name, index)] = nodes.dump_state(state)
    for path in await _below(lone, CONFIGS):
        if not path.startswith(nodes.CONFIG_CHANGES):
            wanted[path] = (await lone.get(path))[0]
    for path in (nodes.CONTROLLER_EPOCH, nodes.PRODUCER_IDS):
        wanted[path] = (await lone.get(path))[0]
    return wanted


async def _below(session: Session, path: str) -> list[str]:
    found = []
    for name in (await session.children(path))[0]:
        child = f"{path}/{name}"
        found += [child, *await _below(session, child)]
    return found


async def _write(cluster: Session, wanted: Mapping[str, bytes]) -> None:
    """Make nodes, or set those that are there, each generation before the next."""

    async def put(path: str) -> None:
        async def once() -> None:
            try:
                await cluster.create(path, wanted[path])
            except NodeExists:
                await cluster.set(path, wanted[path])

        await until_answered(once)

    for depth in sorted({path.count("/") for path in wanted}):
        generation = sorted(path for path in wanted if path.count("/") == depth)
        for first in range(0, len(generation), AT_ONCE):
            await asyncio.gather(*map(put, generation[first : first + AT_ONCE]))


async def _draw_ids(lone: Session, cluster: Session) -> None:
    """Have no id of a broker drawn again that the lone store has given out: they are counted by the node's version."""
    _, given = await lone.get(nodes.SEQUENCE_OF_IDS)
    _, drawn = await until_answered(lambda: cluster.get(nodes.SEQUENCE_OF_IDS))
    while drawn.version < given.version:
        drawn = await until_answered(lambda: cluster.set(nodes.SEQUENCE_OF_IDS, b""))
