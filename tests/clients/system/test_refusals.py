"""Each client, refused for each reason, fails within seconds, gives the reason if its library can, and disturbs no
other client."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import confluent_kafka as ck
import pytest

import pybroker
from pybroker.client.admin import Admin
from pybroker.server.network.closed_connections import REASONS_MAX
from tests.certificates import Identity
from tests.clients.adapters.java import JVMS, Handle
from tests.clients.adapters.neutral import Refused
from tests.clients.system.test_sasl import PLAIN, SCRAM
from tests.harness import HOST, BrokerProcess, free_port
from tests.java.driver import Driver

MECHANISM, OFF, PASSWORD = "SCRAM-SHA-512", "PLAIN", "secret"
LISTENERS = ("WELL", "ELSEWHERE", "LATE", "ENDING")
"""The listeners: a valid certificate, one of another host, an expired one; and one whose sessions expire."""
LIFE_MS = 1500
FAILS_S_MAX = 15.0


class At(NamedTuple):
    """The settings of a client."""

    address: str
    authority: str
    mechanism: str = MECHANISM
    user: str = "ann"
    password: str = PASSWORD


class Secured(NamedTuple):
    broker: BrokerProcess
    addresses: Mapping[str, str]
    authority: str
    stranger: str
    tried: list[str]
    """The topics of the tests that ran: a worker may have only skipped ones."""

    def at(self, listener: str = "WELL", **more: str) -> At:
        return At(self.addresses[listener], **{"authority": self.authority, **more})

    def ways(self) -> dict[str, At]:
        return {
            "password": self.at(password="guess"),
            "mechanism": self.at(mechanism=OFF),
            "authority": self.at(authority=self.stranger),
            "host": self.at("ELSEWHERE"),
            "expired": self.at("LATE"),
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home: Path = tmp_path_factory.mktemp("refusals")
    authority, stranger = Identity("authority"), Identity("another")
    port, ports = free_port(), {name: free_port() for name in LISTENERS}
    sets: dict[str, object] = {
        "listeners": ",".join(f"{name}://{HOST}:{each}" for name, each in {"PLAINTEXT": port, **ports}.items()),
        "listener.security.protocol.map": ",".join(["PLAINTEXT:PLAINTEXT", *(f"{n}:SASL_SSL" for n in LISTENERS)]),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": MECHANISM,
        "listener.name.ending.connections.max.reauth.ms": LIFE_MS,
    }
    for name in LISTENERS:
        own = Identity(
            "broker", authority, hosts=["elsewhere.example"] if name == "ELSEWHERE" else [HOST],
            days=(-2, -1) if name == "LATE" else (-1, 30),
        )  # fmt: skip
        sets[f"listener.name.{name.lower()}.ssl.keystore.type"] = "PEM"
        sets[f"listener.name.{name.lower()}.ssl.keystore.location"] = own.pem(home / f"{name}.pem")
    broker = BrokerProcess(home / "data", port, sets)
    broker.start()
    with Admin(broker.bootstrap) as admin:
        admin.set_password("ann", PASSWORD)
    tried: list[str] = []
    yield Secured(
        broker, {name: f"{HOST}:{each}" for name, each in ports.items()}, authority.trust_pem(home / "ca.pem"),
        stranger.trust_pem(home / "stranger.pem"), tried,
    )  # fmt: skip
    broker.stop()
    told = [line for line in broker.log if "closed_connections" in line]
    assert len(told) <= 2 * (REASONS_MAX + 1) * len(LISTENERS), told
    for mistake in ("user=ann .*Authentication failed", "mechanism 'PLAIN' is not offered") if tried else ():
        assert [line for line in told if re.search(mistake, line)], (mistake, told)
    assert all(re.search('reason=".+"|count=.* last=".+"', line) for line in told), told
    wrong = [line for line in broker.log if "ERROR" in line or "Traceback" in line]
    assert len(wrong) == 2 and all("listener=LATE" in line and "expired" in line for line in wrong), wrong
    broker.close()


Client = Callable[[At, str, Callable[[], None]], str]
"""Write to a topic (kcat: read it) until refused, and return the error; call the last argument meanwhile."""


def librdkafka(at: At, topic: str, goes_on: Callable[[], None]) -> str:
    told: list[ck.KafkaError] = []
    producer = ck.Producer({
        "bootstrap.servers": at.address, "security.protocol": "SASL_SSL", "ssl.ca.location": at.authority,
        "sasl.mechanism": at.mechanism, "sasl.username": at.user, "sasl.password": at.password, "log_level": 0,
        "error_cb": told.append,
    })  # fmt: skip
    while not told:
        acked: list[object] = []
        producer.produce(topic, b"x", on_delivery=lambda error, _, acked=acked: acked.append(error))
        while not (acked or told):
            producer.poll(0.02)
        if acked:
            goes_on()
    producer.purge()
    return str(told[0].str())


KAFKA_PYTHON = """
try:
    producer = kafka.KafkaProducer(**config, bootstrap_timeout_ms=2000)
    while True:
        producer.send(topic, b"x").get(3)
        print("acked", flush=True)
        time.sleep(0.05)
