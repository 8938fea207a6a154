"""ZooKeeper with TLS, logins and ACLs of a real server works, and each mistake gives one clear sentence."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from kazoo.protocol.serialization import SASL, Create2, Exists

from pybroker.config import BrokerConfig, ConfigError
from pybroker.coordination.store import Create, NoNode, SessionState, StoreError, StoreFailed
from pybroker.coordination.zookeeper import ZooKeeperStore, is_here, store_of
from pybroker.coordination.zookeeper_access import ZooKeeperLogin, access_of, acls
from pybroker.coordination.zookeeper_acls import set_all
from pybroker.coordination.zookeeper_session import ZooKeeperSession
from tests.certificates import Identity
from tests.coordination.secured import SECRET, Secured
from tests.coordination.zookeeper_proxy import ZooKeeperProxy

TIMEOUT_MS = 6000
WAITS_MS_MAX = 60_000
SLOW = "it does not answer to a TLS handshake"
USERS = {"kafka": "of the brokers", "other": "of others", "jörg": "süß", "иван": "да"}
real = [pytest.mark.java, pytest.mark.xdist_group("secured zookeeper")]
WORLD_ALL = {("world:anyone", 31)}
WORLD_READ = {("world:anyone", 1)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("zookeeper"), USERS, client_auth="want", host="localhost") as running:
        yield running


def as_user(user: str, password: str | None = None) -> dict[str, object]:
    name = "zookeeper.sasl.client."
    return {f"{name}username": user, f"{name}password": USERS[user] if password is None else password}


def config_of(*sets: Mapping[str, object], waits_ms: int = 15_000) -> BrokerConfig:
    said: dict[str, object] = {"zookeeper.connection.timeout.ms": waits_ms}
    for each in sets:
        said |= each
    return BrokerConfig.load(sets=[f"{name}={value}" for name, value in said.items()])


@contextlib.asynccontextmanager
async def session_of(
    *sets: Mapping[str, object], root: str = "", waits_ms: int = 15_000
) -> AsyncIterator[ZooKeeperSession]:
    config = config_of(*sets, waits_ms=waits_ms)
    if root:
        config = config_of(*sets, {"zookeeper.connect": config["zookeeper.connect"] + root}, waits_ms=waits_ms)
    store = store_of(config)
    try:
        await store.open()
        yield await store.session(TIMEOUT_MS)
    finally:
        await store.close()


async def acl(session: ZooKeeperSession, path: str) -> set[tuple[str, int]]:
    """The ACL of a node as {(scheme:id, permissions)}."""
    found, _ = await asyncio.to_thread(session._client.get_acls, path)
    return {(f"{each.id.scheme}:{each.id.id}", each.perms) for each in found}


async def refused(*sets: Mapping[str, object], waits_ms: int = 2500) -> str:
    """The error of a session that cannot be opened; a busy server gets more time to answer."""
    with pytest.raises((StoreError, ConfigError)) as problem:
        async with session_of(*sets, waits_ms=waits_ms):
            pass
    said = str(problem.value)
    assert "\n" not in said and "Traceback" not in said
    return await refused(*sets, waits_ms=2 * waits_ms) if SLOW in said and waits_ms < WAITS_MS_MAX else said


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sets", "version", "suite"),
    [
        ({}, "TLSv1.2", ""),  # Kafka's default
        ({"ssl.protocol": "TLSv1.3"}, "TLSv1.3", "TLS_"),
        ({"ssl.enabled.protocols": "TLSv1.2,TLSv1.3"}, "TLSv1.3", "TLS_"),
        ({"clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty"}, "TLSv1.2", ""),
        ({"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}, "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        (
            {"ssl.enabled.protocols": "TLSv1.2,TLSv1.3", "ssl.cipher.suites": "TLS_CHACHA20_POLY1305_SHA256"},
            "TLSv1.3", "TLS_CHACHA20_POLY1305_SHA256",
        ),
    ],
)
class TestTls:
    pytestmark = real

    async def test_a_session_is_what_it_is_without(
        self, server: Secured, sets: dict[str, object], version: str, suite: str
    ) -> None:
        """A TLS session handles large nodes and watches, in the configured protocol versions and suites."""
        said = {f"zookeeper.{name}": value for name, value in sets.items()}
        async with session_of(server.settings(), said) as session:
            connection = session._client._connection._socket
            assert connection.version() == version
            assert connection.cipher()[0].startswith(suite)
            base, large = f"/n-{time.monotonic_ns()}", bytes(range(256)) * 3900
            await session.create(base, large)
            fired: list[str] = []
            await asyncio.gather(*(session.create(f"{base}/{n}", str(n).encode()) for n in range(500)))
            for n in range(500):
                session.get(f"{base}/{n}", watch=lambda event: fired.append(event.path))
            assert [data for data, _ in await asyncio.gather(*(session.get(f"{base}/{n}") for n in range(500)))] == [
                str(n).encode() for n in range(500)
            ]
            await asyncio.gather(*(session.set(f"{base}/{n}", b"new") for n in range(500)))
            assert sorted(fired) == sorted(f"{base}/{n}" for n in range(500))
            assert (await session.get(base))[0] == large


@pytest.mark.java
@pytest.mark.xdist_group("secured zookeeper")
async def test_whose_certificate_it_has_to_be(server: Secured) -> None:
    """The server's certificate must have the configured host name, unless disabled, and a trusted authority."""
    by_address = {"zookeeper.connect": server.tls.replace("localhost", "127.0.0.1")}
    why = await refused(server.settings(), by_address)
    assert "127.0.0.1" in why and "certificate is not accepted: ip address mismatch" in why
    async with session_of(server.settings(), by_address, {"zookeeper.ssl.endpoint.identification.algorithm": ""}):
        pass
    stranger = Identity("authority").trust_pem(server.home / "stranger.pem")
    why = await refused(
        server.settings(), {"zookeeper.ssl.truststore.location": stranger, "zookeeper.ssl.truststore.password": ""}
    )
    assert "certificate is not accepted" in why
    why = await refused({"zookeeper.connect": server.tls, "zookeeper.ssl.client.enable": "true"})
    assert "certificate is not accepted" in why, "this machine's own list does not have it"


