"""Secured brokers: every client library logs in with the kit's configuration, and a test sets the ACLs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, Producer

import pybroker
from pybroker import errors
from pybroker.testing import BrokerHandle, Mode, async_broker
from pybroker.testing.security import MECHANISMS
from tests.cli.conftest import run
from tests.clients.adapters.java import Handle
from tests.java.driver import Driver
from tests.java.peers import MissingJava
from tests.testing.kit import KafkaConsumer, KafkaProducer, send
from tests.testing.system.test_plugin import STRICT

pytest_plugins = ["pytester"]

AWKWARD = 'b"\\ ;=ö'
TWO = {"mechanism": "SCRAM-SHA-256", "users": {"ann": "spring", "bob": "autumn"}}
DENIED = "TOPIC_AUTHORIZATION_FAILED"
PROMISED_MS = 300


WAYS: list[dict[str, Any]] = [{"sasl": mechanism} for mechanism in MECHANISMS]
BY_TLS: list[dict[str, Any]] = [{"tls": True}, {"tls": True, "sasl": "SCRAM-SHA-512"}]


@pytest.fixture(params=WAYS, ids=str)
def secured(request: pytest.FixtureRequest, mode: Mode) -> Iterator[BrokerHandle]:
    with BrokerHandle(mode=mode, **request.param) as handle:
        yield handle


@pytest.fixture(params=WAYS + BY_TLS, ids=str)
def reached(request: pytest.FixtureRequest, mode: Mode) -> Iterator[BrokerHandle]:
    with BrokerHandle(mode=mode, **request.param) as handle:
        yield handle


@pytest.fixture
def two() -> Iterator[BrokerHandle]:
    """A broker with the users ann and bob, without ACLs."""
    with BrokerHandle(sasl=TWO, acls=True) as handle:
        yield handle


@pytest.mark.filterwarnings("ignore:.*SSLSocket:pytest.PytestUnraisableExceptionWarning")  # kafka-python's
async def test_clients_log_in_with_what_the_kit_gives_them(
    reached: BrokerHandle, consume: Callable[..., Consumer]
) -> None:
    """Clients log in with the kit's configuration: confluent-kafka, kafka-python, aiokafka and ours, also after a kill,
    at the same address."""
    assert send(Producer(reached.confluent_config()), "t", "confluent") == [None]
    with KafkaProducer(**reached.kafka_python_config()) as producer:
        producer.send("t", b"kafka-python").get(20)
    reached.kill()
    reached.start()
    async with aiokafka.AIOKafkaProducer(**reached.aiokafka_config()) as other:
        await other.send_and_wait("t", b"aiokafka")
    with pybroker.Producer(**reached.pybroker_config()) as ours:
        ours.send("t", b"ours").result(20)
    expected = [b"confluent", b"kafka-python", b"aiokafka", b"ours"]
    assert [record.value for record in reached.records("t", count=4)] == expected

    consumer = consume(reached, "t")
    messages = [consumer.poll(20) for _ in expected]
    assert [message.value() for message in messages if message is not None] == expected
    with KafkaConsumer("t", **reached.kafka_python_config("h"), consumer_timeout_ms=20_000) as reader:
        assert [next(reader).value for _ in expected] == expected
    with pybroker.Consumer(**reached.pybroker_config("i")) as mine:
        mine.subscribe(["t"])
        assert mine.poll(20_000)[0].value == b"confluent"


@pytest.mark.parametrize("how", BY_TLS, ids=str)
def test_who_speaks_no_tls_or_believes_others_is_refused(how: dict[str, Any]) -> None:
    with BrokerHandle(**how) as broker:
        assert broker.ca_file is not None
        open_way = {"bootstrap_servers": broker.bootstrap_servers, "max_block_ms": 1000}
        for config in ({**broker.pybroker_config(max_block_ms=1000), "ssl_cafile": None}, open_way):
            with pybroker.Producer(**config) as producer, pytest.raises(pybroker.KafkaError, match="TLS"):
                producer.send("t", b"x").result(20)
        broker.produce("t", "x")
        assert len(broker.records("t")) == 1


def test_who_does_not_log_in_or_guesses_is_refused(secured: BrokerHandle) -> None:
    stranger = {"bootstrap_servers": secured.bootstrap_servers, "max_block_ms": 1000}
    for how in (secured.pybroker_config(sasl_password="guess"), stranger):
        with pybroker.Producer(**how) as producer, pytest.raises(pybroker.KafkaError, match="log"):
            producer.send("t", b"x").result(20)
    assert secured.create_topic("t") == "t", "the kit itself needs no login"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_properties_are_those_of_kafkas_tools(mechanism: str, tmp_path: Path) -> None:
    """Properties are those of Kafka's tools: a --command-config file, with a password that needs escaping."""
    with BrokerHandle(sasl={"mechanism": mechanism, "users": {"ann": "x", "bob": AWKWARD}}) as broker:
        assert broker.users == {"ann": "x", "bob": AWKWARD}
        broker.create_topic("seen")
        escaped = {name: str(value).replace("\\", "\\\\") for name, value in broker.java_config(user="bob").items()}
        file = tmp_path / "bob.properties"
        file.touch(0o600)
        file.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()), encoding="latin-1")
        done = run("topics", "list", "-b", broker.bootstrap_servers, "--command-config", file)
        assert done.code == 0 and "seen" in done.out, done.err


