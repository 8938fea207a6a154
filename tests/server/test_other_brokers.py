"""A broker whose login the others refuse logs it, retries rarely, and stops quickly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pybroker.coordination.memory import MemoryStore
from pybroker.metadata import users
from pybroker.security.scram import Credential
from pybroker.server.broker import Broker
from pybroker.server.cluster import hand_over
from pybroker.testing.cluster_inprocess import BrokerStoreView
from tests.server.live import broker_on

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
HAND_OVER_S = 1.0
LOGINS_MAX = 20
"""The most login attempts in total; without a shared pause there would be about fifty, one link ten a second."""


def broker(home: Path, number: int, password: str, store: MemoryStore) -> Broker:
    """A broker that logs in at others as the user `broker` with this password."""
    own = f'{MODULE} required username="broker" password="{password}";'
    sets = [
        f"broker.id={number}",
        "listeners=OPEN://127.0.0.1:0,PEERS://127.0.0.1:0",
        "listener.security.protocol.map=OPEN:PLAINTEXT,PEERS:SASL_PLAINTEXT", "inter.broker.listener.name=PEERS",
        "sasl.enabled.mechanisms=SCRAM-SHA-512", "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512",
        f"listener.name.peers.scram-sha-512.sasl.jaas.config={own}", "connection.failed.authentication.delay.ms=0",
        "controlled.shutdown.retry.backoff.ms=3600000",
    ]  # fmt: skip
    return broker_on(home / str(number), *sets, store=BrokerStoreView(store))


async def give(store: MemoryStore, password: str) -> None:
    """Set the password of the user `broker`, as `pybroker users set --zookeeper` does."""
    made = Credential.of_password("SCRAM-SHA-512", password).text()
    session = await store.session(6000)
    await users.alter(session, "broker", lambda held: {**held, "SCRAM-SHA-512": made})
    await session.close()


async def test_a_broker_whose_login_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker warns at its start and waits longer after each attempt; with the right password it logs in."""
    monkeypatch.setattr(hand_over, "HAND_OVER_SECONDS", HAND_OVER_S)
    store = MemoryStore()
    await store.open()
    await give(store, "right")
    one, other = (broker(tmp_path, number, password, store) for number, password in ((1, "right"), (2, "wrong")))
    await one.start()
    assert "brokers cannot log in" not in caplog.text
    await other.start()
    assert "brokers cannot log in user=broker" in caplog.text
    assert "the password in this broker's configuration differs from the one in ZooKeeper" in caplog.text
    await other.stop()
    assert re.search(r'controlled shutdown failed reason="no controller answered .* refused the login', caplog.text)
    caplog.clear()

    other = broker(tmp_path, 2, "wrong", store)
    await other.start()
    await give(store, "wrong")
    await other.stop()
    assert "controlled shutdown failed" not in caplog.text
    await give(store, "right")  # at its stop a controller logs in to itself
    await one.stop()
    refused = re.findall(r"logins refused client=127.0.0.1 user=broker count=(\d+)", caplog.text)
    assert 0 < sum(map(int, refused)) < LOGINS_MAX
    await store.close()
