"""Topics come, grow and go: decided here, written to the store as this controller, then told to the replicas.

    create   one write: config, topic, states      then the logs are made, then one write: it is made; clients see it
    delete   one write: the wish to delete         then clients see it no more and the logs go, then its nodes
    grow     one write: topic, new states          then the new logs are made, then one write; clients see them

A crash in between leaves nothing half-done: a topic node says from which partition on it is being made, and a start
undoes that. So a creation that was refused does not come back, even where the store could not be made to forget it. A
wish to delete that is still there is granted at a start.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Protocol

from pybroker import errors
from pybroker.cluster import topics as rules
from pybroker.cluster.image import PartitionState
from pybroker.cluster.topics import Topic
from pybroker.config import BrokerConfig
from pybroker.controller import nodes
from pybroker.controller.channel import Channel
from pybroker.controller.context import ControllerContext
from pybroker.controller.election import write
from pybroker.controller.mentioned import Mentioned
from pybroker.controller.planning import NewTopic, Planner, mentioned_topic, offsets_topic
from pybroker.coordination.store import Create, Delete, NodeExists, NoNode, Op, Session, Set
from pybroker.errors import KafkaError
from pybroker.logs import event

log = logging.getLogger(__name__)


class Holders(Protocol):
    """Whoever holds replicas and must be told: this broker's own."""

    async def open(self, topics: Iterable[Topic], *, first: int = 0, new: bool) -> None:
        """Where `new`, all of it or nothing, and shown to nobody yet. Raises KAFKA_STORAGE_ERROR."""

    def show(self, topic: Topic, first: int) -> None:
        """Serve clients what was opened as new."""

    async def delete(self, topic: Topic, first: int = 0) -> None:
        """The partitions from `first` on."""

    def directories(self, topic: Topic) -> Mapping[int, str]:
        """The directory.id of the log dir of each partition, as far as it is known."""


