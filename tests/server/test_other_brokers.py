"""A broker whose login the others refuse: it says so, asks them seldom, and ends soon when it is stopped."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from pybroker.config import BrokerConfig
from pybroker.controller import users
from pybroker.coordination.memory import MemoryStore
from pybroker.security.scram import Credential
from pybroker.server import hand_over
from pybroker.server.cluster_broker import ClusterBroker
from pybroker.testing.together import View

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
HAND_OVER_S = 1.0
LOGINS_MAX = 20
"""That it tries in all. Where links share no pause they try some fifty times: each at least ten times a second."""


def broker(home: Path, number: int, password: str, store: MemoryStore) -> ClusterBroker:
    """One that logs in at others as the user `broker` with a password."""
    own = f'{MODULE} required username="broker" password="{password}";'
    sets = [
        f"log.dirs={home / str(number)}", f"broker.id={number}",
        "listeners=OPEN://127.0.0.1:0,PEERS://127.0.0.1:0",
        "listener.security.protocol.map=OPEN:PLAINTEXT,PEERS:SASL_PLAINTEXT", "inter.broker.listener.name=PEERS",
        "sasl.enabled.mechanisms=SCRAM-SHA-512", "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512",
        f"listener.name.peers.scram-sha-512.sasl.jaas.config={own}", "connection.failed.authentication.delay.ms=0",
    ]  # fmt: skip
    return ClusterBroker(BrokerConfig.load(None, sets), store=View(store))


async def give(store: MemoryStore, password: str) -> None:
    """Let the user `broker` log in with a password, as `pybroker users set --zookeeper` does."""
    made = Credential.of_password("SCRAM-SHA-512", password).text()
    session = await store.session(6000)
    await users.alter(session, "broker", lambda held: {**held, "SCRAM-SHA-512": made})
    await session.close()


async def test_a_broker_whose_login_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It warns at its start, and waits longer after each login; once the password is right it is let in."""
    monkeypatch.setattr(hand_over, "HAND_OVER_SECONDS", HAND_OVER_S)
    store = MemoryStore()
    await store.open()
    await give(store, "right")
    one, other = (broker(tmp_path, number, password, store) for number, password in ((1, "right"), (2, "wrong")))
    await one.start()
    assert "brokers cannot log in" not in caplog.text
    await other.start()
    assert "brokers cannot log in user=broker" in caplog.text
    assert "its password in this broker's file is not the one that ZooKeeper has" in caplog.text
    begun_s = time.monotonic()
    await other.stop()
    assert time.monotonic() - begun_s < 2 * HAND_OVER_S
    assert re.search(r'controlled shutdown not done reason="no controller answered .* refused the login', caplog.text)
    caplog.clear()

    other = broker(tmp_path, 2, "wrong", store)
    await other.start()
    await give(store, "wrong")
    await other.stop()
    assert "controlled shutdown not done" not in caplog.text
    await give(store, "right")  # a controller that stops asks itself, and logs in for that
    await one.stop()
    refused = re.findall(r"logins refused client=127.0.0.1 user=broker count=(\d+)", caplog.text)
    assert 0 < sum(map(int, refused)) < LOGINS_MAX
    await store.close()
