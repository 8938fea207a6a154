"""Faults from the test, as clients of others meet them: the answers of APIs, connections, groups, the disk."""

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
    """The next two answers to Produce are errors; the client tries a third time, and the record is there once."""
    producer = Producer(broker.confluent_config(enable_idempotence=True))
    fault = broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert send(producer, "t", "a") == [None]
    assert fault.hits == 2
    assert values(broker) == [b"a"]


def test_a_fatal_error_reaches_the_application(broker: BrokerHandle) -> None:
    """An error that no client retries is what the delivery reports; the record was not appended."""
    broker.create_topic("t")
    producer = Producer(broker.confluent_config())
    with broker.faults.fail("Produce", 44, times=None) as fault:
        assert send(producer, "t", "a") == ["POLICY_VIOLATION"]
        assert fault.hits == 1
    assert send(producer, "t", "b") == [None]
    assert values(broker) == [b"b"]


def test_a_dropped_answer_is_no_second_record_from_an_idempotent_producer(broker: BrokerHandle) -> None:
    """The record is appended, its answer never comes: after its timeout the client sends again, to no effect."""
    producer = Producer(broker.confluent_config(enable_idempotence=True, socket_timeout_ms=500))
    assert send(producer, "t", "a") == [None]
    fault = broker.faults.drop("Produce")
    assert send(producer, "t", "b") == [None]
    assert fault.hits == 1
    assert values(broker) == [b"a", b"b"]


def test_a_delayed_answer(broker: BrokerHandle) -> None:
    """The record is there at once, its acknowledgement later: when the time is over, or the fault is taken back."""
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
    """The client connects again and sends again; without idempotence an executed request then shows twice."""
    producer = Producer(broker.confluent_config())
    assert send(producer, "t", "a") == [None]
    broker.faults.disconnect("Produce", executed=executed)
    assert send(producer, "t", "b") == [None]
    assert values(broker) == [b"a", b"b", b"b"][: 3 if executed else 2]


def test_a_stalled_fetch(broker: BrokerHandle, consume: Callable[..., Consumer]) -> None:
    """A consumer whose fetches hang sees nothing, its heartbeats go on, and then it sees everything."""
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
    """`client_id` names whose requests are caught, `after` how many are let through first."""
    broker.create_topic("t")
    spared, struck = (Producer(broker.confluent_config(client_id=name)) for name in ("spared", "struck"))
    fault = broker.faults.fail("Produce", "POLICY_VIOLATION", times=None, after=1, client_id="struck")
    assert send(spared, "t", "a") == send(struck, "t", "b") == [None]
    assert send(struck, "t", "c") == ["POLICY_VIOLATION"]
    assert send(spared, "t", "d") == [None]
    assert fault.hits == 1
    assert values(broker) == [b"a", b"b", b"d"]


def test_a_forced_rebalance(broker: BrokerHandle, consume: Callable[..., Consumer]) -> None:
    """The members of the group are asked to join again, and do."""
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
    """Its next try to find records is caught, and the client fetches again."""
    broker.produce("t", "a")
    consumer = consume(broker, "t", fetch_wait_max_ms=60_000, socket_timeout_ms=70_000)
    assert read(consumer, 1) == [b"a"]
    with broker.faults.stall("Fetch", times=1) as fault:
        fault.wait()
        broker.produce("t", "b")
        assert read(consumer, 1, timeout_s=0.5) == []
    assert read(consumer, 1) == [b"b"]


def test_closed_connections(broker: BrokerHandle, consume: Callable[..., Consumer]) -> None:
    """Clients whose connections are cut come back by themselves."""
    broker.produce("t", "a")
    producer, consumer = Producer(broker.confluent_config()), consume(broker, "t")
    assert read(consumer, 1) == [b"a"]
    for value in ("b", "c"):
        broker.faults.close_connections()
        assert send(producer, "t", value) == [None]
        assert read(consumer, 1) == [value.encode()]


def test_a_full_disk(broker: BrokerHandle) -> None:
    """Appends fail while the disk is full, what is stored can be read, and with room all goes on."""
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
    """It was refused again and again for a reason that could have passed: the last refusal stands in the error."""
    broker.create_topic("t")
    settings = {"delivery_timeout_ms": 5000, "request_timeout_ms": 4500, "linger_ms": 0}
    with pybroker.Producer(bootstrap_servers=broker.bootstrap_servers, **settings) as producer:
        with broker.faults.full_disk():
            error = producer.send("t", b"x" * 200_000).exception(20)
        assert isinstance(error, KafkaError) and error.code == REQUEST_TIMED_OUT
        assert "not acknowledged within 5 s: KAFKA_STORAGE_ERROR: t-0: " in error.message
        assert producer.send("t", b"y").result(10).offset == 0


def test_names_that_are_none_are_said(broker: BrokerHandle) -> None:
    """An API or an error that nobody knows is a ValueError that lists what there is."""
    with pytest.raises(ValueError, match="'produce' is no API of this broker: Produce, "):
        broker.faults.drop("produce")
    with pytest.raises(ValueError, match="'OOPS' is neither"):
        broker.faults.fail("Produce", "OOPS")


def test_faults_end_with_the_life_of_the_broker(broker: BrokerHandle) -> None:
    """No fault survives a restart, none can be had from a broker that is down, and clear() takes all of them."""
    broker.faults.fail("Produce", "INVALID_RECORD", times=None)
    stalled = broker.faults.stall("Metadata")
    with broker.faults.full_disk():
        broker.stop()
    with pytest.raises(BrokerFailed, match="does not run"):
        broker.faults.drop("Produce")
    broker.start()
    with pytest.raises(ValueError, match="life of the broker"):
        _ = stalled.hits
    stalled.remove()
    assert send(Producer(broker.confluent_config()), "t", "a") == [None]
    broker.faults.fail(None, "INVALID_RECORD", times=None)
    broker.faults.clear()
    assert send(Producer(broker.confluent_config()), "t", "a") == [None]


def test_a_stop_waits_for_nothing_that_is_stalled(broker: BrokerHandle, consume: Callable[..., Consumer]) -> None:
    """A clean stop and a kill end what a fault holds up."""
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
    """ApiVersions before a login is not caught: the login would wait, and end after 30 s."""
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
