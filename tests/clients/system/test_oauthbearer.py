"""Each client logs in with a token, writes and reads; a bad token gets an error."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import confluent_kafka as ck
import pytest

import pybroker
from pybroker.client.admin import Admin
from pybroker.config.oauth_settings import ALLOWED_URLS
from tests.clients.adapters.java import JAVA, Handle
from tests.clients.adapters.neutral import Refused
from tests.harness import HOST, BrokerProcess, free_port
from tests.java.driver import Driver
from tests.tokens import AUDIENCE, ISSUER, Signer, Web, jwks, say

SIGNER = Signer()
STRANGER = Signer()
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


class Issuer:
    """A token endpoint with one known client, and the requests that it got."""

    def __init__(self) -> None:
        self.forms: list[dict[str, list[str]]] = []
        self.lives_s = 600
        self.web = Web(self.answer)
        self.url = self.web.url

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        form = handler.rfile.read(int(handler.headers["Content-Length"])).decode()
        self.forms.append(parse_qs(form))
        if handler.headers["Authorization"] != "Basic " + base64.b64encode(b"svc:of svc").decode():
            say(handler, b'{"error":"invalid_client"}', 401)
            return
        token = SIGNER.token("svc", lives_s=self.lives_s)
        told = {"access_token": token, "token_type": "Bearer", "expires_in": self.lives_s}
        say(handler, json.dumps(told).encode(), Content_Type="application/json")


class Secured(NamedTuple):
    bootstrap: str
    issuer: Issuer
    broker: BrokerProcess


def settings(port: int, clients: int, keys: Path) -> dict[str, object]:
    return {
        "listeners": f"PLAINTEXT://{HOST}:{port},CLIENTS://{HOST}:{clients}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "org.apache.kafka.sasl.oauthbearer.allowed.urls": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A listener that accepts tokens of SIGNER, and a token endpoint."""
    directory = tmp_path_factory.mktemp("secured")
    keys = directory / "keys.json"
    keys.write_bytes(jwks(SIGNER))
    port, clients = free_port(), free_port()
    broker = BrokerProcess(directory / "data", port, settings(port, clients, keys))
    broker.start()
    issuer = Issuer()
    with issuer.web:
        yield Secured(f"{HOST}:{clients}", issuer, broker)
    broker.close()


