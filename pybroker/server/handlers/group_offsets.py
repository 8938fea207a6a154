"""Where groups stand: FindCoordinator, OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.cluster.group import State
from pybroker.cluster.image import Node
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.cluster.offsets import Committed
from pybroker.errors import KafkaError
from pybroker.groups.coordinator import Coordinator
from pybroker.groups.records import subscribed_topics
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

GROUP, TRANSACTION = 0, 1
"""What FindCoordinator is asked for; 2 is a share group's (KIP-932)."""
LAST_MS = (1 << 63) - 1
"""The end of time, as 64 bits tell it."""
BATCH_FIND_VERSION = 4
BATCH_FETCH_VERSION = 8
NO_GROUP_VERSION = 9
"""From here on a commit to a group that is not there says so (KIP-848)."""


class FindCoordinator:
    def __init__(self, locate: Callable[[str, str], Awaitable[Node]]) -> None:
        """`locate` names the broker that coordinates a group, as a listener's clients see it. It raises
        COORDINATOR_NOT_AVAILABLE."""
        self._locate = locate

    async def __call__(self, request: Any, call: Call) -> Any:
        kind = m.FindCoordinatorResponse.Coordinators
        keys = request.coordinator_keys if call.version >= BATCH_FIND_VERSION else [request.key]
        answers = []
        for key in keys:
            answer = kind(key=key, node_id=-1, host="", port=-1)
            try:
                _check_type(request.key_type)
                node = await self._locate(key, call.caller.listener)
                answer.node_id, answer.host, answer.port = node.id, node.host, node.port
            except KafkaError as problem:
                answer.error_code, answer.error_message = problem.code, problem.message
            answers.append(answer)
        if call.version >= BATCH_FIND_VERSION:
            return m.FindCoordinatorResponse(coordinators=answers)
        one = answers[0]
        return m.FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )


def _check_type(key_type: int) -> None:
    """A refusal is final: whoever asks does not ask again. For librdkafka no code of a transaction's look-up is final
    but those of authorization, and of these two Java and librdkafka show our sentence with this one."""
    if key_type == TRANSACTION:
        raise KafkaError(errors.CLUSTER_AUTHORIZATION_FAILED, "this broker does not support transactions yet")
    if key_type != GROUP:
        raise KafkaError(errors.INVALID_REQUEST, f"this broker has no coordinators of type {key_type}")


class OffsetCommit:
    def __init__(self, groups: Coordinator, metadata: MetadataCache) -> None:
        self._groups = groups
        self._metadata = metadata

    async def __call__(self, request: Any, call: Call) -> Any:
        now_ms, image = self._groups.wall_ms(), self._metadata.image
        offsets: dict[TopicPartition, Committed] = {}
        for topic in request.topics:
            for p in topic.partitions:
                key = TopicPartition(topic.name, p.partition_index)
                if image.partition(*key) is not None:
                    kept_ms = request.retention_time_ms
                    expire_ms = min(now_ms + kept_ms, LAST_MS) if kept_ms >= 0 else -1
                    offsets[key] = Committed(
                        p.committed_offset, p.committed_leader_epoch, p.committed_metadata or "", now_ms, expire_ms
                    )
        codes: Mapping[TopicPartition, int] = {}
        if offsets:
            codes = await self._commit(request, call.version, offsets)
        return _commit_answer(request, codes, errors.UNKNOWN_TOPIC_OR_PARTITION)

    async def _commit(
        self, request: Any, version: int, offsets: Mapping[TopicPartition, Committed]
    ) -> Mapping[TopicPartition, int]:
        generation = request.generation_id_or_member_epoch
        try:
            return await self._groups.offsets.commit(
                request.group_id, request.member_id, request.group_instance_id, generation, offsets
            )
        except KafkaError as problem:
            if problem.code == errors.GROUP_ID_NOT_FOUND and version < NO_GROUP_VERSION:
                raise KafkaError(errors.ILLEGAL_GENERATION, problem.message) from None
            raise


