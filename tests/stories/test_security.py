"""Logins, TLS, ACLs, quotas and tokens as users see them: allowed requests work, and others are refused."""

from __future__ import annotations

import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

import pybroker
from pybroker.client.admin import Admin
from pybroker.testing import BrokerHandle, cluster
from tests.cli.conftest import run
from tests.coordination.secured import Secured
from tests.harness import HOST, BrokerProcess, free_port, until
from tests.testing.kit import read, send

TWO = {"mechanism": "SCRAM-SHA-512", "users": {"ann": "spring", "bob": "autumn"}}
DENIED = "TOPIC_AUTHORIZATION_FAILED"


def refusal(**config: Any) -> str:
    """The error with which this project's producer is refused, at once or, without an answer of the broker, in the
    end."""
    producer = pybroker.Producer(**{"max_block_ms": 20_000, **config})
    with producer, pytest.raises(pybroker.KafkaError) as refused:
        producer.send("orders", b"x").result(60)
    return str(refused.value)


@pytest.fixture
def shop() -> Iterator[BrokerHandle]:
    """A broker process with TLS, logins by SCRAM and ACLs; ann and bob have no rights yet."""
    with BrokerHandle(mode="subprocess", sasl=TWO, acls=True, tls=True) as broker:
        yield broker


def test_a_user_with_rights_works_and_others_are_refused(shop: BrokerHandle) -> None:
    """ann writes, bob reads. A topic or a group without an ACL, a wrong password, no login and no TLS are refused, each
    with its reason; a right that is removed ends at once, also on an open connection."""
    shop.create_topic("orders")
    assert send(Producer(shop.confluent_config(user="ann")), "orders", "1") == [DENIED]
    shop.allow("ann", "write", topic="orders")
    shop.allow("bob", "read", topic="orders", group="readers")
    producer = Producer(shop.confluent_config(user="ann"))
    assert send(producer, "orders", "2") == [None]
    consumer = Consumer(shop.confluent_config("readers", user="bob"))
    consumer.subscribe(["orders"])
    assert read(consumer, 1) == [b"2"]
    consumer.close()
    assert send(Producer(shop.confluent_config(user="bob")), "orders", "3") == [DENIED]
    assert "refused the login" in refusal(**shop.pybroker_config(sasl_password="guess"))
    assert "TLS" in refusal(bootstrap_servers=shop.bootstrap_servers, max_block_ms=3000)
    shop.deny("ann", "write", topic="orders")
    assert send(producer, "orders", "4") == [DENIED]
    assert [record.value for record in shop.records("orders")] == [b"2"]


def test_a_cluster_is_secured_as_a_broker_is() -> None:
    """Clients log in over TLS at each broker, also at one that comes back; ACLs apply on all brokers once they are
    made. Brokers check certificates and logins of each other, and clients cannot use the brokers' listener."""
    with cluster(2, sasl=TWO, acls=True, tls=True) as brokers:
        assert list(brokers.users) == ["ann", "bob"]
        brokers.create_topic("orders", partitions=2)
        brokers.allow("ann", "write", topic="orders")
        addresses = [{"bootstrap_servers": each} for each in brokers.bootstrap_servers.split(",")]
        for number, at in enumerate(addresses):
            ann = brokers.confluent_config(user="ann", **at)
            assert send(Producer(ann), "orders", "x", partition=number) == [None]
            assert DENIED in refusal(**brokers.pybroker_config(user="bob", **at))
        guess = brokers.pybroker_config(sasl_password="guess")
        assert "refused the login" in refusal(**guess | addresses[1])
        assert "TLS" in refusal(**addresses[1], max_block_ms=3000)
        brokers.wait_in_sync("orders")
        brokers.kill(1)
        brokers.start(1)
        brokers.wait_in_sync("orders")
        with pybroker.Producer(**brokers.pybroker_config(**addresses[0])) as producer:
            producer.send("orders", b"y", partition=0).result(20)
        assert [record.value for record in brokers.records("orders")] == [b"x", b"y", b"x"]
        peers = f"127.0.0.1:{brokers._members._peer_ports[1]}"
        assert "certificate" in refusal(**brokers.pybroker_config(bootstrap_servers=peers), max_block_ms=3000)


