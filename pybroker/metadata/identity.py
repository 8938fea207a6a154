"""This broker's id and cluster id, on which the store, the log dirs and the configuration must agree."""

import contextlib
import functools
import logging
from random import Random
from typing import NamedTuple

from pybroker import errors
from pybroker.coordination.commit import commit, read, until_answered
from pybroker.coordination.store import Create, NodeExists, NoNode, Session, StoreFailed
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.metadata.node_json import DAMAGED

log = logging.getLogger(__name__)

GENERATED_ABOVE = 1000
"""Ids up to this one are set by hand in broker.id (Kafka's reserved.broker.max.id)."""


NOT_SAID = (
    "the log directories hold partitions, but neither a meta.properties file nor the coordination store has the id of "
    "their broker: set broker.id to the id that it had"
)


class Identity(NamedTuple):
    cluster_id: str
    broker_id: int


async def cluster_id(session: Session) -> str | None:
    """The id of the cluster in the store; None if it has none yet."""
    try:
        return nodes.load_cluster_id((await session.get(nodes.CLUSTER_ID))[0])
    except NoNode:
        return None


async def record_cluster_id(session: Session, made: str) -> None:
    """Write the cluster id into the store. Raises NodeExists."""
    await commit(session, [Create(nodes.CLUSTER_ID, nodes.dump_cluster_id(made))])


async def stored_broker(session: Session) -> int | None:
    """The id of a lone broker, from the log dirs or the replicas in its store; None unless there is exactly one."""
    ids = {int(name) for name in (await session.children(nodes.LOG_DIRS))[0]}
    if not ids:
        for name in (await session.children(nodes.TOPICS))[0]:
            for replicas in nodes.load_topic((await session.get(nodes.topic(name)))[0]).replicas:
                ids.update(replicas)
    return ids.pop() if len(ids) == 1 else None


async def join(
    session: Session, configured: int, recorded: Identity, random: Random, *, in_use: bool, forced: bool
) -> Identity:
    """The identity of a broker of a cluster; draws the ids that are missing. Raises KafkaError in one sentence.

    `configured` is broker.id, -1 for none. `recorded` is the identity in the log dirs, -1 and empty for none. `in_use`:
    the log dirs hold partitions. `forced`: allow the id of a broker with replicas even if the log dirs are empty."""
    if recorded.cluster_id:
        await check_cluster(session, recorded.cluster_id)
    cluster = recorded.cluster_id or await _agreed_cluster(session, random)
    if 0 <= recorded.broker_id != configured >= 0:
        raise KafkaError(
            errors.INVALID_CONFIG,
            f"broker.id is {configured}, but the log directories belong to broker {recorded.broker_id}: "
            f"set broker.id={recorded.broker_id}, or leave it out",
        )
    broker_id = max(recorded.broker_id, configured)
    if broker_id < 0:
        if in_use:
            raise KafkaError(errors.INVALID_CONFIG, NOT_SAID)
        return Identity(cluster, await _free_id(session))
    if recorded.broker_id < 0 and not in_use and not forced and await _holds(session, broker_id):
        raise KafkaError(
            errors.INVALID_CONFIG,
            f"broker {broker_id} has partitions in this cluster, but its log directories are empty: as a leader it "
            f"would lose their records. Restore its log directories, or accept the loss: --give-up broker-{broker_id}",
        )
    return Identity(cluster, broker_id)


async def _free_id(session: Session) -> int:
    """A generated id that no broker has and no replica names: its old broker could come back for its partitions."""
    while True:
        drawn = await until_answered(lambda: session.set(nodes.SEQUENCE_OF_IDS, b""))  # a retry only skips an id
        found = GENERATED_ABOVE + drawn.version
        path = nodes.broker(found)
        if await until_answered(functools.partial(session.exists, path)) is not None:
            continue
        try:
            if not await _holds(session, found):
                return found
        except KafkaError as problem:  # the id is new all the same: the sequence only grows
            event(log, logging.WARNING, "topic unreadable", broker=found, reason=problem.message)
            return found


async def check_cluster(session: Session, recorded: str) -> None:
    """Check that the store still belongs to the cluster `recorded`. Raises INCONSISTENT_CLUSTER_ID, StoreError.

    A store without a cluster id has lost its data or is the wrong one: a broker that joined it would be in a cluster
    without the topics in its log dirs."""
    known = await until_answered(lambda: cluster_id(session))
    if known == recorded:
        return
    of = f"cluster {known}: one of them is wrong"
    if known is None:
        of = "no cluster: it has lost its data, or its chroot or prefix is wrong"
    raise KafkaError(
        errors.INCONSISTENT_CLUSTER_ID,
        f"the log directories belong to cluster {recorded}, but the store knows of {of}",
    )


async def _agreed_cluster(session: Session, random: Random) -> str:
    """The id of the cluster, a new one if the store has none yet."""
    while (known := await until_answered(lambda: cluster_id(session))) is None:
        with contextlib.suppress(NodeExists):
            await record_cluster_id(session, nodes.id_text(nodes.draw_id(random)))
    return known


async def _holds(session: Session, broker_id: int) -> bool:
    """True if a broker is a replica of any partition. Raises KafkaError if no readable topic names it and another topic
    is unreadable."""
    unread: KafkaError | None = None
    names, _ = await until_answered(lambda: session.children(nodes.TOPICS))
    for name in names:
        try:
            topic = nodes.load_topic((await read(session, nodes.topic(name)))[0])
        except NoNode:
            continue
        except StoreFailed as problem:  # the node is damaged, or access is denied
            what = problem.detail.removeprefix(DAMAGED)
            unread = KafkaError(
                errors.INVALID_CONFIG,
                f"it is unknown whether broker {broker_id} has partitions in this cluster, as {nodes.topic(name)} "
                f"cannot be read ({what}): correct that node, or go on without it: --give-up broker-{broker_id}",
            )
            continue
        if any(broker_id in replicas for replicas in topic.replicas):
            return True
    if unread is not None:
        raise unread
    return False


async def settle(
    session: Session,
    configured: int,
    known: str | None,
    recorded_cluster: str | None,
    recorded_id: int | None,
    random: Random,
    *,
    in_use: bool = False,
) -> Identity:
    """The identity of a lone broker; draws the ids that are missing. Raises KafkaError in one sentence if ids differ.

    `configured` is broker.id, -1 for none; `known` the store's cluster id; `recorded_...` those in the log dirs.
    `in_use`: the log dirs hold partitions, so they have an owner. `random` draws the id of a new cluster."""
    if recorded_id is None:
        recorded_id = await until_answered(lambda: stored_broker(session))
    if known is not None and recorded_cluster is not None and known != recorded_cluster:
        raise KafkaError(
            errors.INCONSISTENT_CLUSTER_ID,
            f"the log directories belong to cluster {recorded_cluster}, but the coordination store to {known}: "
            "one of them is in the wrong place",
        )
    if configured >= 0 and recorded_id is not None and configured != recorded_id:
        raise KafkaError(
            errors.INVALID_CONFIG,
            f"broker.id is {configured}, but the log directories belong to broker {recorded_id}: "
            f"set broker.id={recorded_id}, or leave it out",
        )
    broker_id = recorded_id if recorded_id is not None else configured
    if broker_id < 0 and in_use:
        raise KafkaError(errors.INVALID_CONFIG, NOT_SAID)
    if broker_id < 0:
        broker_id = await _free_id(session)
    return Identity(known or recorded_cluster or nodes.id_text(nodes.draw_id(random)), broker_id)