class TopicAdmin:
    """The controller's work on topics, of one broker that was elected."""

    def __init__(
        self,
        session: Session,
        context: ControllerContext,
        channel: Channel,
        config: BrokerConfig,
        holders: Holders,
        random: Random,
    ) -> None:
        """`random` draws topic ids and the brokers where assignments begin."""
        self._session = session
        self._context = context
        self._channel = channel
        self._config = config
        self._holders = holders
        self.on_deleted: list[Callable[[str], Awaitable[object]]] = []  # who keeps something of topics, and is told
        self._changing: set[str] = set()
        self._left: dict[str, list[Op]] = {}  # of a change that failed: what the store could not be made to forget yet
        self._planner = Planner(config, random)
        self._mentioned = Mentioned(self._claim_mentioned, self._create)
        self.waits_for = ""
        """As ClusterTopics has it: the store is here."""

    # -- creating --------------------------------------------------------------------------------------------------

    async def create(self, new: NewTopic, validate_only: bool = False) -> Topic:
        """Create a topic. Raises KafkaError: 17, 36, 37, 38, 39, 40, 41, 42, 56."""
        topic = self._plan(new)
        if validate_only:
            return topic
        self._begin(topic.name)
        return await self._create(topic)

    async def _create(self, topic: Topic) -> Topic:
        """Make a topic whose name is claimed, and let go of the name."""
        try:
            topic = await self._add(topic, 0, creation(topic, made_from=0), _removal(topic))
        except NodeExists:
            raise KafkaError(errors.TOPIC_ALREADY_EXISTS, f"topic {topic.name} exists already") from None
        finally:
            self._changing.discard(topic.name)
        event(log, logging.INFO, "topic created", topic=topic.name, partitions=len(topic.partitions))
        return topic

    async def _add(self, topic: Topic, first: int, ops: list[Op], undo: list[Op]) -> Topic:
        """Have the store know a topic's partitions from `first` on, make them, and show them; or undo it."""
        await self._write(topic.name, ops)
        try:
            made = await self._make(topic, first)
        except KafkaError:
            self._left[topic.name] = undo
            with contextlib.suppress(KafkaError):  # the next change of the topic begins with it, or a start does it
                await self._write(topic.name, [])
            raise
        self._context.topics[made.name] = made
        self._channel.update_configs([made])
        self._channel.update_metadata([made])
        self._holders.show(made, first)
        return made

    async def _make(self, topic: Topic, first: int) -> Topic:
        """Make the logs, and put on record that they are made and where. What fails leaves no log."""
        await self._holders.open([topic], first=first, new=True)
        made = replace(topic, directories=self._holders.directories(topic))
        try:
            await self._write(topic.name, [topic_op(made)])
        except KafkaError:
            await self._holders.delete(topic, first)
            raise
        return made

    async def _write(self, name: str, ops: list[Op]) -> None:
        """Write a change of a topic, and what is left of an earlier one. Raises as `write`."""
        await write(self._session, self._context.fence, [*self._left.get(name, ()), *ops])
        self._left.pop(name, None)

    def is_creating(self, name: str) -> bool:
        """True while a topic of this name is being created."""
        return name in self._changing

    def auto_create(self, name: str) -> None:
        """Begin to create a topic with the broker's defaults; again while that is under way changes nothing. Raises
        KafkaError as `create` where it cannot be."""
        if name not in self._changing:
            self._mentioned.create(name)

    def _claim_mentioned(self, name: str) -> Topic:
        """Plan a topic that was mentioned, and claim its name. Raises KafkaError."""
        topic = self._plan(mentioned_topic(name, self.offsets_topic))
        self._begin(name)
        return topic

    def offsets_topic(self) -> NewTopic:
        """The offsets topic as this broker makes it, with as many replicas as there can be."""
        most = len(self._context.brokers)
        return offsets_topic(self._config, min(self._config["offsets.topic.replication.factor"], most))

    def _plan(self, new: NewTopic) -> Topic:
        """The topic as it will be. Raises KafkaError where it cannot be."""
        topic_id, assignment, config = self._planner.topic(
            new, [*self._context.topics, *self._changing], self._context.brokers
        )
        return Topic(new.name, topic_id, self._states(assignment), config)

    def _states(self, assignment: rules.Assignment) -> tuple[PartitionState, ...]:
        """New partitions: the first replica leads, all are in sync."""
        live = self._context.brokers
        states = []
        for replicas in assignment:
            isr = tuple(broker for broker in replicas if broker in live)
            states.append(PartitionState(tuple(replicas), isr[0], 0, isr, self._context.fence.epoch, 0))
        return tuple(states)

    # -- deleting --------------------------------------------------------------------------------------------------

    async def delete(self, name: str, topic_id: bytes) -> Topic:
        """Delete a topic, if it is that one of its name. Raises KafkaError: 3, 41, 56, 100."""
        topic = self._known(name)
        if topic.id != topic_id:
            raise KafkaError(errors.UNKNOWN_TOPIC_ID, f"topic {name} has the id {topic.id.hex()}, not {topic_id.hex()}")
        self._begin(topic.name)
        try:
            with contextlib.suppress(NodeExists):
                await write(self._session, self._context.fence, [Create(nodes.deletion(topic.name))])
            await self.finish_deletion(topic)
        finally:
            self._changing.discard(topic.name)
        event(log, logging.INFO, "topic deleted", topic=topic.name, partitions=len(topic.partitions))
        return topic

    async def finish_deletion(self, topic: Topic) -> None:
        """Do what the wish to delete in the store asks for."""
        self._context.topics.pop(topic.name, None)
        self._channel.update_metadata(deleted=[topic.name])
        self._channel.update_configs(deleted=[topic.name])
        await self._holders.delete(topic)
        for tell in self.on_deleted:
            await tell(topic.name)
        remembered = Create(nodes.deleted(topic.id))
        await self._write(topic.name, [*_removal(topic), Delete(nodes.deletion(topic.name)), remembered])

    async def undo(self, topic: Topic, first: int) -> None:
        """At a start: take back what was being created, or grown from partition `first` on, as the last life ended."""
        await self._holders.delete(topic, first)
        await self._write(topic.name, _ungrow(topic, first) if first else _removal(topic))
        event(log, logging.WARNING, "unfinished topic creation undone", topic=topic.name, first_partition=first)

    # -- growing ---------------------------------------------------------------------------------------------------

    async def grow(self, name: str, count: int, given: rules.Assignment | None, validate_only: bool = False) -> None:
        """Give a topic more partitions, `count` in all. Raises KafkaError: 3, 37, 39, 41, 42, 56."""
        topic = self._known(name)
        if topic.internal:
            problem = f"{name} cannot grow: who keeps what in which partition goes by their number"
            raise KafkaError(errors.INVALID_REQUEST, problem)
        has = [state.replicas for state in topic.partitions]
        added = self._states(self._planner.growth(topic.name, has, count, given, self._context.brokers))
        if validate_only:
            return
        self._begin(name)
        try:
            grown = replace(topic, partitions=(*topic.partitions, *added))
            first = len(topic.partitions)
            ops = [topic_op(grown, made_from=first), *_state_ops(grown, first)]
            await self._add(grown, first, ops, _ungrow(grown, first))
        except NoNode as problem:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, str(problem)) from None
        finally:
            self._changing.discard(name)
        event(log, logging.INFO, "partitions added", topic=name, partitions=count, added=len(added))

    def _known(self, name: str) -> Topic:
        """Raises UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self._context.topics.get(name)
        if topic is None:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        return topic

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[None]:
        """Keep other changes of a topic away for a while. Raises REASSIGNMENT_IN_PROGRESS if one is under way."""
        self._begin(name)
        try:
            yield
        finally:
            self._changing.discard(name)

    def _begin(self, name: str) -> None:
        """Claim a topic's name for one change at a time."""
        if name in self._changing:
            raise KafkaError(errors.REASSIGNMENT_IN_PROGRESS, f"topic {name} is being changed")
        self._changing.add(name)


