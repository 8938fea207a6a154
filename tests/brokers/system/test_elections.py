"""Elections on request: kafka-leader-election's request, sent to a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pybroker.testing
from pybroker import errors
from pybroker.protocol import messages as m
from pybroker.testing import ClusterHandle
from tests.asking import ask
from tests.cli.conftest import run
from tests.harness import until

PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def cluster() -> Iterator[ClusterHandle]:
    with pybroker.testing.cluster() as made:
        yield made


def elect(cluster: ClusterHandle, topic: str | None, kind: int, *partitions: int) -> dict[int, int]:
    """Send ElectLeaders to the controller; return {partition: error code}, of all partitions without a topic."""
    named = m.ElectLeadersRequest.TopicPartitions
    asked = None if topic is None else [named(topic=topic, partitions=list(partitions))]
    ports = [int(at.rpartition(":")[2]) for at in cluster.bootstrap_servers.split(",")]
    for number in cluster.running:
        fields = {"election_type": kind, "topic_partitions": asked, "timeout_ms": 9000}
        answer = ask(ports[number - 1], "ElectLeaders", 2, **fields)
        if answer.error_code != errors.NOT_CONTROLLER:
            assert answer.error_code == errors.NONE
            return {p.partition_id: p.error_code for t in answer.replica_election_results for p in t.partition_result}
    raise AssertionError("no controller")


def test_the_preferred_leader_is_asked_for(cluster: ClusterHandle) -> None:
    """The preferred leader is elected again on request, and then no election is needed."""
    topic = cluster.create_topic("t", partitions=3)
    cluster.wait_in_sync(topic)
    preferred = {index: cluster.leader(topic, index) for index in range(3)}
    away = preferred[1]
    cluster.stop(away)
    until("another leads", lambda: cluster.leader(topic, 1) not in (away, -1))
    preferred_gone = elect(cluster, topic, PREFERRED, 0, 1)
    assert preferred_gone == {0: errors.ELECTION_NOT_NEEDED, 1: errors.PREFERRED_LEADER_NOT_AVAILABLE}
    cluster.start()
    cluster.wait_in_sync(topic)
    assert cluster.leader(topic, 1) != away
    assert elect(cluster, topic, PREFERRED, 0, 1) == {0: errors.ELECTION_NOT_NEEDED, 1: 0}
    until("it leads", lambda: cluster.leader(topic, 1) == away)
    elect(cluster, None, PREFERRED)  # for the groups' partition, whose leader may have been that broker
    until("those that need none are left out", lambda: elect(cluster, None, PREFERRED) == {})
    assert elect(cluster, "u", PREFERRED, 0) == {0: errors.UNKNOWN_TOPIC_OR_PARTITION}


def test_the_command(cluster: ClusterHandle) -> None:
    """The command reports elected and unavailable leaders; unclean elections need a confirmation."""
    where = ("-b", cluster.bootstrap_servers)
    topic = cluster.create_topic("t", partitions=3, min_insync_replicas=1)
    cluster.wait_in_sync(topic)
    away = cluster.leader(topic, 1)
    cluster.stop(away)
    refused = run("topics", "elect-leaders", topic, *where)
    assert refused.code == 1
    assert refused.out == "2 partitions have their preferred leaders already.\n"
    assert refused.err == (
        "pybroker: no leader was elected for 1 partition: t-1: the preferred leader is not alive, or not in sync\n"
    )
    cluster.start()
    cluster.wait_in_sync(topic)
    told = run("topics", "elect-leaders", topic, "--json", *where).json
    assert told == {"elected": ["t-1"], "not_needed": ["t-0", "t-2"], "failed": {}}
    until("it leads", lambda: cluster.leader(topic, 1) == away)
    run("topics", "elect-leaders", *where)  # maybe the groups' partition
    assert run("topics", "elect-leaders", *where).out == "Each partition has its preferred leader already.\n"
    assert "needs the names of topics" in run("topics", "elect-leaders", "--unclean", *where).err
    assert "answer yes, or give --yes" in run("topics", "elect-leaders", topic, "--unclean", *where).err
    last = cluster.leader(topic, 0)
    others = [number for number in cluster.running if number != last]
    cluster.kill(*others)
    until("it is alone", lambda: list(cluster.in_sync(topic, 0)) == [last])
    cluster.kill(last)
    cluster.start(*others)
    until("nobody leads", lambda: cluster.leader(topic, 0) == -1)
    assert "t-0" in run("topics", "elect-leaders", topic, "--unclean", "--yes", "--json", *where).json["elected"]
    until("another leads", lambda: cluster.leader(topic, 0) in others)


def test_an_unclean_election_is_asked_for(cluster: ClusterHandle) -> None:
    """A live replica without all records is elected, as the operator wants."""
    topic = cluster.create_topic("t", min_insync_replicas=1)
    cluster.wait_in_sync(topic)
    last = cluster.leader(topic)
    others = [number for number in cluster.running if number != last]
    cluster.kill(*others)
    until("it is alone", lambda: list(cluster.in_sync(topic)) == [last])
    cluster.kill(last)
    cluster.start(*others)
    until("nobody leads", lambda: cluster.leader(topic) == -1)
    assert elect(cluster, topic, PREFERRED, 0) == {0: errors.PREFERRED_LEADER_NOT_AVAILABLE}
    assert elect(cluster, topic, UNCLEAN, 0) == {0: 0}
    until("another leads", lambda: cluster.leader(topic) in others)
