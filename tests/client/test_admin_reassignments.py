"""Admin's calls for reassignments: what is asked, and what comes back."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker import Admin, PartitionReassignment, errors
from pybroker.client.aio.admin import AsyncAdmin
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from tests.client.fake_broker import FakeBroker

ALTERED, LISTED = m.AlterPartitionReassignmentsResponse.Responses, m.ListPartitionReassignmentsResponse.Topics
VERSIONS = {"AlterPartitionReassignments": 1, "ListPartitionReassignments": 0}


def test_a_result_for_each_partition() -> None:
    """One call moves some partitions and cancels others, and returns the error of each; lists have what moves."""
    asked: list[Any] = []

    def alter(request: Any) -> Any:
        asked.append([(t.name, [(p.partition_index, p.replicas) for p in t.partitions]) for t in request.topics])
        refused = ALTERED.Partitions(partition_index=1, error_code=85, error_message="nothing to cancel")
        done = ALTERED.Partitions(partition_index=0, error_message=None)
        return m.AlterPartitionReassignmentsResponse(
            error_message=None, responses=[ALTERED(name="t", partitions=[done, refused])]
        )

    def listed(request: Any) -> Any:
        asked.append(request.topics and [(t.name, t.partition_indexes) for t in request.topics])
        moves = LISTED.Partitions(partition_index=0, replicas=[2, 3, 1], adding_replicas=[3], removing_replicas=[1])
        return m.ListPartitionReassignmentsResponse(
            error_message=None, topics=[LISTED(name="t", partitions=[moves])]
        )

    fake = FakeBroker({"AlterPartitionReassignments": alter, "ListPartitionReassignments": listed}, VERSIONS)
    with Admin(f"127.0.0.1:{fake.port}") as admin:
        done = admin.alter_partition_reassignments({("t", 0): [2, 3], ("t", 1): None})
        assert done[TopicPartition("t", 0)] is None
        refused = done[TopicPartition("t", 1)]
        assert refused is not None and refused.code == errors.NO_REASSIGNMENT_IN_PROGRESS
        moving = {TopicPartition("t", 0): PartitionReassignment((2, 3, 1), (3,), (1,))}
        assert admin.list_partition_reassignments() == moving
        assert admin.list_partition_reassignments([("t", 0)]) == moving
    assert asked == [[("t", [(0, [2, 3]), (1, None)])], None, [("t", [0])]]
    fake.close()


@pytest.mark.parametrize("name", VERSIONS)
def test_a_refusal_of_everything(name: str) -> None:
    """A refusal of the whole request is a KafkaError with the broker's sentence."""
    answer = getattr(m, f"{name}Response")(error_code=errors.INVALID_REQUEST, error_message="too many partitions")
    fake = FakeBroker({name: lambda _: answer}, VERSIONS)
    with Admin(f"127.0.0.1:{fake.port}") as admin, pytest.raises(KafkaError, match="too many partitions"):
        if name.startswith("Alter"):
            admin.alter_partition_reassignments({("t", 0): [1]})
        else:
            admin.list_partition_reassignments()
    fake.close()


@pytest.mark.parametrize("wrong", [{("t", 0): [-1]}, {("t", 0): ["one"]}, {"t-0": [1]}])
def test_wrong_arguments(wrong: Any) -> None:
    """A broker id that is no whole number from 0 up, or a partition that is no pair, never reaches a broker."""
    with Admin("127.0.0.1:1") as admin, pytest.raises((TypeError, ValueError)):
        admin.alter_partition_reassignments(wrong)


async def test_awaited() -> None:
    """AsyncAdmin has both calls."""
    fake = FakeBroker(
        {
            "AlterPartitionReassignments": lambda _: m.AlterPartitionReassignmentsResponse(error_message=None),
            "ListPartitionReassignments": lambda _: m.ListPartitionReassignmentsResponse(error_message=None),
        },
        VERSIONS,
    )
    async with AsyncAdmin(f"127.0.0.1:{fake.port}") as admin:
        assert await admin.alter_partition_reassignments({("t", 0): [1]}) == {}
        assert await admin.list_partition_reassignments() == {}
    fake.close()
