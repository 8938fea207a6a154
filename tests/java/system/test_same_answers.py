"""Requests of clients and tools to a cluster of one broker: ours and Kafka's give the same answers."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from tests.asking import ask
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.neutral import Record
from tests.harness import Server, until

NOWHERE = "no-such-topic"
GONE = errors.UNKNOWN_TOPIC_OR_PARTITION
NEEDLESS = errors.ELECTION_NOT_NEEDED
REFUSED = errors.INVALID_REPLICA_ASSIGNMENT
LATEST = -1
ITSELF = -7
"""A placeholder for the id of the broker that gets the request."""


@pytest.fixture
def made(target: Server, topic: str) -> str:
    """A topic of two partitions, with two records in the first."""
    client = Confluent(target.bootstrap)
    client.create_topic(topic, partitions=2)
    client.send_all(topic, [Record(b"v"), Record(b"w")])
    return topic


# -- replica ids: a request with one is no follower's -----------------------------------------------------------------


@pytest.mark.parametrize("replica_id", [-2, -1, 0, 1, 1001])
def test_offsets_are_told_to_everybody(target: Server, made: str, replica_id: int) -> None:
    def one(name: str, version: int, kind: Any, **partition: int) -> Any:
        named = {"topic": made} if name == "OffsetForLeaderEpoch" else {"name": made}
        topics = [kind(partitions=[kind.Partitions(**partition)], **named)]
        return ask(target.port, name, version, replica_id=replica_id, topics=topics).topics[0].partitions[0]

    found = one("ListOffsets", 1, m.ListOffsetsRequest.Topics, partition_index=0, timestamp=LATEST)
    assert (found.error_code, found.offset) == (0, 2)
    found = one("OffsetForLeaderEpoch", 3, m.OffsetForLeaderEpochRequest.Topics, partition=0, leader_epoch=0)
    assert (found.error_code, found.end_offset) == (0, 2)


@pytest.mark.parametrize(("replica_id", "known"), [(0, -1), (1001, -1), (1001, 0), (1, -1)])
def test_nobody_fetches_as_a_follower(target: Server, made: str, replica_id: int, known: int) -> None:
    kind = m.FetchRequest.Topics
    asked = kind.Partitions(partition=0, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=known)
    fields = {"max_wait_ms": 1, "topics": [kind(topic=made, partitions=[asked])]}
    [found] = ask(target.port, "Fetch", 11, replica_id=replica_id, **fields).responses[0].partitions
    refused = errors.NOT_LEADER_OR_FOLLOWER if known < 0 else errors.UNKNOWN_LEADER_EPOCH
    assert (found.error_code, found.high_watermark, len(found.records or b"")) == (refused, -1, 0)


# -- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "refused"), [(8, errors.ILLEGAL_GENERATION), (9, errors.GROUP_ID_NOT_FOUND)])
def test_a_commit_to_a_group_that_is_not_there(target: Server, made: str, version: int, refused: int) -> None:
    """A commit to a group that does not exist is GROUP_ID_NOT_FOUND from version 9 on (KIP-848); the coordinator of 3.9
    in ZooKeeper mode is older."""
    until(
        "there is a coordinator",
        lambda: ask(target.port, "FindCoordinator", 0, key=made).error_code == 0,
    )
    kind = m.OffsetCommitRequest.Topics
    topics = [kind(name=made, partitions=[kind.Partitions(partition_index=0, committed_offset=1)])]
    fields = {"group_id": made, "member_id": "m", "generation_id_or_member_epoch": 3, "topics": topics}

    def committed() -> int:
        return int(ask(target.port, "OffsetCommit", version, **fields).topics[0].partitions[0].error_code)

    until("the groups are loaded", lambda: committed() not in (14, 15, 16))
    assert committed() == (errors.ILLEGAL_GENERATION if "3.9" in target.name else refused)


@pytest.mark.parametrize(("key_type", "version"), [(2, 3), (3, 6), (9, 6)])
def test_coordinators_that_nobody_has(target: Server, key_type: int, version: int) -> None:
    answer = ask(target.port, "FindCoordinator", version, key="k", coordinator_keys=["k"], key_type=key_type)
    assert [answer.error_code or answer.coordinators[0].error_code] == [errors.INVALID_REQUEST]


# -- elections, reassignments, log dirs -------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "kind"), [(0, 0), (1, 0), (2, 0), (2, 1)])
def test_every_leader_is_the_preferred_one(target: Server, made: str, version: int, kind: int) -> None:
    asked = m.ElectLeadersRequest.TopicPartitions
    topics = [asked(topic=made, partitions=[0, 7]), asked(topic=NOWHERE, partitions=[0])]
    for which in (topics, None):
        answer = ask(target.port, "ElectLeaders", version, election_type=kind, topic_partitions=which, timeout_ms=9000)
        found = {(r.topic, p.partition_id): p.error_code for r in answer.replica_election_results
                 for p in r.partition_result}  # fmt: skip
        assert answer.error_code == 0
        assert found == ({(made, 0): NEEDLESS, (made, 7): GONE, (NOWHERE, 0): GONE} if which else {})


@pytest.mark.parametrize(
    ("index", "replicas", "refused"),
    [
        (0, [ITSELF], 0),
        (0, [2], REFUSED),
        (0, [ITSELF, 2], REFUSED),
        (0, [-1], REFUSED),
        (0, [ITSELF, ITSELF], REFUSED),
        (0, [], REFUSED),
        (0, None, errors.NO_REASSIGNMENT_IN_PROGRESS),
        (9, [ITSELF], GONE),
    ],
)
def test_partitions_stay_where_they_are(
    target: Server, made: str, index: int, replicas: list[int] | None, refused: int
) -> None:
    itself = ask(target.port, "Metadata", 1, topics=[]).controller_id
    if replicas is not None:
        replicas = [itself if replica == ITSELF else replica for replica in replicas]
    kind = m.AlterPartitionReassignmentsRequest.Topics
    topics = [kind(name=name, partitions=[kind.Partitions(partition_index=index, replicas=replicas)])
              for name in (made, NOWHERE)]  # fmt: skip
    answer = ask(target.port, "AlterPartitionReassignments", 0, topics=topics, timeout_ms=9000)
    found = {r.name: r.partitions[0].error_code for r in answer.responses}
    unknown = GONE if "4.1" in target.name else refused or GONE  # which 4.1 checks first
    assert (answer.error_code, found) == (0, {made: refused, NOWHERE: unknown})
    wanted = m.ListPartitionReassignmentsRequest.Topics(name=made, partition_indexes=[0, 1])
    for which in ([wanted], None):
        answer = ask(target.port, "ListPartitionReassignments", 0, topics=which, timeout_ms=9000)
        assert (answer.error_code, answer.topics) == (0, [])


def test_a_log_dir_is_meant_by_its_path(target: Server, made: str) -> None:
    """A log dir is compared by its path: a move to the present one does nothing; a relative path, one with a final
    slash, or an unknown one does not exist."""
    [here] = ask(target.port, "DescribeLogDirs", 2, topics=None).results
    kind = m.AlterReplicaLogDirsRequest.Dirs
    missing = errors.LOG_DIR_NOT_FOUND
    for path, refused, unknown in (
        (here.log_dir, 0, GONE),
        (f"{here.log_dir}/", missing, missing),
        (os.path.relpath(here.log_dir), missing, missing),
        ("/nowhere", missing, missing),
    ):
        topics = [kind.Topics(name=made, partitions=[0, 9]), kind.Topics(name=NOWHERE, partitions=[0])]
        answer = ask(target.port, "AlterReplicaLogDirs", 2, dirs=[kind(path=path, topics=topics)])
        found = {(r.topic_name, p.partition_index): p.error_code for r in answer.results for p in r.partitions}
        assert found == {(made, 0): refused, (made, 9): unknown, (NOWHERE, 0): unknown}, path
