"""Topics of a cluster come, grow and go by nodes that any broker may write; the controller sees them and does the rest.

    create   /config/topics/T, then /brokers/topics/T in one multi       ──> states, leaders, logs
    grow     /brokers/topics/T with more partitions, by the controller   ──> the same for these
    delete   /admin/delete_topics/T                                      ──> replicas go, then its nodes

A topic grows where topics are deleted, one after the other: where one was deleted between a look at it and the write,
another of its name would get its partitions, for its node has the same version. Who asked is answered once this broker
was told that all partitions have leaders, or that the topic is gone.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from random import Random

from pybroker import errors
from pybroker.cluster import topics as rules
from pybroker.cluster.image import Image, PartitionState, TopicImage
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.cluster.topics import Topic
from pybroker.config import BrokerConfig
from pybroker.controller import nodes
from pybroker.controller.controller import Controller
from pybroker.controller.election import unwritable, write
from pybroker.controller.late import SILENT
from pybroker.controller.mentioned import Mentioned
from pybroker.controller.planning import NewTopic, Planned, Planner, mentioned_topic, offsets_topic
from pybroker.coordination.commit import commit, read
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
from pybroker.errors import KafkaError

OFFSETS_REPLICAS = 3
"""Kafka's default: with fewer brokers the topic is not made, or all groups would hang on one of them (KIP-115)."""
SHOWN_S_MAX = 30.0
"""How long a change waits to be shown here. It is made by then; whoever asked is told that it is not seen yet."""


