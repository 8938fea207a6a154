"""Kafka 3.9.1 beside brokers of ours by a ZooKeeper with a login: both, and their tools, give nodes the same ACLs, and
read each other's passwords."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from pybroker.testing.certificates import Authority
from tests.brokers.system.test_secured_zookeeper import ALL, PASSWORD, check, give, nodes
from tests.cli.conftest import run
from tests.coordination.secured import DIGEST, Secured
from tests.harness import HOST, BrokerProcess, free_port, until
from tests.java.mixed import KAFKA, TOOL_S_MAX, VERSION, Mixed, znodes
from tests.java.peers import SMALL, MissingJava, jars, java

pytestmark = [
    pytest.mark.java,
    pytest.mark.zookeeper("its logins, TLS and ACLs"),
    pytest.mark.xdist_group("peer brokers"),
]
CHROOT = "/both"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    try:
        jars(VERSION)
    except MissingJava as problem:
        pytest.skip(str(problem))
    with Secured(tmp_path_factory.mktemp("zookeeper"), {"kafka": PASSWORD}, host="localhost") as running:
        yield running


@pytest.fixture(scope="module")
def jvm(server: Secured) -> list[str]:
    """The JVM options with which Kafka logs in to ZooKeeper."""
    jaas = server.home / "client.jaas"
    jaas.write_text(f'Client {{\n  {DIGEST} required username="kafka" password="{PASSWORD}";\n}};\n')
    return [*SMALL, f"-Djava.security.auth.login.config={jaas}"]


@pytest.fixture(scope="module")
def cluster(server: Secured, jvm: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    sets = {
        "zookeeper_connect": server.connect + CHROOT, "zookeeper_set_acl": "true",
        "zookeeper_sasl_client_username": "kafka", "zookeeper_sasl_client_password": PASSWORD,
        "zookeeper_session_timeout_ms": 4000, "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
        "super_users": "User:ANONYMOUS",
    }  # fmt: skip
    mixed = Mixed(tmp_path_factory.mktemp("mixed"), server.zookeeper, **sets)
    mixed.brokers[KAFKA].jvm = jvm  # type: ignore[attr-defined]
    yield mixed
    mixed.close()


def test_both_give_nodes_the_same_acls(cluster: Mixed, server: Secured) -> None:
    """Both kinds of broker give znodes the same ACLs: Kafka's alone pass our rule, and then those of both."""
    cluster.start(KAFKA)
    of_kafka = nodes(server, CHROOT)
    assert {"/config/users", "/config/brokers", "/consumers", "/controller", "/brokers/ids/3"} <= set(of_kafka)
    check(of_kafka)
    cluster.start()
    until("all know each other", lambda: len(cluster.admin.list_topics(timeout=5).brokers) == 3)
    for controller in (KAFKA, 1):
        cluster.create(f"t{controller}", replicas=[[1, 2, 3], [3, 1, 2]])
        give(cluster, f"ann{controller}")
        if controller == KAFKA:
            cluster.kill(KAFKA)
            until("one of ours controls", lambda: cluster.controller() in (1, 2))
            cluster.create("of-ours", replicas=[[1, 2]])
            cluster.restart(KAFKA)
            cluster.until_in_sync(f"t{KAFKA}", 2)
    found = nodes(server, CHROOT)
    check(found)
    assert {"/brokers/ids/1", "/brokers/topics/t1", "/config/users/ann1", "/config/topics/of-ours"} <= set(found)


