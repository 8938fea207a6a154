"""Creates, grows and deletes topics by writing nodes to the store; the controller watches these and does the rest.

    create   /config/topics/T, then /brokers/topics/T in one multi       ──> states, leaders, logs
    grow     /brokers/topics/T with more partitions, by the controller   ──> the same for these
    delete   /admin/delete_topics/T                                      ──> replicas are deleted, then its nodes

Any broker creates and deletes topics; only the controller adds partitions. The controller handles growth and deletions
one at a time: if a topic were deleted and created again between the read and the write, the new one could get the
partitions, as its node may have the same version.

The client is answered when UpdateMetadata has shown this broker leaders of all partitions, or that the topic is gone. A
lone broker also waits until the deleted topic's nodes are gone.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Protocol

from pybroker import errors
from pybroker.config import BrokerConfig
from pybroker.coordination.commit import commit, read, until_answered
from pybroker.coordination.store import (
    BadVersion,
    Check,
    Create,
    NodeExists,
    NoNode,
    Op,
    Session,
    Set,
    StoreDamaged,
    StoreError,
)
from pybroker.decisions import topics as rules
from pybroker.decisions.image import OFFSETS_TOPIC, TRANSACTION_TOPIC, Image, PartitionState, TopicImage
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.decisions.reassignment import is_under_way
from pybroker.decisions.topics import Topic
from pybroker.errors import KafkaError
from pybroker.metadata import nodes
from pybroker.metadata.controllership import Fence, unwritable, write
from pybroker.metadata.mentioned import Mentioned
from pybroker.metadata.planning import (
    NewTopic,
    Planned,
    Planner,
    mentioned_topic,
    offsets_topic,
    transaction_topic,
)
from pybroker.metadata.slow_changes import SILENT
from pybroker.model import TopicPartition

OFFSETS_REPLICAS = 3
"""Kafka's default. With fewer brokers the topic is not created, or all groups would depend on one of them (KIP-115)."""
SHOWN_S_MAX = 30.0
"""Seconds until a committed change must be in this broker's metadata; then the client gets REQUEST_TIMED_OUT."""


class Term(Protocol):
    """The session and the fence with which an elected controller writes."""

    session: Session
    fence: Fence


