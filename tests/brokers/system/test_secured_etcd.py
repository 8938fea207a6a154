"""Brokers with an etcd that requires certificates and a login: their keys are only theirs, and stay so in any event."""

from __future__ import annotations

import signal
import urllib.error
import uuid
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers.kit import Cluster
from tests.brokers.system.test_acls import allow
from tests.brokers.system.test_secured_zookeeper import AUTHORIZER, give
from tests.brokers.witness import Witness
from tests.cli.conftest import run
from tests.coordination.secured_etcd import PASSWORD, SecuredEtcd
from tests.harness import BrokerProcess, free_port, until

pytestmark = [pytest.mark.xdist_group("brokers on a secured etcd")]
REFUSED = "the user of etcd.user may not read and write below the prefix of etcd.connect"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredEtcd]:
    with SecuredEtcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


def three(home: Path, server: SecuredEtcd, prefix: str, **more: object) -> Cluster:
    said = {name.replace(".", "_"): value for name, value in server.settings(prefix, **more).items()}
    return Cluster(home, server.etcd, **said)  # type: ignore[arg-type]


def new_prefix() -> str:
    """A prefix of a cluster that the user kafka may write below."""
    return f"/kafka/{uuid.uuid4().hex}"


def keys(server: SecuredEtcd, prefix: str, token: str) -> set[str]:
    """The paths of a cluster's nodes, by a login."""
    first, end = (b64encode(f"{prefix}/tree{last}".encode()).decode() for last in "/0")
    found = server.ask("kv/range", token, key=first, range_end=end, keys_only=True).get("kvs", [])
    return {b64decode(each["key"]).decode().removeprefix(f"{prefix}/tree") for each in found}


def test_what_a_cluster_makes_is_its_own(tmp_path: Path, server: SecuredEtcd) -> None:
    """A cluster creates topics, users and ACLs; another user of etcd, and none, reads and changes none of its keys. The
    password is in no log, answer or file."""
    prefix = new_prefix()
    with three(tmp_path, server, prefix, **AUTHORIZER) as cluster:
        topic = cluster.create("t", replicas=[[1, 2, 3]])
        give(cluster, "ann")
        cluster.admin.create_acls([allow("t")])[allow("t")].result(20)
        with Witness(cluster, topic) as witness:
            witness.until_acked()
            cluster.kill(1)
            witness.until_acked()
            cluster.restart(1)
            cluster.until_in_sync(topic)
            witness.judge()
        made = {"/controller", "/brokers/ids/1", "/brokers/topics/t", "/config/users/ann", "/kafka-acl/Topic/t"}
        assert made <= keys(server, prefix, server.token("kafka", PASSWORD))
        key = b64encode(f"{prefix}/tree/controller".encode()).decode()
        for token in (server.token("other", PASSWORD), ""):
            for path, body in (("kv/range", {}), ("kv/put", {"value": ""}), ("kv/deleterange", {})):
                with pytest.raises(urllib.error.HTTPError):
                    server.ask(path, token, key=key, **body)
        shown = run("configs", "describe", "--broker", "1", "--all", "-b", cluster.bootstrap, "--json").json
        settings = {each["name"]: each["value"] for each in shown if each["name"].startswith("etcd.")}
        assert settings["etcd.user"] == "kafka" and settings["etcd.password"] is None
        assert PASSWORD not in str(shown)
        for broker in cluster.brokers.values():
            assert PASSWORD not in broker.output() and "Traceback" not in broker.output()
    for file in (each for each in tmp_path.rglob("*") if each.is_file()):
        assert PASSWORD.encode() not in file.read_bytes(), file


