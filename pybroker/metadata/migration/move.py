"""Moves a cluster's tree from one store to another, while its brokers are stopped.

    checks --> MIGRATING at the source --> MIGRATED_FROM at the target --> copy --> compare --> MIGRATED at the source
                                                                                                       |
                                                        the target is the cluster's <-- MIGRATED_FROM deleted there

The source changes in the last step but one. Up to there its brokers can go on, and the same command begins the copy
anew: no broker starts on the target before its mark is gone. MIGRATED says that the copy was compared.

A lone broker's store has nodes of its own: the log dir of each partition, and its log dirs. They stay behind when it
becomes the first of a cluster. The other way round its next start writes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from enum import Enum
from typing import Final, NamedTuple, NoReturn

from pybroker import errors
from pybroker.config.cluster_settings import StoreWords
from pybroker.coordination.commit import commit, read, until_answered
from pybroker.coordination.store import Create, Delete, NodeExists, NoNode, Session, Store
from pybroker.errors import KafkaError
from pybroker.metadata import identity, nodes
from pybroker.metadata.lone_broker import loading

from .copies import Progress, TreeForm, copy, count, occupied, verify, wipe
from .marks import MIGRATED, MIGRATED_FROM, MIGRATING, CopyOrigin, moved_to, origin, place

SESSION_MS: Final = 18_000


class Side(NamedTuple):
    """A store of a migration. `address`: its zookeeper.connect or etcd.connect, or the log dir of an embedded one.
    `store` opens the session that reads a copy back."""

    store: Store
    session: Session
    address: str

    @property
    def embedded(self) -> bool:
        return self.address.startswith("/")

    @property
    def another(self) -> str:
        """A cure for a target that cannot be used, as the end of a sentence."""
        if self.embedded:
            return "move its coordination.sqlite away"
        return f"name another {StoreWords.of(self.address).path}"


class Moved(NamedTuple):
    """The result of a move: the cluster and counts."""

    cluster_id: str
    nodes: int
    topics: int
    partitions: int
    again: bool
    """True if an earlier move was already complete."""


class FirstOfACluster(TreeForm):
    """The form of a lone broker's tree in a cluster's store, which has only Kafka's nodes."""

    def takes(self, path: str) -> bool:
        return path not in (nodes.LOG_DIRS, nodes.DELETED) and super().takes(path)

    def data(self, path: str, data: bytes) -> bytes:
        if path.rpartition("/")[0] != nodes.TOPICS:
            return data
        topic = nodes.load_topic(data)
        return nodes.dump_assignment(topic.id, topic.replicas)


async def check_lone(lone: Session) -> int:
    """Return the id of a lone broker whose topics can be moved. Raises KafkaError, StoreError."""
    broker_id = await identity.stored_broker(lone) if await lone.exists(nodes.LOG_DIRS) is not None else None
    if broker_id is None or await identity.cluster_id(lone) is None:
        _refuse("no broker has ever run in this data directory: nothing to move")
    found = await loading.load(lone)
    if found.deleted or any(state.leader_epoch < 0 for topic in found.topics for state in topic.partitions):
        _refuse("a topic is still being created or deleted: start the broker once, and stop it")
    return broker_id


async def check_sole(cluster: Session, broker_id: int) -> None:
    """Check that a broker has all replicas of a cluster, so that it can go on alone. Raises KafkaError, StoreError."""
    names, _ = await until_answered(lambda: cluster.children(nodes.TOPICS))
    for name in names:
        with contextlib.suppress(NoNode):
            topic = nodes.load_topic((await read(cluster, nodes.topic(name)))[0])
            if others := sorted({each for replicas in topic.replicas for each in replicas} - {broker_id}):
                _refuse(
                    f"broker {others[0]} has replicas of the topic {name}, and a lone broker must have all of them: "
                    f"reassign every partition to broker {broker_id} alone, or delete the topic"
                )


