"""Faults that a test injects, as other projects' clients see them: in API answers, connections, groups, the disk."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

import pybroker
from pybroker.errors import REQUEST_TIMED_OUT, UNKNOWN_MEMBER_ID, KafkaError
from pybroker.testing import BrokerFailed, BrokerHandle
from tests.testing.kit import KafkaProducer, read, send


def values(broker: BrokerHandle, topic: str = "t") -> list[Any]:
    return [record.value for record in broker.records(topic)]


def test_a_retriable_error_is_retried(broker: BrokerHandle) -> None:
    """A retriable error is retried: after two error answers to Produce the third try succeeds, and the record is there
    once."""
    producer = Producer(broker.confluent_config(enable_idempotence=True))
    fault = broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert send(producer, "t", "a") == [None]
    assert fault.hits == 2
    assert values(broker) == [b"a"]


def test_a_fatal_error_reaches_the_application(broker: BrokerHandle) -> None:
    """A fatal error is the delivery's result, and the record is not appended."""
    broker.create_topic("t")
    producer = Producer(broker.confluent_config())
    with broker.faults.fail("Produce", 44, times=None) as fault:
        assert send(producer, "t", "a") == ["POLICY_VIOLATION"]
        assert fault.hits == 1
    assert send(producer, "t", "b") == [None]
    assert values(broker) == [b"b"]


def test_a_dropped_answer_is_no_second_record_from_an_idempotent_producer(broker: BrokerHandle) -> None:
    """A dropped answer causes no second record from an idempotent producer: the record is appended, the client times
    out and sends again, to no effect."""
    producer = Producer(broker.confluent_config(enable_idempotence=True, socket_timeout_ms=500))
    assert send(producer, "t", "a") == [None]
    fault = broker.faults.drop("Produce")
    assert send(producer, "t", "b") == [None]
    assert fault.hits == 1
    assert values(broker) == [b"a", b"b"]


def test_a_delayed_answer(broker: BrokerHandle) -> None:
    """A delayed answer comes after its time, or when the fault is removed; the record is there at once."""
    with contextlib.closing(KafkaProducer(**broker.kafka_python_config())) as producer:
        producer.send("t", b"a").get(30)
        with broker.faults.delay("Produce", 60) as fault:
            future = producer.send("t", b"b")
            fault.wait()
            assert values(broker) == [b"a", b"b"]
            assert not future.is_done
        future.get(30)
        broker.faults.delay("Produce", 0.5)
        since = time.monotonic()
        producer.send("t", b"c").get(30)
        assert time.monotonic() - since >= 0.5


@pytest.mark.parametrize("executed", [True, False])
def test_a_connection_closed_instead_of_an_answer(broker: BrokerHandle, executed: bool) -> None:
    """A connection that is closed instead of an answer makes the client reconnect and resend; without idempotence an
    executed request is then there twice."""
    producer = Producer(broker.confluent_config())
    assert send(producer, "t", "a") == [None]
    broker.faults.disconnect("Produce", executed=executed)
    assert send(producer, "t", "b") == [None]
    assert values(broker) == [b"a", b"b", b"b"][: 3 if executed else 2]


def test_a_stalled_fetch(broker: BrokerHandle, consume: Callable[..., Consumer]) -> None:
    """A stalled fetch blocks a consumer's records but not its heartbeats, and later every record arrives."""
    consumer = consume(broker, "t")
    broker.produce("t", "a")
    assert read(consumer, 1) == [b"a"]
    with broker.faults.stall("Fetch") as fault:
        fault.wait()
        broker.produce("t", "b")
        assert read(consumer, 1, timeout_s=1.0) == []
        assert values(broker) == [b"a", b"b"]
    assert read(consumer, 1) == [b"b"]


def test_faults_fit_a_client_and_let_requests_by(broker: BrokerHandle) -> None:
    """A fault may be limited: `client_id` selects the client, and `after` the number of requests that pass first."""
    broker.create_topic("t")
    spared, struck = (Producer(broker.confluent_config(client_id=name)) for name in ("spared", "struck"))
    fault = broker.faults.fail("Produce", "POLICY_VIOLATION", times=None, after=1, client_id="struck")
    assert send(spared, "t", "a") == send(struck, "t", "b") == [None]
    assert send(struck, "t", "c") == ["POLICY_VIOLATION"]
    assert send(spared, "t", "d") == [None]
    assert fault.hits == 1
    assert values(broker) == [b"a", b"b", b"d"]


def test_a_forced_rebalance(broker: BrokerHandle, consume: Callable[..., Consumer]) -> None:
    """A forced rebalance makes the group's members rejoin."""
    broker.produce("t", "a")
    assigned: list[Any] = []
    consumer = consume(broker, "t", on_assign=lambda _, partitions: assigned.append(partitions))
    assert read(consumer, 1) == [b"a"]
    broker.faults.rebalance("g")
    deadline = time.monotonic() + 30
    while len(assigned) < 2 and time.monotonic() < deadline:
        consumer.poll(0.05)
    assert len(assigned) == 2
    with pytest.raises(KafkaError) as unknown:
        broker.faults.rebalance("other")
    assert unknown.value.code == UNKNOWN_MEMBER_ID


