"""A real ZooKeeper or etcd is restored from an older copy, under running brokers or while all are down: they go on,
and lose no record."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from pybroker.development.etcd_server import Etcd, find_program
from pybroker.development.server_process import HOST
from pybroker.development.zookeeper_server import ZooKeeper
from pybroker.protocol import messages as m
from tests.asking import ask
from tests.brokers.kit import Cluster
from tests.brokers.witness import Witness
from tests.harness import until
from tests.stores import AnyStore
from tests.wire import Wire

SESSION_MS = 2000
OLDER, NEWER = "86400000", "172800000"
"""The values of retention.ms in the copy, and after it."""
ON_ZOOKEEPER = pytest.mark.java, pytest.mark.zookeeper("the cases name their stores")


def producer_ids(cluster: Cluster) -> list[int]:
    """A producer id from each broker, once it gives one."""
    found = []
    for broker in cluster.brokers.values():
        with Wire(broker.port) as wire:

            def gives(wire: Wire = wire) -> bool:
                error, drawn, _ = wire.init_producer_id()
                found.extend([drawn] * (not error))
                return not error

            until("an id is given", gives)
    return found


def keep(cluster: Cluster, topic: str, retention_ms: str) -> None:
    """Alter the topic's retention.ms."""
    entry = ConfigEntry("retention.ms", retention_ms, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    cluster.admin.incremental_alter_configs([resource])[resource].result(20)


def kept(cluster: Cluster, topic: str) -> set[str | None]:
    """The values of retention.ms that brokers return."""
    kind = m.DescribeConfigsRequest.Resources
    asked = [kind(resource_type=2, resource_name=topic, configuration_keys=["retention.ms"])]
    answers = (ask(broker.port, "DescribeConfigs", 1, resources=asked) for broker in cluster.brokers.values())
    return {answer.results[0].configs[0].value for answer in answers}


def said(cluster: Cluster, line: str, times: int = 1) -> bool:
    return all(broker.count(line) >= times for broker in cluster.brokers.values())


def copied(store: AnyStore) -> Callable[[], object]:
    """Copy the data of a store of one server while it runs; return what puts the copy in its place while it is down."""
    (server,) = store.servers
    copy = server.data.with_suffix(".copy")
    shutil.copytree(server.data, copy)

    def restore() -> None:
        shutil.rmtree(server.data)
        shutil.copytree(copy, server.data)

    return restore


def snapshot(store: AnyStore) -> Callable[[], object]:
    """Save a snapshot of an etcd of one server, as an operator does; return what restores it while etcd is down."""
    assert isinstance(store, Etcd)
    (server,) = store.servers
    etcdctl, saved = Path(find_program()).with_name("etcdctl"), server.data.with_suffix(".snapshot")
    subprocess.run([etcdctl, "--endpoints", store.url, "snapshot", "save", saved], check=True, capture_output=True)

    def restore() -> None:
        shutil.rmtree(server.data)
        peer = f"http://{HOST}:{server.peer_port}"
        subprocess.run([
            etcdctl, "snapshot", "restore", saved, "--data-dir", server.data, "--name", "1",
            "--initial-cluster", f"1={peer}", "--initial-advertise-peer-urls", peer,
        ], check=True, capture_output=True)  # fmt: skip

    return restore


@pytest.mark.parametrize(
    ("kind", "save", "down"),
    [
        pytest.param(ZooKeeper, copied, False, marks=ON_ZOOKEEPER, id="zookeeper"),
        pytest.param(Etcd, copied, False, id="etcd copy"),
        pytest.param(Etcd, snapshot, False, id="etcd snapshot"),
        pytest.param(Etcd, snapshot, True, id="etcd snapshot while all are down"),
    ],
)
def test_an_older_copy(
    tmp_path: Path, kind: type[AnyStore], save: Callable[[AnyStore], Callable[[], object]], down: bool
) -> None:
    """Brokers give up sessions that the store refuses, and register again. The partition gets a leader epoch above the
    lost ones, acknowledged records are there, producer ids are unique unless all brokers were down, and the topic's
    restored settings apply."""
    store = kind(data_dir=str(tmp_path / "store"))
    with store, Cluster(tmp_path, store, zookeeper_session_timeout_ms=SESSION_MS) as cluster:
        topic = cluster.create("t", replicas=[[1, 2, 3]], retention_ms=OLDER)
        with Witness(cluster, topic) as witness:
            witness.until_acked()
            restore = save(store)
            for number in (1, 2):
                cluster.kill(number)
                witness.until_acked()
                cluster.restart(number)
                cluster.until_in_sync(topic)
            drawn = producer_ids(cluster)
            keep(cluster, topic, NEWER)
            until("settings are altered", lambda: kept(cluster, topic) == {NEWER})
            registered = {number: broker.count("broker registered") for number, broker in cluster.brokers.items()}
            if down:
                cluster.kill(*cluster.brokers)
            store.kill()
            restore()
            store.start()
            if down:
                cluster.restart(*cluster.brokers)
            else:
                until("sessions are given up", lambda: said(cluster, "session given up"))
            until("all are registered", lambda: all(
                broker.count("broker registered") > registered[number] for number, broker in cluster.brokers.items()
            ), timeout_s=30)  # fmt: skip
            cluster.until_in_sync(topic)
            witness.until_acked()
            cluster.kill(1)
            witness.until_acked()
            cluster.restart(1)
            cluster.until_in_sync(topic)
            drawn += producer_ids(cluster)
            assert down or len(set(drawn)) == len(drawn)  # no log has these ids: only running brokers remember them
            until("the older settings are gone by", lambda: kept(cluster, topic) == {OLDER})
            witness.judge()
        assert any(broker.count("the store is behind its brokers") for broker in cluster.brokers.values())
