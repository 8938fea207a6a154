"""Sessions with etcd clusters of three servers, users, and a full database."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pybroker.clock import boot_ms
from pybroker.config import BrokerConfig
from pybroker.coordination.commit import commit, until_answered
from pybroker.coordination.etcd.gateway import EtcdAccess, EtcdLogin
from pybroker.coordination.etcd.ledger import Ledger
from pybroker.coordination.etcd.link import Servers
from pybroker.coordination.etcd.settings import store_of
from pybroker.coordination.etcd.store import EtcdStore
from pybroker.coordination.store import Create, SessionState, Set, StoreFailed, StoreRefused
from pybroker.development.etcd_server import Etcd, EtcdOptions
from pybroker.development.server_process import HOST, free_ports
from pybroker.model import HostPort
from tests.brokers.store_faults import leader_of
from tests.certificates import Identity
from tests.harness import eventually, until

TIMEOUT_MS = 10_000


def servers_of(etcd: Etcd, access: EtcdAccess | None = None, prefix: str = "/kafka") -> Servers:
    return Servers([HostPort(HOST, server.port) for server in etcd.servers], prefix, access or EtcdAccess())


def ask(etcd: Etcd, path: str, token: str = "", **body: Any) -> Any:
    request = urllib.request.Request(f"http://{HOST}:{etcd.servers[0].port}/v3/{path}", json.dumps(body).encode())
    if token:
        request.add_header("Authorization", token)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_a_session_outlives_each_server_in_turn(how: str) -> None:
    """Each of three servers is killed, or frozen, in turn; the session and its ephemeral node stay; writes go on."""
    with Etcd(3) as etcd:
        store = EtcdStore(servers_of(etcd))
        session = await store.session(TIMEOUT_MS)
        states: list[SessionState] = []
        session.listen(states.append)
        number = session.id
        _, made = await session.create("/mine", b"0", ephemeral=True)
        for server in etcd.servers:
            getattr(etcd, how)(server.number)
            await commit(session, [Set("/mine", b"%d" % server.number)])
            etcd.resume(server.number)
            etcd.start(server.number)
        data, stat = await session.get("/mine")
        assert (data, stat.czxid, stat.ephemeral_owner) == (b"%d" % len(etcd.servers), made.czxid, number)
        assert SessionState.EXPIRED not in states and SessionState.DISCONNECTED in states
        await store.close()


async def test_no_lease_is_renewed_by_a_leader_that_was_succeeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keep-alive that was answered before an election renews nothing, as a frozen leader answers like one until it
    learns of its successor; the first one after it does."""
    with Etcd(3) as etcd:
        session = await EtcdStore(servers_of(etcd)).session(3 * TIMEOUT_MS)
        catch_up, elected_ms, renewed = Ledger.catch_up, list[int](), list[int]()
        before: list[int] = []

        async def after_an_election(ledger: Ledger, lane: str = "kv") -> set[int]:
            if lane == "lease" and not elected_ms:
                elect_another(etcd)
                before.extend(renewed)
                elected_ms.append(boot_ms())
            return await catch_up(ledger, lane)

        since = session.renewals.look("/")
        assert await session.exists("/")
        session.renewals.keep(since, renewed.append)
        monkeypatch.setattr(Ledger, "catch_up", after_an_election)
        await eventually("it is renewed after the election", lambda: elected_ms and len(renewed) > len(before))
        assert renewed[len(before)] >= elected_ms[0]
        await session.close()


def elect_another(etcd: Etcd) -> None:
    """Have the leader hand over to another server, and wait until each server knows it."""
    first = leader_of(etcd)
    (other, *_) = (server for server in etcd.servers if server is not first)
    header = other.ask("v3/maintenance/status")["header"]
    assert isinstance(header, dict)
    first.ask("v3/maintenance/transfer-leadership", targetID=header["member_id"])
    until("the other one leads", lambda: all(
        server.ask("v3/maintenance/status").get("leader") == header["member_id"] for server in etcd.servers
    ))  # fmt: skip


async def test_a_session_that_reaches_nobody_is_silent_and_waits() -> None:
    """While no server is there, operations wait, and `why` names each server; they are done after a restart."""
    with Etcd() as etcd:
        store = EtcdStore(servers_of(etcd))
        session = await store.session(60_000)
        broken = asyncio.Event()
        session.listen(lambda now: broken.set() if now is SessionState.DISCONNECTED else None)
        etcd.kill()
        await broken.wait()
        assert session.silent
        waiting = session.create("/n")
        expected = f"{HOST}:{etcd.servers[0].port}: connection refused"
        while await store.why() != expected:  # after "it closed the connection"
            await asyncio.sleep(0.01)
        assert not waiting.done()
        etcd.start()
        assert (await waiting)[0] == "/n"
        await store.close()


async def test_no_etcd_at_the_address_is_one_sentence() -> None:
    (port,) = free_ports(1)
    store = EtcdStore(Servers([HostPort(HOST, port)]), connection_timeout_ms=300)
    with pytest.raises(StoreFailed) as failed:
        await store.session(TIMEOUT_MS)
    assert str(failed.value) == f"no etcd answered in 0.3 s: {HOST}:{port}: connection refused"