@pytest.mark.java
@pytest.mark.xdist_group("secured zookeeper")
async def test_a_port_of_the_other_kind(server: Secured) -> None:
    """TLS to a plaintext port, and plaintext to a TLS port, end the start with the reason."""
    why = await refused(server.settings(), {"zookeeper.connect": server.connect})
    assert "perhaps it does not speak TLS there" in why
    why = await refused({"zookeeper.connect": server.tls})
    assert f"{server.tls} speaks TLS, but zookeeper.ssl.client.enable is false" in why


@pytest.mark.java
async def test_a_certificate_is_asked_for(tmp_path: Path) -> None:
    """A client certificate is the owner of nodes in ZooKeeper, and a client without one gets an error."""
    with Secured(tmp_path, client_auth="need", host="localhost") as server:
        for version in ("TLSv1.2", "TLSv1.3"):
            why = await refused(server.settings(), {"zookeeper.ssl.protocol": version})
            assert re.search("requires (one|a client certificate),? and got none", why), "by one of Java's alerts"
        own = {**server.settings(), **server.client("broker"), "zookeeper.set.acl": "true"}
        async with session_of(own) as session:
            await session.create("/n")
            assert await acl(session, "/n") == {("x509:O=Tests,CN=broker", 31)} | WORLD_READ
        password = f"{SECRET}s"
        keys = tmp_path / "own.pem"
        Identity("broker", server.authority, hosts=["x"]).pem(keys, password)
        by_pem = {"zookeeper.ssl.keystore.location": keys, "zookeeper.ssl.keystore.password": password}
        async with session_of({**own, **by_pem}) as session:
            assert await acl(session, "/n") == {("x509:O=Tests,CN=broker", 31)} | WORLD_READ
            await session.set("/n", b"by the same")
        why = await refused(server.settings(), server.client(), {**as_user("other"), "zookeeper.set.acl": "true"})
        assert "does not offer a login by DIGEST-MD5" in why


