"""Delegation tokens in a cluster: each broker accepts tokens that another one, or Kafka's tools, put in ZooKeeper."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.client.admin import Admin
from pybroker.security.login import Account
from tests.brokers.editor import editor_of
from tests.brokers.network import Network
from tests.brokers.system.test_sasl import Secured, give, logs_in
from tests.harness import HOST, until
from tests.stores import AnyStore

pytestmark = [pytest.mark.java]
SECRET = "the key of all tokens"
CAROL = Account("SCRAM-SHA-256", "carol", "pw")


class Tokens(Secured):
    def _ways(self, network: Network, number: int, port: int) -> dict[str, object]:
        ways = super()._ways(network, number, port)
        return {**ways, "delegation.token.secret.key": SECRET, "delegation.token.expiry.check.interval.ms": 500}


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore) -> Iterator[Tokens]:
    network = Network()
    with Tokens(tmp_path, store, network=network) as running:
        yield running
    network.close()


def by(token_id: str, secret: str) -> Account:
    return Account("SCRAM-SHA-256", token_id, secret, by_token=True)


def test_every_broker_knows_every_token(cluster: Tokens, store: AnyStore) -> None:
    give(cluster, 1, "carol", "pw")
    for port in cluster.clients:
        until("she is let in", lambda port=port: logs_in(port, CAROL))  # type: ignore[misc]
    how = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "carol",
           "sasl_password": "pw"}  # fmt: skip
    outside = editor_of(store, cluster.chroot)
    outside.start()
    with Admin(f"{HOST}:{cluster.clients[0]}", **how) as admin:
        token = admin.create_token(renewers=["User:dave"])
        for port in cluster.clients:
            until("it is let in", lambda port=port: logs_in(port, by(token.id, token.secret)))  # type: ignore[misc]
        held = json.loads(outside.get(f"/delegation_token/tokens/{token.id}")[0])
        assert held == {
            "version": 3, "owner": "User%3Acarol", "tokenRequester": "User%3Acarol", "renewers": ["User%3Adave"],
            "issueTimestamp": token.issue_ms, "expiryTimestamp": token.expiry_ms, "maxTimestamp": token.max_ms,
            "tokenId": token.id,
        }  # fmt: skip
        changes = outside.get_children("/delegation_token/token_changes")
        assert [outside.get(f"/delegation_token/token_changes/{n}")[0].decode() for n in changes] == [token.id]
        admin.expire_token(token.secret)
        for port in cluster.clients:
            until("it is no more", lambda port=port: not logs_in(port, by(token.id, token.secret)))  # type: ignore[misc]
    now_ms = int(time.time() * 1000)
    made = {"version": 3, "owner": "User%3Aerin", "tokenRequester": "User%3Aerin", "renewers": [],
            "issueTimestamp": now_ms, "expiryTimestamp": now_ms + 6000, "maxTimestamp": now_ms + 60_000,
            "tokenId": "kafkas-own"}  # fmt: skip
    outside.create("/delegation_token/tokens/kafkas-own", json.dumps(made).encode())
    outside.create("/delegation_token/token_changes/token_change_", b"kafkas-own", sequence=True)
    secret = base64.b64encode(hmac.digest(SECRET.encode(), b"kafkas-own", hashlib.sha512)).decode()
    for port in cluster.clients:
        until("it is let in", lambda port=port: logs_in(port, by("kafkas-own", secret)))  # type: ignore[misc]
    until("its end has come", lambda: not outside.exists("/delegation_token/tokens/kafkas-own"))
    assert time.time() * 1000 >= made["expiryTimestamp"]
    outside.stop()
    outside.close()
