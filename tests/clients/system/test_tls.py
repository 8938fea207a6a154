"""Each client with TLS writes, reads and shows a certificate. Refusals are in test_refusals.py."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck
import pytest

import pybroker
from pybroker.client.admin import Admin
from pybroker.testing.certificates import Authority
from tests.clients.adapters.java import JAVA, Handle
from tests.clients.system.test_sasl import SCRAM
from tests.harness import HOST, BrokerProcess, free_port
from tests.java.driver import Driver

MECHANISM, USER, PASSWORD = "SCRAM-SHA-256", "alice", "secret"
PROTOCOLS = ["SSL", "SASL_SSL"]


class Secured(NamedTuple):
    """A broker with an SSL listener that requires client certificates, and a SASL_SSL listener."""

    addresses: dict[str, str]
    authority: str
    """The file of the authority of the broker's certificate, and of another one."""
    stranger: str
    certificate: str
    key: str
    both: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home: Path = tmp_path_factory.mktemp("tls")
    port, by_tls, by_both = free_port(), free_port(), free_port()
    authority = Authority()
    client = authority.sign("client")
    own = authority.sign("broker", kind="RSA")
    files = {
        "ca.pem": authority.certificate, "stranger.pem": Authority("another").certificate,
        "client.crt": client.chain, "client.key": client.key, "client.pem": client.key + client.chain,
        "broker.pem": own.key + own.chain,
    }  # fmt: skip
    for name, data in files.items():
        (home / name).write_bytes(data)
    broker = BrokerProcess(tmp_path_factory.mktemp("secured"), port, {
        "listeners": f"PLAINTEXT://{HOST}:{port},SSL://{HOST}:{by_tls},SASL_SSL://{HOST}:{by_both}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(home / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(home / "ca.pem"),
        "ssl.client.auth": "required",
        "sasl.enabled.mechanisms": MECHANISM,
    })  # fmt: skip
    broker.start()
    with Admin(broker.bootstrap) as admin:
        admin.set_password(USER, PASSWORD)
    at = {name: str(home / name) for name in files}
    yield Secured(
        {"SSL": f"{HOST}:{by_tls}", "SASL_SSL": f"{HOST}:{by_both}"},
        at["ca.pem"], at["stranger.pem"], at["client.crt"], at["client.key"], at["client.pem"],
    )  # fmt: skip
    broker.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_librdkafka(secured: Secured, topic: str, protocol: str) -> None:
    told: list[ck.KafkaError] = []
    login = {"sasl.mechanism": MECHANISM, "sasl.username": USER, "sasl.password": PASSWORD}

    config = {"bootstrap.servers": secured.addresses[protocol], "security.protocol": protocol,
              "ssl.ca.location": secured.authority, "ssl.certificate.location": secured.certificate,
              "ssl.key.location": secured.key, "error_cb": told.append,
              **(login if protocol == "SASL_SSL" else {})}  # fmt: skip
    producer = ck.Producer(config)
    for _ in range(100):
        producer.produce(topic, b"x" * 10_000)
    assert producer.flush(20) == 0
    consumer = ck.Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    for _ in range(100):
        message = consumer.poll(20)
        assert message is not None and message.value() == b"x" * 10_000
    consumer.close()
    assert told == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves sockets open
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_kafka_python(secured: Secured, topic: str, protocol: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own import of importlib.resources
        import kafka

    login = {"sasl_mechanism": MECHANISM, "sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    config = {"bootstrap_servers": secured.addresses[protocol], "security_protocol": protocol,
              "ssl_cafile": secured.authority, "ssl_certfile": secured.certificate, "ssl_keyfile": secured.key,
              **(login if protocol == "SASL_SSL" else {})}  # fmt: skip
    producer = kafka.KafkaProducer(**config)
    assert producer.send(topic, b"x").get(20).offset == 0
    producer.close()
    consumer = kafka.KafkaConsumer(topic, **config, auto_offset_reset="earliest", consumer_timeout_ms=20_000)
    assert next(consumer).value == b"x"
    consumer.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_aiokafka(secured: Secured, topic: str, protocol: str) -> None:
    import aiokafka

    login = {"sasl_mechanism": MECHANISM, "sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    context = ssl.create_default_context(cafile=secured.authority)
    context.load_cert_chain(secured.both)
    config = {"bootstrap_servers": secured.addresses[protocol], "security_protocol": protocol,
              "ssl_context": context, **(login if protocol == "SASL_SSL" else {})}  # fmt: skip
    async with aiokafka.AIOKafkaProducer(**config) as producer:
        assert (await producer.send_and_wait(topic, b"x")).offset == 0
    consumer = aiokafka.AIOKafkaConsumer(topic, **config, auto_offset_reset="earliest")
    async with consumer, asyncio.timeout(20):
        assert (await consumer.getone()).value == b"x"


@pytest.mark.java
@pytest.mark.parametrize("version", JAVA)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_java(
    secured: Secured, topic: str, protocol: str, version: str, java_driver: Callable[[str], Driver]
) -> None:
    login = {"sasl.mechanism": MECHANISM,
             "sasl.jaas.config": f'{SCRAM} required username="{USER}" password="{PASSWORD}";'}  # fmt: skip
    config = {"bootstrap.servers": secured.addresses[protocol], "security.protocol": protocol,
              "ssl.truststore.type": "PEM", "ssl.truststore.location": secured.authority,
              "ssl.keystore.type": "PEM", "ssl.keystore.location": secured.both, "max.block.ms": 20_000,
              **(login if protocol == "SASL_SSL" else {})}  # fmt: skip
    producer = Handle(java_driver(version), "open_producer", config=config)
    record = {"partition": 0, "timestamp_ms": None, "key": None, "value": None, "headers": []}
    assert producer.ask("send", topic=topic, **record) is not None
    producer.close()


@pytest.mark.skipif(not shutil.which("kcat"), reason="kcat is not installed: apt-get install kcat")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_kcat(secured: Secured, topic: str, protocol: str) -> None:
    login = {"sasl.mechanism": MECHANISM, "sasl.username": USER, "sasl.password": PASSWORD}

    def kcat(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        settings = {"security.protocol": protocol, "broker.address.family": "v4", "ssl.ca.location": secured.authority,
                    "ssl.certificate.location": secured.certificate, "ssl.key.location": secured.key,
                    **(login if protocol == "SASL_SSL" else {})}  # fmt: skip
        given = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
        command = ["kcat", "-b", secured.addresses[protocol], *given, *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)

    assert kcat("-P", "-t", topic, stdin="x\n").returncode == 0
    assert kcat("-C", "-t", topic, "-e", "-q").stdout == "x\n"


def ours(secured: Secured, protocol: str) -> dict[str, Any]:
    login = {"sasl_mechanism": MECHANISM, "sasl_username": USER, "sasl_password": PASSWORD}
    return {"bootstrap_servers": secured.addresses[protocol], "security_protocol": protocol,
            **(login if protocol == "SASL_SSL" else {})}  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("named_as", ["kafka-python", "Java"])
def test_ours(secured: Secured, topic: str, protocol: str, named_as: str) -> None:
    """Our client accepts settings by Python's and Kafka's names; an untrusted broker fails a call, and a consumer's
    poll, at once."""

    def config(authority: str) -> dict[str, Any]:
        if named_as == "Java":
            names = {"ssl_truststore_location": authority, "ssl_keystore_location": secured.both}
        else:
            names = {"ssl_cafile": authority, "ssl_certfile": secured.certificate, "ssl_keyfile": secured.key}
        return ours(secured, protocol) | names

    large = bytes(range(256)) * 3000
    with pybroker.Producer(**config(secured.authority)) as producer:
        assert [producer.send(topic, value).result(20).offset for value in (b"x", large)] == [0, 1]
    with pybroker.Consumer(**config(secured.authority), group_id=topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        got: list[Any] = []
        while len(got) < 2:
            got += consumer.poll(20_000)
        assert [record.value for record in got] == [b"x", large]
    at = config(secured.authority)
    with Admin(at.pop("bootstrap_servers"), **at) as admin:
        assert topic in {found.name for found in admin.topics()}
    refused = pytest.raises(pybroker.KafkaError, match=r"failed: certificate verify failed: .*; set ssl\.truststore")
    with pybroker.Producer(**config(secured.stranger)) as producer, refused:
        producer.send(topic, b"x")
    with pybroker.Consumer(**config(secured.stranger)) as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(pybroker.KafkaError, match="certificate verify failed"):
            consumer.poll(20_000)


async def test_ours_with_asyncio(secured: Secured, topic: str) -> None:
    config = ours(secured, "SASL_SSL") | {"ssl_cafile": secured.authority}
    async with pybroker.AsyncProducer(**config) as producer:
        assert (await (await producer.send(topic, b"x"))).offset == 0
    async with pybroker.AsyncConsumer(**config, auto_offset_reset="earliest") as consumer, asyncio.timeout(20):
        await consumer.assign([(topic, 0)])
        assert [record.value for record in await consumer.poll(20_000)] == [b"x"]


def test_ours_by_pythons_ssl_module(secured: Secured, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our client works with Python's ssl module too, which it uses if core cannot use this Python's OpenSSL."""
    monkeypatch.setattr("pybroker.core.tls_available", lambda: False)
    config = ours(secured, "SASL_SSL") | {"ssl_cafile": secured.authority}
    value = bytes(range(256)) * 3000
    with pybroker.Producer(**config) as producer:
        assert producer.send(topic, value).result(20).offset == 0
    with pybroker.Consumer(**config, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in consumer.poll(20_000)] == [value]


def test_the_command_line(secured: Secured, tmp_path: Path) -> None:
    """The command line reads the settings file of Kafka's tools."""
    file = tmp_path / "client.properties"
    file.write_text(
        f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={secured.authority}\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={secured.both}\n"
    )
    at = ["-b", secured.addresses["SSL"], "--command-config", str(file)]
    command = [sys.executable, "-m", "pybroker", "topics", "list", *at]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "TOPIC" in done.stdout, done.stderr
    file.write_text(f"security.protocol=SSL\nssl.cafile={secured.authority}\n")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    asked = "the broker asks for a certificate: set ssl.keystore.location"
    (sentence,) = done.stderr.splitlines()
    assert done.returncode == 1 and sentence.endswith(f"TLS failed: {asked}")
    refused = pytest.raises(pybroker.KafkaError, match=asked)
    with pybroker.Producer(**ours(secured, "SSL"), ssl_cafile=secured.authority) as producer, refused:
        producer.send("t", b"x").result(20)
