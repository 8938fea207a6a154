"""Kafka 3.9.1 beside brokers of ours by a ZooKeeper with a login: both, and their tools, give nodes the same ACLs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers.test_secured_zookeeper import ALL, PASSWORD, check, give, nodes
from tests.cli.conftest import run
from tests.coordination.secured import DIGEST, Secured
from tests.harness import until
from tests.java.mixed import KAFKA, TOOL_S_MAX, VERSION, Mixed
from tests.java.peers import SMALL, MissingJava, jars, java

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.xdist_group("peer brokers")]
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
    """Whom Kafka's JVM logs in as."""
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
    """First those that Kafka makes are looked at, by the rule that ours are held to, then those of both."""
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
            until("one of ours controls", lambda: cluster.controller() in (1, 2), timeout_s=20)
            cluster.create("of-ours", replicas=[[1, 2]])
            cluster.restart(KAFKA)
            cluster.until_in_sync(f"t{KAFKA}", 2)
    found = nodes(server, CHROOT)
    check(found)
    assert {"/brokers/ids/1", "/brokers/topics/t1", "/config/users/ann1", "/config/topics/of-ours"} <= set(found)


def test_both_tools_do_the_same(cluster: Mixed, server: Secured, jvm: list[str], tmp_path: Path) -> None:
    """What one closes the other one opens, node by node."""
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
