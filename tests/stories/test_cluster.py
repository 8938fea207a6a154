"""Three broker processes on a real store: each acknowledged record is read back once after any broker's death."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers.kit import Cluster
from tests.brokers.witness import Witness
from tests.cli.conftest import run
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.neutral import Record
from tests.harness import HOST, BrokerProcess, free_port, until
from tests.stores import AnyStore, option_of, setting_of

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("story of a cluster"),
    pytest.mark.usefixtures("java_and_jars"),
]
SESSION = {"zookeeper.session.timeout.ms": 2000}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, store: AnyStore) -> Iterator[Cluster]:
    """A cluster for the stories of this file, each of which leaves all three brokers running."""
    with Cluster(tmp_path_factory.mktemp("three"), store, zookeeper_session_timeout_ms=2000) as cluster:
        yield cluster


def test_leaders_are_killed(three: Cluster) -> None:
    """Two leaders are killed in turn, under an idempotent producer with acks=all: another leads, no acknowledged record
    is lost or duplicated, and the replicas are identical at the end."""
    topic = three.create("killed", replicas=[[1, 2, 3]])
    with Witness(three, topic) as witness:
        for leader in (1, 2):
            witness.until_acked()
            three.kill(leader)
            until("another leads", lambda dead=leader: three.leader(topic) not in (-1, dead))  # type: ignore[misc]
            witness.until_acked()
            three.restart(leader)
            three.until_in_sync(topic)
        witness.judge()


def test_all_are_killed_at_once(three: Cluster) -> None:
    """All brokers come back with their data, and the producer goes on."""
    topic = three.create("all", replicas=[[2, 3, 1]])
    with Witness(three, topic) as witness:
        witness.until_acked()
        three.kill(1, 2, 3)
        three.restart(1, 2, 3)
        three.until_in_sync(topic)
        witness.until_acked()
        witness.judge()


def test_a_lone_broker_becomes_the_first_of_a_cluster(tmp_path: Path, store: AnyStore) -> None:
    """`pybroker migrate-store` moves its topics into the store: each record stays at its offset, and another joins."""
    home, port = tmp_path / "first", free_port()
    chroot = f"/{uuid.uuid4().hex}"
    records = [Record(b"%d" % number) for number in range(200)]
    with BrokerProcess(home, port) as lone:
        client = Confluent(lone.bootstrap)
        client.create_topic("orders", config={"retention.ms": "86400001"})
        client.send_all("orders", records)
        lone.stop()
    assert run("migrate-store", "--data-dir", home, *option_of(store, chroot), "--create").code == 0
    first = BrokerProcess(home, port, {**SESSION, **setting_of(store, chroot)})
    second = BrokerProcess(tmp_path / "second", free_port(), {**SESSION, **setting_of(store, chroot)})
    with first, second:
        until("both are there", lambda: len(run("cluster", "-b", f"{HOST}:{port}", "--json").json["brokers"]) == 2)
        client = Confluent(second.bootstrap)
        assert [record.value for record in client.read("orders", 200)] == [record.value for record in records]
        assert client.topic_config("orders")["retention.ms"] == "86400001"
        assert client.send_all("orders", [Record(b"next")]) == [200]
