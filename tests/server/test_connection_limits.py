"""Limits of connections, of those not logged in, and of the rate of new ones (KIP-402, KIP-612)."""

from __future__ import annotations

import asyncio
import math
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pybroker.protocol import messages as m
from pybroker.security.login import Account
from pybroker.server.network import connection_quotas, connection_rates
from pybroker.server.network.connection_quotas import PendingLogins, Quotas
from pybroker.server.network.connection_rates import AddressRates, connection_rate
from pybroker.testing.certificates import Authority
from tests.harness import eventually, looked
from tests.oracle.bench import Bench
from tests.server.cast import MODULE, SETS
from tests.server.live import Live, Wire
from tests.server.test_alter_configs import BROKER, DELETE, SET, alter, described
from tests.server.test_sasl import log_in

PAIR = [
    "listeners=OPEN://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map=OPEN:PLAINTEXT,CLIENTS:PLAINTEXT",
    "inter.broker.listener.name=OPEN",
    "num.network.threads=1",
]
"""Two listeners without a login; one network thread, so that one connection is the longest silent."""
ANN = Account("PLAIN", "ann", "a")


Make = Callable[..., Awaitable[Live]]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """A function that starts a broker with lists of settings; the broker is stopped at the end."""
    made: list[Live] = []

    async def one(base: list[str], *sets: str) -> Live:
        made.append(Live(tmp_path / "data", [*base, *sets]))
        await made[-1].start()
        return made[-1]

    yield one
    for live in made:
        await live.stop()


async def served(wire: Wire) -> bool:
    code: int = (await wire.call("ApiVersions", 0)).error_code
    return code == 0


async def waits(live: Live, listener: str) -> Wire:
    """Connect a client that the kernel has accepted and the broker has not."""
    assert live.broker is not None and live.broker._sockets is not None
    taken = len(live.broker._sockets)
    wire = await live.connect(listener)
    wire.send("ApiVersions", 0)
    await looked()
    assert len(live.broker._sockets) == taken and not wire.reader._buffer  # type: ignore[attr-defined]
    return wire


# -- number of connections ---------------------------------------------------------------------------------------------


async def test_brokers_come_in_when_clients_fill_max_connections(make: Make) -> None:
    """The brokers' listener accepts beyond the limit and closes the longest silent client for each connection. Clients
    wait until one of them leaves."""
    live = await make(PAIR, "max.connections=3")
    silent, busy, last = [await live.connect("CLIENTS") for _ in range(3)]
    for wire in (silent, last, busy):
        assert await served(wire)
    waiting = await waits(live, "CLIENTS")
    first, second = await live.connect("OPEN"), await live.connect("OPEN")
    assert await served(first) and await served(second)
    assert await silent.closed() and await last.closed()
    assert await served(busy) and await served(first)
    busy.writer.close()
    first.writer.close()
    assert (await waiting.receive("ApiVersions", 0))[1].error_code == 0


