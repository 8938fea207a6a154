"""Brokers that connect to each other by TLS, and accept only certificates that they trust."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.client.net.connection import BrokerConnection
from pybroker.client.security.tls import tls_of
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.testing.certificates import Authority
from tests.asking import ask
from tests.brokers.kit import Cluster
from tests.brokers.network import Network
from tests.brokers.witness import Witness
from tests.harness import HOST, free_port, until
from tests.stores import AnyStore

pytestmark = [pytest.mark.java]
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
PEERS = f'{MODULE} required username="broker" password="of-brokers" user_broker="of-brokers";'


class Encrypted(Cluster):
    """Brokers use TLS among each other; the harness has a listener of its own."""

    authority = Authority()
    protocol: str
    home: Path

    def _ways(self, network: Network, number: int, port: int) -> dict[str, object]:
        self.peers = getattr(self, "peers", {})
        self.peers[number] = free_port()
        home = self.home
        (home / "ca.pem").write_bytes(self.authority.certificate)
        own = self.authority.sign(f"broker-{number}")
        (home / f"{number}.pem").write_bytes(own.key + own.chain)
        return {
            "listeners": f"PLAINTEXT://{HOST}:{port},PEERS://{HOST}:{self.peers[number]}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,PEERS:{self.protocol}",
            "inter.broker.listener.name": "PEERS",
            "listener.name.peers.ssl.keystore.type": "PEM",
            "listener.name.peers.ssl.keystore.location": str(home / f"{number}.pem"),
            "listener.name.peers.ssl.truststore.type": "PEM",
            "listener.name.peers.ssl.truststore.location": str(home / "ca.pem"),
            "listener.name.peers.ssl.client.auth": "required",
            **({
                "listener.name.peers.sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.peers.plain.sasl.jaas.config": PEERS,
            } if self.protocol == "SASL_SSL" else {}),
        }  # fmt: skip


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path, store: AnyStore) -> Iterator[Encrypted]:
    network = Network()
    Encrypted.protocol, Encrypted.home = getattr(request, "param", "SSL"), tmp_path
    with Encrypted(tmp_path, store, network=network) as running:
        yield running
    network.close()


@pytest.mark.parametrize("cluster", ["SASL_SSL"], indirect=True)
def test_brokers_replicate_and_fail_over_by_tls(cluster: Encrypted) -> None:
    """A leader is killed under load, all acknowledged records are there, and the replica comes back."""
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


def test_a_stranger_is_no_broker(cluster: Encrypted, tmp_path: Path) -> None:
    """A client without a certificate that the brokers trust cannot connect."""
    made = Authority("another").sign("broker-0")
    (tmp_path / "stranger.pem").write_bytes(made.key + made.chain)
    ours = {"ssl_cafile": str(tmp_path / "ca.pem")}
    for own in ({}, {"ssl_certfile": str(tmp_path / "stranger.pem")}):
        with pytest.raises(KafkaError):
            BrokerConnection(HOST, min(cluster.peers.values()), tls=tls_of("SSL", ours | own), timeout_s=10)


def test_no_broker_cuts_itself_off(cluster: Encrypted, tmp_path: Path) -> None:
    """A key store or trust store that other brokers would not accept is refused, before it cuts the broker off."""
    stranger, other_host = Authority("another"), cluster.authority.sign("elsewhere", hosts=["elsewhere.example"])
    kind = m.IncrementalAlterConfigsRequest.Resources

    def altered(setting: str, content: bytes) -> str:
        (tmp_path / "new.pem").write_bytes(content)
        return set_to(f"listener.name.peers.ssl.{setting}.location", str(tmp_path / "new.pem"))

    def set_to(name: str, value: str) -> str:
        resources = [kind(resource_type=4, resource_name="1", configs=[kind.Configs(name=name, value=value)])]
        [answer] = ask(cluster.brokers[1].port, "IncrementalAlterConfigs", 1, resources=resources).responses
        assert answer.error_code in (0, 40)
        return answer.error_message or ""

    made = stranger.sign("broker-1")
    assert "other brokers could no longer connect to the listener PEERS" in altered("keystore", made.key + made.chain)
    assert "mismatch" in altered("keystore", other_host.key + other_host.chain)
    assert "other brokers could no longer connect" in altered("truststore", stranger.certificate)
    at = f"PLAINTEXT://{HOST}:{cluster.brokers[1].port},PEERS://elsewhere.example:{cluster.peers[1]}"
    assert "mismatch" in set_to("advertised.listeners", at)
    made = cluster.authority.sign("broker-1")
    assert altered("keystore", made.key + made.chain) == ""
    assert not cluster.brokers[1].count("brokers cannot connect")