async def move(source: Side, target: Side, form: TreeForm, said: Progress) -> Moved:
    """Move a cluster's tree into a store that has none. Raises KafkaError in one sentence for a person, StoreError."""
    cluster_id = await _cluster(source)
    if cluster_id is None:
        _refuse(f"there is no cluster in {place(source.address)}: nothing to move")
    async with _reading(source):
        await _check_stopped(source)
        elsewhere = await moved_to(source.session)
        if elsewhere not in (None, target.address):
            at = place(str(elsewhere))
            _refuse(f"cluster {cluster_id} was moved to {at} before: name that, or move it from there")
        found = await _check_target(target, cluster_id, compared=elsewhere is not None)
        if found is TargetState.DONE:
            return Moved(cluster_id, *await count(source.session, form), True)
        if found is TargetState.EMPTY and elsewhere is not None:  # what was moved was deleted there
            await commit(source.session, [Delete(MIGRATED)])
            elsewhere = None
        if found is TargetState.EMPTY:
            mark = CopyOrigin(source.address, cluster_id).dump()
            await commit(target.session, [Create(MIGRATED_FROM, mark)])
        if elsewhere is None:
            if found is TargetState.BEGUN:
                await wipe(target.session, said)
            await copy(source.session, target.session, form, said)
        reread = await target.store.session(SESSION_MS)  # on etcd its own copy of what the servers have
        copied = await verify(source.session, reread, form, said)
        await reread.close()
        await _check_stopped(source)
        if elsewhere is None:
            await commit(source.session, [Create(MIGRATED, target.address.encode())])
        await commit(target.session, [Delete(MIGRATED_FROM)])
        return Moved(cluster_id, *copied, False)


@contextlib.asynccontextmanager
async def _reading(source: Side) -> AsyncIterator[None]:
    """Keep brokers, and other migrations, from the source. The mark goes with this session. Raises KafkaError."""
    try:
        await commit(source.session, [Create(MIGRATING, ephemeral=True)])
    except NodeExists:
        _refuse(
            f"another migrate-store is at work on {place(source.address)}, or was killed less than "
            f"{source.session.timeout_ms // 1000} s ago: try again then"
        )
    try:
        yield
    finally:
        with contextlib.suppress(NoNode):  # an answer was lost
            await until_answered(lambda: source.session.delete(MIGRATING))


async def _check_stopped(source: Side) -> None:
    """Check that no broker is registered at the source. Raises KafkaError, StoreError."""
    try:
        names, _ = await until_answered(lambda: source.session.children(nodes.BROKER_IDS))
    except NoNode:
        return
    if names:
        _refuse(
            f"broker {names[0]} is registered in {place(source.address)}: stop all brokers of the cluster; the "
            "registration of a killed one ends with its session"
        )


class TargetState(Enum):
    """The part of this migration that a target has."""

    EMPTY = "nothing"
    BEGUN = "a copy with its mark"
    DONE = "the cluster"


async def _check_target(target: Side, cluster_id: str, *, compared: bool) -> TargetState:
    """Check that a target is empty, or has the copy of this migration. `compared`: the source says that it has. Raises
    KafkaError, StoreError."""
    at = place(target.address)
    begun = await origin(target.session)
    if begun is not None and begun.cluster_id != cluster_id:
        _refuse(f"{at} has an unfinished copy of another cluster, of {place(begun.address)}: {target.another}")
    if begun is not None:
        return TargetState.BEGUN
    if (later := await moved_to(target.session)) is not None:
        _refuse(f"{at} has what was moved to {place(later)} before: delete it, or {target.another}")
    known = await _cluster(target)
    if known == cluster_id and compared:
        return TargetState.DONE
    if known not in (None, cluster_id):
        raise KafkaError(
            errors.INCONSISTENT_CLUSTER_ID,
            f"{at} belongs to cluster {known}, but the data to {cluster_id}: {target.another}",
        )
    if known is not None:
        _refuse(f"{at} already has the cluster {cluster_id}, but with another history: {target.another}")
    if (path := await occupied(target.session)) is not None:
        _refuse(f"{at} is not empty, it has {path}: {target.another}, or delete that; set passwords after the move")
    return TargetState.EMPTY


async def _cluster(side: Side) -> str | None:
    return await until_answered(lambda: identity.cluster_id(side.session))


def _refuse(sentence: str) -> NoReturn:
    raise KafkaError(errors.INVALID_CONFIG, sentence)