@pytest.mark.java
async def test_a_server_whose_certificate_has_expired(tmp_path: Path) -> None:
    with Secured(tmp_path, days=(-9, -1)) as server:
        assert "certificate is not accepted: certificate has expired" in await refused(server.settings())


# -- settings ---------------------------------------------------------------------------------------------------------

ENABLED = {"zookeeper.connect": "zk:2181", "zookeeper.ssl.client.enable": "true"}


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        ({"zookeeper.ssl.keystore.location": "/none.p12"}, "/none.p12 (zookeeper.ssl.keystore.location) cannot be"),
        ({"zookeeper.ssl.truststore.location": "/none.pem"}, "/none.pem (zookeeper.ssl.truststore.location) cannot be"),
        ({"zookeeper.ssl.keystore.location": "/none"}, "zookeeper.ssl.keystore.type is not set"),
        ({"zookeeper.ssl.keystore.type": "BCFKS"}, "takes one of PEM, PKCS12, JKS"),
        ({"zookeeper.ssl.protocol": "TLSv1"}, "takes one of TLSv1.2, TLSv1.3"),
        ({"zookeeper.ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "out of TLSv1.2, TLSv1.3"),
        ({"zookeeper.ssl.cipher.suites": "TLS_NULL_WITH_NULL_NULL"}, "has 'TLS_NULL_WITH_NULL_NULL', which is not"),
        ({"zookeeper.ssl.cipher.suites": "ALL:@SECLEVEL=0"}, "which is not supported"),
        ({"zookeeper.ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "has no cipher suite of TLSv1.2"),
        ({"zookeeper.ssl.crl.enable": "true"}, "takes only false"),
        ({"zookeeper.ssl.endpoint.identification.algorithm": "LDAPS"}, "takes HTTPS, or nothing"),
        ({"zookeeper.clientCnxnSocket": "x.Y"}, "takes only org.apache.zookeeper.ClientCnxnSocketNetty"),
        ({"zookeeper.sasl.client.username": "kafka"}, "zookeeper.sasl.client.password is not set"),
        ({"zookeeper.sasl.client.password": "pw"}, "zookeeper.sasl.client.username is not set"),
        ({"zookeeper.set.acl": "true"}, "the broker needs a ZooKeeper login to own its nodes"),
    ],
)
def test_what_a_setting_does_not_take(sets: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError) as problem:
        access_of(config_of(ENABLED, sets))
    assert why in problem.value.message and "\n" not in problem.value.message


def test_a_key_store_of_each_form_is_taken(tmp_path: Path) -> None:
    """A key store of each form is accepted, its type in any letter case; without TLS it is not read."""
    own = Identity("own", hosts=["x"])
    for kind, file in (("pem", own.pem(tmp_path / "a", SECRET)), ("pkcs12", own.p12(tmp_path / "b", SECRET))):
        said = {"keystore.type": kind, "keystore.location": file, "keystore.password": SECRET}
        said |= {"truststore.type": kind, "truststore.location": file, "truststore.password": SECRET}
        access = access_of(config_of(ENABLED, {f"zookeeper.ssl.{name}": text for name, text in said.items()}))
        assert access.tls is not None and access.tls.check_hostname and access.tls.verify_mode is ssl.CERT_REQUIRED
    assert access_of(config_of({"zookeeper.ssl.keystore.location": "/none.p12"})).tls is None


def test_a_password_is_shown_nowhere() -> None:
    config = config_of(as_user("kafka"))
    shown = [entry for entry in config.entries() if entry.name.startswith("zookeeper.sasl")]
    values = [(entry.value, [each.value for each in entry.synonyms]) for entry in shown]
    assert values == [("kafka", ["kafka"]), (None, [None])]
    assert USERS["kafka"] not in repr(access_of(config))
    with pytest.raises(ConfigError) as problem:
        config_of({"zookeeper.sasl.client.password": "secret\udcff"})
    assert "secret" not in problem.value.message


@pytest.mark.parametrize(
    ("connect", "here"),
    [
        ("localhost", True), ("127.0.0.1:2181,localhost:2182/kafka", True), ("[::1]:2181", True),
        ("10.0.0.1:2181", False), ("localhost:2181,zk2:2181", False), ("127.example:2181/k", False),
    ],
)  # fmt: skip
def test_which_ensemble_only_this_machine_reaches(connect: str, here: bool) -> None:
    assert is_here(connect) is here


# -- the login --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", USERS)
class TestLogin:
    pytestmark = real

    async def test_zookeeper_knows_who_it_is(self, server: Secured, user: str) -> None:
        """A user name with letters of any alphabet arrives as in Java."""
        async with session_of(server.settings(), as_user(user), {"zookeeper.set.acl": "true"}) as session:
            path = f"/of-{time.monotonic_ns()}"
            await session.create(path)
            assert await acl(session, path) == {(f"sasl:{user}", 31)} | WORLD_READ


@pytest.mark.java
@pytest.mark.xdist_group("secured zookeeper")
async def test_a_login_that_is_refused(server: Secured) -> None:
    """A refused login fails at once, and the error names the user."""
    for user, password in (("kafka", "guess"), ("nobody", "guess")):
        began_s = time.monotonic()
        why = await refused(server.settings(), as_user(user, password), waits_ms=15_000)
        assert time.monotonic() - began_s < 10
        assert why == (
            f"ZooKeeper at {server.tls} (zookeeper.connect) does not know the user, or the password is wrong: "
            f"{user!r} (zookeeper.sasl.client.username)"
        )


@pytest.mark.java
@pytest.mark.parametrize(
    "more", [["enforce.auth.enabled=true", "enforce.auth.schemes=sasl"], ["sessionRequireClientSASLAuth=true"]]
)
async def test_a_login_that_everybody_needs(tmp_path: Path, more: list[str]) -> None:
    """If every client must log in, one without a login gets an error, and one with a login is accepted."""
    with Secured(tmp_path, {"kafka": "pw"}, more=more) as server:
        way = {"zookeeper.connect": server.connect}
        for each in (way, {"zookeeper.connect": f"{server.connect}/a"}):
            why = "requires a login: set zookeeper.sasl.client.username"
            assert await refused(each) == f"ZooKeeper at {server.connect} (zookeeper.connect) {why}"
        async with session_of(way, as_user("kafka", "pw"), root="/a") as session:
            await session.create("/n")
        assert "the password is wrong: 'kafka'" in await refused(way, as_user("kafka", "guess"))


async def until(session: ZooKeeperSession, state: SessionState) -> None:
    come = asyncio.Event()
    session.listen(lambda now: come.set() if now is state else None)
    if session.state is not state:
        await asyncio.wait_for(come.wait(), 15)


@pytest.mark.java
@pytest.mark.xdist_group("secured zookeeper")
async def test_who_it_is_outlives_a_connection(server: Secured) -> None:
    """Each new connection logs in before other requests, so that nodes still belong to the session's user."""
    async with session_of(server.settings(), as_user("kafka"), {"zookeeper.set.acl": "true"}) as session:
        base = f"/config/users-{time.monotonic_ns()}"
        with contextlib.suppress(StoreError):
            await session.create("/config")
        await session.create(base, b"secret")
        for _ in range(5):
            session._client.hang_up()
            await until(session, SessionState.DISCONNECTED)
            asked = [session.get(base), session.create(f"{base}/n-", sequential=True)]
            await until(session, SessionState.CONNECTED)
            (data, _), (made, _) = await asyncio.gather(*asked)  # type: ignore[misc]
            assert data == b"secret"
            assert await acl(session, made) == {("sasl:kafka", 31)}


class Cutting(ZooKeeperProxy):
    """Closes the connection at a login token or another kind of request, `cuts` times."""

    kind = SASL.type
    cuts = 0
    cut = 0

    async def _frame(self, reader: asyncio.StreamReader, head: bytes = b"") -> bytes:
        frame = await super()._frame(reader, head)
        if frame[8:12] == self.kind.to_bytes(4, "big") and self.cuts:
            self.cuts, self.cut = self.cuts - 1, self.cut + 1
            raise ConnectionResetError
        return frame


@pytest.mark.java
@pytest.mark.xdist_group("secured zookeeper")
async def test_a_connection_that_breaks_in_a_login_is_no_refusal(server: Secured) -> None:
    """A connection that breaks during a login is not a refusal: the session goes on over the next one."""
    proxy = Cutting(server.zookeeper.servers[0].port)
    await proxy.open()
    proxy.cuts = 2
    async with session_of({"zookeeper.connect": f"127.0.0.1:{proxy.port}"}, as_user("kafka")) as session:
        assert proxy.cut == 2
        heard: list[SessionState] = []
        session.listen(heard.append)
        first, proxy.cuts = session.id, 3
        session._client.hang_up()
        await until(session, SessionState.DISCONNECTED)
        await until(session, SessionState.CONNECTED)
        assert (proxy.cut, session._client.client_id[0]) == (5, first)
        assert heard == [SessionState.DISCONNECTED, SessionState.CONNECTED]
    await proxy.close()


@pytest.mark.java
@pytest.mark.xdist_group("secured zookeeper")
async def test_a_chroot_is_made_whatever_connection_breaks(server: Secured) -> None:
    """Creating the chroot is retried on the next connection as long as the start may wait."""
    proxy = Cutting(server.zookeeper.servers[0].port)
    await proxy.open()
    for proxy.kind in (Exists.type, Create2.type):
        proxy.cut, proxy.cuts, root = 0, 2, f"/c{time.monotonic_ns()}/d"
        async with session_of({"zookeeper.connect": f"127.0.0.1:{proxy.port}"}, root=root) as session:
            assert proxy.cut == 2 and await session.exists("/")
    await proxy.close()


@pytest.mark.java
async def test_a_password_that_is_changed_is_said_and_the_session_waits(tmp_path: Path) -> None:
    """A changed password is reported while the session waits, and the session goes on when it is accepted again."""
    with Secured(tmp_path, {"kafka": "old"}) as server:
        store = store_of(config_of({"zookeeper.connect": server.connect}, as_user("kafka", "old")))
        session = await store.session(20_000)
        await session.create("/n", ephemeral=True)
        for password in ("new", "old"):
            server.zookeeper.stop()
            server.let_in({"kafka": password})
            server.zookeeper.start()
            if password == "new":
                async with asyncio.timeout(15):
                    while not session.refused:  # the session retries by itself
                        await asyncio.sleep(0.05)
                assert "does not know the user, or the password is wrong: 'kafka'" in await store.why()
                assert session.state is SessionState.DISCONNECTED
        await until(session, SessionState.CONNECTED)
        assert not session.refused and "'kafka'" not in await store.why()
        assert (await session.exists("/n")).ephemeral_owner == session.id  # type: ignore[union-attr]
        await store.close()


# -- ACLs -------------------------------------------------------------------------------------------------------------

OWN = {("sasl:kafka", 31)}
SHOWN = OWN | WORLD_READ
TREE = {
    "/consumers": WORLD_ALL, "/brokers": SHOWN, "/brokers/ids": SHOWN, "/config": SHOWN, "/config/topics": SHOWN,
    "/config/users": OWN, "/config/users/ann": OWN, "/config/brokers": OWN, "/config/brokers/1": OWN,
    "/delegation_token": SHOWN, "/delegation_token/tokens": OWN, "/delegation_token/tokens/t": OWN,
    "/kafka-acl": SHOWN, "/kafka-acl/Topic": SHOWN,
}  # fmt: skip


@pytest.mark.java
@pytest.mark.xdist_group("secured zookeeper")
async def test_whom_nodes_belong_to(server: Secured) -> None:
    """Nodes belong to the user, however they are created; others can only read them where allowed."""
    root, way = f"/k{time.monotonic_ns()}/a", [server.settings(), as_user("kafka"), {"zookeeper.set.acl": "true"}]
    async with session_of(*way, root=root) as session, session_of(server.settings(), root=root) as anybody:
        paths = list(TREE)
        for number, path in enumerate(paths):
            one = Create(path, b"secret")
            await (session.multi([one]) if number % 2 else session.create(one.path, one.data))
        for path in paths:
            assert await acl(session, path) == TREE[path], path
            if TREE[path] != OWN:
                assert (await anybody.get(path))[0] == b"secret"
                await anybody.children(path)
            else:
                for ask in (anybody.get(path), anybody.children(path)):
                    with pytest.raises(StoreFailed, match="allows that only to another login"):
                        await ask
            if TREE[path] != WORLD_ALL:
                below = f"{path}/x"
                for change in (anybody.set(path, b"x"), anybody.create(below), anybody.multi([Create(below)])):
                    with pytest.raises(StoreFailed, match="allows that only to another login"):
                        await change
        await session.create("/brokers/ids/1", ephemeral=True)
        assert await acl(session, "/brokers/ids/1") == SHOWN
    async with session_of(*way) as whole:
        for path in (root, root.removesuffix("/a")):
            assert await acl(whole, path) == SHOWN
    for path in TREE:
        assert {each.id.scheme for each in acls(path, secure=False)} == {"world"}


@pytest.mark.java
@pytest.mark.xdist_group("secured zookeeper")
async def test_nodes_that_are_there_are_closed_and_opened(server: Secured) -> None:
    """ACLs of existing nodes are set and removed by an allowed user; nodes that are not Kafka's stay unchanged."""
    root = f"/k{time.monotonic_ns()}"
    kafka = {**server.settings(), **as_user("kafka"), "zookeeper.set.acl": "true"}
    async with session_of(server.settings(), root=root) as anybody, session_of(kafka, root=root) as session:
        assert await set_all(session, secure=True) == 0
        assert await acl(session, "/") == WORLD_ALL
        for path in [*TREE, "/else"]:
            await anybody.create(path)
        await asyncio.gather(*(anybody.create(f"/brokers/ids/{n}") for n in range(1200)))
        assert await set_all(session, secure=True) == len(TREE) + 1200  # with the root, and without /consumers
        more = {"/": SHOWN, "/else": WORLD_ALL, "/brokers/ids/1199": SHOWN}
        for path, wanted in (TREE | more).items():
            assert await acl(session, path) == wanted, path
        with pytest.raises(StoreFailed):
            await set_all(anybody, secure=False)
        assert await set_all(session, secure=False) == len(TREE) + 1200
        for path in [*TREE, "/", "/brokers/ids/7"]:
            assert await acl(session, path) == WORLD_ALL
        with pytest.raises(NoNode):
            await session.set_acls("/none", secure=True)


@pytest.mark.java
@pytest.mark.xdist_group("secured zookeeper")
async def test_acls_need_somebody_that_zookeeper_knows(server: Secured) -> None:
    """Setting ACLs without a login or a certificate that ZooKeeper asked for fails at the first node."""
    by_plain_port = {**server.client("broker"), "zookeeper.ssl.client.enable": "true", "zookeeper.set.acl": "true"}
    config = config_of({"zookeeper.connect": server.connect}, by_plain_port)
    store = ZooKeeperStore(server.connect, access=access_of(config)._replace(tls=None))
    session = await store.session(TIMEOUT_MS)
    with pytest.raises(StoreFailed, match="this connection has neither a login nor a certificate"):
        await session.create("/n")
    await store.close()


def test_a_login_shows_no_password() -> None:
    assert "secret" not in repr(ZooKeeperLogin("a", "secret"))
