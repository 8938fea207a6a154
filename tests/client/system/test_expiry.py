"""The outcome of a producer's batch at a broker whose answers a test chooses."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pybroker import Producer, errors
from pybroker.client.net.network import NetworkClient
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from tests.client.fake_broker import FakeBroker


def test_a_batch_behind_a_younger_one_is_given_up_in_its_own_time() -> None:
    """A batch behind a younger one expires in its own time: it was refused, and its time runs on while it waits for the
    one in flight."""
    younger, end = threading.Event(), threading.Event()

    def produce(request: Any) -> Any:
        (younger if b"older" in bytes(request.topic_data[0].partition_data[0].records) else end).wait(30)
        kind = m.ProduceResponse.Responses
        told = kind.PartitionResponses(index=0, error_code=errors.NOT_LEADER_OR_FOLLOWER)
        return m.ProduceResponse(responses=[kind(name="t", partition_responses=[told])])

    broker = FakeBroker({"Produce": produce}, {"Produce": 9, "Metadata": 9})
    how: dict[str, Any] = {"delivery_timeout_ms": 6000, "enable_idempotence": False, "linger_ms": 0}
    try:
        with Producer(bootstrap_servers=f"127.0.0.1:{broker.port}", **how) as producer:
            first = producer.send("t", b"older", partition=0)
            assert not younger.wait(4), "the second is sent a good while later"
            second = producer.send("t", b"younger", partition=0)
            assert not younger.wait(0.1)
            younger.set()
            error = first.exception(30)
            assert isinstance(error, KafkaError) and error.code == errors.REQUEST_TIMED_OUT
            assert not second.done()
            end.set()
            producer.close(0)
    finally:
        broker.close()


def test_an_answer_that_tells_of_brokers_and_not_who_leads() -> None:
    """An answer with broker addresses but no new leader is a success: Kafka names a partition's new leader, and the
    addresses of all such leaders; the other partitions were appended (KIP-951)."""

    def produce(request: Any) -> Any:
        kind, endpoints = m.ProduceResponse.Responses, m.ProduceResponse.NodeEndpoints
        told = kind.PartitionResponses(index=0, base_offset=7, current_leader=None)
        there = endpoints(node_id=9, host="127.0.0.1", port=1, rack=None)
        return m.ProduceResponse(responses=[kind(name="t", partition_responses=[told])], node_endpoints=[there])

    broker = FakeBroker({"Produce": produce}, {"Produce": 10, "Metadata": 9})
    try:
        with Producer(bootstrap_servers=f"127.0.0.1:{broker.port}", enable_idempotence=False) as producer:
            assert producer.send("t", b"x", partition=0).result(10).offset == 7
    finally:
        broker.close()


def test_a_mistake_at_an_answer_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A bug while an answer is handled fails the record: no exception on the client's thread leaves a future
    waiting."""

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("planted")

    def produce(request: Any) -> Any:
        kind, endpoints = m.ProduceResponse.Responses, m.ProduceResponse.NodeEndpoints
        there = endpoints(node_id=9, host="127.0.0.1", port=1, rack=None)
        told = kind(name="t", partition_responses=[kind.PartitionResponses(index=0, base_offset=7)])
        return m.ProduceResponse(responses=[told], node_endpoints=[there])

    monkeypatch.setattr(NetworkClient, "learn_leaders", fail)
    broker = FakeBroker({"Produce": produce}, {"Produce": 10, "Metadata": 9})
    try:
        with Producer(bootstrap_servers=f"127.0.0.1:{broker.port}", enable_idempotence=False) as producer:
            error = producer.send("t", b"x", partition=0).exception(10)
            assert isinstance(error, KafkaError) and error.code == errors.UNKNOWN_SERVER_ERROR
            assert "ZeroDivisionError: planted" in error.message
            producer.flush(10)
    finally:
        broker.close()
    assert "an answer to Produce could not be used" in caplog.text
