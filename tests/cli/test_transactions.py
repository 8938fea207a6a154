"""`pybroker transactions` against Apache Kafka: each test runs commands and checks their output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pybroker.client.producing.producer import Producer
from pybroker.errors import KafkaError
from tests.cli.conftest import Command
from tests.harness import Server


@pytest.fixture
def writer(target: Server, topic: str, pybroker_: Command) -> Iterator[Producer]:
    """A producer with the topic's name as its transactional id, one record in an open transaction."""
    pybroker_("topics", "create", topic, "-p", 2)
    with Producer(bootstrap_servers=target.bootstrap, transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open", partition=1).result(30)
        yield producer


def test_an_open_transaction(pybroker_: Command, writer: Producer, topic: str) -> None:
    """An open transaction is listed and described, with its partitions and where it begins in them."""
    assert topic in pybroker_("transactions", "list", "--state", "Ongoing").out
    assert topic not in pybroker_("transactions", "list", "--state", "Empty").out
    assert topic not in pybroker_("transactions", "list", "--open-for", 60).out
    (listed,) = [t for t in pybroker_("transactions", "list", "--json").json if t["transactional_id"] == topic]
    (known,) = pybroker_("transactions", "describe", topic, "--json").json
    assert (known["state"], known["producer_id"], known["timeout_ms"]) == ("Ongoing", listed["producer_id"], 60_000)
    assert known["partitions"] == [{"topic": topic, "partition": 1}]
    shown = pybroker_("transactions", "describe", topic).out
    assert "Ongoing" in shown and f"{topic}-1" in shown and "s ago" in shown
    (producer,) = pybroker_("transactions", "describe-producers", topic, "--json").json
    assert (producer["partition"], producer["open_at"]) == (1, 0)
    assert pybroker_("transactions", "find-hanging", topic, "--open-for", 0).out == "no transaction hangs\n"


def test_a_producer_is_fenced(pybroker_: Command, writer: Producer, topic: str) -> None:
    assert pybroker_("transactions", "fence", topic, "--yes").out == f"fenced the producers of {topic}\n"
    with pytest.raises(KafkaError, match="another producer has the transactional id"):
        writer.commit_transaction()


def test_what_is_not_there(pybroker_: Command, writer: Producer, topic: str) -> None:
    """An unknown id, and an offset at which no transaction begins, are named."""
    unknown = pybroker_("transactions", "describe", "nobody")
    assert unknown.code == 1 and "transactional id nobody" in unknown.sentence
    wrong = pybroker_("transactions", "abort", f"{topic}:1", "--start", 7, "--yes")
    assert wrong.code == 1 and f"no open transaction of {topic}-1 begins at offset 7" in wrong.sentence
    several = pybroker_("transactions", "abort", topic, "--start", 0, "--yes")
    assert several.code == 2 and "one partition is named as TOPIC:PARTITION" in several.err


def test_a_transaction_is_aborted_by_hand(pybroker_: Command, writer: Producer, topic: str) -> None:
    done = pybroker_("transactions", "abort", f"{topic}:1", "--start", 0, "--yes")
    assert done.out == f"aborted the transaction of {topic}-1 at offset 0\n"
    (producer,) = pybroker_("transactions", "describe-producers", f"{topic}:1", "--json").json
    assert producer["open_at"] is None