async def test_a_user_of_etcd_needs_the_prefix_alone() -> None:
    """A user with a role for the prefix works; a wrong password and another prefix are refused in one sentence."""
    with Etcd() as etcd:
        store = EtcdStore(servers_of(etcd))
        before = await store.session(TIMEOUT_MS)
        await before.create("/n", b"0")
        await store.close()
        key, end = "L2thZmthLw==", "L2thZmthMA=="  # /kafka/ and /kafka0
        ask(etcd, "auth/user/add", name="root", password="r")
        ask(etcd, "auth/role/add", name="root")
        ask(etcd, "auth/user/grant", user="root", role="root")
        ask(etcd, "auth/user/add", name="broker", password="b")
        ask(etcd, "auth/role/add", name="kafka")
        ask(etcd, "auth/role/grant", name="kafka", perm={"permType": "READWRITE", "key": key, "range_end": end})
        ask(etcd, "auth/user/grant", user="broker", role="kafka")
        ask(etcd, "auth/enable")
        access = EtcdAccess(login=EtcdLogin("broker", "b"))
        store = EtcdStore(servers_of(etcd, access))
        session = await store.session(TIMEOUT_MS)
        await session.set("/n", b"1")
        await session.create("/mine", ephemeral=True)
        etcd.kill()  # which forgets all tokens
        etcd.start()
        await commit(session, [Set("/n", b"2")])
        assert (await session.get("/n"))[0] == b"2"
        for servers, error, words in (
            (
                servers_of(etcd, EtcdAccess(login=EtcdLogin("broker", "x"))),
                StoreRefused,
                "refuses the login of 'broker'",
            ),
            (servers_of(etcd), StoreRefused, "requires a login: set etcd.user and etcd.password"),
            (servers_of(etcd, access, "/other"), StoreFailed, "may not read and write below the prefix"),
        ):
            with pytest.raises(error, match=words):
                await EtcdStore(servers).session(TIMEOUT_MS)
        await store.close()


async def test_a_full_database_refuses_writes_and_answers_reads() -> None:
    """With the alarm NOSPACE, writes fail with what to do, reads go on, and the session stays; also after a restart."""
    options = EtcdOptions(flags=["--quota-backend-bytes", str(4 << 20)])
    with Etcd(options=options) as etcd:
        store = EtcdStore(servers_of(etcd))
        session = await store.session(TIMEOUT_MS)
        await session.create("/n", b"0")
        with pytest.raises(StoreFailed, match=r"its database is full \(alarm NOSPACE\): compact and defragment it"):
            for number in range(100):
                await session.multi([Create(f"/{number}", b"x" * 500_000)])
        assert (await session.get("/n"))[0] == b"0"
        assert session.state is SessionState.CONNECTED
        etcd.kill()
        etcd.start()
        assert (await until_answered(lambda: session.get("/n")))[0] == b"0"
        await store.close()


async def test_tls_with_a_certificate_of_the_client(tmp_path: Path) -> None:
    """Over TLS a session works; no certificate, an unknown authority, another name and no TLS are one sentence each."""
    authority, other = Identity("authority"), Identity("another authority")
    server = Identity("etcd", authority, hosts=[HOST])
    client = Identity("broker", authority, hosts=["broker"])
    files = {name: each.pem(tmp_path / f"{name}.pem") for name, each in (("server", server), ("client", client))}
    files |= {name: each.trust_pem(tmp_path / f"{name}.pem") for name, each in (("ca", authority), ("other", other))}
    checking = ssl.create_default_context(cafile=files["ca"])
    checking.load_cert_chain(files["client"])
    flags = ["--cert-file", files["server"], "--key-file", files["server"], "--trusted-ca-file", files["ca"]]
    with Etcd(options=EtcdOptions(checking, [*flags, "--client-cert-auth"])) as etcd:
        port = etcd.servers[0].port
        trust, own = f"etcd.ssl.truststore.location={files['ca']}", f"etcd.ssl.keystore.location={files['client']}"

        def store(url: str, *sets: str) -> EtcdStore:
            timeout = "zookeeper.connection.timeout.ms=1500"
            return store_of(BrokerConfig.load(None, ["log.dirs=/none", f"etcd.connect={url}", timeout, *sets]))

        session = await store(f"https://{HOST}:{port}/kafka", trust, own).session(TIMEOUT_MS)
        await session.create("/n", b"0")
        assert (await session.get("/n"))[0] == b"0"
        await session.close()
        stranger = f"etcd.ssl.truststore.location={files['other']}"
        for url, sets, words in (
            (f"https://{HOST}:{port}", [trust], "it does not accept the client certificate, or requires one"),
            (f"https://{HOST}:{port}", [own, stranger], "its certificate is not accepted: self-signed"),
            (f"https://localhost:{port}", [trust, own], "its certificate is not accepted: hostname mismatch"),
            (f"http://{HOST}:{port}", [], "it closed the connection"),
        ):
            with pytest.raises(StoreFailed, match=words):
                await store(url, *sets).session(TIMEOUT_MS)


async def test_a_start_says_which_servers_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    waiting = asyncio.ensure_future(EtcdStore(Servers([HostPort(HOST, port)])).session(TIMEOUT_MS))
    expected = f'etcd does not answer yet reason="{HOST}:{port}: connection refused" waits_s=18'
    while expected not in caplog.messages:
        await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
