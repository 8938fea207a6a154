"""Each client logs in with each mechanism, writes and reads. Refusals are in test_refusals.py."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka as ck
import pytest

import pybroker
from pybroker import errors
from pybroker.client.admin import Admin
from tests.clients.adapters.java import JAVA, Handle
from tests.clients.adapters.neutral import Refused
from tests.harness import HOST, BrokerProcess, free_port
from tests.java.driver import Driver

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
USER, PASSWORD = "al=i,ce", "pass;word="
"""A name that needs escapes in SCRAM, and a password that needs quotes in a JAAS configuration."""
SIMPLE = "alice"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a listener where USER and SIMPLE can log in with every mechanism."""
    port, clients = free_port(), free_port()
    users = f'user_{USER.replace("=", "").replace(",", "")}="x" user_{SIMPLE}="{PASSWORD}"'
    broker = BrokerProcess(tmp_path_factory.mktemp("secured"), port, {
        "listeners": f"PLAINTEXT://{HOST}:{port},CLIENTS://{HOST}:{clients}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.clients.plain.sasl.jaas.config": f"{PLAIN} required {users};",
        "delegation.token.secret.key": "of this test",
    })  # fmt: skip
    broker.start()
    with Admin(broker.bootstrap) as admin:
        for user in (USER, SIMPLE):
            admin.set_password(user, PASSWORD)
    yield f"{HOST}:{clients}"
    broker.close()


def who(mechanism: str, *, escapes: bool = True) -> str:
    """The user of a mechanism: PLAIN's come from a settings file, and SCRAM's may have any name."""
    return SIMPLE if mechanism == "PLAIN" or not escapes else USER


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(secured: str, topic: str, mechanism: str) -> None:
    told: list[ck.KafkaError] = []

    config = {"bootstrap.servers": secured, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
              "sasl.username": who(mechanism), "sasl.password": PASSWORD, "error_cb": told.append}  # fmt: skip
    producer = ck.Producer(config)
    producer.produce(topic, b"x")
    assert producer.flush(20) == 0
    consumer = ck.Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(20)
    assert message is not None and message.value() == b"x"
    consumer.close()
    assert told == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves sockets open
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(secured: str, topic: str, mechanism: str) -> None:
    """kafka-python logs in with a simple name, as it does not escape user names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own import of importlib.resources
        import kafka

    config = {"bootstrap_servers": secured, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism,
              "sasl_plain_username": who(mechanism, escapes=False), "sasl_plain_password": PASSWORD}  # fmt: skip
    producer = kafka.KafkaProducer(**config)
    assert producer.send(topic, b"x").get(20).offset == 0
    producer.close()
    consumer = kafka.KafkaConsumer(topic, **config, auto_offset_reset="earliest", consumer_timeout_ms=20_000)
    assert next(consumer).value == b"x"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka(secured: str, topic: str, mechanism: str) -> None:
    import aiokafka

    config = {"bootstrap_servers": secured, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism,
              "sasl_plain_username": who(mechanism), "sasl_plain_password": PASSWORD}  # fmt: skip
    async with aiokafka.AIOKafkaProducer(**config) as producer:
        assert (await producer.send_and_wait(topic, b"x")).offset == 0
    consumer = aiokafka.AIOKafkaConsumer(topic, **config, auto_offset_reset="earliest")
    async with consumer, asyncio.timeout(20):
        assert (await consumer.getone()).value == b"x"


@pytest.mark.java
@pytest.mark.parametrize("version", JAVA)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_java(
    secured: str, topic: str, mechanism: str, version: str, java_driver: Callable[[str], Driver]
) -> None:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    login = f'{module} required username="{who(mechanism)}" password="{PASSWORD}";'
    config = {"bootstrap.servers": secured, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
              "sasl.jaas.config": login, "max.block.ms": 20_000}  # fmt: skip
    producer = Handle(java_driver(version), "open_producer", config=config)
    record = {"partition": 0, "timestamp_ms": None, "key": None, "value": None, "headers": []}
    assert producer.ask("send", topic=topic, **record) is not None
    producer.close()


@pytest.mark.java
@pytest.mark.parametrize("version", JAVA)
def test_java_with_a_delegation_token(secured: str, version: str, java_driver: Callable[[str], Driver]) -> None:
    """Java's Admin creates, lists and renews a delegation token; a client logs in with it until it expires (KIP-48)."""

    def admin(user: str, password: str, more: str = "") -> Handle:
        login = f'{SCRAM} required username="{user}" password="{password}"{more};'
        config = {"bootstrap.servers": secured, "security.protocol": "SASL_PLAINTEXT",
                  "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": login}  # fmt: skip
        return Handle(java_driver(version), "open_admin", config=config)

    owner = admin(SIMPLE, PASSWORD)
    made = owner.ask("create_token")
    assert made["owner"] == f"User:{SIMPLE}"
    assert owner.ask("tokens")[made["id"]] == made
    by_token = admin(made["id"], made["hmac"], ' tokenauth="true"')
    assert by_token.ask("topics") is not None
    with pytest.raises(Refused) as refused:
        by_token.ask("create_token")
    assert refused.value.code == errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert owner.ask("renew_token", hmac=made["hmac"], ms=60_000)["until_ms"] < made["until_ms"]
    owner.ask("expire_token", hmac=made["hmac"])
    assert made["id"] not in owner.ask("tokens")
    late = admin(made["id"], made["hmac"], ' tokenauth="true"')
    with pytest.raises(Refused) as refused:
        late.ask("topics")
    assert refused.value.code == errors.SASL_AUTHENTICATION_FAILED
    for handle in (owner, by_token, late):
        handle.close()


@pytest.mark.skipif(not shutil.which("kcat"), reason="kcat is not installed: apt-get install kcat")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kcat(secured: str, topic: str, mechanism: str) -> None:
    def kcat(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
                    "sasl.username": who(mechanism, escapes=False), "sasl.password": PASSWORD,
                    "broker.address.family": "v4"}  # fmt: skip
        given = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
        command = ["kcat", "-b", secured, *given, *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)

    assert kcat("-P", "-t", topic, stdin="x\n").returncode == 0
    assert kcat("-C", "-t", topic, "-e", "-q").stdout == "x\n"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_ours(secured: str, topic: str, mechanism: str) -> None:
    """Our client raises a refusal at once, from a call and from a consumer's poll."""

    def config(password: str) -> dict[str, Any]:
        return {"bootstrap_servers": secured, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism,
                "sasl_username": who(mechanism), "sasl_password": password}  # fmt: skip

    with pybroker.Producer(**config(PASSWORD)) as producer:
        assert producer.send(topic, b"x").result(20).offset == 0
    with pybroker.Consumer(**config(PASSWORD), group_id=topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        assert [record.value for record in consumer.poll(20_000)] == [b"x"]
    refused = pytest.raises(pybroker.KafkaError, match="refused the login: Authentication failed")
    with pybroker.Producer(**config("guess")) as producer, refused:
        producer.send(topic, b"x")
    with pybroker.Consumer(**config("guess")) as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(pybroker.KafkaError, match="refused the login: Authentication failed"):
            consumer.poll(20_000)