async def test_strangers_who_do_not_log_in_leave_room(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without a login fill at most half of max.connections, and the oldest is closed for the next one:
    users log in and brokers connect."""
    monkeypatch.setattr(connection_quotas, "LOGIN_GRACE_SECONDS", 0.1)
    live = await make(SETS, "max.connections=20", "sasl.enabled.mechanisms=PLAIN")
    strangers = [await live.connect("CLIENTS") for _ in range(40)]
    for _ in range(3):
        ann = await live.connect("CLIENTS")
        await log_in(ann, ANN)
        assert await served(ann)
    assert await served(await live.connect("OPEN"))
    assert live.broker is not None and live.broker._sockets is not None
    assert len(live.broker._sockets) <= 20 // 2 + 4
    assert await strangers[0].closed()


async def test_strangers_who_begin_no_tls_leave_room(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that begin no TLS handshake hold at most half of max.connections too, on a listener without logins."""
    monkeypatch.setattr(connection_quotas, "LOGIN_GRACE_SECONDS", 0.1)
    authority, key_store = Authority(), tmp_path / "broker.pem"
    own = authority.sign("broker")
    key_store.write_bytes(own.key + own.chain)
    live = await make(
        PAIR, "listener.security.protocol.map=OPEN:PLAINTEXT,CLIENTS:SSL", "max.connections=20",
        "ssl.keystore.type=PEM", f"ssl.keystore.location={key_store}",
    )  # fmt: skip
    strangers = [await live.connect("CLIENTS") for _ in range(40)]
    assert live.broker is not None
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    address = live.broker.addresses["CLIENTS"]
    wires = [Wire(*await asyncio.open_connection(address.host, address.port, ssl=context)) for _ in range(3)]
    for wire in [*wires, await live.connect("OPEN")]:
        assert await served(wire)
    assert await strangers[0].closed()
    for wire in wires:
        wire.writer.close()
        await wire.writer.wait_closed()


@pytest.mark.parametrize("listeners", [PAIR[0], "listeners=OPEN://127.0.0.1:0"], ids=["both", "one is added"])
async def test_for_strangers_at_the_listener_of_brokers_nobody_is_closed(make: Make, listeners: str) -> None:
    """No client is closed for a connection to the brokers' listener until it has logged in. That holds from the moment
    a separate client listener is added; when it is removed, both are counted alike."""
    jaas = f'{MODULE} required user_ann="a";'
    live = await make(
        PAIR, "listener.security.protocol.map=OPEN:SASL_PLAINTEXT,CLIENTS:PLAINTEXT", "sasl.enabled.mechanisms=PLAIN",
        f"listener.name.open.plain.sasl.jaas.config={jaas}", "max.connections=3", listeners,
    )  # fmt: skip
    admin = await live.connect("OPEN")
    await log_in(admin, ANN)
    both = ("listeners", SET, PAIR[0].removeprefix("listeners="))
    assert (await alter(admin, BROKER, "1001", both)).error_code == 0
    admin.writer.close()
    assert live.broker is not None and live.broker._sockets is not None
    sockets = live.broker._sockets
    await eventually("it is gone", lambda: len(sockets) == 0)
    clients = [await live.connect("CLIENTS") for _ in range(3)]
    for wire in clients:
        assert await served(wire)
    stranger = await live.connect("OPEN")
    await stranger.call("SaslHandshake", 1, mechanism="PLAIN")
    sockets.limit()
    for wire in clients:
        assert await served(wire)
    ann = await live.connect("OPEN")
    await log_in(ann, ANN)
    assert await served(ann)
    assert await clients[0].closed() and await served(clients[1])
    one = ("listeners", SET, "OPEN://127.0.0.1:0")
    assert (await alter(ann, BROKER, "1001", one)).error_code == 0
    await eventually("those of clients are gone", lambda: len(sockets) == 1)
    another = await live.connect("OPEN")
    await another.call("SaslHandshake", 1, mechanism="PLAIN")
    assert (await alter(ann, BROKER, "1001", ("max.connections", SET, "1"))).error_code == 0
    assert await another.closed() and await served(ann)


async def test_a_listener_has_a_limit_of_its_own(make: Make) -> None:
    """listener.name.<l>.max.connections limits one listener, also when changed at run time; the other still accepts."""
    live = await make(PAIR, "listener.name.clients.max.connections=1")
    one = await live.connect("CLIENTS")
    assert await served(one)
    waiting = await waits(live, "CLIENTS")
    admin = await live.connect("OPEN")
    name = "listener.name.clients.max.connections"
    assert (await alter(admin, BROKER, "", (name, SET, "2"))).error_code == 0
    assert (await waiting.receive("ApiVersions", 0))[1].error_code == 0
    assert (await alter(admin, BROKER, "", (name, SET, "0"))).error_code == 40
    assert (await alter(admin, BROKER, "", ("listener.name.clients.num.io.threads", SET, "2"))).error_code == 40
    assert live.broker is not None
    assert (await described(admin, BROKER, str(live.broker.broker_id)))[name][0] == "2"
    assert (await alter(admin, BROKER, "", (name, DELETE, None))).error_code == 0
    await waits(live, "CLIENTS")
    await live.restart()
    assert await served(await live.connect("CLIENTS"))


async def test_a_lower_limit_closes_who_was_silent_for_longest(make: Make) -> None:
    live = await make(PAIR)
    wires = [await live.connect("CLIENTS") for _ in range(4)]
    admin = await live.connect("OPEN")
    for wire in [*wires, admin]:
        assert await served(wire)
    assert (await alter(admin, BROKER, "", ("max.connections", SET, "3"))).error_code == 0
    assert await wires[0].closed() and await wires[1].closed()
    assert await served(wires[2]) and await served(wires[3]) and await served(admin)


def test_the_longest_login_of_the_busiest_host_makes_room() -> None:
    """A login that has only just begun is not closed: the next connection has to wait."""

    class One:
        def __init__(self, host: str, last_active: float) -> None:
            self.host, self.last_active, self.closed = host, last_active, False

        def close(self, reason: str | None) -> None:
            self.closed = True
            pending.discard(self.host, self)

    pending = PendingLogins()
    assert pending.make_room(100) == math.inf
    logins = [One("a", 0), One("b", 1), One("b", 2), One("b", 3)]
    for each in logins:
        pending.add(each.host, each)
    assert pending.make_room(1.5) == 0.5
    assert not pending.make_room(2) and [each.closed for each in logins] == [False, True, False, False]
    assert not pending.make_room(9) and [each.closed for each in logins] == [False, True, True, False]
    pending.discard("b", logins[1])
    pending.discard("c", logins[1])
    assert len(pending) == 2


def test_half_of_a_small_limit_is_one() -> None:
    quotas = Quotas()
    assert [quotas.logins_max(most) for most in (1, 2, 3, 20)] == [1, 1, 1, 10]
    quotas.connections_max = 8
    assert quotas.logins_max(20) == 4


async def test_an_address_has_a_limit_of_its_own(make: Make) -> None:
    """max.connections.per.ip.overrides applies to any spelling of an address, also when changed at run time."""
    live = await make(PAIR, "max.connections.per.ip=1", "max.connections.per.ip.overrides=127.0.0.1:2, 10.0.0.1:7")
    one, two = await live.connect("OPEN"), await live.connect("OPEN")
    assert await served(one) and await served(two)
    assert await (await live.connect("OPEN")).closed()
    name = "max.connections.per.ip.overrides"
    assert (await alter(one, BROKER, "", (name, SET, "[::1]:4,::ffff:127.0.0.1:3"))).error_code == 0
    assert await served(await live.connect("OPEN"))
    assert await (await live.connect("OPEN")).closed()
    for wrong in ("localhost:3", "127.0.0.1", "127.0.0.1:-1", "127.0.0.1:x", "127.0.0.1:3000000000"):
        assert (await alter(one, BROKER, "", (name, SET, wrong))).error_code == 40


# -- rate of connections -----------------------------------------------------------------------------------------------


def test_a_rate_lets_ten_seconds_worth_pass_at_once() -> None:
    """A limit of 1 lets ten pass and the next wait a second, as Kafka's Rate; after two windows all is forgotten."""
    rate = connection_rate(1)
    assert [rate.take(1, 5000) for _ in range(10)] == [(0, False)] * 10
    assert rate.take(1, 5000) == (1000, True)
    assert rate.record(1, 15_500) == pytest.approx((11 / 10.5 - 1) * 10.5 * 1000)
    assert rate.record(1, 5000 + 2 * 11_000) == 0
    assert connection_rate(0).record(1, 0) > 0


async def test_an_address_that_connects_too_fast_is_closed_after_a_while(bench: Bench) -> None:
    """connection_creation_rate: a connection over the rate is held unread, then closed; others are not delayed."""
    listener = bench.start()
    rates = listener._quotas.addresses
    rates.set_rate(None, 1)
    began = asyncio.get_running_loop().time()
    clients = [await bench.client() for _ in range(12)]
    for client in clients:
        client.send("echo:here")
    for client in clients[:10]:
        assert await client.answer() == "here"
    assert await clients[10].closed() and await clients[11].closed()
    assert asyncio.get_running_loop().time() - began > 0.5
    assert len(listener) == 10
    rates.set_rate("127.0.0.1", 100)
    free = await bench.client()
    free.send("echo:free")
    assert await free.answer() == "free"


async def test_rates_of_addresses_are_client_quotas(make: Make) -> None:
    """AlterClientQuotas of an address applies at once and after a restart, until it is removed."""
    live = await make(PAIR)
    kind = m.AlterClientQuotasRequest.Entries

    async def change(admin: Wire, **what: Any) -> None:
        ops = [kind.Ops(key="connection_creation_rate", **what)]
        entries = [kind(entity=[kind.Entity(entity_type="ip", entity_name="127.0.0.1")], ops=ops)]
        assert [e.error_code for e in (await admin.call("AlterClientQuotas", 1, entries=entries)).entries] == [0]

    admin = await live.connect("OPEN")
    await change(admin, value=1.0)
    for _ in range(2):
        wires = [await live.connect("CLIENTS") for _ in range(11)]
        assert await served(wires[0]) and await wires[10].closed()
        await live.restart()
        admin = await live.connect("OPEN")
    await change(admin, remove=True)
    for _ in range(15):
        assert await served(await live.connect("CLIENTS"))


async def test_a_listener_that_accepts_too_fast_rests(bench: Bench) -> None:
    """max.connection.creation.rate: connections over the rate wait in the backlog, and none is refused."""
    bench.start(creation_rate_max=20)
    began = asyncio.get_running_loop().time()
    clients = [await bench.client() for _ in range(205)]
    for client in clients:
        client.send("echo:in")
    for client in clients:
        assert await client.answer() == "in"
    assert asyncio.get_running_loop().time() - began > 0.15


async def test_the_rate_changes_while_the_broker_runs(make: Make) -> None:
    """The broker's rate does not limit the brokers' listener."""
    live = await make(PAIR)
    admin = await live.connect("OPEN")
    assert (await alter(admin, BROKER, "", ("max.connection.creation.rate", SET, "1"))).error_code == 0
    for _ in range(11):
        wire = await live.connect("CLIENTS")
        assert await served(wire)
    waiting = await waits(live, "CLIENTS")
    own = ("listener.name.open.max.connection.creation.rate", SET, "1000")
    assert (await alter(admin, BROKER, "", own)).error_code == 0
    for _ in range(15):
        assert await served(await live.connect("OPEN"))
    assert (await waiting.receive("ApiVersions", 0))[1].error_code == 0


def test_addresses_are_told_apart_however_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each spelling of an address counts as the same one; over ADDRESSES_MAX the longest silent one is forgotten."""
    monkeypatch.setattr(connection_rates, "ADDRESSES_MAX", 2)
    rates = AddressRates()
    assert [rates.over("::1", 0) for _ in range(50)] == [0.0] * 50
    rates.set_rate("0:0:0:0:0:0:0:1", 1)
    assert [rates.over("::1", 0) > 0 for _ in range(12)] == [False] * 10 + [True] * 2
    assert [rates.over("127.0.0.1", 0) > 0 for _ in range(50)] == [False] * 50
    rates.set_rate(None, 1)
    assert [rates.over("127.0.0.1", 0) > 0 for _ in range(11)] == [False] * 10 + [True]
    assert rates.over("::1", 0) > 0
    assert not rates.over("10.0.0.1", 0)
    assert not rates.over("127.0.0.1", 0)  # forgotten
    rates.set_rate("::1", None)
    rates.set_rate(None, None)
    assert not rates.over("::1", 0)
    rates.set_rates({None: 0, "::1": 2})
    assert rates.over("10.0.0.2", 0) and not rates.over("::1", 100)
    rates.set_rates({})
    assert not rates.over("10.0.0.2", 0)


async def test_the_oldest_of_those_that_are_held_goes_for_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each held connection takes a file descriptor, so at HELD_MAX the oldest is closed for the next."""
    monkeypatch.setattr(connection_rates, "HELD_MAX", 2)
    listener = bench.start()
    listener._quotas.addresses.set_rate(None, 0)
    with monkeypatch.context() as patient:
        patient.setattr(connection_rates, "WAIT_MS_MAX", 86_400_000)  # no held connection times out
        clients = [await bench.client() for _ in range(3)]
        await eventually("they are looked at", lambda: len(listener._held) == 2)
        assert await clients[0].closed()
        await looked()
        assert len(listener._held) == 2
    clients += [await bench.client() for _ in range(2)]
    clients[3].writer.write(struct.pack(">i", 5))
    for client in clients[1:]:
        assert await client.closed()
