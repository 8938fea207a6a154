"""All brokers of a cluster, in each of their lives, answer an unknown user with the same salt."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from pybroker.coordination.store import Session
from pybroker.logs import Logfmt
from pybroker.metadata import login_secret, nodes
from pybroker.metadata.lone_broker.loading import prepare
from pybroker.security.credentials import Credentials
from pybroker.security.scram import HASHES, ScramClient
from pybroker.testing.cluster_inprocess import BrokerStoreView
from tests.controller.forbidding import ForbiddingStore
from tests.server.live import Live, broker_on

LINE = "secret of unknown users not shared"
SETS = [
    "listeners=OPEN://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map=OPEN:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name=OPEN",
    "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512",
]


def shown(credentials: Credentials) -> bytes:
    return credentials.made_up("SCRAM-SHA-256", "nobody", False).salt


async def opened(store: ForbiddingStore) -> Session:
    """Open a session of a store that the first broker has set up."""
    await store.open()
    session = await store.session(60_000)
    await prepare(session, nodes.OF_A_CLUSTER)
    return session


async def test_brokers_that_start_at_once_agree() -> None:
    """The first broker creates the secret, which stays in the node that holds users' credentials."""
    store = ForbiddingStore()
    session = await opened(store)
    brokers = [Credentials() for _ in range(5)]
    await asyncio.gather(*(login_secret.share(session, each) for each in brokers))
    assert len({shown(each) for each in brokers}) == 1
    late = Credentials()
    await login_secret.share(session, late)
    assert shown(late) == shown(brokers[0])
    data, stat = await session.get("/config/users")
    assert json.loads(data)["version"] == 1 and stat.version == 1
    assert (await session.children("/config/users"))[0] == [], "no child is added, as Kafka's users are children"
    await store.close()


@pytest.mark.parametrize(
    "data", [b"{", b"{}", b"[1]", b'{"unknown_users_secret":"AAAA"}', b'{"unknown_users_secret":5}', b"[" * 99_000]
)
async def test_a_damaged_secret_costs_a_warning(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged secret is left as it is, and the broker uses its own."""
    store, credentials = ForbiddingStore(), Credentials()
    session = await opened(store)
    await session.set("/config/users", data)
    own = credentials.secret
    with caplog.at_level(logging.WARNING):
        await login_secret.share(session, credentials)
    assert credentials.secret == own and (await session.get("/config/users"))[0] == data
    (line,) = [Logfmt().format(record) for record in caplog.records]
    assert LINE in line and "/config/users" in line
    await store.close()


async def test_a_secret_that_cannot_be_read_costs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    store, credentials = ForbiddingStore(), Credentials()
    session = await opened(store)
    store.forbidden.add("/config/users")
    own = credentials.secret
    with caplog.at_level(logging.WARNING):
        await login_secret.share(session, credentials)
    (line,) = [Logfmt().format(record) for record in caplog.records]
    assert credentials.secret == own and LINE in line
    await store.close()


async def test_two_brokers_of_a_cluster_show_the_same(tmp_path: Path) -> None:
    store = ForbiddingStore()
    await store.open()
    brokers = []
    for number in (1, 2):
        brokers.append(broker_on(tmp_path / str(number), f"broker.id={number}", store=BrokerStoreView(store)))
        await brokers[-1].start()
    one, other = (shown(broker.entities.credentials) for broker in brokers)
    for broker in brokers:
        await broker.stop()
    await store.close()
    assert one == other


@pytest.mark.parametrize("mechanism", HASHES)
async def test_a_restart_changes_no_salt(tmp_path: Path, mechanism: str) -> None:
    """A lone broker with its embedded store shows a client the same salt after a restart."""
    told = []
    for _ in range(2):
        live = Live(tmp_path / "data", SETS)
        await live.start()
        for name in ("nobody", "nobody", "another"):
            wire = await live.connect("CLIENTS")
            assert (await wire.call("SaslHandshake", 1, mechanism=mechanism)).error_code == 0
            first = ScramClient(mechanism, name, "x").start()
            answer = await wire.call("SaslAuthenticate", 2, auth_bytes=first)
            told.append(bytes(answer.auth_bytes).split(b",", 1)[1])
        await live.stop()
    assert told[0] == told[1] == told[3] == told[4] != told[2] == told[5]
    assert told[0].endswith(b",i=4096")
