"""Metadata: lists the brokers, and the leader and replicas of each partition of the requested topics.

A request may create missing topics (auto.create.topics.enable). It does not wait for the creation: the response has
LEADER_NOT_AVAILABLE for the topic, and the client retries. A topic that cannot be created gets the error code that
CreateTopics would return, such as INVALID_TOPIC_EXCEPTION.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Iterator
from typing import Protocol

from pybroker import errors
from pybroker.decisions.caller import Call, Disconnect
from pybroker.decisions.image import NO_LEADER, Image, Node, PartitionState, TopicImage
from pybroker.decisions.metadata_cache import MetadataCache, Suspects
from pybroker.decisions.topics import check_name
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.security import operations
from pybroker.security.acls import ResourceType

NO_ID = bytes(16)
NULL_IS_ALL_VERSION = 1
IDS_VERSION = 12
LISTENER_NOT_FOUND_VERSION = 6
"""The first version whose clients know LISTENER_NOT_FOUND."""


UNTOLD_S = 1.0
"""Seconds that a request waits for the controller's first UpdateMetadata."""


class TopicCreator(Protocol):
    """Creates topics named in Metadata requests."""

    def is_creating(self, name: str) -> bool:
        """True while a topic of this name is being created."""

    def auto_create(self, name: str) -> None:
        """Begin to create a topic with the broker's defaults; does nothing while it is being created. Raises KafkaError
        if the topic cannot be created."""


