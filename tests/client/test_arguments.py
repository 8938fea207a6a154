"""Invalid arguments are refused by the call that gets them: wrong types and numbers, in all three clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pybroker.client.admin import Admin, Alteration, Committed, ConfigOperation, ConfigResource, ResourceType
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.consuming.group import RebalanceListener
from pybroker.client.net.group_offsets import OffsetAndMetadata
from pybroker.client.net.metadata import parse_bootstrap
from pybroker.client.producing.producer import Producer
from pybroker.config import ConfigError
from pybroker.errors import KafkaError
from tests.client.kit import create, read_all
from tests.harness import Server
from tests.rows import with_each

NOBODY = {"bootstrap_servers": "127.0.0.1:1"}
PLACE = ("t", 0)
TOPIC = ConfigResource(ResourceType.TOPIC, "t")
NOW_S = 1_700_000_000.5
Call = Callable[[Any], object]


@pytest.fixture(scope="module")
def producer() -> Iterator[Producer]:
    """A producer without a broker: an invalid argument is refused before a broker is asked."""
    producer = Producer(**NOBODY, max_block_ms=86_400_000)  # type: ignore[arg-type]
    yield producer
    producer.close(0)


@with_each(
    ("error", "sentence", "call"),
    [
        (ValueError, "partition is 0 or more, not -1", lambda p: p.send("t", b"", partition=-1)),
        (ValueError, "partition is 0 or more, not -2", lambda p: p.send("t", b"", partition=-2)),
        (TypeError, "partition is a whole number, not 0.5", lambda p: p.send("t", b"", partition=0.5)),
        (TypeError, "partition is a whole number, not True", lambda p: p.send("t", b"", partition=True)),
        (TypeError, "partition is a whole number, not '0'", lambda p: p.send("t", b"", partition="0")),
        (OverflowError, "too large", lambda p: p.send("t", b"", partition=1 << 40)),
        (TypeError, "timestamp_ms is a whole number, not 1700000000.5", lambda p: p.send("t", timestamp_ms=NOW_S)),
        (ValueError, "timestamp_ms is 0 or more, not -1", lambda p: p.send("t", timestamp_ms=-1)),
        (TypeError, "value is bytes, str or None, not int", lambda p: p.send("t", 7)),
        (TypeError, "key is bytes, str or None, not float", lambda p: p.send("t", key=0.5)),
        (TypeError, "header is a pair", lambda p: p.send("t", headers=["ab"])),
        (TypeError, "expected str, got bytes", lambda p: p.send(b"t")),
        (TypeError, "a callable that takes the delivery, not int", lambda p: p.send("t", on_delivery=1)),
        (TypeError, "on_delivery is a callable", lambda p: p.send_columns("t", [b""], on_delivery=1)),
        (ValueError, "a partition is 0 or more, not -1", lambda p: p.send_columns("t", [b""], partition=-1)),
        (TypeError, "a partition is a whole number, not True", lambda p: p.send_columns("t", [b""], partition=True)),
        (TypeError, "timeout_s is a number of seconds, not '1'", lambda p: p.flush("1")),
        (ValueError, "timeout_s is 0 or more, not -1", lambda p: p.flush(-1)),
        (ValueError, "timeout_s is 0 or more, not nan", lambda p: p.close(float("nan"))),
        (TypeError, "a topic's name is a str, not bytes", lambda p: p.partitions_for(b"t")),
    ],
)
def test_a_producer_refuses(producer: Producer, error: type[Exception], sentence: str, call: Call) -> None:
    """A producer refuses invalid arguments at once, before it has the topic's metadata."""
    with pytest.raises(error, match=sentence):
        call(producer)


def test_columns_of_wrong_numbers(shared_broker: Server, topic: str) -> None:
    """Columns with a partition or a timestamp below 0, for all rows or for one, store nothing; NumPy's numbers are
    accepted."""
    create(shared_broker, topic, partitions=2)
    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        for wrong, sentence in (
            ({"partition": [0, -1]}, "a partition is 0 or more, not -1"),
            ({"timestamps_ms": -5}, "a timestamp is 0 or more, not -5"),
            ({"timestamps_ms": [0, -5]}, "a timestamp is 0 or more, not -5"),
            ({"timestamps_ms": [1.0, 0.5]}, "timestamps that are no whole numbers"),
        ):
            with pytest.raises(ValueError, match=sentence):
                producer.send_columns(topic, [b"1", b"2"], **wrong)
        sent = producer.send(topic, b"", partition=np.int32(1), timestamp_ms=np.int64(7)).result(10)  # type: ignore[arg-type]
        assert (sent.partition, sent.timestamp_ms) == (1, 7)
    assert len(read_all(shared_broker, topic, 1, partitions=2)) == 1