def creation(topic: Topic, made_from: int | None = None) -> list[Op]:
    """What makes a topic in the store; `made_from` as in dump_topic."""
    return [
        Create(nodes.topic_config(topic.name), nodes.dump_config(topic.config)),
        Create(nodes.topic(topic.name), nodes.dump_topic(topic, made_from)),
        Create(f"{nodes.topic(topic.name)}/partitions"),
        *_state_ops(topic, 0),
    ]


def growth(grown: Topic, first: int) -> list[Op]:
    """What gives a topic in the store its partitions from `first` on."""
    return [topic_op(grown), *_state_ops(grown, first)]


def _removal(topic: Topic) -> list[Op]:
    """What takes a topic out of the store."""
    return [
        *_state_removal(topic, 0),
        Delete(f"{nodes.topic(topic.name)}/partitions"),
        Delete(nodes.topic(topic.name)),
        Delete(nodes.topic_config(topic.name)),
    ]


def topic_op(topic: Topic, made_from: int | None = None) -> Op:
    return Set(nodes.topic(topic.name), nodes.dump_topic(topic, made_from))


def without(topic: Topic, first: int) -> Topic:
    """A topic as it was before it grew from partition `first` on."""
    directories = {index: directory for index, directory in topic.directories.items() if index < first}
    return replace(topic, partitions=topic.partitions[:first], directories=directories)


def _ungrow(grown: Topic, first: int) -> list[Op]:
    """What takes the partitions from `first` on out of the store."""
    return [topic_op(without(grown, first)), *_state_removal(grown, first)]


def _state_removal(topic: Topic, first: int) -> list[Op]:
    ops: list[Op] = []
    for index in range(first, len(topic.partitions)):
        ops += [Delete(nodes.state(topic.name, index)), Delete(nodes.partition(topic.name, index))]
    return ops


def _state_ops(topic: Topic, first: int) -> list[Op]:
    ops: list[Op] = []
    for index in range(first, len(topic.partitions)):
        state = nodes.dump_state(topic.partitions[index])
        ops += [Create(nodes.partition(topic.name, index)), Create(nodes.state(topic.name, index), state)]
    return ops
