"""Metadata: which brokers there are, and who leads which partition of the topics that a client names.

A topic that is not there may be created by the question (auto.create.topics.enable): the first answer says
LEADER_NOT_AVAILABLE at once, and the client finds it when it asks again. The question never waits for the creation.
"""

from collections.abc import Iterator
from typing import Any, Protocol

from pybroker import errors
from pybroker.cluster import operations
from pybroker.cluster.caller import Call
from pybroker.cluster.image import NO_LEADER, Image, Topic
from pybroker.cluster.topics import check_name
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m

NO_ID = bytes(16)
NULL_IS_ALL_VERSION = 1
IDS_VERSION = 12


class Creator(Protocol):
    """Who creates topics that clients merely mention."""

    def auto_create(self, name: str) -> None:
        """Begin to create a topic with the broker's defaults; again while that is under way changes nothing."""


class Metadata:
    def __init__(self, image: Image, creator: Creator, auto_create: bool) -> None:
        self._image = image
        self._creator = creator
        self._auto_create = auto_create

    def __call__(self, request: Any, call: Call) -> Any:
        kind, image = m.MetadataResponse, self._image
        asked_cluster = request.include_cluster_authorized_operations
        asked_topic = request.include_topic_authorized_operations
        rights = operations.ALL_OF_TOPIC if asked_topic else operations.NOT_ASKED
        return kind(
            brokers=[
                kind.Brokers(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
                for node in image.brokers.values()
            ],
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            topics=list(self._topics(request, call, rights)),
            cluster_authorized_operations=operations.ALL_OF_CLUSTER if asked_cluster else operations.NOT_ASKED,
        )

    def _topics(self, request: Any, call: Call, rights: int) -> Iterator[Any]:
        if request.topics is None or (call.version < NULL_IS_ALL_VERSION and not request.topics):
            for topic in self._image.topics():
                yield self._describe(topic, rights)
            return
        named = ((t.name, NO_ID if t.name is not None else t.topic_id) for t in request.topics)
        for name, topic_id in dict.fromkeys(named):
            if name is not None:
                yield self._by_name(name, request.allow_auto_topic_creation, rights)
            elif call.version < IDS_VERSION:
                raise KafkaError(errors.INVALID_REQUEST, f"Metadata v{call.version} needs the names of topics")
            else:
                yield self._by_id(topic_id, rights)

    def _by_name(self, name: str, may_create: bool, rights: int) -> Any:
        topic = self._image.topic(name)
        if topic is not None:
            return self._describe(topic, rights)
        code = errors.UNKNOWN_TOPIC_OR_PARTITION
        try:
            check_name(name)
            if may_create and self._auto_create:
                self._creator.auto_create(name)
                code = errors.LEADER_NOT_AVAILABLE
        except KafkaError as refusal:
            code = refusal.code
        return m.MetadataResponse.Topics(error_code=code, name=name, topic_id=NO_ID)

    def _by_id(self, topic_id: bytes, rights: int) -> Any:
        topic = self._image.topic_by_id(topic_id)
        if topic is not None:
            return self._describe(topic, rights)
        return m.MetadataResponse.Topics(error_code=errors.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)

    def _describe(self, topic: Topic, rights: int) -> Any:
        kind = m.MetadataResponse.Topics
        live = self._image.brokers
        return kind(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.internal,
            partitions=[
                kind.Partitions(
                    error_code=errors.LEADER_NOT_AVAILABLE if state.leader == NO_LEADER else errors.NONE,
                    partition_index=index,
                    leader_id=state.leader,
                    leader_epoch=state.leader_epoch,
                    replica_nodes=list(state.replicas),
                    isr_nodes=list(state.isr),
                    offline_replicas=[replica for replica in state.replicas if replica not in live],
                )
                for index, state in enumerate(topic.partitions)
            ],
            topic_authorized_operations=rights,
        )


def failed(request: Any, code: int, message: str) -> Any:
    """Every topic asked for, with the error; for all topics there is only the top-level code of v13."""
    kind = m.MetadataResponse
    topics = [kind.Topics(error_code=code, name=t.name or "", topic_id=t.topic_id) for t in request.topics or ()]
    return kind(topics=topics, error_code=code)