@pytest.fixture(scope="module")
def consumer() -> Iterator[Consumer]:
    with Consumer(**NOBODY, group_id="g", default_api_timeout_ms=100) as consumer:  # type: ignore[arg-type]
        consumer.assign([PLACE])
        yield consumer


@with_each(
    ("error", "sentence", "call"),
    [
        (TypeError, "timeout_ms is a whole number of milliseconds, not 0.5", lambda c: c.poll(0.5)),
        (TypeError, "timeout_ms is a whole number of milliseconds, not None", lambda c: c.poll(None)),
        (ValueError, "timeout_ms is 0 or more, not -1", lambda c: c.poll(-1)),
        (TypeError, "max_records is a whole number, not 1.5", lambda c: c.poll(0, 1.5)),
        (ValueError, "max_records is 1 or more, not 0", lambda c: c.poll(0, 0)),
        (ValueError, "max_records is 1 or more, not 0", lambda c: c.poll_numpy(0, 0)),
        (TypeError, "timeout_ms is a whole number", lambda c: c.poll_arrow(0.5)),
        (TypeError, "columns is a list of names", lambda c: c.poll_numpy(0, columns="key")),
        (TypeError, "timeout_ms is a whole number", lambda c: c.position(PLACE, timeout_ms=0.5)),
        (TypeError, "timeout_ms is a whole number", lambda c: c.end_offsets([PLACE], timeout_ms=0.5)),
        (TypeError, "timeout_ms is a whole number", lambda c: c.commit({PLACE: 1}, timeout_ms=0.5)),
        (TypeError, "timeout_ms is a whole number", lambda c: c.committed([PLACE], timeout_ms="1")),
        (TypeError, "timeout_ms is a whole number", lambda c: c.close(0.5)),
        (TypeError, "a partition is a topic and a number", lambda c: c.assign(["t"])),
        (TypeError, "a partition is a topic and a number", lambda c: c.assign([("t", True)])),
        (TypeError, "a partition is a topic and a number", lambda c: c.seek(("t", 0.0), 1)),
        (TypeError, "an offset is a whole number, not 0.5", lambda c: c.seek(PLACE, 0.5)),
        (ValueError, "an offset is 0 or more, not -1", lambda c: c.seek(PLACE, -1)),
        (TypeError, "a time in ms is a whole number, not 1700000000.5", lambda c: c.offsets_for_times({PLACE: NOW_S})),
        (TypeError, "an offset is a whole number, not 0.5", lambda c: c.commit({PLACE: 0.5})),
        (ValueError, "an offset is 0 or more, not -1", lambda c: c.commit_async({PLACE: -1})),
        (TypeError, "the metadata of an offset is a str", lambda c: c.commit({PLACE: OffsetAndMetadata(1, b"")})),  # type: ignore[arg-type]
        (TypeError, "each of topics is a str, not int", lambda c: c.subscribe([7])),
        (TypeError, "topics is a list of names", lambda c: c.subscribe(b"t")),
        (TypeError, "which are str", lambda c: c.subscribe(pattern=b"t")),
        (TypeError, "an instance of RebalanceListener", lambda c: c.subscribe(["t"], listener=RebalanceListener)),
        (TypeError, "a topic's name is a str, not int", lambda c: c.partitions_for(7)),
    ],
)
def test_a_consumer_refuses(consumer: Consumer, error: type[Exception], sentence: str, call: Call) -> None:
    """A consumer refuses invalid arguments in one sentence, and stays usable: a refused close() has closed nothing."""
    with pytest.raises(error, match=sentence):
        call(consumer)
    assert consumer.assignment() == {PLACE} and consumer.poll() == []


