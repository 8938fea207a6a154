"""What the controller of a cluster knows and goes by, read from the store and kept by its own writes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from pybroker.cluster.image import LiveBroker, PartitionState
from pybroker.cluster.topics import Topic
from pybroker.controller import nodes
from pybroker.controller.broker_channel import Told
from pybroker.controller.election import Fence, write
from pybroker.coordination.commit import read, until_answered
from pybroker.coordination.store import (
    BadVersion,
    Create,
    NodeExists,
    NoNode,
    Op,
    Session,
    Set,
    Stat,
    StoreDamaged,
    Watch,
)
from pybroker.logs import event
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

OPS_PER_WRITE = 250
READ_AT_ONCE = 1000


@dataclass(slots=True)
class ClusterContext:
    """Of one controller while it is elected. Topics and states are replaced, never changed."""

    session: Session
    fence: Fence
    brokers: dict[int, LiveBroker] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    """The czxid of each live broker's node."""
    ignored: set[str] = field(default_factory=set)
    """The names of registrations that cannot be read, which was said of each."""
    leaving: set[int] = field(default_factory=set)
    """Who asked for a controlled shutdown."""
    topics: dict[str, Topic] = field(default_factory=dict)
    deleting: set[str] = field(default_factory=set)
    failed: set[tuple[int, TopicPartition]] = field(default_factory=set)
    """Replicas whose log a live broker cannot use."""
    full: set[tuple[int, TopicPartition]] = field(default_factory=set)
    """Replicas at live brokers that take no appends for lack of room: read from, but neither leaders nor in sync where
    another can be."""
    watched: set[str] = field(default_factory=set)
    """Topics whose nodes were read, and have not changed since: a watch would have said so."""
    damaged: set[str] = field(default_factory=set)
    """Topics of which the store has what cannot be read: they are there, and nothing can be said of them."""

    # -- reading -----------------------------------------------------------------------------------------------------

    async def read_brokers(self, watch: Watch) -> tuple[dict[int, LiveBroker], dict[int, int]]:
        """Who is registered now, and under which epoch. Raises StoreError."""
        names, _ = await until_answered(lambda: self.session.children(nodes.BROKER_IDS, watch=watch))
        brokers, epochs, ignored = {}, {}, set[str]()
        for name in names:
            try:
                broker = nodes.broker_id(name)
                data, stat = await self._watched(nodes.broker(broker), watch)
                brokers[broker] = nodes.load_broker(broker, data)
                epochs[broker] = stat.czxid
            except NoNode:
                continue
            except StoreDamaged as problem:
                ignored.add(name)
                if name not in self.ignored:
                    event(log, logging.ERROR, "registration ignored", broker=name, reason=problem)
        self.ignored = ignored
        return brokers, epochs

    async def _watched(self, path: str, watch: Watch) -> tuple[bytes, Stat]:
        return await until_answered(lambda: self.session.get(path, watch=watch))

    async def read_topics(self, watch: Watch) -> tuple[list[Topic], set[TopicPartition]]:
        """Know the topics that there are, with what they have become; those that are gone though nobody wished for
        it, and the partitions that came with a state. A partition whose state is not written yet has the leader epoch
        -1. Raises StoreError."""
        names, _ = await until_answered(lambda: self.session.children(nodes.TOPICS, watch=watch))
        self.damaged &= set(names)
        gone = [self.topics[name] for name in self.topics.keys() - self.deleting - set(names)]
        found = await self._read_topics(set(names) - self.watched, watch)
        gone += [known for topic in found if (known := self._replaced(topic)) is not None]
        for topic in gone:
            event(log, logging.WARNING, "topic removed by hand", topic=topic.name, partitions=len(topic.partitions))
            self.forget(topic.name)
        return gone, self._merge(found)

    async def _read_topics(self, names: Iterable[str], watch: Watch) -> list[Topic]:
        left, found = sorted(names), list[Topic]()
        for start in range(0, len(left), READ_AT_ONCE):
            share = left[start : start + READ_AT_ONCE]
            read_ones = await asyncio.gather(*(self._read_topic(name, watch) for name in share))
            found += [topic for topic in read_ones if topic is not None]
        return found

    def changed(self, path: str) -> None:
        """A watch says so of a node: where it is a topic's, the next look reads it."""
        self.watched.discard(path.removeprefix(f"{nodes.TOPICS}/"))

    async def _read_topic(self, name: str, watch: Watch) -> Topic | None:
        self.watched.add(name)  # before it is read: the watch may speak before the answer is taken up
        try:
            data, _ = await self._watched(nodes.topic(name), watch)
            node = nodes.load_topic(data)
            states = [self._read_state(name, index, replicas) for index, replicas in enumerate(node.replicas)]
            found = Topic(name, node.id, tuple(await asyncio.gather(*states)))
        except NoNode:
            self.watched.discard(name)  # there is no watch
            found = None
        except StoreDamaged as problem:
            event(log, logging.ERROR, "topic ignored", topic=name, reason=problem)
            self.damaged.add(name)
            self.watched.discard(name)  # nobody watches its states, which may be what is mended
            return None
        self.damaged.discard(name)
        return found

    async def wished(self, wishes: Iterable[str]) -> set[str]:
        """The topics that are to be deleted, by the names of wishes: a wish that tells an id is of no other topic that
        has the name by now; Kafka's tell none. Raises StoreError."""
        found = set()
        for name in wishes:
            topic = self.topics.get(name)
            if topic is None:
                continue
            with contextlib.suppress(NoNode):
                data, _ = await read(self.session, nodes.deletion(name))
                if data in (b"", nodes.dump_deletion(topic.id)):
                    found.add(name)
        return found

    def _replaced(self, topic: Topic) -> Topic | None:
        """The one that had its name before, unless that is being deleted: it has its name until its nodes are gone."""
        known = self.topics.get(topic.name)
        return known if known is not None and known.id != topic.id and topic.name not in self.deleting else None

    def _merge(self, topics: Iterable[Topic]) -> set[TopicPartition]:
        """Know topics that came, or have more partitions; the partitions of them that had a state already."""
        led = set()
        for topic in topics:
            known = self.topics.get(topic.name)
            if known is None:
                known = Topic(topic.name, topic.id, ())
            elif known.id != topic.id or len(known.partitions) >= len(topic.partitions):
                continue
            more = topic.partitions[len(known.partitions) :]
            self.topics[topic.name] = Topic(topic.name, topic.id, (*known.partitions, *more))
            led |= {
                TopicPartition(topic.name, index)
                for index, state in enumerate(more, len(known.partitions))
                if state.leader_epoch >= 0
            }
        return led

    def forget(self, name: str) -> None:
        """A topic is gone: nothing that is known of it holds for another of its name."""
        self.topics.pop(name, None)
        self.deleting.discard(name)
        self.watched.discard(name)
        self.failed = {each for each in self.failed if each[1].topic != name}
        self.full = {each for each in self.full if each[1].topic != name}

    async def _read_state(self, name: str, index: int, replicas: tuple[int, ...]) -> PartitionState:
        try:
            data, stat = await read(self.session, nodes.state(name, index))
            return nodes.load_state(data, replicas, stat.version)
        except NoNode:
            return PartitionState(replicas, -1, -1, (), -1, -1)

    # -- looking -----------------------------------------------------------------------------------------------------

    def state(self, key: TopicPartition) -> PartitionState | None:
        topic = self.topics.get(key.topic)
        return topic.partitions[key.partition] if topic and 0 <= key.partition < len(topic.partitions) else None

    def states(self) -> Iterable[tuple[TopicPartition, PartitionState]]:
        """Every partition whose topic stays."""
        for topic in list(self.topics.values()):
            if topic.name not in self.deleting:
                for index, state in enumerate(topic.partitions):
                    yield TopicPartition(topic.name, index), state

    def live(self, key: TopicPartition) -> set[int]:
        """The brokers that can hold a replica of a partition now."""
        return {broker for broker in self.brokers if (broker, key) not in self.failed}

    def leaving_of(self, key: TopicPartition) -> set[int]:
        """The brokers that are to lead a partition no longer, for they shut down or take no appends to it."""
        if not self.full:
            return self.leaving
        return self.leaving | {broker for broker in self.brokers if (broker, key) in self.full}

    def _unusable(self, broker: int, key: TopicPartition, state: PartitionState) -> bool:
        """True if a replica is offline; one that takes no appends, once the ISR goes on without it."""
        return (broker, key) in self.failed or ((broker, key) in self.full and broker not in state.isr)

    def told(
        self, keys: Iterable[TopicPartition], new: Container[TopicPartition] = ()
    ) -> dict[TopicPartition, Told]:
        """What brokers are told of partitions, as they are now; those in `new` are new."""
        found = {}
        for key in keys:
            state = self.state(key)
            if state is not None:
                offline = tuple(broker for broker in state.replicas if self._unusable(broker, key, state))
                found[key] = Told(self.topics[key.topic].id, state, key in new, offline)
        return found

    # -- writing -----------------------------------------------------------------------------------------------------

    async def write_states(
        self, changes: Mapping[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, PartitionState]:
        """Write states by the versions that are known; those that were written. What somebody else has written since is
        read again, for whoever decides to decide again. Raises KafkaError: NOT_CONTROLLER."""
        items = [(key, state._replace(controller_epoch=self.fence.epoch)) for key, state in changes.items()]
        shares = [items[start : start + OPS_PER_WRITE] for start in range(0, len(items), OPS_PER_WRITE)]
        done: dict[TopicPartition, PartitionState] = {}
        for written in await asyncio.gather(*(self._write_share(share) for share in shares)):
            done.update(written)
        self._put(done)
        return done

    async def _write_share(
        self, share: list[tuple[TopicPartition, PartitionState]]
    ) -> dict[TopicPartition, PartitionState]:
        ops: list[Op] = [Set(nodes.state(*key), nodes.dump_state(state), state.partition_epoch) for key, state in share]
        try:
            await write(self.session, self.fence, ops)
        except (BadVersion, NoNode) as problem:
            if len(share) > 1:
                parts = await asyncio.gather(*(self._write_share([one]) for one in share))
                return {key: state for part in parts for key, state in part.items()}
            ((key, state),) = share
            event(log, logging.WARNING, "state written by another", partition=key, reason=problem)
            self._put({key: await self._read_state(key.topic, key.partition, state.replicas)})
            return {}
        return {key: state._replace(partition_epoch=state.partition_epoch + 1) for key, state in share}

    def _put(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        by_topic: dict[str, dict[int, PartitionState]] = {}
        for (name, index), state in states.items():
            by_topic.setdefault(name, {})[index] = state
        for name, news in by_topic.items():
            topic = self.topics.get(name)
            if topic is not None:
                partitions = tuple(news.get(index, state) for index, state in enumerate(topic.partitions))
                self.topics[name] = Topic(name, topic.id, partitions)

    async def create_states(self, new: Mapping[TopicPartition, PartitionState]) -> None:
        """Write the first states of partitions, parents first. Raises KafkaError: NOT_CONTROLLER, StoreError."""
        by_topic: dict[str, list[TopicPartition]] = {}
        for key in new:
            by_topic.setdefault(key.topic, []).append(key)
        work = []
        for name, keys in by_topic.items():
            ops: list[Op] = []
            try:
                await read(self.session, nodes.partitions(name))
            except NoNode:
                ops.append(Create(nodes.partitions(name)))
            for key in keys:
                data = nodes.dump_state(new[key]._replace(controller_epoch=self.fence.epoch))
                ops += [Create(nodes.partition(*key)), Create(nodes.state(*key), data)]
                if len(ops) >= 2 * OPS_PER_WRITE:
                    work.append(ops)
                    ops = []
            work.append(ops)
        there = set[str]().union(*await asyncio.gather(*(self._create(ops) for ops in work if ops)))
        done = {key: state._replace(controller_epoch=self.fence.epoch) for key, state in new.items()}
        for key in new:
            if nodes.state(*key) in there:
                done[key] = await self._read_state(*key, new[key].replicas)
        self._put(done)

    async def _create(self, ops: list[Op]) -> set[str]:
        """Create those nodes that are not there: Kafka's controller creates a partition and its state one by one, and
        may have died between them. The paths of those that are there."""
        there = set[str]()
        while True:
            left = [op for op in ops if op.path not in there]
            try:
                await write(self.session, self.fence, left)
                return there
            except NodeExists:
                for op in left:
                    if await self._exists(op.path):
                        there.add(op.path)

    async def _exists(self, path: str) -> bool:
        return await until_answered(lambda: self.session.exists(path)) is not None
