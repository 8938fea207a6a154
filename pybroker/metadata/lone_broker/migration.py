"""Moves a lone broker's store into ZooKeeper or etcd: all nodes that a controller reads, as Kafka writes them.

    checks ──> MIGRATING in the embedded store ──> nodes, parents first ──> cluster id ──> MIGRATED

The cluster id comes last: no broker joins before it is written, so an interrupted move can be repeated. Once MIGRATED
is written the lone broker refuses to start, for its topics are the cluster's. If the cluster id is already in
ZooKeeper, MIGRATING shows that it comes from this move. A lone broker that starts deletes MIGRATING: its records and
the cluster's would be two histories with the same offsets and epochs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.config.cluster_settings import StoreWords
from pybroker.coordination.commit import commit, until_answered
from pybroker.coordination.store import Create, Delete, NodeExists, NoNode, Session
from pybroker.errors import KafkaError
from pybroker.metadata import delegation_tokens, identity, nodes
from pybroker.metadata.lone_broker import loading
from pybroker.security import acl_nodes

MIGRATED: Final = "/migrated"
"""Only in the embedded store: the zookeeper.connect or etcd.connect that its topics were moved to."""
MIGRATING: Final = "/migrating"
"""Only in the embedded store: the zookeeper.connect or etcd.connect that its topics are being moved to."""
WHOLE: Final = (nodes.CONFIGS, acl_nodes.ACLS, acl_nodes.EXTENDED_ACLS, delegation_tokens.ROOT)
"""Nodes that move with all nodes below them: settings, users, quotas, ACLs and delegation tokens."""
NOTICES: Final = (nodes.CONFIG_CHANGES, delegation_tokens.CHANGES)
"""Nodes that move without those below them, which no broker waits for."""
AT_ONCE: Final = 500


class Moved(NamedTuple):
    """The result of a move: ids and counts."""

    cluster_id: str
    broker_id: int
    topics: int
    partitions: int
    again: bool
    """True if an earlier move was already complete."""


async def moved_to(lone: Session) -> str | None:
    """The address of the store that an embedded store was moved to; None if it was not. Raises StoreError."""
    try:
        return (await lone.get(MIGRATED))[0].decode()
    except NoNode:
        return None


async def goes_on(lone: Session) -> str | None:
    """Cancel an interrupted move, as the lone broker starts. If the move is complete, return `moved_to` instead."""
    if (elsewhere := await moved_to(lone)) is None:
        with contextlib.suppress(NoNode):
            await commit(lone, [Delete(MIGRATING)])
    return elsewhere


async def migrate(lone: Session, cluster: Session, connect: str) -> Moved:
    """Move an embedded store into the ZooKeeper or etcd at `connect`, which has no cluster yet. The logs stay where
    they are. Raises KafkaError in one sentence for a person, StoreError."""
    name, _, path = StoreWords.of(connect)
    cluster_id = await identity.cluster_id(lone)
    broker_id = await identity.stored_broker(lone)
    if cluster_id is None or broker_id is None:
        raise KafkaError(errors.INVALID_CONFIG, "no broker has ever run in this data directory: nothing to move")
    found = await loading.load(lone)
    if found.deleted or any(state.leader_epoch < 0 for topic in found.topics for state in topic.partitions):
        raise KafkaError(
            errors.INVALID_CONFIG, "a topic is still being created or deleted: start the broker once, and stop it"
        )
    count = sum(len(topic.partitions) for topic in found.topics)
    known = await until_answered(lambda: identity.cluster_id(cluster))
    if known not in (None, cluster_id):
        raise KafkaError(
            errors.INCONSISTENT_CLUSTER_ID,
            f"{name} at {connect} belongs to cluster {known}, but the data to {cluster_id}: name another {path}",
        )
    again, begun = await moved_to(lone) is not None, await lone.exists(MIGRATING) is not None
    if known is not None and not (again or begun):
        raise KafkaError(
            errors.INVALID_CONFIG,
            f"{name} at {connect} already has the cluster {cluster_id}, but with another history than this "
            f"data: name another {path}",
        )
    if known is None:
        await loading.prepare(cluster, nodes.OF_A_CLUSTER)
        there = set((await until_answered(lambda: cluster.children(nodes.TOPICS)))[0])
        if foreign := sorted(there - {topic.name for topic in found.topics}):
            raise KafkaError(
                errors.INVALID_CONFIG,
                f"{name} at {connect} has topics that are not this broker's ({foreign[0]}): name another {path}",
            )
        if not begun:
            await commit(lone, [Create(MIGRATING, connect.encode())])
        await _write(cluster, await _nodes(lone, found))
        await _draw_ids(lone, cluster)
        await identity.record_cluster_id(cluster, cluster_id)
    if not again:
        await commit(lone, [Create(MIGRATED, connect.encode()), Delete(MIGRATING)])
    return Moved(cluster_id, broker_id, len(found.topics), count, again)


async def _nodes(lone: Session, found: loading.LoadedTopics) -> dict[str, bytes]:
    """The nodes to write into the cluster's store: {path: data}."""
    wanted: dict[str, bytes] = {}
    for topic in found.topics:
        replicas = [state.replicas for state in topic.partitions]
        wanted[nodes.topic(topic.name)] = nodes.dump_assignment(topic.id, replicas)
        wanted[nodes.partitions(topic.name)] = b""
        for index, state in enumerate(topic.partitions):
            wanted[nodes.partition(topic.name, index)] = b""
            wanted[nodes.state(topic.name, index)] = nodes.dump_state(state)
    for root in WHOLE:
        wanted |= await _whole(lone, root)
    for path in (nodes.CONTROLLER_EPOCH, nodes.PRODUCER_IDS):
        wanted[path] = (await lone.get(path))[0]
    return wanted


async def _whole(session: Session, path: str) -> dict[str, bytes]:
    """A node and all nodes below it: {path: data}; empty if there is no such node."""
    try:
        found = {path: (await session.get(path))[0]}
    except NoNode:
        return {}
    names = () if path in NOTICES else (await session.children(path))[0]
    for name in names:
        found |= await _whole(session, f"{path}/{name}")
    return found


async def _write(cluster: Session, wanted: Mapping[str, bytes]) -> None:
    """Create nodes, or overwrite existing ones, parents before children."""

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
    """Raise the cluster's sequence of broker ids (a node's version) to the lone store's, so that no id is reused."""
    _, given = await lone.get(nodes.SEQUENCE_OF_IDS)
    _, drawn = await until_answered(lambda: cluster.get(nodes.SEQUENCE_OF_IDS))
    while drawn.version < given.version:
        drawn = await until_answered(lambda: cluster.set(nodes.SEQUENCE_OF_IDS, b""))