def test_they_stay_who_they_are(tmp_path: Path, server: SecuredEtcd) -> None:
    """Brokers log in again after etcd was away, which forgets its tokens, and after a broker was frozen until its
    session expired."""
    prefix = new_prefix()
    with three(tmp_path, server, prefix, zookeeper_session_timeout_ms=2000) as cluster:
        topic = cluster.create("t", replicas=[[1, 2, 3]])
        with Witness(cluster, topic) as witness:
            witness.until_acked()
            server.etcd.kill()
            until("it is missed", lambda: all(b.count("store disconnected") for b in cluster.brokers.values()))
            witness.until_acked(50)
            server.etcd.start()
            for broker in cluster.brokers.values():
                until(
                    "etcd is reached again",
                    lambda b=broker: b.count("store connected") + b.count("broker registered") >= 2,
                )
            before = cluster.brokers[3].count("broker registered")
            cluster.signal(3, signal.SIGSTOP)
            token = server.token("kafka", PASSWORD)
            until("its session is over", lambda: "/brokers/ids/3" not in keys(server, prefix, token))
            cluster.signal(3, signal.SIGCONT)
            until("it is back", lambda: cluster.brokers[3].count("broker registered") > before)
            cluster.until_in_sync(topic)
            witness.until_acked()
            witness.judge()
        cluster.create("later", 3)
        assert all("Traceback" not in broker.output() for broker in cluster.brokers.values())


def test_a_password_that_is_changed_under_a_broker(tmp_path: Path) -> None:
    """The broker logs it and goes on serving, in its session and after it; once the login works it registers again."""
    with SecuredEtcd(tmp_path) as own:
        sets = {
            **own.settings(), "zookeeper.session.timeout.ms": 2000, "offsets.topic.replication.factor": 1,
        }  # fmt: skip
        with BrokerProcess(tmp_path / "data", free_port(), sets) as broker:
            assert run("topics", "create", "t", "-b", broker.bootstrap).code == 0
            own.ask("auth/user/changepw", own.token(), name="kafka", password="another")
            own.etcd.stop()
            own.etcd.start()
            assert broker.process is not None
            why = r"refuses the login of 'kafka' \(etcd.user\)"
            broker.process.wait_line(f"(store not reached|broker registration failed) .*{why}", 90)
            assert [each["name"] for each in run("topics", "list", "-b", broker.bootstrap, "--json").json] == ["t"]
            own.ask("auth/user/changepw", own.token(), name="kafka", password=PASSWORD)
            create = ("topics", "create", "later", "-b", broker.bootstrap)
            until("it controls again", lambda: run(*create).code == 0, every_s=0.5)
            assert PASSWORD not in broker.output() and "Traceback" not in broker.output()


def test_rights_that_are_taken_from_a_broker(tmp_path: Path) -> None:
    """Without rights to the prefix the broker names them as the reason; it goes on serving, and controls again once
    they are back."""
    with SecuredEtcd(tmp_path) as own:
        sets = {
            **own.settings(), "zookeeper.session.timeout.ms": 2000, "offsets.topic.replication.factor": 1,
        }  # fmt: skip
        with BrokerProcess(tmp_path / "data", free_port(), sets) as broker:
            assert run("topics", "create", "t", "-b", broker.bootstrap).code == 0
            own.ask("auth/user/revoke", own.token(), name="kafka", role="kafka")
            assert broker.process is not None
            broker.process.wait_line(f"(store not reached|broker registration failed) .*{REFUSED}", 90)
            assert [each["name"] for each in run("topics", "list", "-b", broker.bootstrap, "--json").json] == ["t"]
            own.ask("auth/user/grant", own.token(), user="kafka", role="kafka")
            create = ("topics", "create", "later", "-b", broker.bootstrap)
            until("it controls again", lambda: run(*create).code == 0, every_s=0.5)
            assert "Traceback" not in broker.output()


