"""CreateTopics, DeleteTopics and CreatePartitions: each topic of a request succeeds or fails on its own.

The response waits until each change is done and durable, or until the timeout: then the change goes on, and its topic
gets REQUEST_TIMED_OUT. The timeout is at least one second, as librdkafka's default is 0.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from typing import TypeVar

from pybroker import errors
from pybroker.config import BrokerConfig, TopicConfig
from pybroker.decisions.caller import Call
from pybroker.decisions.image import Image
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.decisions.topics import PARTITIONS_MAX, Topic
from pybroker.errors import KafkaError
from pybroker.metadata.planning import NewTopic
from pybroker.metadata.slow_changes import not_done
from pybroker.metadata.topic_admin import TopicAdmin
from pybroker.protocol import messages as m

TIMEOUT_SECONDS_MIN = 1.0
TOPICS_MAX = 10_000
"""Topics that one request may create or grow, as all are planned at once and the response has the settings of each."""
IDS_VERSION = 6
DELETION_DISABLED_VERSION = 3
NO_ID = bytes(16)
T = TypeVar("T")


def _planned(count: int) -> int:
    """The number of partitions to plan for a topic with `count`; 0 for an invalid count, which is refused later."""
    return count if 0 < count <= PARTITIONS_MAX else 0


def _check_size(sizes: Sequence[int], whole: tuple[int, int] | None) -> None:
    """Check the numbers of topics and planned partitions against the limits of one request. Raises POLICY_VIOLATION.

    `whole` has both numbers for the request of which this is a slice."""
    topics, partitions = whole or (len(sizes), sum(sizes))
    if topics > TOPICS_MAX or partitions > PARTITIONS_MAX:
        raise KafkaError(
            errors.POLICY_VIOLATION,
            f"{topics} topics with {partitions} partitions are too many for one request: send at most {TOPICS_MAX} "
            f"topics with {PARTITIONS_MAX} partitions",
        )


async def _all(
    works: Iterable[Coroutine[object, None, T]], timeout_ms: int, admin: TopicAdmin
) -> list[T | KafkaError]:
    """Return the outcome of each change: REQUEST_TIMED_OUT for one that is not done in time, and may go on."""
    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    if tasks:
        await asyncio.wait(tasks, timeout=max(timeout_ms / 1000, TIMEOUT_SECONDS_MIN))
    outcomes: list[T | KafkaError] = []
    for task in tasks:
        if not task.done():
            outcomes.append(not_done(task, admin.waits_for))
        elif isinstance(failure := task.exception(), KafkaError):
            outcomes.append(failure)
        else:
            outcomes.append(task.result())
    return outcomes


class CreateTopics:
    def __init__(self, admin: TopicAdmin, config: BrokerConfig) -> None:
        self._admin = admin
        self._config = config

    async def __call__(self, request: m.CreateTopicsRequest, call: Call) -> m.CreateTopicsResponse:
        kind = m.CreateTopicsResponse.Topics
        named = Counter(topic.name for topic in request.topics)
        asked = list({topic.name: topic for topic in request.topics}.values())
        _check_size([self.size(topic) for topic in asked], call.whole)
        works = [self._create(topic, named[topic.name], request.validate_only) for topic in asked]
        results = []
        for topic, outcome in zip(asked, await _all(works, request.timeout_ms, self._admin), strict=True):
            result = kind(name=topic.name, topic_id=NO_ID, configs=None)
            if isinstance(outcome, KafkaError):
                result.error_code, result.error_message = outcome.code, outcome.message
            else:
                self._describe(result, outcome, request.validate_only)
            results.append(result)
        return m.CreateTopicsResponse(topics=results)

    @staticmethod
    def size(topic: m.CreateTopicsRequest.Topics) -> int:
        return _planned(max(topic.num_partitions, len(topic.assignments)))

    async def _create(self, asked: m.CreateTopicsRequest.Topics, times: int, validate_only: bool) -> Topic:
        if times > 1:
            raise KafkaError(errors.INVALID_REQUEST, f"the request names {asked.name} {times} times")
        new = NewTopic(
            asked.name,
            asked.num_partitions,
            asked.replication_factor,
            {given.partition_index: given.broker_ids for given in asked.assignments},
            {given.name: given.value for given in asked.configs},
        )
        return await self._admin.create(new, validate_only)

    def _describe(self, result: m.CreateTopicsResponse.Topics, topic: Topic, validate_only: bool) -> None:
        """Fill in the topic that was created, or would be (KIP-525)."""
        kind = m.CreateTopicsResponse.Topics.Configs
        result.topic_id = NO_ID if validate_only else topic.id
        result.num_partitions = len(topic.partitions)
        result.replication_factor = len(topic.partitions[0].replicas)
        result.configs = [
            kind(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=int(entry.source),
                is_sensitive=entry.sensitive,
            )
            for entry in TopicConfig(self._config, topic.config, stored=True).entries()
        ]


def create_failed(request: m.CreateTopicsRequest, code: int, message: str) -> m.CreateTopicsResponse:
    kind = m.CreateTopicsResponse.Topics
    return m.CreateTopicsResponse(
        topics=[
            kind(name=topic.name, topic_id=NO_ID, error_code=code, error_message=message, configs=None)
            for topic in request.topics
        ]
    )


class DeleteTopics:
    def __init__(self, admin: TopicAdmin, metadata: MetadataCache, enabled: bool) -> None:
        self._admin = admin
        self._metadata = metadata
        self._enabled = enabled

    async def __call__(self, request: m.DeleteTopicsRequest, call: Call) -> m.DeleteTopicsResponse:
        kind = m.DeleteTopicsResponse.Responses
        if call.version >= IDS_VERSION:
            asked = [(topic.name, topic.topic_id) for topic in request.topics]
        else:
            asked = [(name, NO_ID) for name in request.topic_names]
        image = self._metadata.image
        works = [self._delete(image, name, topic_id, call.version) for name, topic_id in asked]
        response = m.DeleteTopicsResponse()
        # For a topic given by id the response has its name.
        known = [image.topic_by_id(topic_id) for _, topic_id in asked]
        outcomes = await _all(works, request.timeout_ms, self._admin)
        for (name, topic_id), found, outcome in zip(asked, known, outcomes, strict=True):
            result = kind(name=name if name is not None or found is None else found.name, topic_id=topic_id)
            if isinstance(outcome, KafkaError):
                result.error_code, result.error_message = outcome.code, outcome.message
            else:
                result.name, result.topic_id = outcome.name, outcome.id
            response.responses.append(result)
        return response

    async def _delete(self, image: Image, name: str | None, topic_id: bytes, version: int) -> Topic:
        if not self._enabled:
            old = version < DELETION_DISABLED_VERSION
            code = errors.INVALID_REQUEST if old else errors.TOPIC_DELETION_DISABLED
            raise KafkaError(code, "topic deletion is disabled: set delete.topic.enable=true on the brokers")
        if (name is None) == (topic_id == NO_ID):
            raise KafkaError(errors.INVALID_REQUEST, "name a topic either by its name or by its id")
        topic = image.topic(name) if name is not None else image.topic_by_id(topic_id)
        if topic is None:
            self._metadata.check_complete()
            unknown = errors.UNKNOWN_TOPIC_OR_PARTITION if name is not None else errors.UNKNOWN_TOPIC_ID
            raise KafkaError(unknown, f"topic {name if name is not None else topic_id.hex()} does not exist")
        return await self._admin.delete(topic.name, topic.id)


def delete_failed(request: m.DeleteTopicsRequest, code: int, message: str) -> m.DeleteTopicsResponse:
    kind = m.DeleteTopicsResponse.Responses
    asked = [(topic.name, topic.topic_id) for topic in request.topics] or [(n, NO_ID) for n in request.topic_names]
    return m.DeleteTopicsResponse(
        responses=[kind(name=n, topic_id=i, error_code=code, error_message=message) for n, i in asked]
    )


class CreatePartitions:
    def __init__(self, admin: TopicAdmin) -> None:
        self._admin = admin

    async def __call__(self, request: m.CreatePartitionsRequest, call: Call) -> m.CreatePartitionsResponse:
        kind = m.CreatePartitionsResponse.Results
        named = Counter(topic.name for topic in request.topics)
        asked = list({topic.name: topic for topic in request.topics}.values())
        _check_size([self.size(topic) for topic in asked], call.whole)
        works = [self._grow(topic, named[topic.name], request.validate_only) for topic in asked]
        response = m.CreatePartitionsResponse()
        for topic, outcome in zip(asked, await _all(works, request.timeout_ms, self._admin), strict=True):
            result = kind(name=topic.name, error_message=None)
            if isinstance(outcome, KafkaError):
                result.error_code, result.error_message = outcome.code, outcome.message
            response.results.append(result)
        return response

    @staticmethod
    def size(topic: m.CreatePartitionsRequest.Topics) -> int:
        return _planned(topic.count)

    async def _grow(self, asked: m.CreatePartitionsRequest.Topics, times: int, validate_only: bool) -> None:
        if times > 1:
            raise KafkaError(errors.INVALID_REQUEST, f"the request names {asked.name} {times} times")
        given = None if asked.assignments is None else [list(each.broker_ids) for each in asked.assignments]
        await self._admin.grow(asked.name, asked.count, given, validate_only)


def create_partitions_failed(request: m.CreatePartitionsRequest, code: int, message: str) -> m.CreatePartitionsResponse:
    kind = m.CreatePartitionsResponse.Results
    return m.CreatePartitionsResponse(
        results=[kind(name=topic.name, error_code=code, error_message=message) for topic in request.topics]
    )
