"""Deletes topics of a cluster: a node requests the deletion, the controller executes it, and the next one continues it.

    request ──> clients no longer see the topic; replicas stop, then delete ──all done──> nodes are deleted
                      └── a replica's broker is away: the deletion waits until it is back
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
from pybroker.controller.broker_channel import BrokerChannel, Stop
from pybroker.controller.context import OPS_PER_WRITE, READ_AT_ONCE, ControllerContext
from pybroker.controller.metadata_update import MetadataUpdate, Told
from pybroker.coordination.commit import read, until_answered
from pybroker.coordination.store import Create, Delete, NoNode, NotEmpty, Op
from pybroker.decisions.image import DELETED
from pybroker.decisions.reassignment import to_delete
from pybroker.decisions.topics import Topic
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.metadata.controllership import write
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

Replica = tuple[int, TopicPartition]
"""A replica: its broker and partition."""

TRIES = 3
"""Repeated requests to a replica that cannot delete its log, until its broker registers or its log dirs change."""


class HasChannels(Protocol):
    """The controller, which has the channels to brokers."""

    @property
    def channels(self) -> Mapping[int, BrokerChannel]: ...


@dataclass(slots=True)
class Deletion:
    """A deletion in progress. It is dropped as a whole at its end, as another topic may take the name."""

    left: set[Replica]
    asked: dict[Replica, int] = field(default_factory=dict)
    """The broker epoch in which each replica was last asked to delete its log."""
    failed: Counter[Replica] = field(default_factory=Counter)
    """The failures of each replica since its broker registered, or its log dirs changed."""
    away: set[Replica] = field(default_factory=set)
    """Logs that a reassignment gave up on brokers that are away: these delete them at their next start."""


class Deletions:
    """Runs the deletions of one term as controller."""

    def __init__(self, context: ControllerContext, controller: HasChannels, *, remember: bool = False) -> None:
        """`remember`: keep the ids of deleted topics in the store, so that a log dir that was away brings none back."""
        self._remember = remember
        self._context = context
        self._controller = controller
        self._under_way: dict[str, Deletion] = {}

    async def give_up(self, wishes: Collection[str]) -> bool:
        """Drop deletions whose request and topic nodes were removed by hand: another topic may have the name. True if
        there were any. Raises NOT_CONTROLLER."""
        given_up = []
        for name in self._unwished(wishes):
            with self._context.about(name):
                if await self._id(name) != self._context.topics[name].id:
                    given_up.append(name)
        for name in given_up:
            event(log, logging.WARNING, "topic deletion cancelled", topic=name, reason="its nodes were removed by hand")
            del self._under_way[name]
            self._context.forget(name)
        return bool(given_up)

    def _unwished(self, wishes: Collection[str]) -> list[str]:
        return [name for name in self._under_way if name not in wishes]

    async def go_on(self, wishes: Collection[str], enabled: bool) -> None:
        """Begin requested deletions, and continue those whose brokers have come back. Raises NOT_CONTROLLER."""
        for name in [*wishes, *self._unwished(wishes)]:
            with self._context.about(name):
                await self._go_on(name, enabled)

    def ask_again(self, broker: int) -> None:
        """Ask a broker whose log dirs have changed for the logs that it could not delete: they may have room again."""
        for name, deletion in self._under_way.items():
            for replica in [replica for replica in deletion.failed if replica[0] == broker]:
                del deletion.failed[replica]
                deletion.asked.pop(replica, None)
            self._ask(name)

    async def _go_on(self, name: str, enabled: bool) -> None:
        if name in self._context.damaged:
            return  # the topic is unreadable, so what to delete is unknown: the request waits
        if name not in self._under_way:
            if not enabled or not await self._context.wished([name]):
                if name in self._context.damaged:
                    return  # the request is unreadable
                reason = "the topic does not exist" if enabled else "delete.topic.enable is false"
                event(log, logging.WARNING, "topic deletion ignored", topic=name, reason=reason)
                await self._ignore(name)
                return
            self._begin(self._context.topics[name])
        self._ask(name)
        await self._finish(name)

    async def _ignore(self, name: str) -> None:
        with contextlib.suppress(NotEmpty):  # another program created a node below it: try again next time
            await self._remove([Delete(nodes.deletion(name))])

    def _begin(self, topic: Topic) -> None:
        self._context.deleting.add(topic.name)
        self.tell_gone([topic])
        replicas, given_up = set[Replica](), set[Replica]()
        for index, state in enumerate(topic.partitions):
            key = TopicPartition(topic.name, index)
            replicas |= {(broker, key) for broker in state.replicas}
            given_up |= {(broker, key) for broker in to_delete(state)}
        self._under_way[topic.name] = Deletion(replicas, away=given_up)

    def tell_gone(self, topics: Iterable[Topic]) -> None:
        """Send UpdateMetadata that removes topics from brokers' metadata."""
        gone = {
            TopicPartition(topic.name, index): Told(topic.id, state._replace(leader=DELETED, leader_epoch=DELETED))
            for topic in topics
            for index, state in enumerate(topic.partitions)
        }
        if not gone:
            return
        update = MetadataUpdate(gone, dict(self._context.brokers))
        for channel in self._controller.channels.values():
            channel.update_metadata(update)

    def _ask(self, name: str) -> None:
        """Ask replicas to stop, then to delete, unless they were asked in their broker's current registration. A dead
        broker that has only logs given up by a reassignment may never come back, and does not hold up the deletion."""
        deletion = self._under_way[name]
        back = {replica for replica in deletion.away if replica[0] in self._context.brokers}
        deletion.away -= back
        deletion.left |= back
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
            if not self._remember:  # a lone broker has no followers that could fetch from a deleted leader
                channel.stop_replicas({key: Stop(DELETED, False) for key in keys})
            channel.stop_replicas({key: Stop(DELETED, True) for key in keys})

    async def stopped(self, broker: int, key: TopicPartition, deleted: bool, code: int) -> None:
        """Handle a replica's result. Raises NOT_CONTROLLER."""
        with self._context.about(key.topic):
            await self._stopped(broker, key, deleted, code)

    async def _stopped(self, broker: int, key: TopicPartition, deleted: bool, code: int) -> None:
        deletion = self._under_way.get(key.topic)
        if deletion is None or not deleted:
            return
        replica = broker, key
        if code in (errors.NONE, errors.UNKNOWN_TOPIC_OR_PARTITION) or self._remember:
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
        """Delete the nodes of a topic whose replicas are all gone. If another program keeps creating nodes below it,
        the next `go_on` tries again."""
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
            await self._remember_away(topic)
            await self._free(topic)
        except NotEmpty as problem:
            event(log, logging.ERROR, "topic not deleted", topic=name, reason=problem)
            return
        self._under_way.pop(name)
        self._context.forget(name)
        event(log, logging.INFO, "topic deleted", topic=name, partitions=len(topic.partitions))

    async def _remember_away(self, topic: Topic) -> None:
        """Write which brokers that are away are to delete their logs. While the topic exists they do not."""
        away, path = {broker for broker, _ in self._under_way[topic.name].away}, nodes.deleted(topic.id)
        if away and not await self._context.has(path):
            parent = [] if await self._context.has(nodes.DELETED) else [Create(nodes.DELETED)]
            await self._write([*parent, Create(path, nodes.dump_deleted(sorted(away)))])

    async def _free(self, topic: Topic) -> None:
        """Delete the last nodes in one multi: once the name is free another topic may take it, and its nodes must not
        be deleted. This holds also if the multi was executed but its response was lost."""
        ops: list[Op] = [Delete(nodes.topic(topic.name)), Delete(nodes.topic_config(topic.name))]
        wish = Delete(nodes.deletion(topic.name))
        remembered: list[Op] = []
        if self._remember and not await self._context.has(nodes.deleted(topic.id)):
            remembered.append(Create(nodes.deleted(topic.id)))
        try:
            await self._write([wish, *ops, *remembered])
        except NoNode as problem:
            if problem.path == wish.path and await self._id(topic.name) == topic.id:
                await self._remove(ops)
            elif problem.path != wish.path:
                await self._remove([op for op in (*ops, wish) if op.path != problem.path])

    async def _id(self, name: str) -> bytes | None:
        """The id of the topic that currently has this name; None if there is none."""
        try:
            data, _ = await read(self._context.session, nodes.topic(name))
        except NoNode:
            return None
        return nodes.load_topic(data).id

    async def _remove(self, ops: list[Op]) -> None:
        """Delete nodes in one multi, except those that are gone: an earlier controller may have deleted some."""
        while ops:
            try:
                await self._write(ops)
                break
            except NoNode as problem:
                left = [op for op in ops if op.path != problem.path]
                if len(left) == len(ops):  # /controller_epoch: the whole tree is gone
                    raise
                ops = left

    async def _write(self, ops: list[Op]) -> None:
        """Delete nodes in one multi, after deleting any nodes of other programs below them. Raises NoNode, and NotEmpty
        if another program keeps creating nodes there."""
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
        """All nodes below this one, children first."""
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