class Metadata:
    def __init__(self, metadata: MetadataCache, creator: TopicCreator, auto_create: bool) -> None:
        self._metadata = metadata
        self._creator = creator
        self._auto_create = auto_create

    def __call__(
        self, request: m.MetadataRequest, call: Call
    ) -> m.MetadataResponse | Coroutine[object, None, m.MetadataResponse]:
        """Return the response, or a coroutine of it if a leader may be failing."""
        if self._metadata.grace_s > 0:
            return self._when_told(request, call)
        return self._answer(request, call)

    async def _when_told(self, request: m.MetadataRequest, call: Call) -> m.MetadataResponse:
        suspects = self._metadata.suspects
        if not self._metadata.complete:
            with contextlib.suppress(TimeoutError):
                await self._metadata.told(UNTOLD_S)
        await asyncio.sleep(self._metadata.grace_s)
        self._metadata.look()
        while (wait_s := suspects.patience_s(self._dying(request, call))) > 0 and await suspects.news(wait_s):
            pass
        if any(suspects.is_doubted(leader) for leader in self._dying(request, call)):
            # Otherwise librdkafka, which asks brokers that it is connected to, would ask this one again and again.
            raise Disconnect("no controller has reached this broker since its ZooKeeper registration ended")
        return self._answer(request, call)

    def _dying(self, request: m.MetadataRequest, call: Call) -> set[int]:
        """The leaders of requested partitions whose connection was lost."""
        image, suspects = self._metadata.image, self._metadata.suspects
        if not suspects:
            return set()
        if _asks_for_all(request, call):
            topics = list(image.topics())
        else:
            named = (
                image.topic(topic.name) if topic.name is not None else image.topic_by_id(topic.topic_id)
                for topic in request.topics or ()
            )  # fmt: skip
            topics = [topic for topic in named if topic is not None]
        return {state.leader for topic in topics for state in topic.partitions if state.leader in suspects}

    def _answer(self, request: m.MetadataRequest, call: Call) -> m.MetadataResponse:
        kind, image = m.MetadataResponse, self._metadata.with_brokers()
        nodes = image.nodes(call.caller.listener)
        asked_cluster = request.include_cluster_authorized_operations
        return kind(
            brokers=[
                kind.Brokers(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
                for node in self._metadata.listed(image, call.caller.listener)
            ],
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            topics=list(self._topics(image, nodes, request, call)),
            cluster_authorized_operations=operations.of(ResourceType.CLUSTER, asked_cluster),
        )

    def _topics(
        self, image: Image, nodes: Iterable[Node], request: m.MetadataRequest, call: Call
    ) -> Iterator[m.MetadataResponse.Topics]:
        rights = operations.of(ResourceType.TOPIC, request.include_topic_authorized_operations)
        describe = _Describer(image, nodes, call.version, rights, self._metadata.suspects)
        if _asks_for_all(request, call):
            self._check_complete(image)
            yield from map(describe, image.topics())
            return
        named = ((t.name, NO_ID if t.name is not None else t.topic_id) for t in request.topics or ())
        for name, topic_id in dict.fromkeys(named):
            if name is not None:
                topic = image.topic(name)
                yield describe(topic) if topic else self._missing(image, name, request.allow_auto_topic_creation, call)
            elif call.version < IDS_VERSION:
                raise KafkaError(errors.INVALID_REQUEST, f"Metadata v{call.version} needs the names of topics")
            else:
                topic = image.topic_by_id(topic_id)
                if topic is None:
                    self._check_complete(image)
                yield describe(topic) if topic else _no_such_id(topic_id)

    def _check_complete(self, image: Image) -> None:
        """Raise Disconnect if the metadata is incomplete, so that clients ask another broker."""
        if not self._metadata.is_complete(image):
            raise Disconnect("this broker has not received the list of topics from the controller yet")

    def _missing(self, image: Image, name: str, wanted: bool, call: Call) -> m.MetadataResponse.Topics:
        """Return the response for a topic unknown to this broker, after starting its creation if that is allowed."""
        code = errors.UNKNOWN_TOPIC_OR_PARTITION
        try:
            check_name(name)
            if not self._metadata.is_complete(image):
                code = errors.LEADER_NOT_AVAILABLE
            elif wanted and self._auto_create and self._may_create(name, call):
                self._creator.auto_create(name)
                code = errors.LEADER_NOT_AVAILABLE
        except KafkaError as refusal:
            code = refusal.code
        return m.MetadataResponse.Topics(error_code=code, name=name, topic_id=NO_ID)

    def _may_create(self, name: str, call: Call) -> bool:
        """True if the call may create a topic. One that is being created was checked and charged before."""
        return call.may_create is None or self._creator.is_creating(name) or call.may_create(name)


def _asks_for_all(request: m.MetadataRequest, call: Call) -> bool:
    return request.topics is None or (call.version < NULL_IS_ALL_VERSION and not request.topics)


def _no_such_id(topic_id: bytes) -> m.MetadataResponse.Topics:
    return m.MetadataResponse.Topics(error_code=errors.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)


class _Describer:
    """Converts topics of an image to elements of a response; `nodes` are the brokers reachable by its listener."""

    def __init__(
        self, image: Image, nodes: Iterable[Node], version: int, rights: int, suspects: Suspects
    ) -> None:
        self._brokers = image.brokers
        self._suspects = suspects
        self._reachable = {node.id for node in nodes}
        old = version < LISTENER_NOT_FOUND_VERSION
        self._no_listener = errors.LEADER_NOT_AVAILABLE if old else errors.LISTENER_NOT_FOUND
        self._rights = rights

    def __call__(self, topic: TopicImage) -> m.MetadataResponse.Topics:
        return m.MetadataResponse.Topics(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.internal,
            partitions=[self._partition(index, state) for index, state in enumerate(topic.partitions)],
            topic_authorized_operations=self._rights,
        )

    def _partition(self, index: int, state: PartitionState) -> m.MetadataResponse.Topics.Partitions:
        """Describe a partition; a leader that is not alive, or has no such listener, is left out."""
        leader, code = state.leader, errors.NONE
        if leader in self._suspects:
            leader, code = NO_LEADER, errors.LEADER_NOT_AVAILABLE
        elif leader not in self._reachable:
            code = self._no_listener if leader in self._brokers else errors.LEADER_NOT_AVAILABLE
            leader = NO_LEADER
        return m.MetadataResponse.Topics.Partitions(
            error_code=code,
            partition_index=index,
            leader_id=leader,
            leader_epoch=state.leader_epoch,
            replica_nodes=list(state.replicas),
            isr_nodes=list(state.isr),
            offline_replicas=[b for b in state.replicas if b not in self._brokers or b in state.offline],
        )


def failed(request: m.MetadataRequest, code: int, message: str) -> m.MetadataResponse:
    """Return the error for every requested topic; a request for all topics has only the top-level code of v13."""
    kind = m.MetadataResponse
    topics = [kind.Topics(error_code=code, name=t.name or "", topic_id=t.topic_id) for t in request.topics or ()]
    return kind(topics=topics, error_code=code)