class ClusterTopics:
    """Changes of topics, of one broker of a cluster."""

    def __init__(
        self,
        session: Callable[[], Session],
        config: BrokerConfig,
        metadata: MetadataCache,
        random: Random,
        controller: Callable[[], Controller | None],
        shown_s_max: float = SHOWN_S_MAX,
    ) -> None:
        """`session` is the present one, `controller` that of this broker, which may not be elected; `random` draws
        topic ids and the brokers where assignments begin."""
        self._session = session
        self._controller = controller
        self._metadata = metadata
        self._config = config
        self._planner = Planner(config, random)
        self._shown_s_max = shown_s_max
        self._mentioned = Mentioned(self._plan_mentioned, self._create)

    async def create(self, new: NewTopic, validate_only: bool = False) -> Topic:
        """Create a topic. Raises KafkaError: 7, 17, 36, 37, 38, 39, 40, 41, 42, 56."""
        topic = self._plan(new, self._metadata.image.by_name)
        return topic if validate_only else await self._create(topic)

    def _plan(self, new: NewTopic, known: Iterable[str]) -> Topic:
        """The topic as it will be, beside those that are known. Raises KafkaError where it cannot be."""
        self._metadata.check_complete()
        planned = self._planner.topic(new, known, self._metadata.image.brokers)
        return Topic(new.name, planned.id, _unmade(planned), planned.config)

    async def _create(self, new: Topic) -> Topic:
        """Write a topic that was planned, and wait until it is led. Raises KafkaError."""
        node = nodes.dump_assignment(new.id, [state.replicas for state in new.partitions])
        while True:
            there = await self._read(nodes.topic_config(new.name))  # Kafka leaves it where a creation was cut short
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
                if not (isinstance(config, Set) and problem.path == config.path):  # a parent is gone
                    raise unwritable(problem) from problem
        count = len(new.partitions)
        await self._shown(lambda image: _led(image.topic(new.name), new.id, count), f"the topic {new.name} is made")
        return new

    def is_creating(self, name: str) -> bool:
        """True while a topic of this name is being created because Metadata named it."""
        return name in self._mentioned.making

    def auto_create(self, name: str) -> None:
        """Begin to create a topic with the broker's defaults; again while that is under way changes nothing. Raises
        KafkaError as `create` where it cannot be."""
        self._mentioned.create(name)

    def _plan_mentioned(self, name: str) -> Topic:
        """A topic that was mentioned, beside those there are and those that are being made. Raises KafkaError."""
        new = mentioned_topic(name, self.offsets_topic)
        return self._plan(new, [*self._metadata.image.by_name, *self._mentioned.making])

    def offsets_topic(self) -> NewTopic:
        """The offsets topic as a cluster makes it."""
        setting = "offsets.topic.replication.factor"
        factor = self._config[setting] if self._config.is_set(setting) else OFFSETS_REPLICAS
        return offsets_topic(self._config, factor)

    async def delete(self, name: str, topic_id: bytes) -> Topic:
        """Delete a topic, if it is that one of its name. Raises KafkaError: 3, 7, 41, 56, 100."""
        topic = self._known(name)
        while True:
            node, version = await self._node(name)
            if not topic.id == topic_id == node.id:
                has = topic.id if topic.id != topic_id else node.id
                problem = f"topic {name} has the id {has.hex()}, not {topic_id.hex()}"
                raise KafkaError(errors.UNKNOWN_TOPIC_ID, problem)
            wish = Create(nodes.deletion(name), nodes.dump_deletion(topic_id))
            try:
                with contextlib.suppress(NodeExists):
                    await self._write([Check(nodes.topic(name), version), wish])
                break
            except BadVersion:  # it has grown, or another has its name
                continue
            except NoNode as problem:
                if problem.path == wish.path:  # the parent is gone
                    raise unwritable(problem) from problem
        await self._shown(lambda image: not _is(image.topic(name), topic_id), f"the topic {name} is being deleted")
        return Topic(name, topic_id, topic.partitions)

    async def grow(self, name: str, count: int, given: rules.Assignment | None, validate_only: bool = False) -> None:
        """Give a topic more partitions, `count` in all. Raises KafkaError: 3, 7, 37, 38, 39, 41, 42, 56; NOT_CONTROLLER
        at every other broker, as Kafka's."""
        topic, controller = self._known(name), self._controller()
        if topic.internal:
            problem = f"{name} cannot grow: who keeps what in which partition goes by their number"
            raise KafkaError(errors.INVALID_REQUEST, problem)
        if controller is None:
            raise KafkaError(errors.NOT_CONTROLLER, "this broker is not the controller")
        try:
            await controller.ask(lambda: self._grow(controller, topic, count, given, validate_only))
        except StoreError as problem:
            raise unwritable(problem) from problem
        if not validate_only:
            made = f"the partitions of {name} are made"
            await self._shown(lambda image: _led(image.topic(name), topic.id, count), made)

    async def _grow(
        self, controller: Controller, topic: TopicImage, count: int, given: rules.Assignment | None, validate_only: bool
    ) -> None:
        """Write it, in the controller's turn. Raises as `grow`."""
        context = controller.context
        assert context is not None
        while True:
            there, version = await self._node(topic.name)
            if there.id != topic.id:
                problem = f"topic {topic.name} has the id {there.id.hex()}, and {topic.id.hex()} where it was to grow"
                raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, problem)
            added = self._planner.growth(topic.name, there.replicas, count, given, self._metadata.image.brokers)
            if validate_only:
                return
            node = nodes.dump_assignment(topic.id, [*there.replicas, *map(tuple, added)])
            try:
                await write(context.session, context.fence, [Set(nodes.topic(topic.name), node, version)])
                return
            except (BadVersion, NoNode) as problem:
                if problem.path != nodes.topic(topic.name):  # the node of the fence: the whole tree is gone
                    raise

    @property
    def waits_for(self) -> str:
        """Why a change may take long, if that is known."""
        return SILENT if self._session().silent else ""

    def _known(self, name: str) -> TopicImage:
        """Raises UNKNOWN_TOPIC_OR_PARTITION, NOT_CONTROLLER."""
        self._metadata.check_complete()
        topic = self._metadata.image.topic(name)
        if topic is None:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        return topic

    async def _node(self, name: str) -> tuple[nodes.TopicNode, int]:
        """A topic as the store has it, and the version of its node. Raises UNKNOWN_TOPIC_OR_PARTITION,
        KAFKA_STORAGE_ERROR."""
        found = await self._read(nodes.topic(name))
        if found is None:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        try:
            return nodes.load_topic(found[0]), found[1]
        except StoreDamaged as problem:
            raise KafkaError(errors.KAFKA_STORAGE_ERROR, f"topic {name} cannot be read: {problem}") from problem

    async def _read(self, path: str) -> tuple[bytes, int] | None:
        """What a node holds, and its version; None if there is none. Raises KAFKA_STORAGE_ERROR."""
        try:
            data, stat = await read(self._session(), path)
        except NoNode:
            return None
        except StoreError as problem:
            raise unwritable(problem) from problem
        return data, stat.version

    async def _write(self, ops: list[Op]) -> None:
        """Raises NodeExists, NoNode, BadVersion, KAFKA_STORAGE_ERROR."""
        try:
            await commit(self._session(), ops)
        except (NodeExists, NoNode, BadVersion):
            raise
        except StoreError as problem:
            raise unwritable(problem) from problem

    async def _shown(self, so: Callable[[Image], bool], what: str) -> None:
        """Wait until this broker was told. Raises REQUEST_TIMED_OUT."""
        news = asyncio.Event()

        def look(image: Image) -> None:
            if so(image):
                news.set()

        self._metadata.watch(look)
        try:
            async with asyncio.timeout(self._shown_s_max):
                await news.wait()
        except TimeoutError:
            problem = f"{what}, and no controller has said so in {self._shown_s_max:g} s"
            raise KafkaError(errors.REQUEST_TIMED_OUT, problem) from None
        finally:
            self._metadata.unwatch(look)


def _is(topic: TopicImage | None, topic_id: bytes) -> bool:
    return topic is not None and topic.id == topic_id


def _led(topic: TopicImage | None, topic_id: bytes, count: int) -> bool:
    """Are there so many partitions of this topic, each with a leader?"""
    if topic is None or topic.id != topic_id or len(topic.partitions) < count:
        return False
    return all(state.leader >= 0 for state in topic.partitions)


def _unmade(planned: Planned) -> tuple[PartitionState, ...]:
    """The partitions before the controller has seen them."""
    return tuple(PartitionState(tuple(replicas), -1, -1, (), -1, -1) for replicas in planned.assignment)