@pytest.mark.parametrize(
    ("changed", "code", "why"),
    [
        ({"password": "a guess"}, 1, "refuses the login of 'kafka' (etcd.user): "),
        ({"user": "nobody"}, 1, "refuses the login of 'nobody' (etcd.user): "),
        ({"user": None, "password": None}, 1, "(etcd.connect) requires a login: set etcd.user and etcd.password"),
        ({"user": None}, 2, "etcd.user is not set"),
        ({"connect": "/other"}, 1, REFUSED),
        ({"user": "other"}, 1, REFUSED),
        ({"ssl.keystore.location": "late"}, 1, "(etcd.ssl.keystore.location) has a certificate that expired on 2"),
        ({"ssl.keystore.location": "named"}, 1, "takes no certificate with a common name beside a login"),
        ({"ssl.keystore.location": None}, 1, "it does not accept the client certificate, or requires one"),
        ({"ssl.truststore.location": None}, 1, "its certificate is not accepted: "),
        ({"ssl.truststore.location": "/none.pem"}, 1, "/none.pem (etcd.ssl.truststore.location) cannot be read"),
        ({"connect": "http"}, 1, "it closed the connection"),
    ],
    ids=[
        "password", "user", "no login", "half a login", "prefix", "role", "expired certificate", "named certificate",
        "no certificate", "authority", "no file", "no TLS",
    ],
)
def test_a_start_that_ends(
    tmp_path: Path, server: SecuredEtcd, changed: dict[str, str | None], code: int, why: str
) -> None:
    """A start that fails prints one sentence, which names what is wrong."""
    said = {**server.settings("/kafka/start"), "zookeeper.connection.timeout.ms": 3000}
    url = server.etcd.url
    values = {
        "late": server.certificate(days=(-9, -1)), "named": server.certificate("kafka"), "/other": f"{url}/other",
        "http": f"{url.replace('https', 'http')}/kafka",
    }  # fmt: skip
    for name, value in changed.items():
        said[f"etcd.{name}"] = values.get(value or "", value)
    broker = BrokerProcess(tmp_path, free_port(), {name: value for name, value in said.items() if value is not None})
    broker.begin()
    assert broker.wait_end() == code, broker.output()
    sentence = [line for line in broker.output().splitlines() if not line.startswith("---")][-1]
    assert sentence.startswith("pybroker: ") and why in sentence
    assert "Traceback" not in broker.output() and "a guess" not in broker.output() and PASSWORD not in broker.output()


def test_a_server_whose_certificate_has_expired(tmp_path: Path) -> None:
    with SecuredEtcd(tmp_path, days=(-9, -1)) as own:
        sets = {**own.settings(), "zookeeper.connection.timeout.ms": 3000}
        broker = BrokerProcess(tmp_path / "data", free_port(), sets)
        broker.begin()
        assert broker.wait_end() == 1, broker.output()
        assert "its certificate is not accepted: certificate has expired" in broker.output().splitlines()[-2]


def test_an_etcd_that_others_reach_and_that_is_open_is_said(tmp_path: Path, server: SecuredEtcd) -> None:
    """The warning is logged once, at the start; one with a login, and one on this machine only, get none."""
    elsewhere = "https://192.0.2.1:2379/kafka"
    open_ = {"etcd.connect": elsewhere, "zookeeper.connection.timeout.ms": 800}
    closed = {**server.settings(), **open_}
    here = {"etcd.connect": f"http://127.0.0.1:{free_port()}", "zookeeper.connection.timeout.ms": 800}
    for number, (sets, times) in enumerate(((open_, 1), (closed, 0), (here, 0))):
        broker = BrokerProcess(tmp_path / str(number), free_port(), sets)
        broker.begin()
        assert broker.wait_end() == 1
        assert broker.count("etcd is open to all") == times, sets
        broker.close()


def test_a_lone_broker_moves_into_it(tmp_path: Path, server: SecuredEtcd) -> None:
    """The commands log in as brokers do: its topics are moved, a user is given, and it starts there."""
    prefix, port, home = new_prefix(), free_port(), tmp_path / "data"
    file = tmp_path / "broker.properties"
    file.touch(0o600)
    said = server.settings(prefix, offsets_topic_num_partitions=1)
    file.write_text("".join(f"{name}={value}\n" for name, value in said.items()))
    with BrokerProcess(home, port, {}) as lone:
        assert run("topics", "create", "t", "-b", lone.bootstrap).code == 0
        lone.stop()
    moved = run("migrate-store", "--data-dir", home, "--config", file)
    assert moved.code == 0, moved.err
    assert moved.out.endswith(f"--etcd {server.etcd.url}{prefix} --config {file}\n")
    given = run("users", "set", "zoe", "--config", file, "--password-file", "-", stdin="secret\n")
    assert given.code == 0, given.err
    made = {"/brokers/topics/t", "/config/topics/t", "/config/users/zoe"}
    assert made <= keys(server, prefix, server.token("kafka", PASSWORD))
    with BrokerProcess(home, port, said) as first:
        assert [each["name"] for each in run("topics", "list", "-b", first.bootstrap, "--json").json] == ["t"]
