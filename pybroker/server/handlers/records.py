"""DeleteRecords: raise the first offset of a log; what lies before it is never served again (KIP-107)."""

import asyncio
from collections.abc import Callable
from typing import Any

from pybroker import core, errors
from pybroker.cluster.caller import Call
from pybroker.cluster.image import INTERNAL_TOPICS
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.replication.replicas import Replicas


class DeleteRecords:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    async def __call__(self, request: Any, call: Call) -> Any:
        """A raised log start is on disk before it is told: it never goes back."""
        kind = m.DeleteRecordsResponse.Topics
        response = m.DeleteRecordsResponse()
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                answer = kind.Partitions(partition_index=asked.partition_index, low_watermark=-1)
                try:
                    raise_start = self._raiser(topic.name, asked.partition_index, asked.offset)
                    answer.low_watermark = await asyncio.to_thread(raise_start)
                except (KafkaError, core.LogError, OSError) as problem:
                    answer.error_code = errors.KAFKA_STORAGE_ERROR if isinstance(problem, OSError) else problem.code
                answers.append(answer)
            response.topics.append(kind(name=topic.name, partitions=answers))
        unwritten = await asyncio.to_thread(self._replicas.record_log_starts)
        for topic in response.topics:
            for answer in topic.partitions:
                replica = self._replicas.get(topic.name, answer.partition_index)
                if answer.error_code == errors.NONE and replica is not None and replica.directory in unwritten:
                    answer.error_code, answer.low_watermark = errors.KAFKA_STORAGE_ERROR, -1  # a crash may undo it
        return response

    def _raiser(self, topic: str, partition: int, offset: int) -> Callable[[], int]:
        if topic in INTERNAL_TOPICS:
            raise KafkaError(errors.INVALID_TOPIC_EXCEPTION, f"{topic} is cut by brokers only")
        replica = self._replicas.leader(topic, partition)
        if "delete" not in replica.config["cleanup.policy"]:
            raise KafkaError(errors.POLICY_VIOLATION, f"the cleanup.policy of {topic} does not allow deletion")
        log = replica.partition()
        return lambda: log.set_log_start(offset)


def failed(request: Any, code: int, message: str) -> Any:
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
