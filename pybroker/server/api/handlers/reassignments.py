"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455). Reassignment is not supported yet: only the
current assignment is accepted, and none is ever in progress."""

from __future__ import annotations

from collections.abc import Sequence

from pybroker import errors
from pybroker.decisions import reassignment
from pybroker.decisions.caller import Call
from pybroker.decisions.image import Image
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m


class AlterPartitionReassignments:
    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata

    def __call__(
        self, request: m.AlterPartitionReassignmentsRequest, call: Call
    ) -> m.AlterPartitionReassignmentsResponse:
        kind, image = m.AlterPartitionReassignmentsResponse.Responses, self._metadata.image
        answers = []
        for topic in request.topics:
            answer = kind(name=topic.name)
            for asked in topic.partitions:
                result = kind.Partitions(partition_index=asked.partition_index, error_message=None)
                try:
                    _check(image, topic.name, asked.partition_index, asked.replicas)
                except KafkaError as problem:
                    result.error_code, result.error_message = problem.code, problem.message
                answer.partitions.append(result)
            answers.append(answer)
        return m.AlterPartitionReassignmentsResponse(
            responses=answers, allow_replication_factor_change=request.allow_replication_factor_change
        )


def _check(image: Image, topic: str, index: int, replicas: Sequence[int] | None) -> None:
    """Raise KafkaError unless this is the current assignment; `replicas` None asks to cancel a reassignment."""
    if replicas is None:
        raise KafkaError(errors.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment of the partition is in progress")
    state = image.partition(topic, index)
    if state is None:
        raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist")
    reassignment.check(state, replicas, image.brokers, same_factor=False)
    if reassignment.begin(state, replicas) is not None:
        raise KafkaError(errors.INVALID_REPLICA_ASSIGNMENT, "this broker does not reassign replicas yet")


def alter_failed(
    request: m.AlterPartitionReassignmentsRequest, code: int, message: str
) -> m.AlterPartitionReassignmentsResponse:
    return m.AlterPartitionReassignmentsResponse(error_code=code, error_message=message)


def list_reassignments(
    request: m.ListPartitionReassignmentsRequest, call: Call
) -> m.ListPartitionReassignmentsResponse:
    return m.ListPartitionReassignmentsResponse(error_message=None)


def list_failed(
    request: m.ListPartitionReassignmentsRequest, code: int, message: str
) -> m.ListPartitionReassignmentsResponse:
    return m.ListPartitionReassignmentsResponse(error_code=code, error_message=message)
