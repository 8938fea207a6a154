"""docs/from-kafka.md: MirrorMaker 2 copies Kafka into pybroker, and pybroker into Kafka, by the file on the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cli.conftest import run
from tests.docs.pages import blocks
from tests.harness import BrokerProcess, Process, until
from tests.java.peers import Kafka391, MissingJava, jars, java
from tests.marks import long

pytestmark = pytest.mark.java

MIRROR = "connect-mirror"
MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
RECORDS, COMMITTED = 300, 120
(FILE,) = (block.text for block in blocks("from-kafka.md") if block.title == "mm2.properties")


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Kafka391]:
    try:
        jars("3.9.1", MIRROR)
        jars("3.9.1")
    except MissingJava as problem:
        pytest.skip(str(problem))
    broker = Kafka391(tmp_path / "kafka")
    broker.start()
    yield broker
    broker.close()


def fill(bootstrap: str) -> None:
    """Create a topic with records, and a group that has read some of them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("orders", 2, 1, config={"retention.ms": "86400001"})])["orders"].result(20)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce("orders", b"%d" % number, key=b"k%d" % (number % 7), partition=number % 2)
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 0, COMMITTED)], asynchronous=False)
    consumer.close()


def copied(port: str) -> list[tuple[int, int, str, str]]:
    done = run("consume", "orders", "-b", port, "--from-beginning", "--exit-at-end", "--json")
    return sorted((r["partition"], r["offset"], r["key"], r["value"]) for r in done.json_lines)


@pytest.mark.parametrize("to_kafka", [False, long(True)])
def test_mirror_maker_copies_topics_settings_and_groups(
    kafka: Kafka391, start_broker: Callable[..., BrokerProcess], tmp_path: Path, to_kafka: bool
) -> None:
    """MirrorMaker copies records with their keys and partitions, the topic's own setting, and a group's offset,
    translated."""
    both = [kafka.bootstrap, start_broker().bootstrap]
    old, new = reversed(both) if to_kafka else both
    fill(old)
    text = FILE.replace("localhost:9092", old).replace("localhost:9093", new)
    path = tmp_path / "mm2.properties"
    path.write_text(text)
    mirror = Process(java("3.9.1", MAIN, str(path), classpath=[jars("3.9.1", MIRROR) / "*"]))
    try:
        expected = copied(old)
        assert len(expected) == RECORDS
        listed = lambda: run("topics", "list", "-b", new).out  # noqa: E731
        until("the topic is there", lambda: re.search(r"^orders\b", listed(), re.M), 90, 0.5)
        until("its records are copied", lambda: copied(new) == expected, 90, 0.5)
        described = run("configs", "describe", "retention.ms", "-t", "orders", "-b", new, "--json").json
        assert [entry["value"] for entry in described] == ["86400001"]

        def translated() -> bool:
            done = run("groups", "describe", "billing", "-b", new, "--json")
            found = done.json[0]["partitions"] if done.code == 0 else []
            return any(0 < (p["committed"] or 0) <= COMMITTED for p in found if p["topic"] == "orders")

        until("the group's offset is there", translated, 90, 0.5)
    finally:
        mirror.kill()