@pytest.mark.java
def test_a_java_client_logs_in() -> None:
    record: dict[str, Any] = {"partition": 0, "timestamp_ms": None, "key": None, "value": None, "headers": []}
    try:
        driver = Driver("3.9.1")
    except MissingJava as missing:
        pytest.skip(str(missing))
    try:
        for how in WAYS + BY_TLS:
            with BrokerHandle(**how) as broker:
                producer = Handle(driver, "open_producer", config=broker.java_config(max_block_ms=20_000))
                assert producer.ask("send", topic="t", **record) is not None
                producer.close()
    finally:
        driver.close()


# -- ACLs --------------------------------------------------------------------------------------------------------------


def test_users_may_do_what_they_are_allowed(two: BrokerHandle, consume: Callable[..., Consumer]) -> None:
    """Users may do what ACLs allow, each with their own login. A Deny wins over every Allow; the kit may do
    everything."""
    two.produce("orders", "1")
    assert send(Producer(two.confluent_config()), "orders", "2") == [DENIED]
    two.allow("ann", "write", "create", topic=["orders", "others"])
    assert send(Producer(two.confluent_config()), "orders", "3") == [None]
    two.allow("bob", "read", topic="ord", group="g", prefixed=True)
    consumer = consume(two, "orders", user="bob")
    assert [consumer.poll(20).value() for _ in range(2)] == [b"1", b"3"]  # type: ignore[union-attr]
    assert send(Producer(two.confluent_config(user="bob")), "orders", "4") == [DENIED]
    two.deny("ann", "write", topic="orders")
    assert send(Producer(two.confluent_config(user="ann")), "orders", "5") == [DENIED]
    two.allow("ann", "alter-configs", "DescribeConfigs", cluster="kafka-cluster")
    assert [record.value for record in two.records("orders")] == [b"1", b"3"]


async def test_the_same_is_awaited() -> None:
    async with async_broker(sasl=TWO, acls=True) as broker:
        assert list(broker.users) == ["ann", "bob"]
        await broker.create_topic("t")
        await broker.allow("ann", "write", topic="t")
        await broker.deny("bob", "write", topic="t")
        with pybroker.Producer(**broker.pybroker_config(user="ann")) as producer:
            producer.send("t", b"x").result(20)
        bob = pybroker.Producer(**broker.pybroker_config(user="bob"))
        with bob, pytest.raises(pybroker.KafkaError) as refused:
            bob.send("t", b"x").result(20)
        assert refused.value.code == errors.TOPIC_AUTHORIZATION_FAILED


