"""`pybroker cluster start`: a cluster that clients can use, the same at the next start, and one sentence if it cannot
start."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

from pybroker import Consumer, Producer
from pybroker.client.admin import Admin
from pybroker.development import local_cluster, server_process
from pybroker.development.local_cluster import CONFIG, STATE, LocalCluster
from pybroker.development.server_process import free_ports
from pybroker.development.zookeeper_jars import JARS
from pybroker.errors import StartError
from tests.cli.conftest import run
from tests.harness import Process

pytestmark = pytest.mark.xdist_group("ports of a local cluster")  # each start looks for free ones from the same on
READY = r"cluster ready: (\S+)"
START_S_MAX = 180


def start(*options: object) -> Process:
    return Process([sys.executable, "-m", "pybroker", "cluster", "start", *map(str, options)])


def written(bootstrap: str) -> list[bytes | None]:
    """Return the values of the topic orders."""
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([("orders", number) for number in range(3)])
        ends = consumer.end_offsets([("orders", number) for number in range(3)])
        values: list[bytes | None] = []
        while len(values) < sum(ends.values()):
            values += [record.value for record in consumer.poll(timeout_ms=1000)]
        return values


def test_it_is_the_same_at_the_next_start(tmp_path: Path) -> None:
    """With --data-dir the next start has the same addresses, brokers and records; Ctrl-C ends all processes, with 0."""
    first = None
    for number in range(2):
        options = ("-n", 3, "--store", "etcd", "--store-servers", 3) if first is None else ()
        process = start("--data-dir", tmp_path, *options)
        bootstrap = process.wait_line(READY, START_S_MAX)[1]
        process.wait_line("Ctrl-C ends all of it", 10)
        assert bootstrap == (first or bootstrap)
        first = bootstrap
        with Admin(bootstrap_servers=bootstrap) as admin:
            assert len(admin.describe_cluster().nodes) == 3
        with Producer(bootstrap_servers=bootstrap, acks="all") as producer:
            producer.send("orders", f"{number}")
        assert sorted(filter(None, written(bootstrap))) == [b"0", b"1"][: number + 1]
        process.signal(signal.SIGINT)
        assert process.wait(120) == 0
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", int(first.rpartition(":")[2]))):
            pass
    assert not (tmp_path / STATE).stat().st_mode & 0o077
    assert (tmp_path / "brokers" / "1" / CONFIG).is_file()


@pytest.mark.java
def test_a_zookeeper_is_the_default(tmp_path: Path) -> None:
    """Without --store the brokers coordinate in a ZooKeeper; without --data-dir nothing is left behind."""
    process = start("-n", 1, "--port", free_ports(1)[0])  # other tests may begin to listen on 9092 meanwhile
    bootstrap = process.wait_line(READY, START_S_MAX)[1]
    process.wait_line(r"zookeeper\.connect=127\.0\.0\.1:\d+$", 10)
    directory = process.wait_line(r"logs, settings and data: (\S+)", 10)[1]
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send("orders", "14")
    assert written(bootstrap) == [b"14"]
    process.signal(signal.SIGTERM)
    assert process.wait(120) == 0
    assert not Path(directory).exists()


def test_a_port_that_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port in use is replaced by a free one, unless --port asks for it: then the sentence names it."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        taken = held.getsockname()[1]
        monkeypatch.setattr(local_cluster, "PORT", taken)
        with LocalCluster(1, store="etcd") as cluster:
            assert cluster.bootstrap_servers.startswith("127.0.0.1:")
            assert cluster.bootstrap_servers != f"127.0.0.1:{taken}"
        done = run("cluster", "start", "-n", 1, "--store", "etcd", "--port", taken, "--data-dir", tmp_path)
    assert done.code == 1
    assert done.sentence.startswith(f"broker could not listen on 127.0.0.1:{taken}: the port is in use"), done
    assert run("cluster", "start", "-n", 3, "--port", 65534).code == 2


@pytest.mark.parametrize("seen_free", [False, True], ids=["taken before it starts", "taken while it starts"])
def test_a_port_that_another_program_takes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen_free: bool
) -> None:
    """A broker whose port another program takes, after it was found free, gets another one and the cluster
    keeps that, also at the next start; so do the servers of its store."""
    looks: dict[int, int] = {}
    check = server_process.in_use

    def in_use(port: int) -> OSError | None:
        looks[port] = looks.get(port, 0) + 1
        return None if seen_free and looks[port] == 1 else check(port)

    with socket.create_server(("127.0.0.1", 0)) as held, socket.create_server(("127.0.0.1", 0)) as other:
        taken, peers = held.getsockname()[1], other.getsockname()[1]
        ports = [[free_ports(1)[0], peers]]
        monkeypatch.setattr(local_cluster, "PORT", taken)
        monkeypatch.setattr(local_cluster, "_ports", lambda first, count: range(first, first + count))
        monkeypatch.setattr(local_cluster, "METRICS_PORT", free_ports(1)[0])
        monkeypatch.setattr(local_cluster, "free_ports", lambda count: ports.pop() if ports else free_ports(count))
        monkeypatch.setattr(server_process, "in_use", in_use)
        with LocalCluster(1, store="etcd", data_dir=str(tmp_path)) as cluster:
            bootstrap, connect = cluster.bootstrap_servers, cluster.connect
        assert not bootstrap.endswith(f":{taken}") and looks[taken] >= 1 + seen_free and looks[peers] >= 1 + seen_free
        with LocalCluster(data_dir=str(tmp_path)) as cluster:
            assert (cluster.bootstrap_servers, cluster.connect) == (bootstrap, connect)


def test_another_cluster_than_the_directory_has(tmp_path: Path) -> None:
    """A directory's cluster is not changed by other options, and is in use by one start at a time."""
    ports = free_ports(4)
    held = {"store": "etcd", "store_ports": ports[:2], "ports": ports[2:3], "metrics_ports": ports[3:]}
    (tmp_path / STATE).write_text(json.dumps(held))
    for option, value, there in (
        ("-n", 3, 1), ("--store", "zookeeper", "etcd"), ("--store-servers", 3, 1), ("--port", 9092, ports[2]),
    ):  # fmt: skip
        done = run("cluster", "start", "--data-dir", tmp_path, option, value)
        assert (done.code, done.sentence) == (1, f"{tmp_path} has a cluster with {option} {there}: leave {option} out")
    with LocalCluster(data_dir=str(tmp_path)):
        done = run("cluster", "start", "--data-dir", tmp_path)
        assert done.sentence == f"another etcd is using the data directory {tmp_path}/store"


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", '{"store": "etcd"}', "{" * 100_000,
        '{"store": "etcd", "store_ports": [1, 2], "ports": [], "metrics_ports": []}',
        '{"store": "etcd", "store_ports": [1, 2], "ports": ["x"], "metrics_ports": [4]}',
        '{"store": "etcd", "store_ports": [1, 2], "ports": [70000], "metrics_ports": [4]}',
        '{"store": "etcd", "store_ports": 7, "ports": [3], "metrics_ports": [4]}',
        '{"store": "etcd", "store_ports": [], "ports": [3], "metrics_ports": [4]}',
        '{"store": ["etcd"], "store_ports": [1, 2], "ports": [3], "metrics_ports": [4]}',
    ],
)  # fmt: skip
def test_a_file_that_is_not_that_of_a_cluster(tmp_path: Path, content: str) -> None:
    (tmp_path / STATE).write_text(content)
    with pytest.raises(StartError, match="is not that of a cluster"):
        LocalCluster(data_dir=str(tmp_path))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without etcd, without ZooKeeper's jars and without Java one sentence says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert run("cluster", "start", "--store", "etcd").sentence.startswith("etcd not found: put it on PATH")
    assert "pybroker zookeeper fetch" in run("cluster", "start").sentence
    jars = tmp_path / "jars"
    jars.mkdir()
    for jar in JARS:
        (jars / jar.file).touch()
    assert run("cluster", "start", "--jars", jars).sentence.startswith("ZooKeeper needs Java, but JAVA_HOME and PATH")


def test_a_comma_in_the_directory(tmp_path: Path) -> None:
    done = run("cluster", "start", "--data-dir", tmp_path / "a,b")
    assert "has a comma" in done.sentence
    assert not (tmp_path / "a,b").exists()


def test_a_broker_that_cannot_start(tmp_path: Path) -> None:
    """If a broker ends at its start, its own reason is the sentence, and no process is left."""
    kept = tmp_path / "kept"
    with LocalCluster(1, store="etcd", data_dir=str(kept)):
        pass
    shutil.rmtree(kept / "brokers" / "1" / "data")
    (kept / "brokers" / "1" / "data").mkdir()
    (kept / "brokers" / "1" / "data" / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=x\n")
    with pytest.raises(StartError, match="broker ended: the log directories belong to cluster x"):
        LocalCluster(data_dir=str(kept))
    assert not [name for name in os.listdir("/proc") if name.isdigit() and str(kept) in _command(name)]


def _command(process: str) -> str:
    try:
        return Path("/proc", process, "cmdline").read_text()
    except OSError:
        return ""