def _commit_answer(request: Any, codes: Mapping[TopicPartition, int], otherwise: int) -> Any:
    kind = m.OffsetCommitResponse.Topics
    return m.OffsetCommitResponse(
        topics=[
            kind(
                name=topic.name,
                partitions=[
                    kind.Partitions(
                        partition_index=p.partition_index,
                        error_code=codes.get(TopicPartition(topic.name, p.partition_index), otherwise),
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def failed_commit(request: Any, code: int, message: str) -> Any:
    return _commit_answer(request, {}, code)


class OffsetFetch:
    def __init__(self, groups: Coordinator) -> None:
        self._groups = groups

    def __call__(self, request: Any, call: Call) -> Any:
        if call.version >= BATCH_FETCH_VERSION:
            kind, named = m.OffsetFetchResponse.Groups, Counter(group.group_id for group in request.groups)
            return m.OffsetFetchResponse(
                groups=[
                    self._group(group.group_id, group.topics, kind, request.require_stable)
                    if named[group.group_id] == 1
                    else kind(group_id=group.group_id, error_code=errors.INVALID_REQUEST)
                    for group in request.groups
                ]
            )
        only = self._group(request.group_id, request.topics, m.OffsetFetchResponse, request.require_stable)
        if only.error_code:
            return failed_fetch(request, only.error_code, "")
        return only

    def _group(self, group_id: str, topics: Any, kind: Any, require_stable: bool) -> Any:
        """One group's answer, as `kind` (the response itself in old versions). Topics None: all that are known.

        `require_stable`: nothing is said of a partition while a transaction is open that may move the group there."""
        answer = kind(group_id=group_id) if kind is not m.OffsetFetchResponse else kind()
        try:
            entry = self._groups.find(group_id)
        except KafkaError as problem:
            answer.error_code = problem.code
            return answer
        known = entry.offsets if entry is not None else {}
        unstable = entry.unstable if entry is not None and require_stable else ()
        for topic, partitions in _wanted(topics, known):
            found = [_position(kind.Topics.Partitions, p, known.get(TopicPartition(topic, p))) for p in partitions]
            for position in found:
                if (topic, position.partition_index) in unstable:
                    position.committed_offset, position.committed_leader_epoch, position.metadata = -1, -1, ""
                    position.error_code = errors.UNSTABLE_OFFSET_COMMIT
            answer.topics.append(kind.Topics(name=topic, partitions=found))
        return answer


def _wanted(topics: Any, known: Iterable[TopicPartition]) -> Iterable[tuple[str, Iterable[int]]]:
    """Each topic once, with each of its partitions once, however often they are named."""
    if topics is not None:
        known = (TopicPartition(topic.name, p) for topic in topics for p in topic.partition_indexes)
    wanted: dict[str, dict[int, None]] = {}
    for key in known:
        wanted.setdefault(key.topic, {})[key.partition] = None
    return wanted.items()


def _position(kind: Any, partition: int, committed: Committed | None) -> Any:
    if committed is None:
        return kind(partition_index=partition, committed_offset=-1, metadata="")
    return kind(
        partition_index=partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def failed_fetch(request: Any, code: int, message: str) -> Any:
    """The error of the whole, and of each partition: old versions have no room for the former, and aiokafka does not
    read it: it would take the group for one that stands nowhere."""
    kind = m.OffsetFetchResponse.Topics
    return m.OffsetFetchResponse(
        error_code=code,
        topics=[
            kind(
                name=topic.name,
                partitions=[
                    kind.Partitions(partition_index=p, committed_offset=-1, metadata="", error_code=code)
                    for p in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ],
        groups=[m.OffsetFetchResponse.Groups(group_id=g.group_id, error_code=code) for g in request.groups],
    )


class OffsetDelete:
    def __init__(self, groups: Coordinator) -> None:
        self._groups = groups

    async def __call__(self, request: Any, call: Call) -> Any:
        entry = self._groups.find(request.group_id)
        if entry is None:
            return m.OffsetDeleteResponse(error_code=errors.GROUP_ID_NOT_FOUND)
        topics = subscribed_topics(entry.group) if entry.group.state is not State.EMPTY else set()
        if topics is None:
            return m.OffsetDeleteResponse(error_code=errors.NON_EMPTY_GROUP)
        codes: dict[TopicPartition, int] = {}
        for topic in request.topics:
            for p in topic.partitions:
                used = topic.name in topics
                codes[TopicPartition(topic.name, p.partition_index)] = errors.GROUP_SUBSCRIBED_TO_TOPIC if used else 0
        error = await self._groups.offsets.forget(request.group_id, [key for key, code in codes.items() if not code])
        kind = m.OffsetDeleteResponse.Topics
        return m.OffsetDeleteResponse(
            topics=[
                kind(
                    name=topic.name,
                    partitions=[
                        kind.Partitions(
                            partition_index=p.partition_index,
                            error_code=codes[TopicPartition(topic.name, p.partition_index)] or error,
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )


def failed_delete(request: Any, code: int, message: str) -> Any:
    return m.OffsetDeleteResponse(error_code=code)


def failed_find(request: Any, code: int, message: str) -> Any:
    kind = m.FindCoordinatorResponse.Coordinators
    blank: dict[str, Any] = {"node_id": -1, "host": "", "port": -1, "error_code": code, "error_message": message}
    return m.FindCoordinatorResponse(**blank, coordinators=[kind(key=key, **blank) for key in request.coordinator_keys])
