"""A cluster of one Kafka 3.9.1 broker and two of ours: they lead, follow, control and die together."""

from __future__ import annotations

import json
import time
from pathlib import Path

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import NewPartitions

from pybroker.state_log.placement import partition_of
from tests.brokers.kit import QUIET
from tests.brokers.system.test_failover import Writer, read_all
from tests.harness import until
from tests.java.dump import dump
from tests.java.mixed import KAFKA, OURS, Mixed
from tests.marks import long

pytestmark = [
    pytest.mark.java,
    pytest.mark.zookeeper("Kafka's brokers have no other store"),
    pytest.mark.xdist_group("peer brokers"),
]

PARTITIONS = 3
SPREAD = [[1, 2, 3], [3, 1, 2], [2, 3, 1]]
"""Each broker leads one partition."""


def write(writer: Writer, count: int) -> None:
    for partition in range(PARTITIONS):
        writer.write(count, partition)
    writer.settle()


def judge(cluster: Mixed, writer: Writer) -> None:
    """Check that acknowledged records are read once, at their offset, and that all replicas are the same bytes."""
    cluster.until_in_sync(writer.topic, PARTITIONS)
    found: dict[tuple[int, int], bytes] = {}
    for partition in range(PARTITIONS):
        found |= read_all(cluster, writer.topic, partition)
    writer.judge(found)
    until("replicas are the same", lambda: not cluster.differing(writer.topic, range(PARTITIONS)))


@pytest.mark.parametrize(("controllers", "victims"), [((KAFKA,), OURS), long(OURS, (KAFKA, *OURS))])
def test_kills_and_stops(cluster: Mixed, controllers: tuple[int, ...], victims: tuple[int, ...]) -> None:
    """Brokers are killed, and others stop cleanly, under each kind of controller: the other kind leads their
    partitions, and they come back as its followers."""
    cluster.move_controller(*controllers)
    topic = cluster.create(f"killed-under-{controllers[0]}", replicas=SPREAD)
    cluster.until_in_sync(topic, PARTITIONS)
    leaders = [1, 3, 2]
    until("their first replicas lead", lambda: [cluster.leader(topic, n) for n in range(PARTITIONS)] == leaders)
    writer = Writer(cluster, topic)
    write(writer, 50)
    led: set[int] = set()
    for victim in victims:
        for end in (cluster.brokers[victim].kill, cluster.brokers[victim].stop):
            end()
            write(writer, 20)
            led |= {cluster.leader(topic, index) for index in range(PARTITIONS)}
            cluster.restart(victim)
            cluster.until_in_sync(topic, PARTITIONS)
    assert led >= {KAFKA, *OURS}
    judge(cluster, writer)


@pytest.mark.long
def test_a_broker_that_is_killed_while_records_come(cluster: Mixed) -> None:
    """A leader that is killed while an idempotent producer writes loses nothing: Kafka's broker first, and then
    ours."""
    topic = cluster.create("streamed", replicas=[[KAFKA, 1, 2]] * PARTITIONS)
    cluster.until_in_sync(topic, PARTITIONS)
    writer = Writer(cluster, topic)
    for _ in range(2):
        victim = cluster.leader(topic)
        writer.write_for(0.5)
        cluster.kill(victim)
        writer.write_for(0.5)
        writer.settle()
        assert cluster.leader(topic) != victim
        cluster.restart(victim)
        cluster.until_in_sync(topic, PARTITIONS)
    judge(cluster, writer)


def test_groups_of_either_kind_of_coordinator(cluster: Mixed) -> None:
    """Offsets that a coordinator of one kind has stored are returned by a coordinator of the other."""
    topic = cluster.create("grouped", replicas=SPREAD)
    cluster.until_in_sync(topic, PARTITIONS)
    writer = Writer(cluster, topic)
    write(writer, 20)
    names = {partition_of(name, 2): name for name in ("g", "h")}
    assert set(names) == {0, 1}
    for name in names.values():
        consumer = ck.Consumer(group_config(cluster, name))
        consumer.subscribe([topic])
        read, deadline = 0, time.monotonic() + 20
        while read < 20 * PARTITIONS and time.monotonic() < deadline:
            read += len(consumer.consume(20 * PARTITIONS - read, 0.5))
        assert {p.offset for p in consumer.commit(asynchronous=False)} == {20}
        consumer.close()
    cluster.until_in_sync("__consumer_offsets", 2)
    for victim in (KAFKA, 1, 2):
        cluster.kill(victim)
        for name in names.values():
            consumer = ck.Consumer(group_config(cluster, name))
            asked = [ck.TopicPartition(topic, index) for index in range(PARTITIONS)]
            assert committed(consumer, asked) == [20] * PARTITIONS
            consumer.close()
        cluster.restart(victim)
        cluster.until_in_sync("__consumer_offsets", 2)
    until("replicas are the same", lambda: not cluster.differing("__consumer_offsets", range(2)))