def test_a_fault_reaches_a_fetch_that_waits_already(broker: BrokerHandle, consume: Callable[..., Consumer]) -> None:
    """A fault reaches a fetch that already waits: its next attempt fails, and the client fetches again."""
    broker.produce("t", "a")
    consumer = consume(broker, "t", fetch_wait_max_ms=60_000, socket_timeout_ms=70_000)
    assert read(consumer, 1) == [b"a"]
    with broker.faults.stall("Fetch", times=1) as fault:
        fault.wait()
        broker.produce("t", "b")
        assert read(consumer, 1, timeout_s=0.5) == []
    assert read(consumer, 1) == [b"b"]


def test_closed_connections(broker: BrokerHandle, consume: Callable[..., Consumer]) -> None:
    """Clients whose connections are closed reconnect on their own."""
    broker.produce("t", "a")
    producer, consumer = Producer(broker.confluent_config()), consume(broker, "t")
    assert read(consumer, 1) == [b"a"]
    for value in ("b", "c"):
        broker.faults.close_connections()
        assert send(producer, "t", value) == [None]
        assert read(consumer, 1) == [value.encode()]


def test_a_full_disk(broker: BrokerHandle) -> None:
    """A full disk fails appends, stored records can be read, and appends succeed again once there is room."""
    producer = Producer(broker.confluent_config())
    assert send(producer, "t", "a") == [None]
    with broker.faults.full_disk():
        hasty = Producer(broker.confluent_config(message_timeout_ms=2000))
        assert send(hasty, "t", "x" * 200_000) == ["_MSG_TIMED_OUT"]
        with pytest.raises(KafkaError, match=r"(?i)storage|space"):
            broker.produce("t", "y" * 200_000)
        assert values(broker) == [b"a"]
    assert send(producer, "t", "b") == [None]
    assert values(broker) == [b"a", b"b"]


def test_a_record_that_is_given_up_says_what_was_in_its_way(broker: BrokerHandle) -> None:
    """A record whose delivery timed out after retriable refusals has the last refusal in its error."""
    broker.create_topic("t")
    settings = {"delivery_timeout_ms": 5000, "request_timeout_ms": 4500, "linger_ms": 0}
    with pybroker.Producer(bootstrap_servers=broker.bootstrap_servers, **settings) as producer:
        with broker.faults.full_disk():
            error = producer.send("t", b"x" * 200_000).exception(20)
        assert isinstance(error, KafkaError) and error.code == REQUEST_TIMED_OUT
        assert "not acknowledged within 5 s: KAFKA_STORAGE_ERROR: t-0: " in error.message
        assert producer.send("t", b"y").result(10).offset == 0


def test_names_that_are_none_are_said(broker: BrokerHandle) -> None:
    """An unknown API or error name is a ValueError that lists the known names."""
    with pytest.raises(ValueError, match="'produce' is no API of this broker: Produce, "):
        broker.faults.drop("produce")
    with pytest.raises(ValueError, match="'OOPS' is neither"):
        broker.faults.fail("Produce", "OOPS")


def test_faults_end_with_the_life_of_the_broker(broker: BrokerHandle) -> None:
    """Faults end with the broker's run: none survives a restart, a stopped broker takes none, and clear() removes
    all."""
    broker.faults.fail("Produce", "INVALID_RECORD", times=None)
    stalled = broker.faults.stall("Metadata")
    with broker.faults.full_disk():
        broker.stop()
    with pytest.raises(BrokerFailed, match="does not run"):
        broker.faults.drop("Produce")
    broker.start()
    with pytest.raises(ValueError, match="the fault ended when the broker was stopped"):
        _ = stalled.hits
    stalled.remove()
    assert send(Producer(broker.confluent_config()), "t", "a") == [None]
    broker.faults.fail(None, "INVALID_RECORD", times=None)
    broker.faults.clear()
    assert send(Producer(broker.confluent_config()), "t", "a") == [None]


def test_a_stop_waits_for_nothing_that_is_stalled(broker: BrokerHandle, consume: Callable[..., Consumer]) -> None:
    """A stop does not wait for a stalled request: clean stop and kill both end it."""
    broker.produce("t", "a")
    consumer = consume(broker, "t")
    assert read(consumer, 1) == [b"a"]
    for end in (broker.stop, broker.kill):
        broker.faults.stall("Fetch").wait()
        since = time.monotonic()
        end()
        assert time.monotonic() - since < 5
        broker.start()


@pytest.mark.parametrize("how", ["delay", "stall", "drop", "disconnect"])
def test_a_client_logs_in_beside_a_fault_of_every_api(how: str) -> None:
    """A client can log in beside a fault of every API: ApiVersions before a login is exempt, or the login would time
    out after 30 s."""
    with BrokerHandle(sasl="SCRAM-SHA-512") as broker:
        broker.create_topic("t")
        asked = {"delay": (None, 0.05), "stall": ("ApiVersions",)}.get(how, (None,))
        with (
            getattr(broker.faults, how)(*asked, times=None if how == "delay" else 3),
            pybroker.Producer(
                **broker.pybroker_config(delivery_timeout_ms=60_000, request_timeout_ms=1000)
            ) as producer,
        ):
            assert producer.send("t", b"x").result(60).offset == 0