def test_both_tools_do_the_same(cluster: Mixed, server: Secured, jvm: list[str], tmp_path: Path) -> None:
    """Both tools do the same: what one secures, the other unsecures, node by node."""
    file = tmp_path / "broker.properties"
    of_zookeeper = {name: value for name, value in cluster.brokers[1].sets.items() if name.startswith("zookeeper.")}
    file.write_text("".join(f"{name}={value}\n" for name, value in of_zookeeper.items()))

    def kafkas(which: str) -> dict[str, set[tuple[str, int]]]:
        connect = f"--zookeeper.connect={server.connect}{CHROOT}"
        tool = java(VERSION, "kafka.admin.ZkSecurityMigrator", f"--zookeeper.acl={which}", connect, jvm=jvm)
        done = subprocess.run(tool, capture_output=True, text=True, timeout=TOOL_S_MAX)
        assert done.returncode == 0, done.stdout + done.stderr
        return nodes(server, CHROOT)

    def ours(which: str) -> dict[str, set[tuple[str, int]]]:
        done = run("zookeeper-acls", which, "--config", file)
        assert done.code == 0, done.err
        return nodes(server, CHROOT)

    opened = kafkas("unsecure")
    assert set(map(frozenset, opened.values())) == {frozenset({ALL})}
    closed = ours("secure")
    check(closed)
    assert kafkas("secure") == closed
    assert ours("unsecure") == kafkas("unsecure")


def test_passwords_that_the_other_has_encrypted(server: Secured, tmp_path: Path) -> None:
    """Passwords that Kafka's tool encrypts before a broker's first start are used by it, and Kafka reads those that our
    broker encrypts."""
    chroot, secret, authority = "/passwords", "secret of the encoder", Authority()
    with znodes(server.connect) as client:
        client.ensure_path(chroot)

    def written(name: str, password: str) -> Path:
        """A settings file with a key store, whose key is encrypted, and the password."""
        store, file = tmp_path / f"{name}.pem", tmp_path / f"{name}.properties"
        made = authority.sign(name, password=password.encode())
        store.write_bytes(made.key + made.chain)
        prefix = "listener.name.tls.ssl."
        lines = [f"{prefix}key.password={password}", f"{prefix}keystore.location={store}", f"{prefix}keystore.type=PEM"]
        file.write_text("\n".join(lines))
        return file

    def shown() -> str:
        """The subject of the certificate that a client is shown."""
        context = ssl.create_default_context(cadata=authority.certificate.decode())
        with context.wrap_socket(socket.create_connection((HOST, tls)), server_hostname="localhost") as connection:
            found = x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"")
        return found.subject.rfc4514_string()

    file, tls = written("first", "of Kafka's tool"), free_port()
    with_secret = tmp_path / "tool.properties"
    with_secret.write_text(f"{file.read_text()}\npassword.encoder.secret={secret}")
    tool = java(
        VERSION, "kafka.admin.ConfigCommand", "--zookeeper", server.connect + chroot, "--alter", "--entity-type",
        "brokers", "--entity-name", "7", "--add-config-file", str(with_secret),
    )  # fmt: skip
    done = subprocess.run(tool, capture_output=True, text=True, timeout=TOOL_S_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
    sets = {
        "broker.id": 7, "zookeeper.connect": server.connect + chroot, "password.encoder.secret": secret,
        "listeners": f"OPEN://{HOST}:0,TLS://{HOST}:{tls}", "listener.security.protocol.map": "OPEN:PLAINTEXT,TLS:SSL",
        "inter.broker.listener.name": "OPEN",
    }  # fmt: skip
    with BrokerProcess(tmp_path / "data", sets=sets) as broker:
        assert shown() == "CN=first"
        where = ["--broker", 7, "--set-file", written("second", "ours")]
        altered = run("configs", "alter", "-b", f"{HOST}:{broker.port}", *where)
        assert altered.code == 0, altered.err
        assert shown() == "CN=second"
    with znodes(server.connect) as client:
        stored = json.loads(client.get(f"{chroot}/config/brokers/7")[0])["config"]
    password = stored["listener.name.tls.ssl.key.password"]
    decoder = java(VERSION, str(Path(__file__).with_name("Decoder.java")), secret, password)
    done = subprocess.run(decoder, capture_output=True, text=True, timeout=TOOL_S_MAX)
    assert done.stdout == "ours\n", done.stderr
