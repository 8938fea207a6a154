"""The state of a cluster's controller: read from the store, and updated by the controller's own writes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from pybroker.controller.assignments import write_assignments
from pybroker.controller.damage import Damaged, is_of_one_topic
from pybroker.controller.metadata_update import Told
from pybroker.controller.power_losses import PowerLosses
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
    StoreError,
    StoreFailed,
    Watch,
)
from pybroker.decisions.image import LiveBroker, PartitionState
from pybroker.decisions.topics import Topic
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.metadata.controllership import Fence, write
from pybroker.metadata.stored_topic import StateNode, judge, judge_node, judge_partition, strangers
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

OPS_PER_WRITE = 250
READ_AT_ONCE = 1000
States = Mapping[TopicPartition, PartitionState]
Written = tuple[TopicPartition, PartitionState, Set]
"""A partition, its new state, and the operation that writes it."""


@dataclass(slots=True)
class ControllerContext:
    """The state of one term as controller. Topics and partition states are immutable: they are replaced."""

    session: Session
    fence: Fence
    brokers: dict[int, LiveBroker] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    """The czxid of each live broker's node."""
    ignored: set[str] = field(default_factory=set)
    """The names of unreadable registrations that were logged."""
    leaving: set[int] = field(default_factory=set)
    """Brokers in controlled shutdown."""
    fenced: dict[int, int] = field(default_factory=dict)
    """The last stale broker epoch of each broker that was logged."""
    topics: dict[str, Topic] = field(default_factory=dict)
    deleting: set[str] = field(default_factory=set)
    failed: set[tuple[int, TopicPartition]] = field(default_factory=set)
    """Replicas whose log a live broker cannot use."""
    full: set[tuple[int, TopicPartition]] = field(default_factory=set)
    """Replicas of live brokers whose log dir is full: they serve reads, but should neither lead nor be in sync if
    another replica can."""
    power_lost: PowerLosses = field(default_factory=PowerLosses)
    """Members of the ISR whose log may lack its end, of partitions without another leader: last_replicas.py elects."""
    watched: set[str] = field(default_factory=set)
    """Topics whose nodes were read and have not changed since; a watch is set on each."""
    written: dict[TopicPartition, int] = field(default_factory=dict)
    """The transaction that wrote each state as it was read; no entry for a missing state."""
    lost: dict[TopicPartition, tuple[bytes, PartitionState]] = field(default_factory=dict)
    """Partitions whose state node is missing though the topic exists: the topic's id, and the last known state."""
    doubted: set[TopicPartition] = field(default_factory=set)
    """Partitions whose last state only their replicas know: restoration.py elects their leaders."""
    untold: set[TopicPartition] = field(default_factory=set)
    """Partitions to send to all brokers after the requests that wait in the inbox: when a broker comes back, hundreds
    of leaders add its replicas to their ISRs at once."""
    damaged: Damaged = field(default_factory=Damaged)
    """Topics that are left out: brokers go on serving them, and the controller changes nothing."""
    ids: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """The id of each topic whose node could be read and is sound, and the czxid of the node."""
    unread: dict[str, str] = field(default_factory=dict)
    """Nodes other than brokers' and topics' that could not be read, and the reason that was logged for each."""

    # -- reading -----------------------------------------------------------------------------------------------------

    async def read_brokers(self, watch: Watch) -> tuple[dict[int, LiveBroker], dict[int, int]]:
        """The registered brokers, and their broker epochs. Raises StoreError."""
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
            except StoreFailed as problem:  # the node is damaged, or access is denied
                ignored.add(name)
                if name not in self.ignored:
                    event(log, logging.ERROR, "registration ignored", broker=name, reason=problem)
        self.ignored = ignored
        return brokers, epochs

    async def _watched(self, path: str, watch: Watch) -> tuple[bytes, Stat]:
        return await until_answered(lambda: self.session.get(path, watch=watch))

    async def names(self, path: str, watch: Watch) -> list[str]:
        """The children of a node other than those of brokers and topics. Empty if it cannot be read, which is logged
        once for each reason. Raises SessionExpired."""
        try:
            names, _ = await until_answered(lambda: self.session.children(path, watch=watch))
        except (NoNode, StoreFailed) as problem:
            self.not_read(path, problem)
            return []
        self.unread.pop(path, None)
        return names

    def not_read(self, path: str, problem: StoreError) -> None:
        """Log that a node is skipped until it can be read; once for each reason."""
        if self.unread.get(path) != str(problem):
            self.unread[path] = str(problem)
            event(log, logging.WARNING, "node not read", node=path, reason=problem)

    # -- topics ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def about(self, topic: str) -> Iterator[None]:
        """Run work on one topic: if it fails, leave the topic out and go on with the others. Raises only errors that
        end the work on all topics."""
        try:
            yield
        except Exception as problem:
            if not is_of_one_topic(problem):
                raise
            self.leave_out(topic, problem)

    def leave_out(self, topic: str, problem: Exception, *, judged: bool = False) -> None:
        """Leave a topic alone until it is judged sound; brokers go on serving it. If it is being deleted, its
        partitions stay known."""
        self.damaged.note(topic, problem, judged=judged)
        self.watched.discard(topic)
        if topic not in self.deleting:
            self.topics.pop(topic, None)

    def decide(
        self, decision: Callable[[TopicPartition, PartitionState], PartitionState | None]
    ) -> dict[TopicPartition, PartitionState]:
        """The new states that `decision` returns; a topic is left out if a decision on one of its partitions fails."""
        decided: dict[TopicPartition, PartitionState] = {}
        for topic in list(self.topics.values()):
            if topic.name not in self.deleting:
                with self.about(topic.name):
                    keys = [TopicPartition(topic.name, index) for index in range(len(topic.partitions))]
                    found = {key: decision(key, state) for key, state in zip(keys, topic.partitions, strict=True)}
                    decided.update({key: state for key, state in found.items() if state is not None})
        return decided

    async def read_topics(self, watch: Watch) -> tuple[list[Topic], set[TopicPartition]]:
        """Read topics that are new or have changed. Return the topics that are gone without a request to delete them,
        and the new partitions that already have a state. A partition without one has leader epoch -1. Raises
        StoreError."""
        names, _ = await until_answered(lambda: self.session.children(nodes.TOPICS, watch=watch))
        for name in (self.damaged | self.ids.keys()) - set(names):
            self.damaged.forget(name)
            self.ids.pop(name, None)
        gone = [self.topics[name] for name in self.topics.keys() - self.deleting - set(names)]
        left_out = set(self.damaged)
        found = await self._read_topics(set(names) - self.watched, watch)
        # Read a damaged topic again with watches on its states: one of these may be corrected later.
        found += await self._read_topics(self.damaged - left_out, watch)
        found = self._with_ids_of_their_own(found)
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

    def _with_ids_of_their_own(self, found: list[Topic]) -> list[Topic]:
        """The topics, of those read, whose id no older topic has: with one id, followers would copy one topic's log
        into the other's. A known topic is left out if an older one with its id is found."""
        if not found:
            return []
        others, read = strangers(self.ids), {topic.name for topic in found}
        for name, owner in others.items():
            if name in self.topics or name in read:
                why = f"its topic id {nodes.id_text(self.ids[name][0])} is that of {owner}, whose node is older"
                self.leave_out(name, StoreDamaged(detail=why), judged=True)
        sound = [topic for topic in found if topic.name not in others]
        for topic in sound:
            self.damaged.sound(topic.name)
        return sound

    def changed(self, path: str) -> None:
        """Note that a watch on `path` fired: if this is a topic's node, the next `read_topics` reads it."""
        self.watched.discard(path.removeprefix(f"{nodes.TOPICS}/"))

    async def _read_topic(self, name: str, watch: Watch) -> Topic | None:
        """The topic, if it is sound. If it is already left out, watches are set on its states as well."""
        self.watched.add(name)  # before the read: the watch may fire before this task handles the result
        below = watch if name in self.damaged else None
        found = None
        with self.about(name):
            try:
                data, stat = await self._watched(nodes.topic(name), watch)
                node = judge_node(name, data)
                known, czxid = self.ids.setdefault(name, (node.id, stat.czxid))
                if czxid == stat.czxid and known != node.id:
                    was, now = nodes.id_text(known), nodes.id_text(node.id)
                    raise StoreDamaged(detail=f"its topic id was changed from {was} to {now}")
                self.ids[name] = node.id, stat.czxid
                there = self.topics.get(name)
                if there and there.id == node.id and len(there.partitions) >= len(node.replicas) and below is None:
                    return there  # written by this controller: other changes of a known topic do not count
                states = [self._state_node(name, index, below) for index in range(len(node.replicas))]
                found = judge(name, node, await asyncio.gather(*states))
            except NoNode:
                self.watched.discard(name)  # no watch was set
            except StoreFailed as problem:  # the node is damaged, or access is denied
                self.leave_out(name, problem, judged=True)
        return found

    async def _state_node(self, name: str, index: int, watch: Watch | None) -> StateNode | None:
        """The state node of a partition; None if it does not exist yet. Raises StoreError."""
        path, key = nodes.state(name, index), TopicPartition(name, index)
        try:
            data, stat = await until_answered(lambda: self.session.get(path, watch=watch))
            self.written[key] = stat.mzxid
            if nodes.is_doubted(data):  # until restoration.py decides
                self.doubted.add(key)
            return StateNode(data, stat.version)
        except NoNode:
            self.written.pop(key, None)
            if watch is not None:
                await until_answered(lambda: self.session.exists(path, watch=watch))
            return None

    async def wished(self, wishes: Iterable[str]) -> set[str]:
        """The topics that requests with these names delete. A request with an id, which Kafka does not write, is not
        for a later topic of the same name. Raises StoreError."""
        found = set()
        for name in wishes:
            topic = self.topics.get(name)
            if topic is None:
                continue
            with self.about(name), contextlib.suppress(NoNode):
                data, _ = await read(self.session, nodes.deletion(name))
                if data in (b"", nodes.dump_deletion(topic.id)):
                    found.add(name)
        return found

    def _replaced(self, topic: Topic) -> Topic | None:
        """The known topic of this name, if it has another id. A topic being deleted keeps its name until its nodes are
        gone."""
        known = self.topics.get(topic.name)
        return known if known is not None and known.id != topic.id and topic.name not in self.deleting else None

    def _merge(self, topics: Iterable[Topic]) -> set[TopicPartition]:
        """Add new topics and new partitions of known ones. Return the added partitions that already have a state."""
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
        """Forget a topic that is gone, as none of its state applies to a later topic of its name."""
        self.topics.pop(name, None)
        self.deleting.discard(name)
        self.watched.discard(name)
        self.doubted = {key for key in self.doubted if key.topic != name}
        self.lost = {key: was for key, was in self.lost.items() if key.topic != name}
        self.written = {key: zxid for key, zxid in self.written.items() if key.topic != name}
        self.failed = {each for each in self.failed if each[1].topic != name}
        self.full = {each for each in self.full if each[1].topic != name}
        self.power_lost.forget_topic(name)

    def forget_brokers(self, gone: AbstractSet[int]) -> None:
        """Forget what is known of brokers' replicas, as their registrations are gone."""
        self.failed = {each for each in self.failed if each[0] not in gone}
        self.full = {each for each in self.full if each[0] not in gone}
        self.power_lost.forget_brokers(gone)

    async def _read_state(self, key: TopicPartition, assigned: PartitionState) -> dict[TopicPartition, PartitionState]:
        """The state of a partition that another program wrote; empty if the topic is left out because of it."""
        found = dict[TopicPartition, PartitionState]()
        with self.about(key.topic):
            found[key] = judge_partition(key.partition, assigned, await self._state_node(*key, None))
        return found

    async def read_again(self, key: TopicPartition, assigned: PartitionState) -> dict[TopicPartition, PartitionState]:
        """Read a state that another program wrote. If it is missing, or older than the known state, the known state
        stays and is written again, so that no leader epoch is used twice."""
        found, known = await self._read_state(key, assigned), self.state(key)
        if known is None or key not in found:
            return found
        now = found[key]
        if (now.leader_epoch, now.partition_epoch) >= (known.leader_epoch, known.partition_epoch):
            return found
        if now.leader_epoch < 0:
            self.lost[key] = self.topics[key.topic].id, known
            return found
        return {key: known.with_replicas_of(assigned)._replace(partition_epoch=now.partition_epoch)}

    # -- queries -----------------------------------------------------------------------------------------------------

    def state(self, key: TopicPartition) -> PartitionState | None:
        topic = self.topics.get(key.topic)
        return topic.partitions[key.partition] if topic and 0 <= key.partition < len(topic.partitions) else None

    def states(self) -> Iterable[tuple[TopicPartition, PartitionState]]:
        """Every partition and its state, except those of topics being deleted."""
        for topic in list(self.topics.values()):
            if topic.name not in self.deleting:
                for index, state in enumerate(topic.partitions):
                    yield TopicPartition(topic.name, index), state

    def live(self, key: TopicPartition) -> AbstractSet[int]:
        """The live brokers that can use their replica of a partition, and did not lose power while in sync; empty if
        the partition is doubted."""
        if key in self.doubted:
            return frozenset()
        lost = self.power_lost.get(key)
        return self.usable(key) - lost if lost else self.usable(key)

    def usable(self, key: TopicPartition) -> AbstractSet[int]:
        """The live brokers, except those whose log of a partition failed."""
        live, state = self.brokers.keys(), self.state(key) if self.failed else None
        failed = [broker for broker in state.replicas if (broker, key) in self.failed] if state is not None else ()
        return live - set(failed) if failed else live

    def leaving_of(self, key: TopicPartition) -> set[int]:
        """The brokers that should no longer lead a partition: they shut down, or cannot append to it."""
        if not self.full:
            return self.leaving
        return self.leaving | {broker for broker in self.brokers if (broker, key) in self.full}

    def _unusable(self, broker: int, key: TopicPartition, state: PartitionState) -> bool:
        """True if a replica is offline. One whose log dir is full counts as offline once it is out of the ISR."""
        return (broker, key) in self.failed or ((broker, key) in self.full and broker not in state.isr)

    def told(
        self, keys: Iterable[TopicPartition], new: Container[TopicPartition] = ()
    ) -> dict[TopicPartition, Told]:
        """The current states of partitions, to send to brokers; those in `new` are new. Partitions of a topic being
        deleted are left out: a broker that received them again would show the topic for ever."""
        found = {}
        some_unusable = bool(self.failed or self.full)
        for name, its in groupby(keys, itemgetter(0)):
            topic = self.topics.get(name)
            if topic is None or name in self.deleting:
                continue
            with self.about(name):
                for key in its:
                    if (state := self.state(key)) is not None:
                        unusable = (b for b in state.replicas if some_unusable and self._unusable(b, key, state))
                        found[key] = Told(topic.id, state, key in new, tuple(unusable))
        return found

    # -- writing -----------------------------------------------------------------------------------------------------

    async def write_states(self, changes: States, written: Callable[[States], object] = lambda done: None) -> States:
        """Write states, each with a version check. Return those that were written; `written` takes each share at once.
        A state that another program has changed is read again: the caller decides again. Raises NOT_CONTROLLER."""
        items, moved = list[Written](), dict[TopicPartition, PartitionState]()
        for key, asked in changes.items():
            with self.about(key.topic):
                known = self.state(key)
                if known is not None and known.assignment != asked.assignment:
                    moved[key] = asked
                    continue
                state = asked._replace(controller_epoch=self.fence.epoch)
                items.append((key, state, Set(nodes.state(*key), self.dump(key, state), state.partition_epoch)))
        shares = [items[start : start + OPS_PER_WRITE] for start in range(0, len(items), OPS_PER_WRITE)]
        done: dict[TopicPartition, PartitionState] = {}
        for its in await asyncio.gather(*(self._write_share(share, written) for share in shares)):
            done.update(its)
        if moved:
            written(also := await write_assignments(self, moved))
            done.update(also)
        self.put(done)
        self.power_lost.written(done)
        return done

    def dump(self, key: TopicPartition, state: PartitionState) -> bytes:
        return nodes.dump_state(state, doubted=key in self.doubted)

    async def _write_share(self, share: list[Written], written: Callable[[States], object]) -> States:
        try:
            await write(self.session, self.fence, [op for _, _, op in share])
        except (BadVersion, NoNode, KafkaError) as problem:
            if isinstance(problem, KafkaError) and not is_of_one_topic(problem):
                raise
            if len(share) > 1:
                parts = await asyncio.gather(*(self._write_share([one], written) for one in share))
                return {key: state for part in parts for key, state in part.items()}
            ((key, state, _),) = share
            if isinstance(problem, KafkaError):
                self.leave_out(key.topic, problem)
            else:
                event(log, logging.WARNING, "partition state modified by another writer", partition=key, reason=problem)
                self.put(await self.read_again(key, state))
            return {}
        done = {key: state._replace(partition_epoch=state.partition_epoch + 1) for key, state, _ in share}
        written(done)
        return done

    def put(self, states: Mapping[TopicPartition, PartitionState]) -> None:
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
        await asyncio.gather(*(self._create_states(name, keys, new) for name, keys in by_topic.items()))

    async def _create_states(
        self, name: str, keys: Iterable[TopicPartition], new: Mapping[TopicPartition, PartitionState]
    ) -> None:
        ops: list[Op] = []
        work = [ops]
        done = {key: new[key]._replace(controller_epoch=self.fence.epoch) for key in keys}
        with self.about(name):
            if not await self.has(nodes.partitions(name)):
                ops.append(Create(nodes.partitions(name)))
            for key, state in done.items():
                ops += [Create(nodes.partition(*key)), Create(nodes.state(*key), self.dump(key, state))]
                if len(ops) >= 2 * OPS_PER_WRITE:
                    work.append(ops := [])
            there = set[str]().union(*await asyncio.gather(*(self._create(ops) for ops in work if ops)))
            for key in done:
                if nodes.state(*key) in there:
                    done |= await self._read_state(key, new[key])
            self.put(done)

    async def _create(self, ops: list[Op]) -> set[str]:
        """Create the nodes that do not exist, and return the paths of those that do. Kafka's controller creates a
        partition and its state separately, and may have died between the two."""
        there = set[str]()
        while True:
            left = [op for op in ops if op.path not in there]
            try:
                await write(self.session, self.fence, left)
                return there
            except NodeExists:
                for op in left:
                    if await self.has(op.path):
                        there.add(op.path)

    async def make_feature_node(self) -> None:
        """Create the node of finalized features, with none, unless it exists: a Kafka broker that becomes the
        controller waits a minute for it. Raises KafkaError: NOT_CONTROLLER."""
        if await self.has(nodes.FEATURE):
            return
        try:
            with contextlib.suppress(NodeExists):
                await write(self.session, self.fence, [Create(nodes.FEATURE, nodes.NO_FEATURES)])
        except KafkaError as problem:
            if not is_of_one_topic(problem):
                raise
            event(log, logging.WARNING, "node not created", node=nodes.FEATURE, reason=problem.message)

    async def has(self, path: str) -> bool:
        """True if the store has a node at this path. Raises SessionExpired."""
        return await until_answered(lambda: self.session.exists(path)) is not None
