"""Each client that wants transactions gets a permanent error at once, as there are none yet.

A client that treats the error as retriable retries until its timeout, and then reports a timeout.
"""

from __future__ import annotations

from collections.abc import Callable

import aiokafka
import confluent_kafka as ck
import kafka
import pytest

from tests.clients.adapters.java import JVMS, Handle
from tests.clients.adapters.neutral import Refused
from tests.harness import Server
from tests.java.driver import Driver

SENTENCE = "this broker does not support transactions yet"


@pytest.fixture
def ours(target: Server) -> Server:
    if target.name != "pybroker":
        pytest.skip("Kafka has transactions")
    return target


def test_confluent(ours: Server) -> None:
    conf = {"bootstrap.servers": ours.bootstrap, "transactional.id": "tx", "log_level": 0}
    with pytest.raises(ck.KafkaException) as caught:
        ck.Producer(conf).init_transactions(60)
    refused = caught.value.args[0]
    assert refused.fatal() and SENTENCE in refused.str()


def test_kafka_python(ours: Server) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=ours.bootstrap, transactional_id="tx")
    try:
        with pytest.raises(kafka.errors.KafkaError, match="ClusterAuthorizationFailed"):
            producer.init_transactions()
    finally:
        producer.close()


async def test_aiokafka(ours: Server) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=ours.bootstrap, transactional_id="tx")
    try:
        with pytest.raises(aiokafka.errors.KafkaError, match="luster"):
            await producer.start()
    finally:
        await producer.stop()


@pytest.mark.parametrize("version", [pytest.param(version, marks=marks) for version, marks in JVMS.items()])
def test_java(ours: Server, java_driver: Callable[[str], Driver], version: str) -> None:
    config = {"bootstrap.servers": ours.bootstrap, "transactional.id": "tx"}
    producer = Handle(java_driver(version), "open_producer", config=config)
    try:
        with pytest.raises(Refused, match=SENTENCE):
            producer.ask("init_transactions", timeout_s=90)
    finally:
        producer.close()
