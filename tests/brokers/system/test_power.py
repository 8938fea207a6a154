"""Brokers of a cluster that lose power: unsynced data is lost there, and nowhere else."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers.kit import Cluster, Planted
from tests.brokers.witness import Witness
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.neutral import Record
from tests.faults import power
from tests.harness import until
from tests.stores import AnyStore

pytestmark = [pytest.mark.java]


class Member(power.Plug, Planted):
    """A broker of a cluster whose power can be cut."""


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, store, kind=Member, zookeeper_session_timeout_ms=1000)
    library = power.build(tmp_path)
    for number, broker in cluster.brokers.items():
        assert isinstance(broker, Member)
        broker.plug_in(tmp_path / f"broker-{number}", library)
    with cluster:
        yield cluster


def lose_power(cluster: Cluster, *numbers: int) -> None:
    for number in numbers:
        broker = cluster.brokers[number]
        assert isinstance(broker, Member)
        broker.lose_power()


def test_all_lose_it_at_different_moments(cluster: Cluster) -> None:
    """A topic syncs before it acknowledges, and a replica counts by its synced offset. Each broker loses power at
    another moment of the load, the last before the first is back, twice."""
    topic = cluster.create("t", replicas=[[1, 2, 3]], flush_messages="1")
    chance = random.Random(5)
    with Witness(cluster, topic) as witness:
        for first, *rest in ([1, 2, 3], [3, 1, 2]):
            witness.until_acked()
            lose_power(cluster, first)
            for number in rest:
                time.sleep(chance.uniform(0, 0.1))
                lose_power(cluster, number)
            cluster.restart()
            cluster.until_in_sync(topic)
        witness.until_acked()
        witness.judge()


def test_the_last_in_sync_replica_loses_it(cluster: Cluster) -> None:
    """The ISR shrinks to broker 1, all die, and broker 1 loses the records that it had not synced. When it is back it
    does not lead, but waits for the others, which were killed and have each acknowledged record; one of them leads."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    client, records = Confluent(cluster.bootstrap), [Record(b"%d" % number) for number in range(200)]
    client.send_all(topic, records)
    cluster.until_in_sync(topic)
    cluster.kill(2)
    cluster.kill(3)
    until("broker 1 is the last", lambda: cluster.partition(topic) == (1, [1]))
    lose_power(cluster, 1)
    cluster.restart(1)
    until("it waits", lambda: cluster.brokers[1].count("partition waits for replicas"))
    assert cluster.leader(topic) == -1
    cluster.restart(2, 3)
    cluster.until_in_sync(topic)
    assert cluster.leader(topic) in (2, 3)
    client = Confluent(cluster.bootstrap)
    assert [record.value for record in client.read(topic, 200)] == [record.value for record in records]
    assert client.send_all(topic, [Record(b"next")]) == [200]
    until("replicas are the same", lambda: cluster.differing(topic) == [])


@pytest.mark.long
def test_one_after_the_other_loses_it(cluster: Cluster) -> None:
    """A topic without syncs loses a broker's power, leader or not: the others have its lost records. The broker is in
    no ISR until it has them again, and never leads without them."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    with Witness(cluster, topic) as witness:
        for number in (1, 3, 2):
            witness.until_acked()
            lose_power(cluster, number)
            witness.until_acked()
            cluster.restart(number)
            cluster.until_in_sync(topic)
        witness.until_acked()
        witness.judge()
