"""Brokers that log in at each other with tokens that expire every few seconds go on without interruption."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers.kit import Cluster
from tests.brokers.network import Network
from tests.brokers.witness import Witness
from tests.clients.system.test_oauthbearer import MODULE, SIGNER, Issuer
from tests.harness import HOST, free_port, until
from tests.stores import AnyStore
from tests.tokens import AUDIENCE, ISSUER, jwks

pytestmark = pytest.mark.java
LIFE_S = 3


class Secured(Cluster):
    """Brokers log in with tokens; the harness has a listener of its own."""

    issuer: Issuer
    keys: Path

    def _ways(self, network: Network, number: int, port: int) -> dict[str, object]:
        return {
            "listeners": f"PLAINTEXT://{HOST}:{port},PEERS://{HOST}:{free_port()}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PEERS:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PEERS",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            "listener.name.peers.oauthbearer.sasl.jaas.config":
                f'{MODULE} required clientId="svc" clientSecret="of svc";',
            "listener.name.peers.sasl.oauthbearer.token.endpoint.url": self.issuer.url,
            "sasl.oauthbearer.jwks.endpoint.url": self.keys.as_uri(),
            "org.apache.kafka.sasl.oauthbearer.allowed.urls": self.keys.as_uri(),
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
        }  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore) -> Iterator[Secured]:
    network = Network()
    Secured.issuer, Secured.keys = Issuer(), tmp_path / "keys.json"
    Secured.keys.write_bytes(jwks(SIGNER))
    Secured.issuer.lives_s = LIFE_S
    with Secured.issuer.web, Secured(tmp_path, store, network=network) as running:
        yield running
    network.close()


def test_brokers_log_in_at_each_other_by_tokens(cluster: Secured) -> None:
    """Brokers replicate, elect and fail over as usual, for longer than a token's lifetime."""
    topic = cluster.create("t")
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        asked = len(cluster.issuer.forms)
        began_s = time.monotonic()
        while time.monotonic() - began_s < 3 * LIFE_S:
            witness.until_acked()
        assert len(cluster.issuer.forms) > asked, "tokens were renewed"
        leader = cluster.leader(topic)
        cluster.kill(leader)
        until("another leads", lambda: cluster.leader(topic) not in (-1, leader))
        witness.until_acked()
        cluster.restart(leader)
        cluster.until_in_sync(topic)
        witness.judge()