def test_librdkafka(secured: Secured, topic: str) -> None:
    told: list[ck.KafkaError] = []

    def config(signer: Signer) -> dict[str, Any]:
        return {"bootstrap.servers": secured.bootstrap, "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: (signer.token(), time.time() + 600),
                "log_level": 0, "error_cb": told.append}  # fmt: skip

    producer = ck.Producer(config(SIGNER))
    producer.produce(topic, b"x")
    assert producer.flush(20) == 0
    consumer = ck.Consumer({**config(SIGNER), "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(20)
    assert message is not None and message.value() == b"x"
    consumer.close()
    assert told == []
    stranger = ck.Producer(config(STRANGER))
    while not told:
        stranger.poll(0.1)
    assert told[0].code() == ck.KafkaError._AUTHENTICATION and "invalid_token" in told[0].str()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves sockets open
def test_kafka_python(secured: Secured, topic: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own import of importlib.resources
        import kafka
        from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def __init__(self, signer: Signer) -> None:
            self.signer = signer

        def token(self) -> str:
            return self.signer.token()

    def config(signer: Signer) -> dict[str, Any]:
        return {"bootstrap_servers": secured.bootstrap, "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Provider(signer)}  # fmt: skip

    producer = kafka.KafkaProducer(**config(SIGNER))
    assert producer.send(topic, b"x").get(20).offset == 0
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, **config(SIGNER), auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    assert next(consumer).value == b"x"
    consumer.close()
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaAdminClient(**config(STRANGER), bootstrap_timeout_ms=1000)


async def test_aiokafka(secured: Secured, topic: str) -> None:
    import aiokafka
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def __init__(self, signer: Signer) -> None:
            self.signer = signer

        async def token(self) -> str:
            return self.signer.token()

    def config(signer: Signer) -> dict[str, Any]:
        return {"bootstrap_servers": secured.bootstrap, "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Provider(signer)}  # fmt: skip

    async with aiokafka.AIOKafkaProducer(**config(SIGNER)) as producer:
        assert (await producer.send_and_wait(topic, b"x")).offset == 0
    consumer = aiokafka.AIOKafkaConsumer(topic, **config(SIGNER), auto_offset_reset="earliest")
    async with consumer, asyncio.timeout(20):
        assert (await consumer.getone()).value == b"x"
    stranger = aiokafka.AIOKafkaProducer(**config(STRANGER))
    with pytest.raises(aiokafka.errors.KafkaError):
        await stranger.start()
    await stranger.stop()


@pytest.mark.java
@pytest.mark.parametrize("version", JAVA)
def test_java(
    secured: Secured, topic: str, version: str, tmp_path: Path, java_driver: Callable[[str], Driver],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Java reads its token from a file, which is on its list of allowed URLs."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-D{ALLOWED_URLS}={(tmp_path / 'token').as_uri()}")
    java_driver(version)  # or skip
    driver = Driver(version)

    def config(signer: Signer) -> dict[str, Any]:
        file = tmp_path / "token"
        file.write_text(signer.token())
        return {"bootstrap.servers": secured.bootstrap, "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": f"{MODULE} required;",
                "sasl.login.callback.handler.class": HANDLER, "max.block.ms": 20_000,
                "sasl.oauthbearer.token.endpoint.url": file.as_uri()}  # fmt: skip

    producer = Handle(driver, "open_producer", config=config(SIGNER))
    record = {"partition": 0, "timestamp_ms": None, "key": None, "value": None, "headers": []}
    assert producer.ask("send", topic=topic, **record) is not None
    producer.close()
    stranger = Handle(driver, "open_producer", config=config(STRANGER))
    with pytest.raises(Refused, match="invalid_token"):
        stranger.ask("send", topic=topic, **record)
    stranger.close()
    driver.close()


# -- ours --------------------------------------------------------------------------------------------------------------


def ours(secured: Secured, **how: Any) -> dict[str, Any]:
    return {"bootstrap_servers": secured.bootstrap, "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER", **how}  # fmt: skip


def endpoint(secured: Secured, secret: str = "of svc") -> dict[str, str]:
    return {"sasl_oauthbearer_token_endpoint_url": secured.issuer.url,
            "sasl_oauthbearer_client_credentials_client_id": "svc",
            "sasl_oauthbearer_client_credentials_client_secret": secret,
            "sasl_oauthbearer_scope": "topics"}  # fmt: skip


def ways(secured: Secured, directory: Path) -> list[dict[str, Any]]:
    """The sources of a token: a function, a file, an endpoint."""
    file = directory / "token"
    file.write_text(SIGNER.token() + "\n")
    provider = {"sasl_oauth_token_provider": SIGNER.token}
    return [provider, {"sasl_oauthbearer_token_endpoint_url": file.as_uri()}, endpoint(secured)]


def test_ours(secured: Secured, topic: str, tmp_path: Path) -> None:
    for number, how in enumerate(ways(secured, tmp_path)):
        config = ours(secured, **how)
        with pybroker.Producer(**config) as producer:
            assert producer.send(topic, b"x").result(20).offset == number
        with pybroker.Consumer(**config, auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            assert consumer.poll(20_000)
        with Admin(**config) as admin:
            assert topic in [found.name for found in admin.topics()]


async def test_ours_of_asyncio(secured: Secured, topic: str) -> None:
    config = ours(secured, **endpoint(secured))
    async with pybroker.AsyncProducer(**config) as producer:
        assert (await (await producer.send(topic, b"x"))).offset == 0


def test_an_endpoint_is_asked_as_seldom_as_may_be(secured: Secured, topic: str) -> None:
    """An endpoint is asked for one token for all of a client's connections."""
    asked = len(secured.issuer.forms)
    with pybroker.Producer(**ours(secured, **endpoint(secured))) as producer:
        for _ in range(3):
            producer.send(topic, b"x").result(20)
    assert secured.issuer.forms[asked:] == [{"grant_type": ["client_credentials"], "scope": ["topics"]}]


def test_ours_is_told_why_there_is_no_token(secured: Secured, topic: str, tmp_path: Path) -> None:
    """Our client fails at once with the reason if it cannot get a token, and without the secret in the error."""

    def failing() -> str:
        raise RuntimeError("the secret is xyz")

    for how, words in (
        (endpoint(secured, "a guess"), "it answered with status 401"),
        ({"sasl_oauthbearer_token_endpoint_url": (tmp_path / "none").as_uri()}, "it cannot be read: No such file"),
        ({"sasl_oauth_token_provider": failing}, "the function that provides tokens failed with RuntimeError"),
        ({"sasl_oauth_token_provider": lambda: None}, "returned NoneType instead of str"),
        ({"sasl_oauth_token_provider": lambda: "a b"}, "the given token is malformed"),
        ({"sasl_oauth_token_provider": STRANGER.token},
         "refused the login: it did not accept the token; the reason is in the broker's log"),
    ):  # fmt: skip
        config = ours(secured, **how)
        with pybroker.Producer(**config) as producer, pytest.raises(pybroker.KafkaError, match=words) as refused:
            producer.send(topic, b"x")
        assert "guess" not in str(refused.value) and "xyz" not in str(refused.value)
        with pytest.raises(pybroker.KafkaError, match=words), Admin(**config) as admin:
            admin.topics()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({}, "neither sasl_oauthbearer_token_endpoint_url nor sasl_oauth_token_provider is given"),
        ({"sasl_oauth_token_provider": "text"}, "is a function of Python"),
        ({"sasl_oauthbearer_token_endpoint_url": "ftp://x/"}, "it takes https://host/path"),
        ({"sasl_oauthbearer_token_endpoint_url": "https://x/"}, "client_id is not given"),
        ({"sasl_oauth_token_provider": str, "sasl_oauthbearer_scope": "x"}, "provides the tokens"),
        ({"sasl_oauth_token_provider": str, "sasl_password": "x"}, "sasl_password is given, but"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "a", "sasl_password": "b", "sasl_oauthbearer_scope": "x"},
         "sasl_oauthbearer_scope is given, but sasl_mechanism is PLAIN"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other(secured: Secured, how: dict[str, Any], words: str) -> None:
    for make in (pybroker.Producer, Admin):
        with pytest.raises(pybroker.KafkaError, match=words):
            make(**{**ours(secured), **how})
