"""Several leaders in a row, each with records that only it has: logs are truncated where epochs diverge, and agree."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.brokers.kit import Cluster
from tests.brokers.network import STORE, Network
from tests.brokers.system.test_fencing import ids
from tests.brokers.system.test_partitions import told_by
from tests.brokers.witness import ALONE, Witness
from tests.harness import until
from tests.stores import AnyStore
from tests.wire import Wire, batch

SLOW_S = 8
pytestmark = [pytest.mark.java]


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore, network: Network) -> Iterator[Cluster]:
    with Cluster(tmp_path, store, network=network, zookeeper_session_timeout_ms=2000) as running:
        yield running


def write_alone(cluster: Cluster, network: Network, number: int, topic: str, records: int) -> None:
    """Let an isolated leader take records with acks=1 that no other replica gets."""
    until("it knows that it leads", lambda: told_by(cluster, number, topic)[0] == number)
    network.cut_off(number, *(other for other in (1, 2, 3) if other != number))
    with Wire(cluster.brokers[number].port) as wire:
        for _ in range(records):
            assert wire.produce(topic, batch([ALONE]), acks=1).error == 0


def test_two_leaders_in_a_row_leave_tails(cluster: Cluster, network: Network) -> None:
    """Two epochs end at the same offsets, where the third leader has other records, and does not have one epoch at all
    (KIP-101, KIP-279)."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        write_alone(cluster, network, 1, topic, 7)
        cluster.kill(1)
        network.heal()
        until("another leads", lambda: cluster.leader(topic) in (2, 3))
        second = cluster.leader(topic)
        witness.until_acked()
        write_alone(cluster, network, second, topic, 12)
        cluster.kill(second)
        network.heal()
        until("the third leads", lambda: cluster.leader(topic) == 5 - second)
        with Wire(cluster.brokers[5 - second].port) as wire:
            for _ in range(3):
                assert wire.produce(topic, batch([ALONE]), acks=1).error == 0
        cluster.restart()
        cluster.until_in_sync(topic)
        assert [cluster.brokers[number].count("log truncated partition=t-0") for number in (1, second)] >= [1, 1]
        witness.until_acked()
        witness.judge(alone=3)


def test_a_tail_that_nobody_else_has_is_not_read(cluster: Cluster, network: Network) -> None:
    """All are killed, and the leader restarts first: records that only it has stay uncommitted until the others have
    them."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        write_alone(cluster, network, 1, topic, 5)
        cluster.kill(1, 2, 3)
        acked = witness.acked
        network.heal()
        cluster.restart(1)
        until("it leads", lambda: cluster.leader(topic) == 1)
        with Wire(cluster.brokers[1].port) as wire:
            assert wire.list_offset(topic, -1)[2] <= acked
            assert not any(ALONE in found.data for found in wire.fetch_all(topic))
        cluster.restart(2, 3)
        cluster.until_in_sync(topic)
        witness.until_acked()
        witness.judge(alone=5)


def test_killed_while_it_becomes_a_follower(cluster: Cluster, network: Network) -> None:
    """Killed while it truncates records that only it has, a broker truncates again in its next life, and follows."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        write_alone(cluster, network, 1, topic, 5)
        cluster.kill(1)
        network.heal()
        until("another leads", lambda: cluster.leader(topic) in (2, 3))
        witness.until_acked()
        broker = cluster.brokers[1]
        broker.failpoints = "segment.truncate=kill"
        broker.begin()
        assert broker.wait_end() == -signal.SIGKILL
        broker.failpoints = ""
        cluster.restart(1)
        cluster.until_in_sync(topic)
        witness.until_acked()
        witness.judge()


@pytest.mark.long
def test_three_leaders_in_a_row_leave_tails(cluster: Cluster, network: Network) -> None:
    """Each leader is killed with small batches that no other replica has, and restarts under the next leader: all three
    truncate their own records."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    with Witness(cluster, topic) as witness:
        for records in (3, 9, 5):
            witness.until_acked(20)
            leader = cluster.leader(topic)
            write_alone(cluster, network, leader, topic, records)
            cluster.kill(leader)
            network.heal()
            until("another leads", lambda dead=leader: cluster.leader(topic) not in (-1, dead))
            cluster.brokers[leader].begin()
        witness.until_acked(20)
        cluster.brokers[leader].wait_ready()
        cluster.until_in_sync(topic)
        assert sum(broker.count("log truncated partition=t-0") for broker in cluster.brokers.values()) >= 3
        witness.judge(alone=None)


@pytest.mark.long
def test_a_session_ends_while_it_becomes_a_follower(
    tmp_path: Path, network: Network, start_store: Callable[..., AnyStore]
) -> None:
    """A broker's disk is slow while it truncates its own records, and its session expires meanwhile: it registers
    again, gets LeaderAndIsr again, and follows."""
    with start_store(tick_ms=100) as own, Cluster(
        tmp_path, own, network=network, zookeeper_session_timeout_ms=2000
    ) as cluster:  # fmt: skip
        topic, broker = cluster.create("t", replicas=[[1, 2, 3]]), cluster.brokers[1]
        with Witness(cluster, topic) as witness:
            witness.until_acked()
            write_alone(cluster, network, 1, topic, 5)
            cluster.kill(1)
            network.heal()
            until("another leads", lambda: cluster.leader(topic) in (2, 3))
            witness.until_acked()
            broker.failpoints = f"segment.truncate=sleep:{SLOW_S * 1000}"
            registered = broker.count("broker registered")
            until("it is missed", lambda: 1 not in ids(cluster, 2))
            broker.begin()
            until("it cuts", lambda: broker.count("log truncated partition=t-0"))
            slow_until_s = time.monotonic() + SLOW_S
            network.cut(1, STORE)
            until("it has no session", lambda: 1 not in ids(cluster, 2))
            assert time.monotonic() < slow_until_s
            network.heal()
            until("it has another", lambda: broker.count("broker registered") == registered + 2)
            cluster.until_in_sync(topic)
            witness.until_acked()
            witness.judge()


def test_what_was_cut_is_not_missed(tmp_path: Path, store: AnyStore) -> None:
    """A broker stops with records of its own, truncates them at its start, and is killed: its older checkpoints do not
    make the log look damaged, and it rejoins the ISR."""
    with contextlib.closing(Cluster(tmp_path, store)) as cluster:
        cluster.start(1)  # the controller must not be frozen
        cluster.start(2, 3)
        topic = cluster.create("t", replicas=[[1, 2, 3]])
        cluster.until_in_sync(topic)
        with Wire(cluster.brokers[1].port) as wire:
            assert wire.produce(topic, batch([b"everywhere"]), acks=-1).error == 0
            for number in (2, 3):
                cluster.signal(number, signal.SIGSTOP)
            for _ in range(5):
                assert wire.produce(topic, batch([b"here alone"]), acks=1).error == 0
        cluster.brokers[1].stop()
        for number in (2, 3):
            cluster.signal(number, signal.SIGCONT)
        until("another leads", lambda: cluster.leader(topic) in (2, 3))
        assert "t 0 6" in (cluster.brokers[1].data_dir / "recovery-point-offset-checkpoint").read_text().splitlines()
        cluster.start(1)
        cluster.until_in_sync(topic)
        assert cluster.brokers[1].count("log truncated") == 1
        cluster.kill(1)
        cluster.start(1)
        cluster.until_in_sync(topic)
        assert not cluster.differing(topic)
