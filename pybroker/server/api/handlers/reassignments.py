"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455): the controller's reassignments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.decisions.image import PartitionState
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

T = TypeVar("T")


class Reassigns(Protocol):
    """The reassignments of the controller's present term."""

    def alter(
        self, targets: dict[TopicPartition, list[int] | None], *, same_factor: bool = False
    ) -> Awaitable[dict[TopicPartition, KafkaError | None]]:
        """Begin, replace or cancel reassignments. Return the error of each partition, None if it was accepted."""

    def under_way(self, keys: list[TopicPartition] | None) -> dict[TopicPartition, PartitionState]:
        """The states of those of these partitions, or of all, that are being reassigned."""


class ReassigningController(Protocol):
    """This broker's controller, elected or not."""

    @property
    def reassignments(self) -> Reassigns:
        """Raises NOT_CONTROLLER."""

    def ask(self, work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Execute a request in its turn. Raises NOT_CONTROLLER."""


class PartitionReassignments:
    def __init__(self, controller: Callable[[], ReassigningController | None]) -> None:
        """`controller` returns the controller, or None while there is no session."""
        self._controller = controller

    def _of(self) -> ReassigningController:
        controller = self._controller()
        if controller is None:
            raise KafkaError(errors.NOT_CONTROLLER, "this broker is not the controller")
        return controller

    async def alter(
        self, request: m.AlterPartitionReassignmentsRequest, call: Call
    ) -> m.AlterPartitionReassignmentsResponse:
        kind, controller = m.AlterPartitionReassignmentsResponse.Responses, self._of()
        targets = {
            TopicPartition(topic.name, p.partition_index): None if p.replicas is None else list(p.replicas)
            for topic in request.topics
            for p in topic.partitions
        }
        same_factor = not request.allow_replication_factor_change

        async def work() -> dict[TopicPartition, KafkaError | None]:
            return await controller.reassignments.alter(targets, same_factor=same_factor)

        found = await controller.ask(work)
        topics: dict[str, m.AlterPartitionReassignmentsResponse.Responses] = {}
        for key, problem in found.items():
            result = kind.Partitions(partition_index=key.partition, error_message=None)
            if problem is not None:
                result.error_code, result.error_message = problem.code, problem.message
            topics.setdefault(key.topic, kind(name=key.topic)).partitions.append(result)
        return m.AlterPartitionReassignmentsResponse(
            error_message=None, responses=list(topics.values()),
            allow_replication_factor_change=request.allow_replication_factor_change,
        )  # fmt: skip

    async def list_under_way(
        self, request: m.ListPartitionReassignmentsRequest, call: Call
    ) -> m.ListPartitionReassignmentsResponse:
        kind, controller, keys = m.ListPartitionReassignmentsResponse.Topics, self._of(), None
        if request.topics is not None:
            keys = [TopicPartition(topic.name, index) for topic in request.topics for index in topic.partition_indexes]

        async def work() -> dict[TopicPartition, PartitionState]:
            return controller.reassignments.under_way(keys)

        topics: dict[str, m.ListPartitionReassignmentsResponse.Topics] = {}
        for key, state in (await controller.ask(work)).items():
            topics.setdefault(key.topic, kind(name=key.topic)).partitions.append(
                kind.Partitions(
                    partition_index=key.partition, replicas=list(state.replicas),
                    adding_replicas=list(state.adding), removing_replicas=list(state.removing),
                )
            )  # fmt: skip
        return m.ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values()))


def alter_failed(
    request: m.AlterPartitionReassignmentsRequest, code: int, message: str
) -> m.AlterPartitionReassignmentsResponse:
    return m.AlterPartitionReassignmentsResponse(error_code=code, error_message=message)


def list_failed(
    request: m.ListPartitionReassignmentsRequest, code: int, message: str
) -> m.ListPartitionReassignmentsResponse:
    return m.ListPartitionReassignmentsResponse(error_code=code, error_message=message)
