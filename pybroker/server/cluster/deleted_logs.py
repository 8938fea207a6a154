"""Deletes, as a broker starts, its logs of topics that were deleted while it was away.

A deletion waits for the replicas of a topic, and not for logs that a reassignment gave up on a broker that is away. It
leaves a node for these, with the topic's id and the brokers; each removes itself from it, the last one the node.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from pybroker.coordination.commit import commit, until_answered
from pybroker.coordination.store import BadVersion, Delete, NoNode, Op, Session, Set, Stat, StoreFailed
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

Remove = Callable[[Iterable[TopicPartition]], Awaitable[Collection[TopicPartition]]]
"""Removes logs; returns those that may come back with their disk."""


async def delete_logs(
    session: Session, broker: int, found: Mapping[TopicPartition, bytes], remove: Remove, *, whole: bool
) -> set[TopicPartition]:
    """Delete this broker's logs of deleted topics, and return their partitions. `found` has the topic id of each log;
    `whole`: all log dirs are usable. Raises SessionExpired."""
    doomed = set[TopicPartition]()
    for name in await _deleted(session):
        path = f"{nodes.DELETED}/{name}"
        with contextlib.suppress(NoNode, BadVersion):  # another broker has changed it: the next start goes on
            try:
                data, stat = await until_answered(functools.partial(session.get, path))
                topic_id, brokers = nodes.load_deleted(name, data)
                its = {key for key, each in found.items() if each == topic_id}
                if broker not in brokers or await _is_there(session, its, topic_id):
                    continue
                doomed |= its
                kept = await remove(its) if its else ()
                if its:
                    shown = ",".join(map(str, sorted(its)))
                    event(log, logging.INFO, "logs of a deleted topic deleted", partitions=shown)
                if whole and not kept:
                    await commit(session, [_without(broker, path, brokers, stat)])
            except StoreFailed as problem:  # the node is damaged, or access is denied
                event(log, logging.WARNING, "node not read", node=path, reason=problem)
    return doomed


async def _deleted(session: Session) -> list[str]:
    try:
        return (await until_answered(lambda: session.children(nodes.DELETED)))[0]
    except NoNode:
        return []
    except StoreFailed as problem:
        event(log, logging.WARNING, "node not read", node=nodes.DELETED, reason=problem)
        return []


async def _is_there(session: Session, logs: Collection[TopicPartition], topic_id: bytes) -> bool:
    """True if the topic exists: its deletion has not ended yet, or its nodes were restored."""
    for name in {key.topic for key in logs}:
        with contextlib.suppress(NoNode):
            data, _ = await until_answered(functools.partial(session.get, nodes.topic(name)))
            if nodes.load_topic(data).id == topic_id:
                return True
    return False


def _without(broker: int, path: str, brokers: Collection[int], stat: Stat) -> Op:
    left = [each for each in brokers if each != broker]
    return Set(path, nodes.dump_deleted(left), stat.version) if left else Delete(path, stat.version)