@with_each(
    ("error", "sentence", "call"),
    [
        (TypeError, "names is a list of names, like \\['t'\\]", lambda a: a.topics("t")),
        (TypeError, "names is a list of names", lambda a: a.topic_configs("t")),
        (TypeError, "names is a list of names", lambda a: a.configs(TOPIC, "retention.ms")),
        (TypeError, "ids is a list of names", lambda a: a.describe_groups("g")),
        (TypeError, "ids is a list of names", lambda a: a.group_offsets("g")),
        (TypeError, "states is a list of names", lambda a: a.groups(states="Stable")),
        (TypeError, "topics is a list of names", lambda a: a.log_dirs(topics="t")),
        (TypeError, "a broker's id is a whole number", lambda a: a.log_dirs(["0"])),
        (TypeError, "a topic's name is a str", lambda a: a.exists(7)),
        (TypeError, "a topic's name is a str", lambda a: a.delete_topic(7)),
        (TypeError, "a topic's name is a str", lambda a: a.create_topic(b"t")),
        (TypeError, "partitions is a whole number, not 2.0", lambda a: a.create_topic("t", partitions=2.0)),
        (ValueError, "replication_factor is -1 or more", lambda a: a.create_topic("t", replication_factor=-2)),
        (TypeError, "text for retention.ms, like '7',", lambda a: a.create_topic("t", configs={"retention.ms": 7})),
        (ValueError, "count is 1 or more", lambda a: a.create_partitions("t", 0)),
        (TypeError, "timestamp is a whole number", lambda a: a.offsets([], 0.5)),
        (TypeError, "an offset is a whole number", lambda a: a.delete_records({PLACE: 0.5})),
        (TypeError, "a partition is a topic and a number", lambda a: a.delete_records({"t": 1})),
        (TypeError, "a group's id is a str", lambda a: a.delete_group(7)),
        (TypeError, "is a Committed, like Committed", lambda a: a.alter_group_offsets("g", {PLACE: 7})),
        (ValueError, "an offset is 0 or more", lambda a: a.alter_group_offsets("g", {PLACE: Committed(-1)})),
        (TypeError, "a partition is a topic and a number", lambda a: a.delete_group_offsets("g", ["t"])),
        (TypeError, "a resource is a ConfigResource", lambda a: a.configs("t")),
        (TypeError, "a change of a config is an Alteration", lambda a: a.alter_configs(TOPIC, [("retention.ms", "7")])),
        (
            TypeError,
            "the value of retention.ms is a str, not int",
            lambda a: a.alter_configs(TOPIC, [Alteration("retention.ms", ConfigOperation.SET, 7)]),  # type: ignore[arg-type]
        ),
    ],
)
def test_an_admin_refuses(error: type[Exception], sentence: str, call: Call) -> None:
    """An admin refuses invalid arguments before it connects."""
    with Admin("127.0.0.1:1") as admin, pytest.raises(error, match=sentence):
        call(admin)


@with_each(
    ("make", "sentence"),
    [
        (lambda: Producer(**NOBODY, client_id=7), "client_id is text, not 7"),  # type: ignore[arg-type]
        (lambda: Consumer(**NOBODY, group_id=7), "group_id is text, not 7"),  # type: ignore[arg-type]
        (lambda: Producer(bootstrap_servers=b"h:1"), "bootstrap_servers is text, not b'h:1'"),  # type: ignore[arg-type]
        (lambda: Producer(**NOBODY, linger_ms=0.5), "linger_ms = '0.5' .* takes an integer"),  # type: ignore[arg-type]
        (lambda: Producer(**NOBODY, retries=True), "retries = 'true' .* takes an integer"),  # type: ignore[arg-type]
        (lambda: Producer(**NOBODY, security_protocol="TLS"), "takes one of PLAINTEXT, SSL, SASL_PLAINTEXT"),  # type: ignore
        (lambda: Producer(**NOBODY, security_protocol="SASL_PLAINTEXT"), "and sasl_mechanism is not given"),
        (lambda: Producer(**NOBODY, sasl_username="alice"), "security_protocol is PLAINTEXT, which has no login"),
        (lambda: Producer(**NOBODY, **{"sasl.mechanism": "PLAIN"}), "did you mean sasl_mechanism"),  # type: ignore
        (lambda: Consumer(**NOBODY, ssl_cafile="ca"), "security_protocol is PLAINTEXT: with it nothing is encrypted"),
    ],
)
def test_settings_of_a_wrong_type(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make()


def test_addresses_that_are_none() -> None:
    """Invalid addresses are refused: a pair of host and port would be two hosts, one of digits."""
    for wrong in ("localhost,9092", "9092"):
        with pytest.raises(KafkaError, match="'9092' is no broker address: host:port is expected"):
            parse_bootstrap(wrong)
    with pytest.raises(TypeError, match="each of bootstrap_servers is a str, not int"):
        Admin(["localhost:9092", 9092])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="timeout_s is a number of seconds, not '5'"):
        Admin("localhost:9092", timeout_s="5")  # type: ignore[arg-type]
