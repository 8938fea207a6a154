"""A network that is cut, between brokers and from ZooKeeper: no broker dies, some are wrong, no record is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker import errors
from tests.asking import ask, latest
from tests.brokers.kit import Cluster
from tests.brokers.network import STORE, Network
from tests.brokers.witness import ALONE, Witness
from tests.harness import until
from tests.stores import AnyStore
from tests.wire import Wire, batch

SESSION_MS = 2000
pytestmark = [pytest.mark.java]


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore, network: Network) -> Iterator[Cluster]:
    how = {"zookeeper_session_timeout_ms": SESSION_MS, "replica_lag_time_max_ms": 1000}
    with Cluster(tmp_path, store, network=network, **how) as running:
        yield running


def others(number: int) -> list[int]:
    return [each for each in (1, 2, 3) if each != number]


def produce(cluster: Cluster, number: int, topic: str, acks: int) -> int:
    """Produce a record to a broker, leader or not; return its error code."""
    with Wire(cluster.brokers[number].port) as wire:
        return wire.produce(topic, batch([ALONE]), acks=acks).error


def test_a_leader_is_cut_from_its_followers(cluster: Cluster, network: Network) -> None:
    """The leader is also the controller, so it removes its followers from the ISR, and refuses acks=all. No other
    broker becomes leader, and with the network back all go on."""
    leader = cluster.controller()
    topic = cluster.create("t", replicas=[[leader, *others(leader)]])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        network.cut_off(leader, *others(leader))
        changes = cluster.brokers[leader].count
        until("the ISR is one", lambda: changes("ISR shrunk partition=t-0 isr=") > 0)
        assert produce(cluster, leader, topic, -1) == errors.NOT_ENOUGH_REPLICAS
        witness.stays_quiet(1.5)
        assert told_by(cluster, leader, topic) == (leader, [leader])
        assert changes("ISR expanded partition=t-0") == 0, "no follower could have caught up"
        network.heal()
        witness.until_acked()
        cluster.until_in_sync(topic)
        assert cluster.leader(topic) == leader
        witness.judge()


def test_a_leader_is_cut_from_its_followers_and_the_controller(cluster: Cluster, network: Network) -> None:
    """The leader's session is alive, so it stays leader. It cannot shrink the ISR, and acknowledges no acks=all record
    that its followers lack."""
    controller = cluster.controller()
    leader, *_ = others(controller)
    topic = cluster.create("t", replicas=[[leader, *others(leader)]])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        network.cut_off(leader, *others(leader))
        witness.until_quiet()
        assert produce(cluster, leader, topic, 1) == 0
        witness.stays_quiet(2.0)
        assert told_by(cluster, leader, topic) == (leader, [leader, *others(leader)])
        network.heal()
        witness.until_acked()
        cluster.until_in_sync(topic)
        assert cluster.leader(topic) == leader
        witness.judge(alone=1)


def test_a_leader_is_cut_from_zookeeper_alone(cluster: Cluster, network: Network) -> None:
    """Others elect a leader; the cut one does not learn it. Once its lease has lapsed it refuses acks=1 and asks for no
    ISR change. It still serves its data. When it is back it follows."""
    leader = others(cluster.controller())[0]
    topic = cluster.create("t", replicas=[[leader, *others(leader)]])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        network.cut(leader, STORE)
        until("its lease has lapsed", lambda: produce(cluster, leader, topic, 1) == errors.NOT_LEADER_OR_FOLLOWER)
        with Wire(cluster.brokers[leader].port) as wire:
            assert wire.fetch(topic, 0).error == 0
        until("another leads", lambda: elsewhere(cluster, topic, leader))
        assert produce(cluster, leader, topic, 1) == errors.NOT_LEADER_OR_FOLLOWER
        with Wire(cluster.brokers[leader].port) as wire:
            assert wire.fetch(topic, 0).error == 0
            assert wire.fetch(topic, 1 << 40).error == errors.NOT_LEADER_OR_FOLLOWER, "the next leader may have it"
        assert latest(cluster.brokers[leader].port, topic)[0] == errors.NOT_LEADER_OR_FOLLOWER
        assert cluster.brokers[leader].count("ISR") == 0
        network.heal()
        cluster.until_in_sync(topic)
        witness.until_acked()
        witness.judge(alone=None)


def test_a_leader_is_cut_from_everybody(cluster: Cluster, network: Network) -> None:
    """The leader's host falls silent: another broker leads after its session. When the old leader is back it truncates
    its own records, which no client has read."""
    leader = others(cluster.controller())[0]
    topic = cluster.create("t", replicas=[[leader, *others(leader)]])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        network.cut_off(leader, STORE, *others(leader))
        assert produce(cluster, leader, topic, 1) == 0
        until("another leads", lambda: elsewhere(cluster, topic, leader))
        network.heal()
        cluster.until_in_sync(topic)
        witness.until_acked()
        assert cluster.brokers[leader].count("log truncated")
        witness.judge()


def test_a_leader_that_nobody_tells_it_is_one_no_more(cluster: Cluster, network: Network) -> None:
    """A former leader has a new ZooKeeper session, but does not reach its peers. It refuses acks=1 until it gets
    LeaderAndIsr from the controller."""
    leader = others(cluster.controller())[0]
    topic = cluster.create("t", replicas=[[leader, *others(leader)]])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        network.cut_off(leader, STORE, *others(leader))
        until("another leads", lambda: elsewhere(cluster, topic, leader))
        before = cluster.brokers[leader].count("broker registered")
        network.heal(leader, STORE)
        until("it is registered again", lambda: cluster.brokers[leader].count("broker registered") > before)
        for _ in range(20):
            assert produce(cluster, leader, topic, 1) == errors.NOT_LEADER_OR_FOLLOWER
            time.sleep(SESSION_MS / 20_000)  # for more than a session
        network.heal()
        cluster.until_in_sync(topic)
        witness.until_acked()
        witness.judge()


def test_a_controller_is_cut_from_zookeeper(cluster: Cluster, network: Network) -> None:
    """Another controller is elected while the first believes to be one; brokers refuse its requests, and it is a plain
    broker when it is back."""
    first = cluster.controller()
    topic = cluster.create("t", replicas=[[*others(first), first]])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        network.cut(first, STORE)
        until("another controls", lambda: len(controllers(cluster) - {first}) == 1)
        network.heal()
        until("all know it", lambda: len(controllers(cluster)) == 1 and first not in controllers(cluster))
        cluster.until_in_sync(topic)
        cluster.kill(cluster.leader(topic))
        witness.until_acked()
        cluster.restart()
        cluster.until_in_sync(topic)
        witness.judge()


def told_by(cluster: Cluster, number: int, topic: str) -> tuple[int, list[int]]:
    """(leader, ISR) in one broker's metadata."""
    return cluster.told_by(number, topic)[0]


def elsewhere(cluster: Cluster, topic: str, leader: int) -> bool:
    """True if one of the others claims to lead. Until then it is a follower, and would apply what is in flight."""
    return any(told_by(cluster, number, topic)[0] == number for number in others(leader))


def controllers(cluster: Cluster) -> set[int]:
    """The controllers in the brokers' metadata."""
    running = [broker.port for broker in cluster.brokers.values() if broker.running]
    return {ask(port, "Metadata", 9, topics=[]).controller_id for port in running}
