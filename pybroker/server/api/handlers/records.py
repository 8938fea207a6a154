"""DeleteRecords: raises the log start offset of a partition; earlier records are never served again (KIP-107)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Set
from typing import Final

from pybroker import core, errors
from pybroker.decisions.caller import Call
from pybroker.decisions.image import INTERNAL_TOPICS
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.replication.proof import Proof
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas

LOOK_S: Final = 0.02


class DeleteRecords:
    def __init__(self, replicas: Replicas, proof: Proof) -> None:
        self._replicas = replicas
        self._proof = proof

    async def __call__(self, request: m.DeleteRecordsRequest, call: Call) -> m.DeleteRecordsResponse:
        """Raise log start offsets. They are on disk before clients see them, and at all in-sync replicas before the
        response, so that they never go back."""
        kind = m.DeleteRecordsResponse.Topics
        response = m.DeleteRecordsResponse()
        raised: dict[Replica, int] = {}
        raising: list[tuple[Replica, m.DeleteRecordsResponse.Topics.Partitions]] = []
        doubted = await self._proof.doubted(
            TopicPartition(topic.name, p.partition_index) for topic in request.topics for p in topic.partitions
        )
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                answer = kind.Partitions(partition_index=asked.partition_index, low_watermark=-1)
                try:
                    replica = self._deletable(topic.name, asked.partition_index, doubted)
                    log = replica.partition()
                    raised[replica] = max(raised.get(replica, 0), _start(log, asked.offset))
                    raising.append((replica, answer))
                except KafkaError as problem:
                    answer.error_code = problem.code
                answers.append(answer)
            response.topics.append(kind(name=topic.name, partitions=answers))
        unwritten = await self._replicas.recorder.raise_log_starts(raised)
        late = await self._until_followed(raised, request.timeout_ms / 1000)
        for replica, answer in raising:
            if replica.log is None or replica.log.offline or replica.directory in unwritten:
                answer.error_code = errors.KAFKA_STORAGE_ERROR
            elif not replica.leads:
                answer.error_code = errors.NOT_LEADER_OR_FOLLOWER
            elif replica in late:
                answer.error_code = errors.REQUEST_TIMED_OUT
            else:
                answer.low_watermark = replica.log.log_start_offset
        return response

    async def _until_followed(self, raised: Mapping[Replica, int], seconds: float) -> Set[Replica]:
        """Wait until the in-sync followers have raised theirs too; return the replicas for which one has not in time.

        Followers report their log start in fetches that core handles without an event here, so this polls."""
        late = set(raised)
        deadline_s = time.monotonic() + seconds
        while late := {replica for replica in late if _is_ahead(replica, raised[replica])}:
            if time.monotonic() >= deadline_s:
                break
            await asyncio.sleep(LOOK_S)
        return late

    def _deletable(self, topic: str, partition: int, doubted: Set[TopicPartition]) -> Replica:
        if topic in INTERNAL_TOPICS:
            raise KafkaError(errors.INVALID_TOPIC_EXCEPTION, f"{topic} is internal: only brokers delete its records")
        replica = self._replicas.leader(topic, partition)
        if replica.key in doubted:
            raise KafkaError(errors.NOT_LEADER_OR_FOLLOWER, f"another broker may lead {replica.key} by now")
        if "delete" not in replica.config["cleanup.policy"]:
            raise KafkaError(errors.POLICY_VIOLATION, f"cleanup.policy of topic {topic} does not include delete")
        return replica


def _is_ahead(replica: Replica, start: int) -> bool:
    """True if the replica leads and an in-sync follower's log starts before `start`."""
    log = replica.log
    return log is not None and replica.leads and any(f.in_isr and f.log_start_offset < start for f in log.followers)


def _start(log: core.Partition, offset: int) -> int:
    """The requested log start offset; -1 stands for the high watermark. Raises OFFSET_OUT_OF_RANGE."""
    high_watermark = log.high_watermark
    if not -1 <= offset <= high_watermark:
        words = f"offset {offset} is not from -1 to the high watermark {high_watermark}"
        raise KafkaError(errors.OFFSET_OUT_OF_RANGE, words)
    return high_watermark if offset == -1 else offset


def failed(request: m.DeleteRecordsRequest, code: int, message: str) -> m.DeleteRecordsResponse:
    kind = m.DeleteRecordsResponse.Topics
    return m.DeleteRecordsResponse(
        topics=[
            kind(
                name=topic.name,
                partitions=[
                    kind.Partitions(partition_index=p.partition_index, low_watermark=-1, error_code=code)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
