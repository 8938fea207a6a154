"""Who this broker is: its number and its cluster, which the store, the log dirs and the configuration must agree on."""

import contextlib
import functools
import logging
from random import Random
from typing import NamedTuple

from pybroker import errors
from pybroker.controller import nodes
from pybroker.coordination.commit import commit, read, until_answered
from pybroker.coordination.store import Create, NodeExists, NoNode, Session, StoreFailed
from pybroker.errors import KafkaError
from pybroker.logs import event

log = logging.getLogger(__name__)

GENERATED_ABOVE = 1000
"""Ids up to this one are for people to give (Kafka's reserved.broker.max.id)."""


NOT_SAID = (
    "the log directories hold partitions, and neither a meta.properties file nor the coordination store says of which "
    "broker: set broker.id to the number that it had"
)


class Identity(NamedTuple):
    cluster_id: str
    broker_id: int


async def cluster_id(session: Session) -> str | None:
    """The cluster that the store is of; None if it is of none yet."""
    try:
        return nodes.load_cluster_id((await session.get(nodes.CLUSTER_ID))[0])
    except NoNode:
        return None


async def record_cluster_id(session: Session, made: str) -> None:
    """Say whose the store is. Raises NodeExists."""
    await commit(session, [Create(nodes.CLUSTER_ID, nodes.dump_cluster_id(made))])


async def stored_broker(session: Session) -> int | None:
    """The broker that the store is of: the one whose log dirs it knows, or who holds its topics; None if nobody is."""
    ids = {int(name) for name in (await session.children(nodes.LOG_DIRS))[0]}
    if not ids:
        for name in (await session.children(nodes.TOPICS))[0]:
            for replicas in nodes.load_topic((await session.get(nodes.topic(name)))[0]).replicas:
                ids.update(replicas)
    return ids.pop() if len(ids) == 1 else None


async def join(
    session: Session, configured: int, recorded: Identity, random: Random, *, in_use: bool, forced: bool
) -> Identity:
    """The identity of a broker of a cluster, whose id is made where there is none. Raises KafkaError in one sentence.

    `configured` is broker.id, -1 for none; `recorded` is what the log dirs say, -1 and empty for nothing. `in_use`:
    partitions lie in them. `forced`: the id of a broker that the cluster knows may be taken with empty log dirs."""
    if recorded.cluster_id:
        await check_cluster(session, recorded.cluster_id)
    cluster = recorded.cluster_id or await _agreed_cluster(session, random)
    if 0 <= recorded.broker_id != configured >= 0:
        raise KafkaError(
            errors.INVALID_CONFIG,
            f"broker.id is {configured}, but the data is of broker {recorded.broker_id}: "
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
            f"broker {broker_id} has partitions in this cluster, and the log directories are empty: it would lead what "
            f"it has lost. Give it the log directories that it had, or go on without: --give-up broker-{broker_id}",
        )
    return Identity(cluster, broker_id)


async def _free_id(session: Session) -> int:
    """One above those that people give, which nobody has, and nobody had who may come back for its partitions."""
    while True:
        drawn = await until_answered(lambda: session.set(nodes.SEQUENCE_OF_IDS, b""))  # one that is lost, nobody has
        found = GENERATED_ABOVE + drawn.version
        path = nodes.broker(found)
        if await until_answered(functools.partial(session.exists, path)) is not None:
            continue
        try:
            if not await _holds(session, found):
                return found
        except KafkaError as problem:  # no broker has had this number: the sequence only grows
            event(log, logging.WARNING, "topic passed over", broker=found, reason=problem.message)
            return found


async def check_cluster(session: Session, recorded: str) -> None:
    """See that the store is that of the cluster `recorded` still. Raises INCONSISTENT_CLUSTER_ID, StoreError.

    One that knows of no cluster has lost what it had, or is another: who joined it would be in a cluster without the
    topics that its log dirs hold."""
    known = await until_answered(lambda: cluster_id(session))
    if known == recorded:
        return
    of = f"that of {known}: one of them is wrong"
    if known is None:
        of = "a store that knows of no cluster: it has lost its data, or the chroot is another one"
    raise KafkaError(
        errors.INCONSISTENT_CLUSTER_ID,
        f"the log directories are of the cluster {recorded}, and zookeeper.connect names {of}",
    )


async def _agreed_cluster(session: Session, random: Random) -> str:
    """The id of the cluster, a new one where it has none yet."""
    while (known := await until_answered(lambda: cluster_id(session))) is None:
        with contextlib.suppress(NodeExists):
            await record_cluster_id(session, nodes.id_text(nodes.draw_id(random)))
    return known


async def _holds(session: Session, broker_id: int) -> bool:
    """True if a broker is a replica of any partition. Raises KafkaError if no readable topic says so, and one is not
    readable."""
    unread: KafkaError | None = None
    names, _ = await until_answered(lambda: session.children(nodes.TOPICS))
    for name in names:
        try:
            topic = nodes.load_topic((await read(session, nodes.topic(name)))[0])
        except NoNode:
            continue
        except StoreFailed as problem:  # the node is damaged, or access is denied
            what = problem.detail.removeprefix(nodes.DAMAGED)
            unread = KafkaError(
                errors.INVALID_CONFIG,
                f"it cannot be seen whether broker {broker_id} has partitions in this cluster, for {nodes.topic(name)} "
                f"cannot be read ({what}): correct it, or go on without: --give-up broker-{broker_id}",
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
    """The identity that everything agrees on, new where nothing says any. Raises KafkaError in one sentence.

    `configured` is broker.id, -1 for none; `known` the store's cluster; `recorded_...` what the log dirs record.
    `in_use`: partitions lie in them, so that they are somebody's. `random` draws the id of a new cluster."""
    if recorded_id is None:
        recorded_id = await until_answered(lambda: stored_broker(session))
    if known is not None and recorded_cluster is not None and known != recorded_cluster:
        raise KafkaError(
            errors.INCONSISTENT_CLUSTER_ID,
            f"the log directories are of the cluster {recorded_cluster}, the coordination store is of {known}: "
            "one of them is in the wrong place",
        )
    if configured >= 0 and recorded_id is not None and configured != recorded_id:
        raise KafkaError(
            errors.INVALID_CONFIG,
            f"broker.id is {configured}, but the data is of broker {recorded_id}: "
            f"set broker.id={recorded_id}, or leave it out",
        )
    broker_id = recorded_id if recorded_id is not None else configured
    if broker_id < 0 and in_use:
        raise KafkaError(errors.INVALID_CONFIG, NOT_SAID)
    if broker_id < 0:
        broker_id = await _free_id(session)
    return Identity(known or recorded_cluster or nodes.id_text(nodes.draw_id(random)), broker_id)
