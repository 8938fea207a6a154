"""Clients whose sessions expire log in again on the same connection, and lose nothing (KIP-368)."""

from __future__ import annotations

import asyncio
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import confluent_kafka as ck
import pytest

import pybroker
from pybroker.client.admin import Admin
from pybroker.client.net.connection import BrokerConnection
from pybroker.interbroker.link import Link
from pybroker.protocol import messages as m
from pybroker.security.login import Account
from tests.clients.adapters.java import JAVA, Handle
from tests.clients.system.test_oauthbearer import SIGNER, Issuer, settings
from tests.harness import HOST, BrokerProcess, free_port, until
from tests.java.driver import Driver
from tests.tokens import jwks

LIFE_MS = 2000
LONG_S = 2 * LIFE_MS / 1000 + 1
"""Longer than two sessions."""
USER, PASSWORD = "alice", "of alice"


class Secured(NamedTuple):
    bootstrap: str
    broker: BrokerProcess
    metrics: str
    issuer: Issuer

    def told(self, name: str) -> float:
        """The value of a broker's metric."""
        with closing(urllib.request.urlopen(self.metrics, timeout=10)) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((name + " ", name + "{")))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A listener with sessions of LIFE_MS."""
    directory = tmp_path_factory.mktemp("secured")
    (directory / "keys.json").write_bytes(jwks(SIGNER))
    port, clients, metrics = free_port(), free_port(), free_port()
    broker = BrokerProcess(directory / "data", port, {
        **settings(port, clients, directory / "keys.json"), "sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER",
        "connections.max.reauth.ms": LIFE_MS, "metrics.listener": f"{HOST}:{metrics}",
    })  # fmt: skip
    broker.start()
    with Admin(broker.bootstrap) as admin:
        admin.set_password(USER, PASSWORD)
    issuer = Issuer()
    with issuer.web:
        yield Secured(f"{HOST}:{clients}", broker, f"http://{HOST}:{metrics}/metrics", issuer)
    broker.close()


@pytest.fixture
def watched(secured: Secured) -> Iterator[None]:
    """Check that no login fails, and that no connection is closed for an expired session."""
    names = ["pybroker_failed_authentications_total", "pybroker_expired_connections_killed_total"]
    before = [secured.told(name) for name in names]
    yield
    assert [secured.told(name) for name in names] == before


def scram(secured: Secured) -> dict[str, Any]:
    return {"bootstrap_servers": secured.bootstrap, "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256", "sasl_username": USER, "sasl_password": PASSWORD}  # fmt: skip


def oauth(secured: Secured) -> dict[str, Any]:
    return {"bootstrap_servers": secured.bootstrap, "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url": secured.issuer.url,
            "sasl_oauthbearer_client_credentials_client_id": "svc",
            "sasl_oauthbearer_client_credentials_client_secret": "of svc"}  # fmt: skip


def write(send: Callable[[int], object], every_s: float = 0.05) -> int:
    """Send for LONG_S, and return the number of records sent."""
    sent, until_s = 0, time.monotonic() + LONG_S
    while time.monotonic() < until_s:
        send(sent)
        sent += 1
        time.sleep(every_s)
    return sent


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("login", [scram, oauth])
def test_ours(secured: Secured, topic: str, login: Callable[[Secured], dict[str, Any]]) -> None:
    """Our producer, and our consumer in a group, keep their connections."""
    config = login(secured)
    got: list[bytes | None] = []
    with (
        pybroker.Producer(**config, retries=0) as producer,
        pybroker.Consumer(**config, group_id=topic, auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe([topic])
        producer.send(topic, b"first").result(20)
        until("the group is served", lambda: got.extend(r.value for r in consumer.poll(100)) or got)
        opened = secured.told("pybroker_connections")

        def send(number: int) -> None:
            producer.send(topic, b"%d" % number).result(10)
            got.extend(record.value for record in consumer.poll(10))

        sent = write(send)
        assert secured.told("pybroker_connections") == opened
        until("all of it came", lambda: got.extend(r.value for r in consumer.poll(100)) or len(got) == sent + 1)
        consumer.commit()
    assert got == [b"first", *(b"%d" % number for number in range(sent))]


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("login", [scram, oauth])
def test_a_blocking_connection(secured: Secured, login: Callable[[Secured], dict[str, Any]]) -> None:
    """Our Admin's blocking connection logs in again before a late request, even after the session's end."""
    with Admin(**login(secured)) as admin:
        admin.topics()
        (connection,) = admin.cluster._connections.values()
        held = connection._socket
        for pause_s in (LIFE_MS / 1000 * 0.96, LIFE_MS / 1000 * 1.5, 0):
            time.sleep(pause_s)
            admin.topics()
        assert connection._socket is held


@pytest.mark.usefixtures("watched")
async def test_a_link_of_a_broker(secured: Secured) -> None:
    host, port = secured.bootstrap.split(":")
    link = await Link.open(host, int(port), client_id="1", account=Account("SCRAM-SHA-256", USER, PASSWORD))
    request = m.MetadataRequest(topics=[])
    for pause_s in (LIFE_MS / 1000 * 0.96, LIFE_MS / 1000 * 1.5):
        await asyncio.sleep(pause_s)
        answers = await asyncio.gather(*(link.ask(request, 12) for _ in range(3)))
        assert [answer.brokers != [] for answer in answers] == [True] * 3
    link.close()


def test_whose_password_was_changed_is_told_so(secured: Secured, topic: str) -> None:
    """A client whose password was changed gets the broker's error at its next login, and its waiting request
    fails with it."""
    with Admin(secured.broker.bootstrap) as admin:
        admin.set_password("bob", "before")
        host, port = secured.bootstrap.split(":")
        account = Account("SCRAM-SHA-256", "bob", "before")
        with BrokerConnection(host, int(port), account=account) as connection:
            admin.set_password("bob", "after")
            connection.request(m.MetadataRequest(topics=[]))
            connection._renew_s = 0  # as after most of its time
            with pytest.raises(pybroker.KafkaError, match="refused the login: Authentication failed"):
                connection.request(m.MetadataRequest(topics=[]))
            assert not connection.is_open
        with BrokerConnection(host, int(port), account=account._replace(password="after")):
            pass


@pytest.mark.usefixtures("watched")
def test_librdkafka(secured: Secured, topic: str) -> None:
    told: list[ck.KafkaError] = []
    failed: list[object] = []
    config = {"bootstrap.servers": secured.bootstrap, "security.protocol": "SASL_PLAINTEXT",
              "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": USER, "sasl.password": PASSWORD,
              "error_cb": told.append}  # fmt: skip
    producer = ck.Producer({**config, "retries": 0, "linger.ms": 0})

    def send(number: int) -> None:
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: error and failed.append(error))
        producer.poll(0)

    sent = write(send)
    assert producer.flush(20) == 0
    consumer = ck.Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    got: list[bytes | None] = []
    until_s = time.monotonic() + LONG_S
    while len(got) < sent or time.monotonic() < until_s:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None
            got.append(message.value())
        assert time.monotonic() < until_s + 20
    consumer.close()
    assert got == [b"%d" % number for number in range(sent)] and failed == [] and told == []


@pytest.mark.usefixtures("watched")
def test_kafka_python(secured: Secured, topic: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own import of importlib.resources
        import kafka

    config = {"bootstrap_servers": secured.bootstrap, "security_protocol": "SASL_PLAINTEXT",
              "sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": USER,
              "sasl_plain_password": PASSWORD}  # fmt: skip
    producer = kafka.KafkaProducer(**config)
    sent = write(lambda number: producer.send(topic, b"%d" % number).get(20))
    producer.close()
    consumer = kafka.KafkaConsumer(topic, **config, auto_offset_reset="earliest", consumer_timeout_ms=2000)
    assert [record.value for record in consumer] == [b"%d" % number for number in range(sent)]
    consumer.close()


@pytest.mark.usefixtures("watched")
@pytest.mark.java
@pytest.mark.parametrize("version", JAVA)
def test_java(secured: Secured, topic: str, version: str, java_driver: Callable[[str], Driver]) -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    producer = Handle(java_driver(version), "open_producer", config={
        "bootstrap.servers": secured.bootstrap, "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256", "max.block.ms": 20_000, "retries": 0, "enable.idempotence": False,
        "sasl.jaas.config": f'{module} required username="{USER}" password="{PASSWORD}";',
    })  # fmt: skip
    record = {"partition": 0, "timestamp_ms": None, "key": None, "value": None, "headers": []}
    write(lambda _: producer.ask("send", topic=topic, **record))
    producer.close()
