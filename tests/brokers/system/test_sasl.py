"""Brokers log in at each other, and users at any of them, with the credentials in ZooKeeper."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
import pytest

from pybroker import errors
from pybroker.client.net.connection import BrokerConnection
from pybroker.protocol import messages as m
from pybroker.security.login import Account
from pybroker.security.scram import Credential, salted
from tests.brokers.editor import editor_of
from tests.brokers.kit import Cluster
from tests.brokers.network import Network
from tests.brokers.witness import Witness
from tests.harness import HOST, free_port, until
from tests.stores import AnyStore

pytestmark = [pytest.mark.java]
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
PEERS = f'{MODULE} required username="broker" password="of-brokers" user_broker="of-brokers";'
SALT = b"0123456789abcdef"


class Secured(Cluster):
    """Brokers and clients have to log in; the harness has a listener of its own."""

    def _ways(self, network: Network, number: int, port: int) -> dict[str, object]:
        self.peers = getattr(self, "peers", {})
        self.peers[number], clients = free_port(), free_port()
        self.clients = [*getattr(self, "clients", []), clients]
        at = f"PLAINTEXT://{HOST}:{port},PEERS://{HOST}:{self.peers[number]},CLIENTS://{HOST}:{clients}"
        return {
            "listeners": at,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PEERS:SASL_PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PEERS",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.peers.sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.peers.plain.sasl.jaas.config": PEERS,
        }


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore) -> Iterator[Secured]:
    network = Network()
    with Secured(tmp_path, store, network=network) as running:
        yield running
    network.close()


def give(cluster: Secured, by: int, user: str, password: str) -> None:
    kind = m.AlterUserScramCredentialsRequest
    key = salted("SCRAM-SHA-256", password, SALT, 4096)
    made = kind.Upsertions(name=user, mechanism=1, iterations=4096, salt=SALT, salted_password=key)
    with BrokerConnection(HOST, cluster.brokers[by].port) as connection:
        assert [r.error_code for r in connection.request(kind(upsertions=[made])).results] == [0]


def logs_in(port: int, account: Account) -> bool:
    try:
        BrokerConnection(HOST, port, account=account).close()
    except errors.KafkaError as refused:
        assert refused.code == errors.SASL_AUTHENTICATION_FAILED
        return False
    return True


def test_brokers_log_in_at_each_other(cluster: Secured) -> None:
    """Brokers replicate, elect and fail over as usual; a stranger is not accepted as a broker."""
    topic = cluster.create("t")
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        leader = cluster.leader(topic)
        cluster.kill(leader)
        until("another leads", lambda: cluster.leader(topic) not in (-1, leader))
        witness.until_acked()
        cluster.restart(leader)
        cluster.until_in_sync(topic)
        witness.judge()
    assert not logs_in(cluster.peers[1], Account("PLAIN", "broker", "guess"))
    assert logs_in(cluster.peers[1], Account("PLAIN", "broker", "of-brokers"))


def test_a_user_is_known_to_every_broker_and_to_kafka(cluster: Secured, store: AnyStore) -> None:
    """A credential applies on all brokers within a second, while sessions last, also one that another program wrote."""
    carol = Account("SCRAM-SHA-256", "carol", "pw")
    give(cluster, 1, "carol", "pw")
    given_s = time.monotonic()
    for port in cluster.clients:
        until("she is let in", lambda port=port: logs_in(port, carol))  # type: ignore[misc]
    assert time.monotonic() - given_s < 2
    bootstrap = ",".join(f"{HOST}:{port}" for port in cluster.clients)
    producer = ck.Producer({
        "bootstrap.servers": bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "carol", "sasl.password": "pw", "acks": "all",
    })  # fmt: skip
    cluster.create("t", 6)
    for number in range(60):
        producer.produce("t", b"x", partition=number % 6)
    assert producer.flush(20) == 0
    outside = editor_of(store, cluster.chroot)
    outside.start()
    held = Credential.of_password("SCRAM-SHA-512", "tool").text()
    node = json.dumps({"version": 1, "config": {"SCRAM-SHA-512": held, "producer_byte_rate": "1000000"}})
    outside.create("/config/users/dave%20d", node.encode())
    outside.create(
        "/config/changes/config_change_", b'{"version":2,"entity_path":"users/dave%20d"}', sequence=True
    )
    dave = Account("SCRAM-SHA-512", "dave d", "tool")
    for port in cluster.clients:
        until("he is let in", lambda port=port: logs_in(port, dave))  # type: ignore[misc]
    assert b"SCRAM-SHA-256" in outside.get("/config/users/carol")[0]
    outside.stop()
    outside.close()


def test_brokers_find_each_other_where_strangers_fill_max_connections(tmp_path: Path, store: AnyStore) -> None:
    """Silent strangers fill a listener without logins: a broker that comes back is still accepted by the others."""
    network = Network()
    strangers = []
    with Secured(tmp_path, store, network=network, max_connections=25) as running:
        topic = running.create("t")
        running.until_in_sync(topic)
        running.kill(2)
        for number in (1, 3):
            strangers += [socket.create_connection((HOST, running.brokers[number].port)) for _ in range(40)]
        running.start(2)
        until("it is in sync, as it says itself: others accept no client", lambda: (
            [sorted(isr) for _, isr in running.told_by(2, topic).values()] == [[1, 2, 3]]
        ), timeout_s=40)  # fmt: skip
    for stranger in strangers:
        stranger.close()
    network.close()