def test_a_delegation_token_from_its_begin_to_its_end() -> None:
    """A job writes with a token in ann's name, without her password. Once expired, the token is refused."""
    with BrokerHandle(sasl=TWO, settings={"delegation.token.secret.key": "one key of all brokers"}) as broker:
        broker.create_topic("orders")
        with Admin(**broker.pybroker_config(user="ann")) as admin:
            token = admin.create_token()
            login = broker.pybroker_config(sasl_username=token.id, sasl_password=token.secret, sasl_tokenauth=True)
            with pybroker.Producer(**login) as producer:
                assert producer.send("orders", b"by token").result(20).offset == 0
            admin.expire_token(token.secret)
        assert "refused the login" in refusal(**login)
        assert [record.value for record in broker.records("orders")] == [b"by token"]


class Measured:
    """The metrics of a broker."""

    def __init__(self) -> None:
        self.port = free_port()
        self.settings = {"metrics.listener": f"{HOST}:{self.port}"}

    def value(self, name: str) -> float:
        with closing(urllib.request.urlopen(f"http://{HOST}:{self.port}/metrics", timeout=30)) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_a_quota_holds_a_client_back_and_loses_nothing() -> None:
    """`pybroker quotas set` acts at once: the client has to wait, and all its records arrive."""
    metrics = Measured()
    with BrokerHandle(settings=metrics.settings) as broker:
        broker.create_topic("orders")
        at = ("-b", broker.bootstrap_servers)
        rate = "producer_byte_rate=100000"
        assert run("quotas", "set", "--client", "greedy", rate, *at).code == 0
        config = {"bootstrap.servers": broker.bootstrap_servers, "client.id": "greedy", "linger.ms": 0}
        producer = Producer(config)
        value, count = b"x" * 200_000, 6
        for _ in range(count):
            producer.produce("orders", value)
            assert producer.flush(60) == 0
        assert metrics.value("pybroker_quota_throttles_total") > 0
        assert send(Producer({**config, "client.id": "modest"}), "orders", "small") == [None]
        assert len(broker.records("orders")) == count + 1


@pytest.mark.java
@pytest.mark.xdist_group("secured brokers")
@pytest.mark.zookeeper("its logins, TLS and ACLs")
@pytest.mark.usefixtures("java_and_jars")
def test_zookeeper_is_closed_to_strangers(tmp_path: Path) -> None:
    """A broker logs in to ZooKeeper over TLS, and only brokers can change its nodes: a stranger reads no user and
    writes nothing. A broker with a wrong password ends with one sentence."""
    with Secured(tmp_path, {"kafka": "of the brokers"}, host="localhost") as server:
        connect = f"{server.tls}/{uuid.uuid4().hex}"
        login = {
            **server.settings(), "zookeeper.connect": connect, "zookeeper.set.acl": "true",
            "zookeeper.sasl.client.username": "kafka", "zookeeper.sasl.client.password": "of the brokers",
        }  # fmt: skip
        with BrokerProcess(tmp_path / "data", free_port(), login) as broker:
            with Admin(broker.bootstrap) as admin:
                admin.set_password("ann", "spring")
                admin.create_topic("orders")
            stranger = KazooClient(f"{server.connect}/{connect.rpartition('/')[2]}")
            stranger.start()
            assert stranger.get_children("/brokers/ids")
            for forbidden in (
                lambda: stranger.get("/config/users/ann"), lambda: stranger.set("/config/topics/orders", b"{}"),
                lambda: stranger.delete("/controller"), lambda: stranger.create("/brokers/ids/9"),
            ):  # fmt: skip
                with pytest.raises(NoAuthError):
                    forbidden()
            stranger.stop()
            stranger.close()
        guess = BrokerProcess(tmp_path / "other", free_port(), {**login, "zookeeper.sasl.client.password": "guess"})
        guess.begin()
        assert guess.wait_end() == 1
        until("it says why", lambda: "ZooKeeper" in guess.output())
        guess.close()