except kafka.errors.KafkaError as error:
    print(repr(error), flush=True)
"""
AIOKAFKA = """
async def write():
    trusted = ssl.create_default_context(cafile=config.pop("ssl_cafile"))
    producer = aiokafka.AIOKafkaProducer(**config, ssl_context=trusted, request_timeout_ms=3000)
    try:
        await producer.start()
        while True:
            await producer.send_and_wait(topic, b"x")
            print("acked", flush=True)
            await asyncio.sleep(0.05)
    except aiokafka.errors.KafkaError as error:
        print(repr(error), flush=True)
asyncio.run(write())
"""


def beside(module: str, code: str) -> Client:
    """Run a client in a separate process: on failure it keeps threads and sockets that cannot be closed."""
    begin = f"import asyncio, json, logging, os, ssl, sys, time, {module}\nlogging.basicConfig(stream=sys.stdout)\n"
    whole = f"{begin}config, topic = json.loads(sys.argv[1]), sys.argv[2]{code}os._exit(0)"

    def run(at: At, topic: str, goes_on: Callable[[], None]) -> str:
        config = {
            "bootstrap_servers": at.address, "security_protocol": "SASL_SSL", "ssl_cafile": at.authority,
            "sasl_mechanism": at.mechanism, "sasl_plain_username": at.user, "sasl_plain_password": at.password,
        }  # fmt: skip
        told = []
        command = [sys.executable, "-c", whole, json.dumps(config), topic]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line == "acked\n":
                    goes_on()
                else:
                    told.append(line)
        return "".join(told)

    return run


def ours(at: At, topic: str, goes_on: Callable[[], None]) -> str:
    with pybroker.Producer(
        bootstrap_servers=at.address, security_protocol="SASL_SSL", ssl_cafile=at.authority,
        sasl_mechanism=at.mechanism, sasl_username=at.user, sasl_password=at.password,
    ) as producer:  # fmt: skip
        while True:
            try:
                producer.send(topic, b"x").result(20)
            except pybroker.KafkaError as error:
                return error.message
            goes_on()
            time.sleep(0.05)


def kcat(at: At, topic: str, goes_on: Callable[[], None]) -> str:
    settings = {
        "security.protocol": "SASL_SSL", "ssl.ca.location": at.authority, "sasl.mechanism": at.mechanism,
        "sasl.username": at.user, "sasl.password": at.password, "broker.address.family": "v4",
    }  # fmt: skip
    given = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    command = ["kcat", "-b", at.address, *given, "-C", "-u", "-m", "2", "-t", topic]
    told = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "x\n":
                goes_on()
            else:
                told.append(line)
                if "ERROR" in line:
                    process.kill()
    return "".join(told)


def java(driver: Driver) -> Client:
    def run(at: At, topic: str, goes_on: Callable[[], None]) -> str:
        module = PLAIN if at.mechanism == OFF else SCRAM
        producer = Handle(driver, "open_producer", config={
            "bootstrap.servers": at.address, "security.protocol": "SASL_SSL", "ssl.truststore.type": "PEM",
            "ssl.truststore.location": at.authority, "sasl.mechanism": at.mechanism, "max.block.ms": 10_000,
            "linger.ms": 0, "request.timeout.ms": 2000, "delivery.timeout.ms": 4000,
            "sasl.jaas.config": f'{module} required username="{at.user}" password="{at.password}";',
        })  # fmt: skip
        record = {"partition": 0, "timestamp_ms": None, "key": None, "value": None, "headers": []}
        try:
            while True:
                producer.ask("send", topic=topic, **record)
                goes_on()
                time.sleep(0.05)
        except Refused as error:
            return str(error)
        finally:
            producer.close()

    return run


OF_LOGINS = {"password": "Authentication failed", "deleted": "Authentication failed"}
BY_PYTHON = OF_LOGINS | {
    "authority": "self-signed certificate", "host": "mismatch", "expired": "certificate has expired",
    "mechanism": "PLAIN|UnsupportedSaslMechanism",
}  # fmt: skip
BY_OURS = BY_PYTHON | {"authority": "set ssl.truststore.location", "host": "is for other names"}
BY_LIBRDKAFKA = OF_LOGINS | dict.fromkeys(("authority", "host", "expired"), "certificate verify failed") | {
    "mechanism": f"supported mechanisms: {MECHANISM}",
}  # fmt: skip
BY_JAVA = OF_LOGINS | dict.fromkeys(("authority", "host", "expired"), "SSL handshake failed") | {
    "mechanism": f"enabled mechanisms are .{MECHANISM}", "deleted": "Authentication failed|Expiring",
}  # fmt: skip
CLIENTS: dict[str, tuple[Client, Mapping[str, str]]] = {
    "librdkafka": (librdkafka, BY_LIBRDKAFKA), "kafka-python": (beside("kafka", KAFKA_PYTHON), BY_PYTHON),
    "aiokafka": (beside("aiokafka", AIOKAFKA), BY_PYTHON),
    "kcat": (kcat, BY_LIBRDKAFKA | {"deleted": "brokers are down|Broker transport failure"}),  # no re-login
    "ours": (ours, BY_OURS),
}  # fmt: skip


@pytest.fixture(params=[
    *(name for name in CLIENTS if name != "kcat"),
    pytest.param("kcat", marks=pytest.mark.skipif(not shutil.which("kcat"), reason="kcat is not installed")),
    *(pytest.param(f"java-{version}", marks=marks) for version, marks in JVMS.items()),
])  # fmt: skip
def client(request: pytest.FixtureRequest, java_driver: Callable[[str], Driver]) -> tuple[Client, Mapping[str, str]]:
    """A client, and its error for each reason."""
    if request.param in CLIENTS:
        return CLIENTS[request.param]
    return java(java_driver(request.param.removeprefix("java-"))), BY_JAVA


def test_each_reason(secured: Secured, topic: str, client: tuple[Client, Mapping[str, str]]) -> None:
    """Each reason is reported, all at once: wrong password, disabled mechanism, certificates of an unknown authority,
    another host and the past, and a deleted user, refused when the session ends."""
    run, reasons = client
    secured.tried.append(topic)
    with Admin(secured.broker.bootstrap) as admin:
        admin.set_password(topic, PASSWORD)
        admin.create_topic(topic)
        with pybroker.Producer(bootstrap_servers=secured.broker.bootstrap) as producer:
            producer.send(topic, b"x").result(20)
        deleted = threading.Event()

        def goes_on() -> None:
            if not deleted.is_set():
                deleted.set()
                admin.remove_password(topic)

        def timed(at: At) -> tuple[str, float]:
            began_s = time.monotonic()
            return run(at, topic, goes_on), time.monotonic() - began_s

        with ThreadPoolExecutor() as pool:
            ways = secured.ways() | {"deleted": secured.at("ENDING", user=topic)}
            found = dict(zip(ways, pool.map(timed, ways.values()), strict=True))
        for way, (said, lasted_s) in found.items():
            assert re.search(reasons[way], said) and lasted_s < FAILS_S_MAX, (way, said, lasted_s)
        assert deleted.is_set()
        assert topic in {each.name for each in admin.topics()}