def committed(consumer: ck.Consumer, asked: list[ck.TopicPartition]) -> list[int]:
    """The committed offsets. A broker may answer NOT_COORDINATOR until the controller has made it the coordinator,
    Kafka's too. librdkafka leaves the retry to its caller here."""
    told: list[int] = []

    def answered() -> bool:
        try:
            told.extend(p.offset for p in consumer.committed(asked, timeout=30))
        except ck.KafkaException as problem:
            assert problem.args[0].code() == ck.KafkaError.NOT_COORDINATOR
            return False
        return True

    until("the coordinator answers", answered)
    return told


def group_config(cluster: Mixed, name: str) -> dict[str, object]:
    return {
        "bootstrap.servers": cluster.bootstrap, "group.id": name, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, **QUIET,
    }  # fmt: skip


@pytest.mark.parametrize("controllers", [(KAFKA,), long(OURS)])
def test_a_topic_s_life(cluster: Mixed, controllers: tuple[int, ...], tmp_path: Path) -> None:
    """A topic's life under each controller: Kafka's tools create it, describe it, list log dirs, elect its preferred
    leader, add partitions, and delete it from all disks."""
    cluster.move_controller(*controllers)
    topic = f"made-under-{controllers[0]}"
    assignment = ",".join(":".join(map(str, replicas)) for replicas in SPREAD[:2])
    cluster.topics("--create", "--topic", topic, "--replica-assignment", assignment)
    cluster.until_in_sync(topic, 2)
    cluster.admin.create_partitions([NewPartitions(topic, PARTITIONS, [SPREAD[2]])])[topic].result(20)
    cluster.until_in_sync(topic, PARTITIONS)
    writer = Writer(cluster, topic)
    write(writer, 30)
    judge(cluster, writer)

    described = cluster.topics("--describe", "--topic", topic)
    state = cluster.znode(f"/brokers/topics/{topic}/partitions/1/state")
    for index, replicas in enumerate(SPREAD):
        listed = ",".join(map(str, replicas))
        assert f"Partition: {index}\tLeader: {replicas[0]}\tReplicas: {listed}\tIsr: {listed}" in described
    assert (state["leader"], state["isr"], state["version"]) == (3, [3, 1, 2], 1)

    plan = tmp_path / "plan.json"
    parts = [{"topic": topic, "partition": index, "replicas": replicas} for index, replicas in enumerate(SPREAD)]
    plan.write_text(json.dumps({"version": 1, "partitions": parts}))
    verify = ("--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(plan), "--verify")
    verified = cluster.tool("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", *verify)
    assert verified.count("is completed") == PARTITIONS

    for number in cluster.brokers:
        dumped = dump(sorted(cluster.brokers[number].partition_dir(topic, 1).glob("*.log")), "--deep-iteration")
        assert dumped.complaints == []
        assert sum(batch.count for batch in dumped.batches) == 30

    away = SPREAD[0][0]
    cluster.brokers[away].stop()
    cluster.restart(away)
    cluster.until_in_sync(topic, PARTITIONS)
    assert cluster.leader(topic) != away
    elect = ("--bootstrap-server", cluster.bootstrap, "--election-type", "preferred", "--topic", topic)
    said = cluster.tool("org.apache.kafka.tools.LeaderElectionCommand", *elect, "--partition", "0")
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in said
    until("it leads again", lambda: cluster.leader(topic) == away)

    cluster.admin.delete_topics([topic])[topic].result(20)
    logs = {number: cluster.brokers[number].data_dir / ("log" if number == KAFKA else "") for number in cluster.brokers}

    def left() -> list[str]:
        """The remaining directories, without those that Kafka has renamed and keeps for a minute."""
        names = [path.name for log in logs.values() for path in log.iterdir()]
        return [name for name in names if name.startswith(f"{topic}-") and not name.endswith("-delete")]

    until("it is gone from all disks", lambda: not left())
    assert topic not in cluster.admin.list_topics(timeout=10).topics
