"""kafka-reassign-partitions of Kafka 3.9.1 moves replicas between our brokers, with its throttles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ConfigResource, ResourceType

from pybroker import Admin
from tests.brokers.kit import QUIET, Cluster
from tests.harness import until
from tests.java.mixed import VERSION, run_tool
from tests.java.peers import TOOLS, MissingJava, jars
from tests.stores import AnyStore

pytestmark = [pytest.mark.java]
TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
THROTTLES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
RATE = 200_000
RECORDS, VALUE = 2500, bytes(1000)
BEGIN_BYTES = 10 * RATE
"""The bytes of ten seconds, which are copied at once, as in Kafka."""


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore) -> Iterator[Cluster]:
    """Three brokers with a topic of two partitions on brokers 1 and 2, of 2.5 MB each."""
    try:
        for artifact in ((), (TOOLS,)):
            jars(VERSION, *artifact)
    except MissingJava as problem:
        pytest.skip(str(problem))
    with Cluster(tmp_path, store, replica_fetch_max_bytes=RATE // 4) as running:
        running.create("t", replicas=[[1, 2], [2, 1]], min_insync_replicas="1")
        producer = Producer({"bootstrap.servers": running.bootstrap, "acks": "all", **QUIET})
        for number in range(2 * RECORDS):
            producer.produce("t", VALUE, partition=number % 2)
            if number % 100 == 0:
                producer.flush(60)  # for small batches
        assert producer.flush(60) == 0
        yield running


def run(cluster: Cluster, plan: Path, *what: str) -> str:
    return run_tool(TOOL, "--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(plan), *what)


def write(plan: Path, *replicas: list[int]) -> Path:
    parts = [{"topic": "t", "partition": index, "replicas": held} for index, held in enumerate(replicas)]
    plan.write_text(json.dumps({"version": 1, "partitions": parts}))
    return plan


def replicas(cluster: Cluster) -> list[list[int]]:
    return [list(p.replicas) for _, p in sorted(cluster.metadata("t").topics["t"].partitions.items())]


def throttles(cluster: Cluster) -> set[str]:
    """The throttles that are set on brokers and on the topic."""
    resources = [ConfigResource(ResourceType.BROKER, str(n)) for n in cluster.brokers]
    resources.append(ConfigResource(ResourceType.TOPIC, "t"))
    return {
        f"{entry.name}={entry.value}" for each in resources
        for entry in cluster.admin.describe_configs([each])[each].result(20).values()
        if "replication.throttled" in entry.name and not entry.is_default and entry.value
    }  # fmt: skip


def test_execute_and_verify(cluster: Cluster, tmp_path: Path) -> None:
    """The tool moves both partitions at a throttle, which its --verify removes when all is done."""
    plan = write(tmp_path / "plan.json", [3, 1], [3, 2])
    said = run(cluster, plan, "--execute", "--throttle", str(RATE))
    assert "Successfully started partition reassignments for t-0,t-1" in said
    assert {each.split("=")[0] for each in throttles(cluster)} >= set(THROTTLES)
    under_way = run(cluster, plan, "--verify", "--preserve-throttles")
    assert under_way.count("is still in progress") == 2
    with Admin(cluster.bootstrap) as admin:
        until("all is moved", lambda: not admin.list_partition_reassignments(), timeout_s=120)
    verified = run(cluster, plan, "--verify")
    assert verified.count("is completed") == 2 and "Clearing broker-level throttles" in verified
    assert throttles(cluster) == set() and replicas(cluster) == [[3, 1], [3, 2]]
    for index, held in enumerate(replicas(cluster)):
        until("replicas are the same", lambda i=index, h=held: len({cluster.log_bytes(n, "t", i) for n in h}) == 1)


def test_cancel(cluster: Cluster, tmp_path: Path) -> None:
    """The tool cancels what it began: the original replicas are back, and the throttles are gone."""
    plan = write(tmp_path / "plan.json", [3, 1], [3, 2])
    run(cluster, plan, "--execute", "--throttle", str(RATE // 4))
    listed = run_tool(TOOL, "--bootstrap-server", cluster.bootstrap, "--list")
    assert re.search(r"t-0: replicas: 3,1,2\. adding: 3\. removing: 2\.", listed), listed
    said = run(cluster, plan, "--cancel")
    assert "Successfully cancelled partition reassignments for: t-0,t-1" in said
    assert replicas(cluster) == [[1, 2], [2, 1]] and throttles(cluster) == set()
    gone = [cluster.brokers[3].data_dir / f"t-{index}" for index in range(2)]
    until("the copies are deleted", lambda: not any(each.exists() for each in gone), timeout_s=60)
