"""ElectLeaders, partition reassignments, ACL requests and ApiVersions, without sockets."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from pybroker.protocol.apis import APIS
from tests.server.handlers.desk import ELSEWHERE, HERE, Desk

ELECTED = m.ElectLeadersRequest.TopicPartitions
REASSIGNED = m.AlterPartitionReassignmentsRequest.Topics
UNKNOWN = errors.UNKNOWN_TOPIC_OR_PARTITION


async def elect(desk: Desk, topics: list[Any] | None, kind: int = 0) -> tuple[int, list[tuple[str, int, int]]]:
    answer = await desk.ask("ElectLeaders", 2, election_type=kind, topic_partitions=topics, timeout_ms=1000)
    found = [
        (t.topic, p.partition_id, p.error_code) for t in answer.replica_election_results for p in t.partition_result
    ]
    return answer.error_code, found


@pytest.mark.parametrize("kind", [0, 1])
async def test_elections_of_partitions_that_are_led(desk: Desk, kind: int) -> None:
    """Each named partition that has a leader gets ELECTION_NOT_NEEDED once; an election of all returns no results."""
    await desk.topic("t", 2)
    needless = errors.ELECTION_NOT_NEEDED
    asked = [ELECTED(topic="t", partitions=[1, 7, 1]), ELECTED(topic="none", partitions=[0])]
    asked += [ELECTED(topic="t", partitions=[0, 1]), ELECTED(topic="u", partitions=[])]
    found = [("t", 1, needless), ("t", 7, UNKNOWN), ("t", 0, needless), ("none", 0, UNKNOWN)]
    assert await elect(desk, asked, kind) == (0, found)
    assert await elect(desk, None, kind) == await elect(desk, [], kind) == (0, [])


async def test_an_election_that_there_is_not(desk: Desk) -> None:
    asked = [ELECTED(topic="t", partitions=[0])]
    assert await elect(desk, asked, 2) == (errors.INVALID_REQUEST, [("t", 0, errors.INVALID_REQUEST)])
    assert await elect(desk, None, 2) == (errors.INVALID_REQUEST, [])


@pytest.mark.parametrize(
    ("name", "partition", "replicas", "code"),
    [
        ("t", 0, [HERE], 0),
        ("t", 0, None, errors.NO_REASSIGNMENT_IN_PROGRESS),
        ("t", 0, [], errors.INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, [HERE, 9], errors.INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, [-1], errors.INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, [HERE, HERE], errors.INVALID_REPLICA_ASSIGNMENT),
        ("t", 7, [HERE], UNKNOWN),
        ("none", 0, [HERE], UNKNOWN),
    ],
)
async def test_reassignments(desk: Desk, name: str, partition: int, replicas: list[int] | None, code: int) -> None:
    """Each target that cannot be has its error code, as in Kafka; the present replicas are accepted, and nothing moves.
    """
    await desk.topic("t")
    asked = REASSIGNED(name=name, partitions=[REASSIGNED.Partitions(partition_index=partition, replicas=replicas)])
    answer = await desk.ask("AlterPartitionReassignments", 0, topics=[asked], timeout_ms=1000)
    [result] = answer.responses[0].partitions
    assert (answer.error_code, result.error_code, bool(result.error_message)) == (0, code, bool(code))
    listed = await desk.ask("ListPartitionReassignments", 0, topics=None, timeout_ms=1000)
    assert (listed.error_code, listed.topics) == (0, [])


async def test_a_reassignment_under_way(desk: Desk) -> None:
    """A partition that moves is listed with its replicas until it is cancelled; a request may keep the factor."""
    await desk.topic("t")

    async def move(replicas: list[int] | None, **fields: bool) -> int:
        asked = REASSIGNED(name="t", partitions=[REASSIGNED.Partitions(partition_index=0, replicas=replicas)])
        answer = await desk.ask("AlterPartitionReassignments", 1, topics=[asked], timeout_ms=1000, **fields)
        return int(answer.responses[0].partitions[0].error_code)

    async def listed(topics: list[tuple[str, list[int]]] | None) -> list[tuple[list[int], list[int], list[int]]]:
        kind = m.ListPartitionReassignmentsRequest.Topics
        named = None if topics is None else [kind(name=name, partition_indexes=each) for name, each in topics]
        answer = await desk.ask("ListPartitionReassignments", 0, topics=named, timeout_ms=1000)
        return [(p.replicas, p.adding_replicas, p.removing_replicas) for t in answer.topics for p in t.partitions]

    assert await move([HERE, ELSEWHERE], allow_replication_factor_change=False) == errors.INVALID_REPLICATION_FACTOR
    assert await move([ELSEWHERE]) == 0
    moving = [([ELSEWHERE, HERE], [ELSEWHERE], [HERE])]
    assert await listed(None) == await listed([("t", [0, 1]), ("u", [0])]) == moving
    assert await listed([("t", [1])]) == []
    assert await move(None) == 0
    assert await listed(None) == []
    assert await move(None) == errors.NO_REASSIGNMENT_IN_PROGRESS


async def test_acls_are_refused_one_by_one(desk: Desk) -> None:
    """The answer has one result for each ACL of the request, as clients count them."""
    new = m.CreateAclsRequest.Creations(resource_name="t", principal="User:a", host="*")
    old = m.DeleteAclsRequest.Filters()
    for count in (0, 2):
        created = (await desk.ask("CreateAcls", 2, creations=[new] * count)).results
        deleted = (await desk.ask("DeleteAcls", 2, filters=[old] * count)).filter_results
        assert [r.error_code for r in created] == [r.error_code for r in deleted] == [errors.SECURITY_DISABLED] * count
    assert (await desk.ask("DescribeAcls", 2)).error_code == errors.SECURITY_DISABLED


@pytest.mark.parametrize(
    ("software", "version", "code"),
    [
        ("apache-kafka-java", "3.7.0", 0),
        ("a", "1", 0),
        ("", "1", errors.INVALID_REQUEST),
        ("a", "", errors.INVALID_REQUEST),
        ("-a", "1", errors.INVALID_REQUEST),
        ("a.", "1", errors.INVALID_REQUEST),
        ("a b", "1", errors.INVALID_REQUEST),
        ("ä", "1", errors.INVALID_REQUEST),
    ],
)
async def test_who_asks_for_versions_says_its_name(desk: Desk, software: str, version: str, code: int) -> None:
    """ApiVersions checks the client's software name and version from v3 on; before v3 there is none to check."""
    fields = {"client_software_name": software, "client_software_version": version}
    answer = await desk.ask("ApiVersions", 3, **fields)
    assert (answer.error_code, len(answer.api_keys)) == (code, 0 if code else len(APIS))
    answer = await desk.ask("ApiVersions", 2)
    assert {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys} == {
        api.key: (api.min_version, api.max_version) for api in APIS.values()
    }