class Controls(Protocol):
    """This broker's controller, elected or not."""

    @property
    def term(self) -> Term | None:
        """None while it is not elected."""

    async def ask(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` in the controller's turn. Raises NOT_CONTROLLER."""


class TopicAdmin:
    """Creates, grows and deletes topics, on one broker."""

    def __init__(
        self,
        session: Callable[[], Session],
        config: BrokerConfig,
        metadata: MetadataCache,
        random: Random,
        controller: Callable[[], Controls | None],
        shown_s_max: float = SHOWN_S_MAX,
        unmade: Callable[[str, int], str] | None = None,
    ) -> None:
        """`session` returns the current session, `controller` this broker's, elected or not; `random` draws topic ids
        and the brokers where assignments begin. `unmade`, at a lone broker only, returns why a partition's log could
        not be created here, empty if it was."""
        self._unmade = unmade
        self._session = session
        self._controller = controller
        self._metadata = metadata
        self._config = config
        self._planner = Planner(config, random)
        self._shown_s_max = shown_s_max
        self._mentioned = Mentioned(self._plan_mentioned, self._create)

    async def create(self, new: NewTopic, validate_only: bool = False) -> Topic:
        """Create a topic. Raises REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR and the errors of `Planner.topic`."""
        topic = self._plan(new, self._metadata.image.by_name)
        return topic if validate_only else await self._create(topic)

    def _plan(self, new: NewTopic, known: Iterable[str]) -> Topic:
        """The topic to create; `known` are the names in use. Raises KafkaError if it is not allowed."""
        self._metadata.check_complete()
        planned = self._planner.topic(new, known, self._metadata.image.brokers)
        return Topic(new.name, planned.id, _unmade(planned), planned.config)

    async def _create(self, new: Topic) -> Topic:
        """Write a planned topic, and wait until its partitions have leaders. Raises KafkaError."""
        node = nodes.dump_assignment(new.id, [state.replicas for state in new.partitions])
        while True:
            there = await self._read(nodes.topic_config(new.name))  # left by an interrupted creation in Kafka
            data = nodes.dump_config(new.config)
            config: Op = Create(nodes.topic_config(new.name), data)
            if there is not None:
                config = Set(nodes.topic_config(new.name), data, there[1])
            try:
                await self._write([config, Create(nodes.topic(new.name), node)])
                break
            except (NodeExists, BadVersion) as problem:
                if isinstance(problem, NodeExists) and problem.index != 0:
                    raise KafkaError(errors.TOPIC_ALREADY_EXISTS, f"topic {new.name} exists already") from None
            except NoNode as problem:
                if not (isinstance(config, Set) and problem.path == config.path):  # a parent is missing
                    raise unwritable(problem) from problem
        count = len(new.partitions)
        await self._shown(lambda image: _led(image.topic(new.name), new.id, count), f"the topic {new.name} is created")
        try:
            self._check_made(new.name, 0, count)
        except KafkaError:
            with contextlib.suppress(KafkaError):  # the name is free again
                await self.delete(new.name, new.id)
            raise
        return new

    def _check_made(self, name: str, first: int, count: int) -> None:
        """Raise KAFKA_STORAGE_ERROR if a lone broker could not create the log of a partition from `first` on. In a
        cluster another replica may have it, and clients see offline partitions in Metadata."""
        if self._unmade is None:
            return
        for index in range(first, count):
            if why := self._unmade(name, index):
                raise KafkaError(errors.KAFKA_STORAGE_ERROR, f"{name}-{index} cannot be created: {why}")

    def is_creating(self, name: str) -> bool:
        """True while a topic of this name is being created because Metadata named it."""
        return name in self._mentioned.making

    def auto_create(self, name: str) -> None:
        """Begin to create a topic with the broker's defaults, unless this is in progress. Raises KafkaError as `create`
        if it is not allowed."""
        self._mentioned.create(name)

    def _plan_mentioned(self, name: str) -> Topic:
        """The topic to create automatically; existing names and those being created are in use. Raises KafkaError."""
        internal = {OFFSETS_TOPIC: self.offsets_topic, TRANSACTION_TOPIC: self.transaction_topic}
        new = mentioned_topic(name, internal)
        return self._plan(new, [*self._metadata.image.by_name, *self._mentioned.making])

    def offsets_topic(self) -> NewTopic:
        """The offsets topic with this cluster's settings."""
        setting = "offsets.topic.replication.factor"
        factor = self._config[setting] if self._config.is_set(setting) else OFFSETS_REPLICAS
        return offsets_topic(self._config, factor if self._unmade is None else 1)

    def transaction_topic(self) -> NewTopic:
        """The topic of transactional ids with this cluster's settings."""
        factor = self._config["transaction.state.log.replication.factor"]
        return transaction_topic(self._config, factor if self._unmade is None else 1)

    async def has_partition(self, key: TopicPartition) -> bool:
        """True if the store has a partition, also if this broker's metadata lacks it. Raises KAFKA_STORAGE_ERROR."""
        found = await self._read(nodes.topic(key.topic))
        if found is None:
            return False
        try:
            return key.partition < len(nodes.load_topic(found[0]).replicas)
        except StoreDamaged as problem:
            raise KafkaError(errors.KAFKA_STORAGE_ERROR, f"topic {key.topic} cannot be read: {problem}") from problem

    async def delete(self, name: str, topic_id: bytes) -> Topic:
        """Delete a topic, if it has this id. Raises UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, REQUEST_TIMED_OUT,
        NOT_CONTROLLER, KAFKA_STORAGE_ERROR."""
        topic = self._known(name)
        while True:
            node, version, _ = await self._node(name)
            if not topic.id == topic_id == node.id:
                has = topic.id if topic.id != topic_id else node.id
                problem = f"topic {name} has the id {has.hex()}, not {topic_id.hex()}"
                raise KafkaError(errors.UNKNOWN_TOPIC_ID, problem)
            wish = Create(nodes.deletion(name), nodes.dump_deletion(topic_id))
            try:
                with contextlib.suppress(NodeExists):
                    await self._write([Check(nodes.topic(name), version), wish])
                break
            except BadVersion:  # the topic has grown, or was created again
                continue
            except NoNode as problem:
                if problem.path == wish.path:  # the parent is missing
                    raise unwritable(problem) from problem
        await self._shown(lambda image: not _is(image.topic(name), topic_id), f"the topic {name} is being deleted")
        if self._unmade is not None:  # a lone broker answers only when the name is free again
            await self.gone(name, topic_id)
        return Topic(name, topic_id, topic.partitions)

    async def grow(self, name: str, count: int, given: rules.Assignment | None, validate_only: bool = False) -> None:
        """Add partitions to a topic, up to `count` in all. Raises UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT, the
        errors of `Planner.growth`, and, as Kafka, NOT_CONTROLLER at any other broker."""
        topic, controller = self._known(name), self._controller()
        if topic.internal:
            problem = f"cannot add partitions to {name}: keys are mapped to partitions by their count"
            raise KafkaError(errors.INVALID_REQUEST, problem)
        if controller is None:
            raise KafkaError(errors.NOT_CONTROLLER, "this broker is not the controller")
        try:
            await controller.ask(lambda: self._grow(controller, topic, count, given, validate_only))
        except StoreError as problem:
            raise unwritable(problem) from problem
        if not validate_only:
            made = f"the partitions of {name} are created"
            first = len(topic.partitions)  # earlier partitions may be offline
            await self._shown(lambda image: _led(image.topic(name), topic.id, count, first), made)
            self._check_made(name, first, count)

    async def _grow(
        self, controller: Controls, topic: TopicImage, count: int, given: rules.Assignment | None, validate_only: bool
    ) -> None:
        """Write the new partitions, in the controller's turn. Raises as `grow`."""
        term = controller.term
        assert term is not None
        while True:
            there, version, data = await self._node(topic.name)
            if there.id != topic.id:
                problem = f"topic {topic.name} has the id {there.id.hex()}, not {topic.id.hex()}: it was created again"
                raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, problem)
            if any(map(is_under_way, there.moves.values())):
                problem = f"replicas of {topic.name} are being reassigned: wait until that is done, or cancel it"
                raise KafkaError(errors.REASSIGNMENT_IN_PROGRESS, problem)
            added = self._planner.growth(topic.name, there.replicas, count, given, self._metadata.image.brokers)
            if validate_only:
                return
            node = nodes.with_partitions(data, dict(enumerate(added, len(there.replicas))))
            try:
                await write(term.session, term.fence, [Set(nodes.topic(topic.name), node, version)])
                return
            except (BadVersion, NoNode) as problem:
                if problem.path != nodes.topic(topic.name):  # /controller_epoch: the whole tree is gone
                    raise

    async def gone(self, name: str, topic_id: bytes) -> None:
        """Wait until a topic's nodes are deleted from the store. Raises REQUEST_TIMED_OUT."""
        try:
            async with asyncio.timeout(self._shown_s_max):
                while (found := await self._read(nodes.topic(name))) and nodes.load_topic(found[0]).id == topic_id:
                    await self._changed(nodes.topic(name))
        except TimeoutError:
            problem = f"the topic {name} is still being deleted after {self._shown_s_max:g} s"
            raise KafkaError(errors.REQUEST_TIMED_OUT, problem) from None
        except StoreError as problem:
            raise unwritable(problem) from problem

    async def _changed(self, path: str) -> None:
        """Wait until a node changes or is deleted, or the connection, and its watches, are lost. Raises StoreError."""
        session, change = self._session(), asyncio.Event()

        def wake(_: object) -> None:
            change.set()

        session.listen(wake)
        try:
            if await until_answered(lambda: session.exists(path, watch=wake)) is not None:
                await change.wait()
        finally:
            session.unlisten(wake)

    @property
    def waits_for(self) -> str:
        """The reason why a change may take long; empty if unknown."""
        return SILENT if self._session().silent else ""

    def _known(self, name: str) -> TopicImage:
        """The topic in this broker's metadata. Raises UNKNOWN_TOPIC_OR_PARTITION, NOT_CONTROLLER."""
        self._metadata.check_complete()
        topic = self._metadata.image.topic(name)
        if topic is None:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        return topic

    async def _node(self, name: str) -> tuple[nodes.TopicNode, int, bytes]:
        """A topic's node in the store, its version and its data. Raises UNKNOWN_TOPIC_OR_PARTITION,
        KAFKA_STORAGE_ERROR."""
        found = await self._read(nodes.topic(name))
        if found is None:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        try:
            return nodes.load_topic(found[0]), found[1], found[0]
        except StoreDamaged as problem:
            raise KafkaError(errors.KAFKA_STORAGE_ERROR, f"topic {name} cannot be read: {problem}") from problem

    async def _read(self, path: str) -> tuple[bytes, int] | None:
        """The data of a node and its version; None if it does not exist. Raises KAFKA_STORAGE_ERROR."""
        try:
            data, stat = await read(self._session(), path)
        except NoNode:
            return None
        except StoreError as problem:
            raise unwritable(problem) from problem
        return data, stat.version

    async def _write(self, ops: list[Op]) -> None:
        """Commit these operations. Raises NodeExists, NoNode, BadVersion, KAFKA_STORAGE_ERROR."""
        try:
            await commit(self._session(), ops)
        except (NodeExists, NoNode, BadVersion):
            raise
        except StoreError as problem:
            raise unwritable(problem) from problem

    async def _shown(self, so: Callable[[Image], bool], what: str) -> None:
        """Wait until a committed change is in this broker's metadata. Raises REQUEST_TIMED_OUT."""
        try:
            await self._metadata.shows(so, self._shown_s_max)
        except TimeoutError:
            problem = f"{what}, but no controller has confirmed it within {self._shown_s_max:g} s"
            raise KafkaError(errors.REQUEST_TIMED_OUT, problem) from None


def _is(topic: TopicImage | None, topic_id: bytes) -> bool:
    return topic is not None and topic.id == topic_id


def _led(topic: TopicImage | None, topic_id: bytes, count: int, first: int = 0) -> bool:
    """True if this topic has `count` partitions, and each from `first` on has a leader."""
    if topic is None or topic.id != topic_id or len(topic.partitions) < count:
        return False
    return all(state.leader >= 0 for state in topic.partitions[first:])


def _unmade(planned: Planned) -> tuple[PartitionState, ...]:
    """The partitions of a planned topic, which have no leader, epochs or ISR yet."""
    return tuple(PartitionState(tuple(replicas), -1, -1, (), -1, -1) for replicas in planned.assignment)
