"""DescribeProducers: the idempotent producers known to a partition, with their last sequence (KIP-664); followers
answer too."""

from __future__ import annotations

from collections import Counter

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.errors import KafkaError
from pybroker.model import DEBUGGING
from pybroker.protocol import messages as m
from pybroker.replication.replicas import Replicas


class DescribeProducers:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    async def __call__(self, request: m.DescribeProducersRequest, call: Call) -> m.DescribeProducersResponse:
        kind = m.DescribeProducersResponse.Topics
        named = Counter((topic.name, p) for topic in request.topics for p in topic.partition_indexes)
        return m.DescribeProducersResponse(
            topics=[
                kind(
                    name=topic.name,
                    partitions=[
                        await self._describe(topic.name, p, named[topic.name, p]) for p in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )

    async def _describe(self, topic: str, partition: int, times: int) -> m.DescribeProducersResponse.Topics.Partitions:
        kind = m.DescribeProducersResponse.Topics.Partitions
        answer = kind(partition_index=partition, error_message=None)
        try:
            if times > 1:
                raise KafkaError(errors.INVALID_REQUEST, f"the request names the partition {times} times")
            replica = self._replicas.readable(topic, partition, DEBUGGING)
            known = await replica.at_disk(replica.partition().producers)  # on the log dir's thread, where appends run
        except KafkaError as problem:
            answer.error_code, answer.error_message = problem.code, problem.message
            return answer
        answer.active_producers = [
            kind.ActiveProducers(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp_ms,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_start_offset,
            )
            for producer in known
        ]
        return answer


def failed(request: m.DescribeProducersRequest, code: int, message: str) -> m.DescribeProducersResponse:
    kind = m.DescribeProducersResponse.Topics
    return m.DescribeProducersResponse(
        topics=[
            kind(
                name=topic.name,
                partitions=[
                    kind.Partitions(partition_index=p, error_code=code, error_message=message)
                    for p in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )
