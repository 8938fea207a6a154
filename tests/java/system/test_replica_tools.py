"""Kafka 3.9.1's tools that read single replicas, as debugging consumers, on three brokers of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pybroker import Producer
from pybroker.testing.cluster import ClusterHandle
from tests.harness import Process
from tests.java.mixed import TOOL_S_MAX, VERSION, run_tool, tool_command
from tests.java.peers import TOOLS, MissingJava, jars

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("peer brokers")]
TOPIC = "t"
RECORDS = 3
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
VERIFICATION = "org.apache.kafka.tools.ReplicaVerificationTool"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterHandle]:
    """A cluster with all records of one partition on each broker, written by an idempotent producer."""
    try:
        for artifact in ((), (TOOLS,)):
            jars(VERSION, *artifact)
    except MissingJava as problem:
        pytest.skip(str(problem))
    with ClusterHandle(3, mode="subprocess") as cluster:
        cluster.create_topic(TOPIC, partitions=1)
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            for n in range(RECORDS):
                producer.send(TOPIC, b"%d" % n)
        cluster.wait_in_sync(TOPIC)
        yield cluster


def test_replicas_in_sync_are_verified_without_lag(cluster: ClusterHandle) -> None:
    """Replicas in sync are verified without lag: the tool reads all of them in parallel, and compares only if each
    returns records."""
    asked = ["--broker-list", cluster.bootstrap_servers, "--topics-include", TOPIC, "--time", "-2"]
    tool = Process(tool_command(VERIFICATION, *asked, "--report-interval-ms", "500"))
    try:
        lag = f"max lag is 0 for partition {TOPIC}-0 at offset {RECORDS} among 1 partitions"
        tool.wait_line(lag, TOOL_S_MAX)
    finally:
        tool.kill()
    assert not [line for line in tool.lines if "doesn't match" in line or "ERROR" in line]


@pytest.mark.parametrize("broker_id", ["1", "2", "3"])
def test_producers_are_known_on_each_replica(cluster: ClusterHandle, broker_id: str) -> None:
    """Producers are known on each replica: describe-producers lists the writer; find-hanging finds no transaction, and
    succeeds."""
    at = ["--bootstrap-server", cluster.bootstrap_servers]
    described = run_tool(
        TRANSACTIONS, *at, "describe-producers", "--broker-id", broker_id, "--topic", TOPIC, "--partition", "0"
    )
    [names, row] = [line.split() for line in described.splitlines() if line.strip()]
    found = dict(zip(names, row, strict=True))
    assert (found["LastSequence"], found["CurrentTransactionStartOffset"]) == (str(RECORDS - 1), "None")
    hanging = run_tool(TRANSACTIONS, *at, "find-hanging", "--broker-id", broker_id)
    assert [line.split()[0] for line in hanging.splitlines() if line.strip()] == ["Topic"], "only the header line"
