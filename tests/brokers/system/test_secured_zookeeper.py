"""Brokers with a ZooKeeper that requires a login, over TLS: their nodes are only theirs, and stay so in any event."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin import ResourceType as Kind
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE

from pybroker.client.net.connection import BrokerConnection
from pybroker.coordination.store import NoNode
from pybroker.coordination.zookeeper import ZooKeeperStore
from pybroker.coordination.zookeeper_access import ZooKeeperAccess, ZooKeeperLogin
from pybroker.coordination.zookeeper_session import ZooKeeperSession
from pybroker.protocol import messages as m
from tests.brokers.kit import Cluster
from tests.brokers.system.test_acls import allow
from tests.brokers.witness import Witness
from tests.cli.conftest import run
from tests.coordination.secured import SECRET, Secured
from tests.harness import HOST, BrokerProcess, free_port, until

pytestmark = [
    pytest.mark.java,
    pytest.mark.zookeeper("its logins, TLS and ACLs"),
    pytest.mark.xdist_group("secured brokers"),
]
PASSWORD = "of the brokers alone"
OWN, READ, ALL = ("sasl:kafka", 31), ("world:anyone", 1), ("world:anyone", 31)
SECRETS = ("/config/users", "/config/brokers", "/delegation_token/tokens")
AUTHORIZER = {
    "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer", "super_users": "User:ANONYMOUS",
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("zookeeper"), {"kafka": PASSWORD}, host="localhost") as running:
        yield running


def settings(server: Secured, chroot: str, password: str = PASSWORD, **more: object) -> dict[str, object]:
    """The settings of a broker that logs in to ZooKeeper."""
    login = {"zookeeper.sasl.client.username": "kafka", "zookeeper.sasl.client.password": password}
    said = {**server.settings(), **login, "zookeeper.set.acl": "true", "zookeeper.connect": server.tls + chroot}
    return {**said, **{name.replace("_", "."): value for name, value in more.items()}}


def three(home: Path, server: Secured, chroot: str, **more: object) -> Cluster:
    said = {name.replace(".", "_"): value for name, value in settings(server, chroot, **more).items()}
    return Cluster(home, server.zookeeper, **said)  # type: ignore[arg-type]


def nodes(server: Secured, chroot: str) -> dict[str, set[tuple[str, int]]]:
    """{path: {(user, permissions)}} of all nodes of a cluster, as the brokers' user sees them."""
    found: dict[str, set[tuple[str, int]]] = {}

    async def walk(session: ZooKeeperSession, path: str) -> None:
        try:
            held, _ = await asyncio.to_thread(session._client.get_acls, path or "/")
            names, _ = await session.children(path or "/")
        except (NoNode, NoNodeError):
            return
        found[path or "/"] = {(f"{each.id.scheme}:{each.id.id}", each.perms) for each in held}
        for name in names:
            await walk(session, f"{path}/{name}")

    async def look() -> None:
        store = ZooKeeperStore(server.connect + chroot, access=ZooKeeperAccess(login=ZooKeeperLogin("kafka", PASSWORD)))
        await walk(await store.session(6000), "")
        await store.close()

    asyncio.run(look())
    return found


def check(found: dict[str, set[tuple[str, int]]]) -> None:
    """Check that each node has the ACL that Kafka 3.9.1 gives it with zookeeper.set.acl."""
    for path, held in found.items():
        secret = any(path == root or path.startswith(f"{root}/") for root in SECRETS)
        assert held == ({ALL} if path == "/consumers" else {OWN} if secret else {OWN, READ}), path


def give(cluster: Cluster, user: str) -> None:
    kind = m.AlterUserScramCredentialsRequest
    made = kind.Upsertions(name=user, mechanism=1, iterations=4096, salt=b"0123456789abcdef", salted_password=b"k" * 32)
    with BrokerConnection(HOST, cluster.brokers[1].port) as connection:
        assert [r.error_code for r in connection.request(kind(upsertions=[made])).results] == [0]


