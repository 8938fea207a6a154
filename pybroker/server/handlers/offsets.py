"""ListOffsets and OffsetForLeaderEpoch: from a time, or from a leader's epoch, to an offset."""

from collections import Counter
from collections.abc import Iterator, Set
from typing import Any

from pybroker import core, errors
from pybroker.cluster.caller import Call
from pybroker.errors import KafkaError
from pybroker.model import CONSUMER, DEBUGGING, TopicPartition
from pybroker.protocol import messages as m
from pybroker.replication.proof import Proof
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.replication.search import Found, by_time, latest_time

NOT_AVAILABLE_VERSION = 5
"""From here on clients know OFFSET_NOT_AVAILABLE."""
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
SINCE_VERSION = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""The replica id of a consumer, which is told of what is committed; any other id is told of the log's end. Some clients
send 0 here. An id decides nothing else: neither API counts anybody as a follower."""


def _failure(problem: KafkaError | core.LogError | OSError) -> int:
    return errors.KAFKA_STORAGE_ERROR if isinstance(problem, OSError) else problem.code


class ListOffsets:
    def __init__(self, replicas: Replicas, proof: Proof) -> None:
        self._replicas = replicas
        self._proof = proof

    async def __call__(self, request: Any, call: Call) -> Any:
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
                        raise KafkaError(errors.INVALID_REQUEST, f"{topic.name}-{index} is asked for twice")
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

    async def _look(self, replica: Replica, asked: Any, request: Any) -> Found:
        log, timestamp = replica.partition(), asked.timestamp
        bound = log.log_end_offset
        if request.replica_id == CONSUMER:
            bound = log.last_stable_offset if request.isolation_level else log.high_watermark
        if timestamp == LATEST:
            return Found(bound, -1, log.leader_epoch)
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return Found(log.log_start_offset, -1, log.epoch_at(log.log_start_offset))
        if timestamp == LATEST_TIERED:
            return Found(-1, -1, -1)
        if timestamp == MAX_TIMESTAMP:
            return await replica.at_disk(latest_time, log)
        return await replica.at_disk(by_time, log, timestamp, bound)


def _check_end(log: core.Partition, version: int) -> None:
    """Tell no end that goes back: a new leader may know of less that is committed than an earlier one has told, until
    its followers have all that it had when it began (KIP-207). Raises OFFSET_NOT_AVAILABLE."""
    high_watermark = log.high_watermark
    if high_watermark == log.log_end_offset:
        return
    began = dict(log.epochs()).get(log.leader_epoch, 0)
    if high_watermark < began:
        known = version >= NOT_AVAILABLE_VERSION
        code = errors.OFFSET_NOT_AVAILABLE if known else errors.LEADER_NOT_AVAILABLE
        raise KafkaError(code, f"the high watermark {high_watermark} is below the leader's beginning, {began}")


def _check_meaning(timestamp: int, version: int) -> None:
    if timestamp < 0 and version < SINCE_VERSION.get(timestamp, 1 << 15):
        raise KafkaError(errors.UNSUPPORTED_VERSION, f"the timestamp {timestamp} has no meaning in v{version}")


def list_offsets_failed(request: Any, code: int, message: str) -> Any:
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
    """Where a leader's epoch ended (KIP-101): how consumers and followers find that a log was cut."""

    def __init__(self, replicas: Replicas, proof: Proof) -> None:
        self._replicas = replicas
        self._proof = proof

    def __call__(self, request: Any, call: Call) -> Any:
        """The answer, or a coroutine of it if the ends need a proof. Followers need none: they name their epoch.

        Before v3, as librdkafka's consumers ask, there is no replica id: it reads as DEBUGGING."""
        if self._proof.is_due and request.replica_id < 0:
            return self._when_proven(request)
        return self._answer(request, set())

    async def _when_proven(self, request: Any) -> Any:
        keys = (TopicPartition(t.topic, p.partition) for t in request.topics for p in t.partitions)
        return self._answer(request, await self._proof.doubted(keys))

    def _answer(self, request: Any, doubted: Set[TopicPartition]) -> Any:
        kind = m.OffsetForLeaderEpochResponse
        topics = [kind.Topics(topic=t.topic, partitions=list(self._ends(t, doubted))) for t in request.topics]
        return kind(topics=topics)

    def _ends(self, topic: Any, doubted: Set[TopicPartition]) -> Iterator[Any]:
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


def offset_for_leader_epoch_failed(request: Any, code: int, message: str) -> Any:
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
