"""A lone broker becomes the first of a cluster: it keeps its data, and others join it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from pybroker.development.etcd_server import Etcd
from pybroker.development.zookeeper_server import ZooKeeper
from tests.cli.conftest import run
from tests.harness import HOST, BrokerProcess, free_port, until
from tests.wire import Wire

RECORDS = 500
SETS = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 2, "zookeeper.session.timeout.ms": 4000}


def values(port: int) -> list[tuple[int, bytes]]:
    """All records of orders-0, with their offsets."""
    consumer = Consumer({"bootstrap.servers": f"{HOST}:{port}", "group.id": "reader"})
    consumer.assign([TopicPartition("orders", 0, 0)])
    found: list[tuple[int, bytes]] = []

    def read() -> bool:
        found.extend((message.offset(), message.value()) for message in consumer.consume(100, 0.2))
        return len(found) >= RECORDS

    until("all are read", read)
    consumer.close()
    return found


def facts(port: int) -> dict[str, object]:
    """The facts that must survive the migration."""
    at = ("-b", f"{HOST}:{port}", "--json")
    cluster = run("cluster", *at).json
    with Wire(port) as wire:
        producer_id = wire.init_producer_id()[1]
    return {
        "cluster": cluster["cluster"],
        "brokers": [each["id"] for each in cluster["brokers"]],
        "topics": {t["name"]: (t["topic_id"], t["partitions"]) for t in run("topics", "list", "--internal", *at).json},
        "retention": [c["value"] for c in run("configs", "describe", "retention.ms", "-t", "orders", *at).json],
        "threads": [c["value"] for c in run("configs", "describe", "log.cleaner.threads", "--broker", 5, *at).json],
        "committed": [p["committed"] for p in run("groups", "describe", "g", *at).json[0]["partitions"]],
        "records": values(port),
        "producer id": producer_id,
    }  # fmt: skip


@pytest.mark.java
@pytest.mark.zookeeper("a chroot that is mistyped; test_the_same_on_etcd is beside it")
def test_a_lone_broker_becomes_the_first_of_a_cluster(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    chroot = uuid.uuid4().hex
    connect, port, home = f"{zookeeper.connect}/{chroot}", free_port(), tmp_path / "first"
    lone = BrokerProcess(home, port, {**SETS, "broker.id": 5})
    with lone:
        admin = AdminClient({"bootstrap.servers": lone.bootstrap})
        admin.create_topics([NewTopic("orders", 3, 1, config={"retention.ms": "86400001"})])["orders"].result(10)
        entry = ConfigEntry("log.cleaner.threads", "2", incremental_operation=AlterConfigOpType.SET)
        of_broker = ConfigResource(ResourceType.BROKER, "5", incremental_configs=[entry])
        admin.incremental_alter_configs([of_broker])[of_broker].result(10)
        producer = Producer({"bootstrap.servers": lone.bootstrap, "enable.idempotence": True})
        for number in range(RECORDS):
            producer.produce("orders", b"%d" % number, partition=0)
        assert producer.flush(20) == 0
        consumer = Consumer({"bootstrap.servers": lone.bootstrap, "group.id": "g"})
        consumer.commit(offsets=[TopicPartition("orders", 0, 123)], asynchronous=False)
        consumer.close()
        command = ("migrate-store", "--data-dir", home, "--zookeeper", connect)
        assert "another broker is using the data directory" in run(*command).sentence
        before = facts(port)
        lone.stop()
        for _ in range(2):
            why = "check the chroot for a typo, or create it with --create"
            assert run(*command).sentence == f"there is no /{chroot} in the ZooKeeper at {zookeeper.connect}, {why}"
        done = run(*command, "--create")
        assert done.code == 0, done.err
        again = f"Start it with: pybroker serve --data-dir {home} --zookeeper {connect}\n"
        assert done.out == f"Moved broker 5 with 2 topics of 5 partitions to {connect}. {again}"
        assert run(*command).out == f"Broker 5 was moved before. {again}"

        refused = BrokerProcess(home, port, {**SETS, "broker.id": 5})
        refused.begin()
        assert refused.wait_end() == 1
        assert f"topics were moved to ZooKeeper at {connect}: start it with --zookeeper {connect}" in refused.output()

    first = BrokerProcess(home, port, {**SETS, "zookeeper.connect": connect})
    second = BrokerProcess(tmp_path / "second", free_port(), {**SETS, "zookeeper.connect": connect})
    with first:
        after = facts(port)
        assert isinstance(before["producer id"], int) and isinstance(after["producer id"], int)
        assert after.pop("producer id") > before.pop("producer id")  # type: ignore[operator]
        assert after == before
        with second:
            admin = AdminClient({"bootstrap.servers": second.bootstrap})
            admin.create_topics([NewTopic("both", 1, 2)])["both"].result(20)
            partition = admin.list_topics("both", timeout=10).topics["both"].partitions[0]
            assert sorted(partition.replicas) == [5, 1001]
            assert len(values(second.port)) == RECORDS

    alone = BrokerProcess(tmp_path / "second", second.port, SETS)
    alone.begin()
    assert alone.wait_end() == 1
    words = "belongs to a broker of a cluster: start it with --zookeeper or --etcd, or leave the cluster for good"
    assert words in alone.output()
    assert "belongs to a broker of a cluster" in run(*command[:2], tmp_path / "second", *command[3:]).sentence


def test_the_same_on_etcd(tmp_path: Path) -> None:
    """A lone broker's topics move into etcd; it refuses to start alone, and another broker joins it."""
    with Etcd() as etcd:
        connect, port, home = f"{etcd.url}/kafka", free_port(), tmp_path / "first"
        with BrokerProcess(home, port, {**SETS, "broker.id": 5}) as lone:
            admin = AdminClient({"bootstrap.servers": lone.bootstrap})
            admin.create_topics([NewTopic("orders", 3, 1)])["orders"].result(10)
            producer = Producer({"bootstrap.servers": lone.bootstrap})
            for number in range(RECORDS):
                producer.produce("orders", b"%d" % number, partition=0)
            assert producer.flush(20) == 0
            lone.stop()
        command = ("migrate-store", "--data-dir", home, "--etcd", connect)
        refused = BrokerProcess(home, port, {**SETS, "etcd.connect": connect})
        refused.begin()
        assert refused.wait_end() == 1
        assert f"move them with: pybroker {' '.join(map(str, command))}; or start it without" in refused.output()
        done = run(*command)
        again = f"Start it with: pybroker serve --data-dir {home} --etcd {connect}\n"
        assert (done.code, done.out) == (0, f"Moved broker 5 with 1 topics of 3 partitions to {connect}. {again}")
        assert run(*command).out == f"Broker 5 was moved before. {again}"
        refused = BrokerProcess(home, port, {**SETS, "broker.id": 5})
        refused.begin()
        assert refused.wait_end() == 1
        assert f"topics were moved to etcd at {connect}: start it with --etcd {connect}" in refused.output()
        first = BrokerProcess(home, port, {**SETS, "etcd.connect": connect})
        second = BrokerProcess(tmp_path / "second", free_port(), {**SETS, "etcd.connect": connect})
        with first, second:
            assert len(values(second.port)) == RECORDS
            admin = AdminClient({"bootstrap.servers": second.bootstrap})
            admin.create_topics([NewTopic("both", 1, 2)])["both"].result(20)
            assert sorted(admin.list_topics("both", timeout=10).topics["both"].partitions[0].replicas) == [5, 1001]