def test_what_a_cluster_makes_is_its_own(tmp_path: Path, server: Secured) -> None:
    """A cluster creates topics, users, ACLs and settings; other ZooKeeper users read nodes without secrets, and change
    none. The password is in no log, answer or file."""
    chroot = f"/{uuid.uuid4().hex}"
    with three(tmp_path, server, chroot, **AUTHORIZER) as cluster:
        topic = cluster.create("t", replicas=[[1, 2, 3]])
        give(cluster, "ann")
        cluster.admin.create_acls([allow("t")])[allow("t")].result(20)
        entry = ConfigEntry("log.cleaner.threads", "2", incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource(Kind.BROKER, "2", incremental_configs=[entry])
        cluster.admin.incremental_alter_configs([changed])[changed].result(20)
        cluster.create("gone")
        cluster.admin.delete_topics(["gone"])["gone"].result(20)
        with Witness(cluster, topic) as witness:
            witness.until_acked()
            cluster.kill(1)
            witness.until_acked()
            cluster.restart(1)
            cluster.until_in_sync(topic)
            witness.judge()
        found = nodes(server, chroot)
        check(found)
        made = {
            "/", "/consumers", "/controller", "/controller_epoch", "/brokers/ids/1", "/cluster/id",
            "/brokers/topics/t/partitions/0/state", "/config/topics/t", "/config/users/ann", "/config/brokers/2",
            "/kafka-acl/Topic/t", "/kafka-acl-changes", "/isr_change_notification", "/latest_producer_id_block",
            "/log_dir_event_notification",
        }  # fmt: skip
        assert made <= set(found)
        stranger = KazooClient(server.connect + chroot)
        stranger.start()
        assert stranger.get("/brokers/ids/1")[0] and stranger.get_children("/config/topics")
        for forbidden in (
            lambda: stranger.get("/config/users/ann"), lambda: stranger.get_children("/config/users"),
            lambda: stranger.get("/config/brokers/2"), lambda: stranger.set("/config/topics/t", b"{}"),
            lambda: stranger.create("/brokers/ids/9"), lambda: stranger.delete("/controller"),
            lambda: stranger.create("/config/users/eve"), lambda: stranger.create("/kafka-acl/Topic/eve"),
            lambda: stranger.set_acls("/controller", OPEN_ACL_UNSAFE),
        ):  # fmt: skip
            with pytest.raises(NoAuthError):
                forbidden()
        stranger.stop()
        stranger.close()
        shown = run("configs", "describe", "--broker", "1", "--all", "-b", cluster.bootstrap, "--json").json
        secrets = {each["name"]: each["value"] for each in shown if each["name"].startswith("zookeeper.")}
        assert secrets["zookeeper.sasl.client.username"] == "kafka"
        assert secrets["zookeeper.sasl.client.password"] is secrets["zookeeper.ssl.truststore.password"] is None
        assert PASSWORD not in str(shown) and SECRET not in str(shown)
        for broker in cluster.brokers.values():
            assert PASSWORD not in broker.output() and SECRET not in broker.output()
            assert "Traceback" not in broker.output()
    for file in (each for each in tmp_path.rglob("*") if each.is_file()):
        assert PASSWORD.encode() not in file.read_bytes(), file


def test_they_stay_who_they_are(tmp_path: Path, server: Secured) -> None:
    """Brokers log in again after ZooKeeper was away, and after a broker was frozen until its session expired."""
    chroot = f"/{uuid.uuid4().hex}"
    with three(tmp_path, server, chroot) as cluster:
        topic = cluster.create("t", replicas=[[1, 2, 3]])
        with Witness(cluster, topic) as witness:
            witness.until_acked()
            server.zookeeper.kill()
            until("it is missed", lambda: all(b.count("store disconnected") for b in cluster.brokers.values()))
            witness.until_acked(50)
            server.zookeeper.start()
            for broker in cluster.brokers.values():
                until(
                    "ZooKeeper is reached again",
                    lambda b=broker: b.count("store connected") + b.count("broker registered") >= 2,
                )
            before = cluster.brokers[3].count("broker registered")
            cluster.signal(3, signal.SIGSTOP)
            until("its session is over", lambda: "/brokers/ids/3" not in nodes(server, chroot))
            cluster.signal(3, signal.SIGCONT)
            until("it is back", lambda: cluster.brokers[3].count("broker registered") > before)
            cluster.until_in_sync(topic)
            witness.until_acked()
            witness.judge()
        cluster.create("later", 3)
        found = nodes(server, chroot)
        check(found)
        assert {"/brokers/ids/1", "/brokers/ids/2", "/brokers/ids/3", "/brokers/topics/later"} <= set(found)
        assert all("Traceback" not in broker.output() for broker in cluster.brokers.values())


@pytest.mark.long
def test_a_password_that_is_changed_under_a_broker(tmp_path: Path) -> None:
    """The broker logs it and goes on serving, in its session and after it; once the login works it registers again."""
    with Secured(tmp_path, {"kafka": PASSWORD}) as own:
        sets = {**settings(own, "/k"), "zookeeper.session.timeout.ms": 3000, "offsets.topic.replication.factor": 1}
        with BrokerProcess(tmp_path / "data", free_port(), sets) as broker:
            assert run("topics", "create", "t", "-b", broker.bootstrap).code == 0
            own.zookeeper.stop()
            own.let_in({"kafka": "another"})
            own.zookeeper.start()
            assert broker.process is not None
            why = "does not know the user, or the password is wrong: 'kafka'"
            broker.process.wait_line(f"(store not reached|broker registration failed) .*{why}", 90)
            assert [each["name"] for each in run("topics", "list", "-b", broker.bootstrap, "--json").json] == ["t"]
            own.zookeeper.stop()
            own.let_in({"kafka": PASSWORD})
            own.zookeeper.start()
            create = ("topics", "create", "later", "-b", broker.bootstrap)
            until("it controls again", lambda: run(*create).code == 0, every_s=0.5)
            assert PASSWORD not in broker.output() and "Traceback" not in broker.output()


@pytest.mark.parametrize(
    ("changed", "code", "why"),
    [
        ({"sasl.client.password": "a guess"}, 1, "does not know the user, or the password is wrong: 'kafka'"),
        ({"ssl.truststore.location": "/none.p12"}, 1, "/none.p12 (zookeeper.ssl.truststore.location) cannot be read"),
        ({"ssl.truststore.password": "a guess"}, 1, "zookeeper.ssl.truststore.password is wrong"),
        ({"ssl.client.enable": "false"}, 1, "speaks TLS, but zookeeper.ssl.client.enable is false"),
        ({"sasl.client.username": None, "sasl.client.password": None}, 2, "zookeeper.set.acl = 'true' (--set)"),
        ({"sasl.client.username": None}, 2, "zookeeper.sasl.client.username is not set"),
    ],
    ids=["password", "no file", "store's password", "no TLS", "nobody", "no name"],
)
def test_a_start_that_ends(
    tmp_path: Path, server: Secured, changed: dict[str, str | None], code: int, why: str
) -> None:
    """A start that fails prints one sentence, which names what is wrong."""
    said = {**settings(server, "/start"), "zookeeper.connection.timeout.ms": 4000}
    said |= {f"zookeeper.{name}": value for name, value in changed.items()}
    sets = {name: value for name, value in said.items() if value is not None}
    broker = BrokerProcess(tmp_path, free_port(), sets)
    broker.begin()
    assert broker.wait_end() == code, broker.output()
    sentence = [line for line in broker.output().splitlines() if not line.startswith("---")][-1]
    assert sentence.startswith("pybroker: ") and why in sentence
    assert "Traceback" not in broker.output() and "a guess" not in broker.output() and PASSWORD not in broker.output()


def test_an_ensemble_that_others_reach_and_that_is_open_is_said(tmp_path: Path, server: Secured) -> None:
    """The warning is logged once, at the start; an ensemble on this machine only gets none."""
    for connect, times in (("192.0.2.1:2181", 1), (server.connect + "/open", 0)):
        sets = {"zookeeper.connect": connect, "zookeeper.connection.timeout.ms": 800 if times else 20_000}
        broker = BrokerProcess(tmp_path / str(times), free_port(), sets)
        broker.begin()
        if times:
            assert broker.wait_end() == 1
        else:
            broker.wait_ready()
        assert broker.count("ZooKeeper is open to all") == times
        broker.close()


def test_a_cluster_that_was_open_is_closed(tmp_path: Path, server: Secured) -> None:
    """An operator first makes brokers log in, then makes them set ACLs, then fixes the existing nodes."""
    chroot = f"/{uuid.uuid4().hex}"
    file = tmp_path / "broker.properties"

    def acls(which: str) -> str:
        said = {name: value for name, value in settings(server, chroot).items() if name != "zookeeper.set.acl"}
        file.touch(0o600)
        file.write_text("".join(f"{name}={value}\n" for name, value in said.items()))
        done = run("zookeeper-acls", which, "--config", file)
        assert done.code == 0, done.err
        return done.out

    with three(tmp_path, server, chroot, zookeeper_set_acl="false") as cluster:
        topic = cluster.create("t", replicas=[[1, 2, 3]])
        give(cluster, "ann")
        assert {each for held in nodes(server, chroot).values() for each in held} == {ALL}
        with Witness(cluster, topic) as witness:
            witness.until_acked()
            for number, broker in cluster.brokers.items():
                broker.stop()
                broker.sets = {**broker.sets, "zookeeper.set.acl": "true"}
                cluster.start(number)
                cluster.until_in_sync(topic)
            assert ALL in nodes(server, chroot)["/config/users/ann"]
            assert acls("secure").endswith(f"nodes at {server.tls}{chroot} are now writable by the brokers only.\n")
            check(nodes(server, chroot))
            witness.until_acked()
            cluster.kill(cluster.leader(topic))
            witness.until_acked()
            cluster.start()
            cluster.until_in_sync(topic)
            check(nodes(server, chroot))
            witness.judge()
        assert acls("unsecure").endswith("are now writable by every client.\n")
        assert {each for held in nodes(server, chroot).values() for each in held} == {ALL}
    refused = run("zookeeper-acls", "secure", "--zookeeper", server.connect + chroot)
    assert (refused.code, refused.sentence.startswith("zookeeper.set.acl = 'true'")) == (2, True)
    refused = run("zookeeper-acls", "secure", "--config", file, "--zookeeper", f"{server.tls}/none")
    assert refused.code == 1
    assert refused.sentence == f"ZooKeeper at {server.tls}/none has no cluster: does its address need a chroot?"
    assert run("zookeeper-acls", "secure").code == 2


def test_a_lone_broker_moves_into_it(tmp_path: Path, server: Secured) -> None:
    """The migration command sets the same ACLs as brokers; users are created after it, before the first start."""
    chroot, port, home = f"/{uuid.uuid4().hex}", free_port(), tmp_path / "data"
    file = tmp_path / "broker.properties"
    file.touch(0o600)
    said = settings(server, chroot, offsets_topic_num_partitions=1)
    file.write_text("".join(f"{name}={value}\n" for name, value in said.items()))
    with BrokerProcess(home, port, {}) as lone:
        assert run("topics", "create", "t", "-b", lone.bootstrap).code == 0
        lone.stop()
    moved = run("migrate-store", "--data-dir", home, "--config", file, "--create")
    assert moved.code == 0, moved.err
    assert moved.out.endswith(f"--zookeeper {server.tls}{chroot} --config {file}\n")
    given = run("users", "set", "zoe", "--config", file, "--password-file", "-", stdin="secret\n")
    assert given.code == 0, given.err
    check(nodes(server, chroot))
    found = nodes(server, chroot)
    check(found)
    assert {"/brokers/topics/t", "/config/topics/t", "/config/users/zoe"} <= set(found)
    with BrokerProcess(home, port, said) as first:
        assert [each["name"] for each in run("topics", "list", "-b", first.bootstrap, "--json").json] == ["t"]
    check(nodes(server, chroot))
