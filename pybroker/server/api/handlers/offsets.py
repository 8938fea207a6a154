"""ListOffsets and OffsetForLeaderEpoch: find the offset for a timestamp, or the end offset of a leader epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Iterator, Set

from pybroker import core, errors
from pybroker.decisions.caller import Call
from pybroker.errors import KafkaError
from pybroker.model import CONSUMER, DEBUGGING, TopicPartition
from pybroker.protocol import messages as m
from pybroker.replication.proof import Proof
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.replication.search import FoundRecord, by_time, latest_time

NOT_AVAILABLE_VERSION = 5
"""The first version whose clients know OFFSET_NOT_AVAILABLE."""
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
SINCE_VERSION = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""The first version with each special timestamp. LATEST is the committed end for a consumer, and the log end for any
other replica id (some clients send 0). A replica id decides nothing else: neither API records follower positions."""


def _failure(problem: KafkaError | core.LogError | OSError) -> int:
    return errors.KAFKA_STORAGE_ERROR if isinstance(problem, OSError) else problem.code


class ListOffsets:
    def __init__(self, replicas: Replicas, proof: Proof) -> None:
        self._replicas = replicas
        self._proof = proof

    async def __call__(self, request: m.ListOffsetsRequest, call: Call) -> m.ListOffsetsResponse:
        kind = m.ListOffsetsResponse
        named = Counter((t.name, p.partition_index) for t in request.topics for p in t.partitions)
        topics = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                index = asked.partition_index
                answer = kind.Topics.Partitions(partition_index=index)
                try:
                    if named[topic.name, index] > 1:
                        raise KafkaError(errors.INVALID_REQUEST, f"the request names {topic.name}-{index} twice")
                    _check_meaning(asked.timestamp, call.version)
                    by = request.replica_id
                    replica = self._replicas.readable(topic.name, index, by, asked.current_leader_epoch)
                    epoch = replica.leader_epoch
                    if self._proof.is_due and by != DEBUGGING and asked.timestamp in (LATEST, MAX_TIMESTAMP):
                        await self._proof.check(replica, epoch)
                    found = await self._look(replica, asked, request)
                    if by != DEBUGGING and found.offset < 0 and asked.timestamp != LATEST_TIERED:
                        await self._proof.check(replica, epoch)
                    if by == CONSUMER and (asked.timestamp == LATEST or found.offset < 0):
                        _check_end(replica.partition(), call.version)
                    answer.offset, answer.timestamp, answer.leader_epoch = found
                except (KafkaError, core.LogError, OSError) as problem:
                    answer.error_code, answer.offset = _failure(problem), -1
                answers.append(answer)
            topics.append(kind.Topics(name=topic.name, partitions=answers))
        return kind(topics=topics)

    async def _look(
        self, replica: Replica, asked: m.ListOffsetsRequest.Topics.Partitions, request: m.ListOffsetsRequest
    ) -> FoundRecord:
        log, timestamp = replica.partition(), asked.timestamp
        bound = log.log_end_offset
        if request.replica_id == CONSUMER:
            bound = log.last_stable_offset if request.isolation_level else log.high_watermark
        if timestamp == LATEST:
            return FoundRecord(bound, -1, log.leader_epoch)
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return FoundRecord(log.log_start_offset, -1, log.epoch_at(log.log_start_offset))
        if timestamp == LATEST_TIERED:
            return FoundRecord(-1, -1, -1)
        if timestamp == MAX_TIMESTAMP:
            return await replica.at_disk(latest_time, log)
        return await replica.at_disk(by_time, log, timestamp, bound)


def _check_end(log: core.Partition, version: int) -> None:
    """Raise OFFSET_NOT_AVAILABLE, or LEADER_NOT_AVAILABLE for old clients, while an earlier leader's high watermark may
    have been higher than ours (KIP-207)."""
    if not log.is_end_certain:
        known = version >= NOT_AVAILABLE_VERSION
        code = errors.OFFSET_NOT_AVAILABLE if known else errors.LEADER_NOT_AVAILABLE
        raise KafkaError(code, f"an earlier leader's high watermark may be above {log.high_watermark}: retry")


def _check_meaning(timestamp: int, version: int) -> None:
    if timestamp < 0 and version < SINCE_VERSION.get(timestamp, 1 << 15):
        raise KafkaError(errors.UNSUPPORTED_VERSION, f"ListOffsets v{version} does not support timestamp {timestamp}")


def list_offsets_failed(request: m.ListOffsetsRequest, code: int, message: str) -> m.ListOffsetsResponse:
    kind = m.ListOffsetsResponse
    return kind(
        topics=[
            kind.Topics(
                name=topic.name,
                partitions=[
                    kind.Topics.Partitions(partition_index=p.partition_index, error_code=code) for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


class OffsetForLeaderEpoch:
    """Returns the end offset of a leader epoch (KIP-101), by which consumers and followers detect truncation."""

    def __init__(self, replicas: Replicas, proof: Proof) -> None:
        self._replicas = replicas
        self._proof = proof

    def __call__(
        self, request: m.OffsetForLeaderEpochRequest, call: Call
    ) -> m.OffsetForLeaderEpochResponse | Coroutine[object, None, m.OffsetForLeaderEpochResponse]:
        """Return the response, or a coroutine of it if a proof is needed. Followers need none: they name their epoch.

        Requests before v3, such as librdkafka's, have no replica id; it defaults to DEBUGGING."""
        if self._proof.is_due and request.replica_id < 0:
            return self._when_proven(request)
        return self._answer(request, set())

    async def _when_proven(self, request: m.OffsetForLeaderEpochRequest) -> m.OffsetForLeaderEpochResponse:
        keys = (TopicPartition(t.topic, p.partition) for t in request.topics for p in t.partitions)
        return self._answer(request, await self._proof.doubted(keys))

    def _answer(
        self, request: m.OffsetForLeaderEpochRequest, doubted: Set[TopicPartition]
    ) -> m.OffsetForLeaderEpochResponse:
        kind = m.OffsetForLeaderEpochResponse
        topics = [kind.Topics(topic=t.topic, partitions=list(self._ends(t, doubted))) for t in request.topics]
        return kind(topics=topics)

    def _ends(
        self, topic: m.OffsetForLeaderEpochRequest.Topics, doubted: Set[TopicPartition]
    ) -> Iterator[m.OffsetForLeaderEpochResponse.Topics.Partitions]:
        for asked in topic.partitions:
            answer = m.OffsetForLeaderEpochResponse.Topics.Partitions(partition=asked.partition)
            try:
                replica = self._replicas.leader(topic.topic, asked.partition, asked.current_leader_epoch)
                if replica.key in doubted:
                    raise KafkaError(errors.NOT_LEADER_OR_FOLLOWER, f"another broker may lead {replica.key} by now")
                answer.leader_epoch, answer.end_offset = replica.partition().end_offset_for_epoch(asked.leader_epoch)
            except (KafkaError, core.LogError, OSError) as problem:
                answer.error_code = _failure(problem)
            yield answer


def offset_for_leader_epoch_failed(
    request: m.OffsetForLeaderEpochRequest, code: int, message: str
) -> m.OffsetForLeaderEpochResponse:
    kind = m.OffsetForLeaderEpochResponse
    return kind(
        topics=[
            kind.Topics(
                topic=topic.topic,
                partitions=[kind.Topics.Partitions(partition=p.partition, error_code=code) for p in topic.partitions],
            )
            for topic in request.topics
        ]
    )
