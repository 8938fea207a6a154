"""docs/from-kafka.md: pybroker replaces a broker of Kafka 3.9.1 in ZooKeeper mode in place, and Kafka replaces it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cli.conftest import run
from tests.harness import HOST, BrokerProcess
from tests.java.peers import Kafka391, MissingJava, jars

pytestmark = [pytest.mark.java, pytest.mark.zookeeper("Kafka's brokers have no other store")]

RECORDS, COMMITTED = 300, 120


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Kafka391]:
    try:
        jars("3.9.1")
    except MissingJava as problem:
        pytest.skip(str(problem))
    broker = Kafka391(tmp_path / "kafka")
    broker.start()
    yield broker
    broker.close()


def test_kafka_is_replaced_and_comes_back(kafka: Kafka391) -> None:
    """pybroker replaces Kafka on its log dirs, id and ZooKeeper, and keeps records, settings, topic ids and groups.
    Kafka then replaces pybroker, and reads its record."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic("orders", 2, 1, config={"retention.ms": "86400001"})])["orders"].result(20)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(RECORDS):
        producer.produce("orders", b"%d" % number, partition=number % 2)
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 0, COMMITTED)], asynchronous=False)
    consumer.close()
    at = ("-b", kafka.bootstrap)
    topic_id = run("topics", "describe", "orders", "--json", *at).json[0]["topic_id"]
    kafka.stop()

    where = {"broker.id": 1, "zookeeper.connect": f"{HOST}:{kafka.zookeeper_port}"}
    where["zookeeper.session.timeout.ms"] = 4000
    with BrokerProcess(kafka.log_dir, kafka.port, where) as ours:
        (described,) = run("topics", "describe", "orders", "--json", *at).json
        assert described["topic_id"] == topic_id
        assert described["configs"]["retention.ms"] == {"value": "86400001", "source": "topic"}
        (group,) = run("groups", "describe", "billing", "--json", *at).json
        assert [p["committed"] for p in group["partitions"] if p["partition"] == 0] == [COMMITTED]
        assert len(run("consume", "orders", "--from-beginning", "--exit-at-end", *at).out.split()) == RECORDS
        assert run("produce", "orders", *at, stdin="ours\n").code == 0
        ours.stop()

    kafka.start()
    read = run("consume", "orders", "--from-beginning", "--exit-at-end", *at).out.split()
    assert len(read) == RECORDS + 1 and "ours" in read
