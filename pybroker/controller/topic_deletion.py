"""How a cluster's topic is deleted: wished for by a node, done by the controller, and taken up again by the next one.

    a wish ──> clients see it no more; its replicas stop, then delete ──all of them did──> its nodes go, the wish last
                      └── a replica's broker is away: the topic waits until it is back
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pybroker import errors
from pybroker.cluster.image import DELETED, LiveBroker
from pybroker.cluster.topics import Topic
from pybroker.controller import nodes
from pybroker.controller.broker_channel import BrokerChannel, Stop, Told
from pybroker.controller.cluster_context import OPS_PER_WRITE, READ_AT_ONCE, ClusterContext
from pybroker.controller.election import write
from pybroker.coordination.commit import read, until_answered
from pybroker.coordination.store import Delete, NoNode, NotEmpty, Op
from pybroker.logs import event
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

Replica = tuple[int, TopicPartition]
"""A broker, and what it holds of which partition."""

TRIES = 3
"""How often a replica that cannot delete its log is asked again while its broker lives."""


class Channels(Protocol):
    """Who tells brokers."""

    @property
    def channels(self) -> Mapping[int, BrokerChannel]: ...


@dataclass(slots=True)
class Deletion:
    """One under way: it ends with all that is known of it, for another topic may take the name."""

    left: set[Replica]
    asked: dict[Replica, int] = field(default_factory=dict)
    """Under which epoch of its broker each was asked."""
    failed: Counter[Replica] = field(default_factory=Counter)
    """How often each could not, since its broker came."""


class Deletions:
    """The deletions under way, of one controller."""

    def __init__(self, context: ClusterContext, controller: Channels) -> None:
        self._context = context
        self._controller = controller
        self._under_way: dict[str, Deletion] = {}

    async def give_up(self, wishes: Collection[str]) -> bool:
        """Forget the deletions whose wish and whose topic were removed by hand: another topic may have the name. Were
        there any? Raises KafkaError: NOT_CONTROLLER."""
        given_up = []
        for name in self._unwished(wishes):
            with self._context.about(name):
                if await self._id(name) != self._context.topics[name].id:
                    given_up.append(name)
        for name in given_up:
            event(log, logging.WARNING, "deletion given up", topic=name, reason="it was removed by hand")
            del self._under_way[name]
            self._context.forget(name)
        return bool(given_up)

    def _unwished(self, wishes: Collection[str]) -> list[str]:
        return [name for name in self._under_way if name not in wishes]

    async def go_on(self, wishes: Collection[str], enabled: bool) -> None:
        """Begin what is wished for, and ask brokers again that were away. Raises KafkaError: NOT_CONTROLLER."""
        for name in [*wishes, *self._unwished(wishes)]:
            with self._context.about(name):
                await self._go_on(name, enabled)

    async def _go_on(self, name: str, enabled: bool) -> None:
        if name in self._context.damaged:
            return  # the topic cannot be read, so what to delete is unknown: the request waits until it can
        if name not in self._under_way:
            if not enabled or not await self._context.wished([name]):
                if name in self._context.damaged:
                    return  # because the request to delete cannot be read
                reason = "there is no such topic" if enabled else "delete.topic.enable is false"
                event(log, logging.WARNING, "deletion ignored", topic=name, reason=reason)
                await self._ignore(name)
                return
            self._begin(self._context.topics[name])
        self._ask(name)
        await self._finish(name)

    async def _ignore(self, name: str) -> None:
        with contextlib.suppress(NotEmpty):  # another program holds it: it is ignored again at the next look
            await self._remove([Delete(nodes.deletion(name))])

    def _begin(self, topic: Topic) -> None:
        self._context.deleting.add(topic.name)
        self.tell_gone([topic])
        self._under_way[topic.name] = Deletion({
            (broker, TopicPartition(topic.name, index))
            for index, state in enumerate(topic.partitions)
            for broker in state.replicas
        })  # fmt: skip

    def tell_gone(self, topics: Iterable[Topic]) -> None:
        """Have clients see topics no more."""
        gone = {
            TopicPartition(topic.name, index): Told(topic.id, state._replace(leader=DELETED, leader_epoch=DELETED))
            for topic in topics
            for index, state in enumerate(topic.partitions)
        }
        if not gone:
            return
        live: dict[int, LiveBroker] = dict(self._context.brokers)
        for channel in self._controller.channels.values():
            channel.update_metadata(gone, live)

    def _ask(self, name: str) -> None:
        """Have replicas stop, then delete, that were not asked in their broker's present life."""
        deletion = self._under_way[name]
        by_broker: dict[int, list[TopicPartition]] = {}
        for replica in deletion.left:
            broker, key = replica
            epoch = self._context.epochs.get(broker)
            asked = deletion.asked.get(replica)
            if epoch is not None and asked != epoch:
                if asked is not None:
                    deletion.failed.pop(replica, None)
                deletion.asked[replica] = epoch
                by_broker.setdefault(broker, []).append(key)
        for broker, keys in by_broker.items():
            channel = self._controller.channels[broker]
            channel.stop_replicas({key: Stop(DELETED, False) for key in keys})
            channel.stop_replicas({key: Stop(DELETED, True) for key in keys})

    async def stopped(self, broker: int, key: TopicPartition, deleted: bool, code: int) -> None:
        """A replica answered. Raises KafkaError: NOT_CONTROLLER."""
        with self._context.about(key.topic):
            await self._stopped(broker, key, deleted, code)

    async def _stopped(self, broker: int, key: TopicPartition, deleted: bool, code: int) -> None:
        deletion = self._under_way.get(key.topic)
        if deletion is None or not deleted:
            return
        replica = broker, key
        if code in (errors.NONE, errors.UNKNOWN_TOPIC_OR_PARTITION):
            deletion.left.discard(replica)
            await self._finish(key.topic)
        elif deletion.failed[replica] < TRIES:
            deletion.failed[replica] += 1
            deletion.asked.pop(replica, None)
            self._ask(key.topic)
        else:
            name = errors.lookup(code).name
            event(log, logging.ERROR, "replica not deleted", broker=broker, partition=key, error=name)

    async def _finish(self, name: str) -> None:
        """Forget a topic whose replicas are all gone. Where another program makes nodes below it all the while, the
        next look tries again."""
        if self._under_way[name].left:
            return
        topic = self._context.topics[name]
        ops: list[Op] = []
        for index in range(len(topic.partitions)):
            ops += [Delete(nodes.state(name, index)), Delete(nodes.partition(name, index))]
        try:
            for start in range(0, len(ops), OPS_PER_WRITE):
                await self._remove(ops[start : start + OPS_PER_WRITE])
            await self._remove([Delete(nodes.partitions(name))])
            await self._free(topic)
        except NotEmpty as problem:
            event(log, logging.ERROR, "topic not deleted", topic=name, reason=problem)
            return
        self._under_way.pop(name)
        self._context.forget(name)
        event(log, logging.INFO, "topic deleted", topic=name, partitions=len(topic.partitions))

    async def _free(self, topic: Topic) -> None:
        """Delete the last nodes together: once the name is free another topic may take it, whose settings and life
        these were else. Where the write was done and its answer lost, that one may be there: it is left alone."""
        ops: list[Op] = [Delete(nodes.topic(topic.name)), Delete(nodes.topic_config(topic.name))]
        wish = Delete(nodes.deletion(topic.name))
        try:
            await self._write([wish, *ops])
        except NoNode as problem:
            if problem.path == wish.path and await self._id(topic.name) == topic.id:
                await self._remove(ops)
            elif problem.path != wish.path:
                await self._remove([op for op in (*ops, wish) if op.path != problem.path])

    async def _id(self, name: str) -> bytes | None:
        """Of the topic that has a name now."""
        try:
            data, _ = await read(self._context.session, nodes.topic(name))
        except NoNode:
            return None
        return nodes.load_topic(data).id

    async def _remove(self, ops: list[Op]) -> None:
        """Delete nodes, all at once, some of which are gone already: an earlier controller may have deleted them."""
        while ops:
            try:
                await self._write(ops)
                break
            except NoNode as problem:
                left = [op for op in ops if op.path != problem.path]
                if len(left) == len(ops):  # the node of the fence: the whole tree is gone
                    raise
                ops = left

    async def _write(self, ops: list[Op]) -> None:
        """Delete nodes, all at once, after what another program left below them. Raises NoNode, and NotEmpty where more
        of that came meanwhile."""
        cleared = set[str]()
        while True:
            try:
                await write(self._context.session, self._context.fence, ops)
                return
            except NotEmpty as problem:
                if problem.path in cleared:
                    raise
                cleared.add(problem.path)
                below = await self._below(problem.path)
                event(log, logging.WARNING, "nodes below a topic deleted", path=problem.path, nodes=len(below))
                for start in range(0, len(below), OPS_PER_WRITE):
                    await self._remove([Delete(path) for path in below[start : start + OPS_PER_WRITE]])

    async def _below(self, path: str) -> list[str]:
        """Every node below one, children first."""
        found, asked = [path], 0
        while asked < len(found):
            share = found[asked : asked + READ_AT_ONCE]
            asked += len(share)
            for names in await asyncio.gather(*map(self._children, share)):
                found += names
        return found[:0:-1]

    async def _children(self, path: str) -> list[str]:
        try:
            names, _ = await until_answered(lambda: self._context.session.children(path))
        except NoNode:
            return []
        return [f"{path}/{name}" for name in names]
