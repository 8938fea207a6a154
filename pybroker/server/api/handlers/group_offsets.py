"""Coordinators and committed offsets of groups: FindCoordinator, OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from pybroker import errors
from pybroker.config import BrokerConfig
from pybroker.decisions.caller import Call
from pybroker.decisions.group import State
from pybroker.decisions.image import Node
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.decisions.offsets import Committed
from pybroker.decisions.transaction import ProducerIdAndEpoch
from pybroker.errors import KafkaError
from pybroker.groups.coordinator import Coordinator
from pybroker.groups.records import subscribed_topics
from pybroker.groups.stored_errors import OFFSETS_ERRORS
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.state_log.log import StateLog
from pybroker.transactions.verification import Verification, refusal

GROUP, TRANSACTION = 0, 1
"""Key types of FindCoordinator; 2 is a share group (KIP-932)."""
LAST_MS = (1 << 63) - 1
"""The largest timestamp, for offsets whose retention would exceed 64 bits."""
BATCH_FIND_VERSION = 4
BATCH_FETCH_VERSION = 8
LOADING_VERSION = 2
"""The first version of TxnOffsetCommit whose clients do not give up at COORDINATOR_LOAD_IN_PROGRESS."""
TO_OLD_PRODUCERS = {errors.COORDINATOR_LOAD_IN_PROGRESS: errors.COORDINATOR_NOT_AVAILABLE}
ABORTABLE_VERSION, ADDS_VERSION = 4, 5
"""The first versions of TxnOffsetCommit whose clients know TRANSACTION_ABORTABLE, and have not added the partition of
the group to the transaction before."""
UNVERIFIED = -1
"""The guard of offsets that are written without verification."""
NO_GROUP_VERSION = 9
"""The first version whose clients know GROUP_ID_NOT_FOUND (KIP-848); older ones get ILLEGAL_GENERATION."""


class FindCoordinator:
    def __init__(self, locate: Mapping[int, Callable[[str, str], Awaitable[Node]]]) -> None:
        """`locate` has a function for each key type, which returns the coordinator of a key, with its address for a
        listener's clients. It raises COORDINATOR_NOT_AVAILABLE."""
        self._locate = locate

    async def __call__(self, request: m.FindCoordinatorRequest, call: Call) -> m.FindCoordinatorResponse:
        kind = m.FindCoordinatorResponse.Coordinators
        keys = request.coordinator_keys if call.version >= BATCH_FIND_VERSION else [request.key]
        answers = []
        for key in keys:
            answer = kind(key=key, node_id=-1, host="", port=-1)
            try:
                if request.key_type not in self._locate:
                    words = f"unknown key type {request.key_type}: 0 is a group, 1 a transactional id"
                    raise KafkaError(errors.INVALID_REQUEST, words)
                if request.key_type == TRANSACTION and not key:
                    raise KafkaError(errors.INVALID_REQUEST, "the transactional id is empty")
                node = await self._locate[request.key_type](key, call.caller.listener)
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