def test_super_users_of_a_test_stay_super() -> None:
    with BrokerHandle(sasl=TWO, acls=True, settings={"super.users": "User:bob"}) as broker:
        assert send(Producer(broker.confluent_config(user="bob")), "t", "x") == [None]
        assert len(broker.records("t")) == 1


# -- what is not allowed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"acls": True}, "acls=True needs sasl"),
        ({"sasl": "GSSAPI"}, "the mechanism is 'GSSAPI'; it can be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"sasl": {"mechanisms": "PLAIN"}}, "sasl has 'mechanisms'; the keys are 'mechanism' and 'users'"),
        ({"sasl": {"users": {}}}, "at least one name"),
        ({"sasl": {"users": {"ann": ""}}}, "none of them empty"),
        ({"sasl": {"users": ["ann"]}}, "a mapping"),
        ({"sasl": True, "settings": {"listeners": "PLAINTEXT://:0"}}, "listeners is set by the kit where"),
        ({"tls": True, "settings": {"listeners": "PLAINTEXT://:0"}}, "listeners is set by the kit where"),
        ({"tls": True, "acls": True}, "acls=True needs sasl"),
    ],
)
def test_what_makes_no_sense_is_told(how: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        BrokerHandle(**how)


def test_what_a_broker_has_not_cannot_be_asked_of_it(broker: BrokerHandle, two: BrokerHandle) -> None:
    with pytest.raises(ValueError, match="make it with sasl=True"):
        broker.confluent_config(user="ann")
    with pytest.raises(ValueError, match="make it with acls=True"):
        broker.allow("ann", "read", topic="t")
    with pytest.raises(ValueError, match="there is no user 'eve'; there are ann, bob"):
        two.aiokafka_config(user="eve")
    with pytest.raises(ValueError, match="'reed' is not one of"):
        two.allow("ann", "reed", topic="t")
    with pytest.raises(ValueError, match="name the operations and the resources"):
        two.allow("ann", "read")
    assert broker.users == {} and "sasl.username" not in broker.confluent_config()


# -- pytest ------------------------------------------------------------------------------------------------------------

TESTS = """
import pytest

def test_fixture(secured_pybroker):
    assert list(secured_pybroker.users) == ["alice"]
    assert secured_pybroker.confluent_config()["sasl.mechanism"] == "SCRAM-SHA-256"
    secured_pybroker.produce("t", "x")
    assert len(secured_pybroker.records("t")) == 1

@pytest.mark.pybroker(sasl="PLAIN", acls=True)
@pytest.mark.parametrize("name", ["pybroker", "secured_pybroker"])
def test_marker(request, name):
    broker = request.getfixturevalue(name)
    broker.allow("alice", "read", topic="t")
    assert broker.java_config()["sasl.mechanism"] == "PLAIN"

def test_open(pybroker):
    assert pybroker.users == {}
"""


@pytest.mark.parametrize("mode", ["inprocess", "subprocess"])
def test_fixtures_and_markers(pytester: pytest.Pytester, mode: str) -> None:
    pytester.makepyfile(TESTS)
    pytester.runpytest_subprocess(*STRICT, f"--pybroker-mode={mode}").assert_outcomes(passed=4)


@pytest.mark.parametrize("tls", [False, True])
def test_a_secured_broker_is_there_as_soon(tls: bool) -> None:
    """A secured broker is ready as soon as an open one: the quickest of fifty starts, to the first acknowledged record
    of a logged-in client, meets the promise, scaled by load."""

    def live() -> float:
        called = time.perf_counter()
        with BrokerHandle(sasl=True, acls=True, tls=tls) as broker:
            broker.allow("alice", "write", "create", topic="t")
            with pybroker.Producer(**broker.pybroker_config()) as producer:
                producer.send("t", b"x").result(20)
            return 1000 * (time.perf_counter() - called)

    live()
    crowd = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert any(live() < PROMISED_MS * crowd for _ in range(50))
