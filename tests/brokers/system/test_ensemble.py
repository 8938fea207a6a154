"""A store of three servers that loses some, its majority or all its data: brokers go on serving, and lose no data."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pybroker import errors
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.brokers.editor import editing
from tests.brokers.kit import Cluster
from tests.brokers.witness import ALONE, Witness
from tests.harness import HOST, Ended, until
from tests.marks import long
from tests.stores import AnyStore, kind_of
from tests.wire import Wire, batch

SESSION_MS = 2000
STOP_S_MAX = 8.0
OLDER = {"zookeeper": "has fewer transactions than it had before", "etcd": "etcd has transactions up to 0"}
"""The reason why each kind of store that has lost its data does not continue a session."""
pytestmark = [pytest.mark.java]


@pytest.fixture
def cluster(tmp_path: Path, ensemble: AnyStore) -> Iterator[Cluster]:
    with Cluster(tmp_path, ensemble, zookeeper_session_timeout_ms=SESSION_MS) as running:
        yield running


def produce(cluster: Cluster, number: int, topic: str, acks: int) -> int:
    """Produce a record to a broker; return its error code."""
    with Wire(cluster.brokers[number].port) as wire:
        return wire.produce(topic, batch([ALONE]), acks=acks).error


@pytest.mark.long
def test_a_minority_of_it_is_lost(cluster: Cluster, ensemble: AnyStore) -> None:
    """Each server is lost in turn, the leader too: sessions go on, and a dead broker's partitions get new leaders."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    with Witness(cluster, topic) as witness:
        for number in (1, 2, 3):
            witness.until_acked()
            ensemble.kill(number)
            witness.until_acked(200)
            ensemble.start(number)
        assert [broker.count("broker registered") for broker in cluster.brokers.values()] == [1, 1, 1]
        ensemble.kill(1)
        cluster.kill(1)
        witness.until_acked()
        assert cluster.leader(topic) == 2
        cluster.restart(1)
        cluster.until_in_sync(topic)
        witness.judge()


def test_its_majority_is_lost_and_comes_back(cluster: Cluster, ensemble: AnyStore) -> None:
    """The majority is away for longer than a session: acks=all goes on and acks=1 is refused. When it is back, no other
    broker was elected, and elections go on."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        ensemble.kill(2, 3)
        until("acks=1 is refused", lambda: produce(cluster, 1, topic, 1) == errors.NOT_LEADER_OR_FOLLOWER)
        witness.until_acked(600)
        assert cluster.partition(topic) == (1, [1, 2, 3])
        ensemble.start(2, 3)
        until("acks=1 is taken again", lambda: produce(cluster, 1, topic, 1) == 0)
        witness.until_acked()
        assert cluster.leader(topic) == 1
        cluster.kill(1)
        witness.until_acked()
        cluster.restart(1)
        cluster.until_in_sync(topic)
        witness.judge(alone=None)
    ensemble.kill(2, 3)
    until("acks=1 is refused", lambda: produce(cluster, 2, topic, 1) != 0)
    began = time.monotonic()
    cluster.brokers[2].stop()  # it cannot hand over its partitions, and does not wait for other leaders
    assert time.monotonic() - began < STOP_S_MAX


def use(store: AnyStore, until: Callable[[], object]) -> None:
    """Write as another application, as ZooKeeper refuses a client that has seen later transactions than a server."""
    with editing(store, "") as client:
        while not until():
            for _ in range(100):
                client.create("/other-", sequence=True)


def test_it_comes_back_empty(cluster: Cluster, ensemble: AnyStore, tmp_path: Path) -> None:
    """An empty ensemble has no cluster: brokers do not register, keep their topics and serve acks=all. One started with
    its data refuses, as no store has its topics. With the ensemble's data back, all go on."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        ensemble.stop()
        for data in tmp_path.glob("store/*/data"):
            data.rename(data.with_name("kept"))
        ensemble.start()
        what = OLDER[kind_of(ensemble)]
        until("they say why", lambda: all(b.count(what) for b in cluster.brokers.values()))
        use(ensemble, lambda: all(b.count("knows of no cluster") for b in cluster.brokers.values()))
        witness.until_acked()
        assert produce(cluster, 1, topic, 1) == errors.NOT_LEADER_OR_FOLLOWER
        cluster.kill(3)
        with pytest.raises(Ended, match="knows of no cluster"):
            cluster.start(3)
        cluster.brokers[3].close()
        for number in (1, 2):
            assert cluster.brokers[number].partition_dir(topic)
        ensemble.stop()
        ensemble.empty()
        for data in tmp_path.glob("store/*/kept"):
            data.rename(data.with_name("data"))
        ensemble.start()
        cluster.start(3)
        cluster.until_in_sync(topic)
        witness.until_acked()
        witness.judge()


@pytest.mark.parametrize("fault", [long("is killed"), "stands still"])
def test_a_stop_does_not_wait_for_it(tmp_path: Path, start_store: Callable[..., AnyStore], fault: str) -> None:
    """A stop ends at once, even while a session lasts or others wait for the store."""
    with start_store() as own, Cluster(tmp_path, own, zookeeper_session_timeout_ms=30_000) as cluster:
        topic = cluster.create("t", replicas=[[1, 2, 3]])
        with Witness(cluster, topic) as witness:
            witness.until_acked()
        if fault == "is killed":
            own.kill()
            until("it is missed", lambda: all(b.count("store disconnected") for b in cluster.brokers.values()))
        else:
            own.pause()
        with socket.create_connection((HOST, cluster.brokers[3].port)) as waits:
            body = codec.encode_request(22, 4, 1, "c", m.InitProducerIdRequest(transaction_timeout_ms=1000))
            waits.sendall(len(body).to_bytes(4, "big") + body)
            for number in (1, 2, 3):
                began_s = time.monotonic()
                cluster.brokers[number].stop()
                assert time.monotonic() - began_s < 15