class OffsetCommit:
    def __init__(self, groups: Coordinator, metadata: MetadataCache) -> None:
        self._groups = groups
        self._metadata = metadata

    async def __call__(self, request: m.OffsetCommitRequest, call: Call) -> m.OffsetCommitResponse:
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
        return _commit_answer(request, codes, errors.UNKNOWN_TOPIC_OR_PARTITION, m.OffsetCommitResponse)

    async def _commit(
        self, request: m.OffsetCommitRequest, version: int, offsets: Mapping[TopicPartition, Committed]
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


Committing = TypeVar("Committing", m.OffsetCommitResponse, m.TxnOffsetCommitResponse)


def _commit_answer(
    request: m.OffsetCommitRequest | m.TxnOffsetCommitRequest, codes: Mapping[TopicPartition, int], otherwise: int,
    of: type[Committing],
) -> Committing:  # fmt: skip
    kind = of.Topics
    return of(
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


def failed_commit(request: m.OffsetCommitRequest, code: int, message: str) -> m.OffsetCommitResponse:
    return _commit_answer(request, {}, code, m.OffsetCommitResponse)


class TxnOffsetCommit:
    def __init__(
        self, groups: Coordinator, metadata: MetadataCache, verification: Verification, config: BrokerConfig
    ) -> None:
        self._groups = groups
        self._metadata = metadata
        self._verification = verification
        self._config = config

    async def __call__(self, request: m.TxnOffsetCommitRequest, call: Call) -> m.TxnOffsetCommitResponse:
        now_ms, image = self._groups.wall_ms(), self._metadata.image
        offsets: dict[TopicPartition, Committed] = {}
        for topic in request.topics:
            for p in topic.partitions:
                key = TopicPartition(topic.name, p.partition_index)
                if image.partition(*key) is not None:
                    metadata = p.committed_metadata or ""
                    offsets[key] = Committed(p.committed_offset, p.committed_leader_epoch, metadata, now_ms)
        codes: Mapping[TopicPartition, int] = {}
        if offsets:
            try:
                codes = await self._groups.offsets.commit_in_transaction(
                    request.group_id, request.member_id, request.group_instance_id, request.generation_id, offsets,
                    (request.producer_id, request.producer_epoch), lambda log: self._guard(log, request, call.version),
                )  # fmt: skip
            except KafkaError as problem:
                codes = dict.fromkeys(offsets, problem.code)
        if call.version < LOADING_VERSION:
            codes = {key: TO_OLD_PRODUCERS.get(code, code) for key, code in codes.items()}
        return _commit_answer(request, codes, errors.UNKNOWN_TOPIC_OR_PARTITION, m.TxnOffsetCommitResponse)

    async def _guard(self, log: StateLog, request: m.TxnOffsetCommitRequest, version: int) -> int:
        """The guard of a partition of __consumer_offsets for the transaction, verified as for Produce. Raises
        KafkaError."""
        by = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        if by.id < 0 or by.epoch < 0:
            raise KafkaError(errors.INVALID_PRODUCER_ID_MAPPING, "the offsets have no producer id or no epoch")
        if not self._config["transaction.partition.verification.enable"]:
            return UNVERIFIED
        guard = await log.verify(by.id, by.epoch, 0)
        if not guard:
            return 0
        adds = version >= ADDS_VERSION
        codes = await self._verification.check(request.transactional_id, by, [log.key], adds=adds)
        code = codes[log.key]
        if code:
            code = refusal(code, knows_abortable=version >= ABORTABLE_VERSION, adds=adds)
            words = f"{log.key} was not added to the transaction"
            raise KafkaError(OFFSETS_ERRORS.get(code, code), words)
        return guard


def failed_txn_commit(request: m.TxnOffsetCommitRequest, code: int, message: str) -> m.TxnOffsetCommitResponse:
    return _commit_answer(request, {}, code, m.TxnOffsetCommitResponse)


class OffsetFetch:
    def __init__(self, groups: Coordinator) -> None:
        self._groups = groups

    def __call__(self, request: m.OffsetFetchRequest, call: Call) -> m.OffsetFetchResponse:
        if call.version >= BATCH_FETCH_VERSION:
            kind = m.OffsetFetchResponse.Groups
            named = Counter(group.group_id for group in request.groups)
            return m.OffsetFetchResponse(
                groups=[
                    self._group(group.group_id, _keys(group.topics), request.require_stable)
                    if named[group.group_id] == 1
                    else kind(group_id=group.group_id, error_code=errors.INVALID_REQUEST)
                    for group in request.groups
                ]
            )
        only = self._group(request.group_id, _keys(request.topics), request.require_stable)
        if only.error_code:
            return failed_fetch(request, only.error_code, "")
        return m.OffsetFetchResponse(topics=[_of_old(topic) for topic in only.topics])

    def _group(
        self, group_id: str, asked: Iterable[TopicPartition] | None, require_stable: bool
    ) -> m.OffsetFetchResponse.Groups:
        """Return the response for one group. `asked` None: all partitions with a committed offset.

        `require_stable`: a partition whose offset an open transaction may change gets UNSTABLE_OFFSET_COMMIT."""
        kind = m.OffsetFetchResponse.Groups.Topics
        answer = m.OffsetFetchResponse.Groups(group_id=group_id)
        try:
            entry = self._groups.find(group_id)
        except KafkaError as problem:
            answer.error_code = problem.code
            return answer
        known = entry.offsets if entry is not None else {}
        unstable = entry.unstable if entry is not None and require_stable else ()
        for topic, partitions in _by_topic(known if asked is None else asked).items():
            found = [_position(p, known.get(TopicPartition(topic, p))) for p in partitions]
            for position in found:
                if (topic, position.partition_index) in unstable:
                    position.committed_offset, position.committed_leader_epoch, position.metadata = -1, -1, ""
                    position.error_code = errors.UNSTABLE_OFFSET_COMMIT
            answer.topics.append(kind(name=topic, partitions=found))
        return answer


def _keys(
    topics: Iterable[m.OffsetFetchRequest.Topics | m.OffsetFetchRequest.Groups.Topics] | None
) -> Iterable[TopicPartition] | None:
    if topics is None:
        return None
    return [TopicPartition(topic.name, p) for topic in topics for p in topic.partition_indexes]


def _by_topic(keys: Iterable[TopicPartition]) -> Mapping[str, Iterable[int]]:
    """Return the partitions by topic, without duplicates."""
    topics: dict[str, dict[int, None]] = {}
    for key in keys:
        topics.setdefault(key.topic, {})[key.partition] = None
    return topics


def _position(partition: int, committed: Committed | None) -> m.OffsetFetchResponse.Groups.Topics.Partitions:
    kind = m.OffsetFetchResponse.Groups.Topics.Partitions
    if committed is None:
        return kind(partition_index=partition, committed_offset=-1, metadata="")
    return kind(
        partition_index=partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def _of_old(topic: m.OffsetFetchResponse.Groups.Topics) -> m.OffsetFetchResponse.Topics:
    """Convert a topic of the response to its form before v8, when a request named one group."""
    kind = m.OffsetFetchResponse.Topics
    return kind(
        name=topic.name,
        partitions=[
            kind.Partitions(
                partition_index=p.partition_index,
                committed_offset=p.committed_offset,
                committed_leader_epoch=p.committed_leader_epoch,
                metadata=p.metadata,
                error_code=p.error_code,
            )
            for p in topic.partitions
        ],
    )


def failed_fetch(request: m.OffsetFetchRequest, code: int, message: str) -> m.OffsetFetchResponse:
    """Return the error at the top level and for each partition: old versions have no top-level code, and aiokafka
    ignores it and would take the group for one without committed offsets."""
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

    async def __call__(self, request: m.OffsetDeleteRequest, call: Call) -> m.OffsetDeleteResponse:
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


def failed_delete(request: m.OffsetDeleteRequest, code: int, message: str) -> m.OffsetDeleteResponse:
    return m.OffsetDeleteResponse(error_code=code)


def failed_find(request: m.FindCoordinatorRequest, code: int, message: str) -> m.FindCoordinatorResponse:
    kind = m.FindCoordinatorResponse.Coordinators
    return m.FindCoordinatorResponse(
        node_id=-1,
        port=-1,
        error_code=code,
        error_message=message,
        coordinators=[
            kind(key=key, node_id=-1, port=-1, error_code=code, error_message=message)
            for key in request.coordinator_keys
        ],
    )
