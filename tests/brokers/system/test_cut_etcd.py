"""The leader of a real etcd of three servers is cut off from the others by the network; brokers reach all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.brokers.kit import Cluster
from tests.brokers.store_faults import NetworkedEtcd, StoreFaults, leader_of
from tests.brokers.witness import Witness
from tests.harness import until

SESSION_MS = 10_000


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[NetworkedEtcd]:
    with NetworkedEtcd(str(tmp_path / "etcd")) as started:
        yield started


def leads_without(etcd: NetworkedEtcd, number: int) -> bool:
    """True if one of the other servers leads."""
    for server in etcd.servers:
        with suppress(OSError, ValueError):
            status = server.ask("v3/maintenance/status")
            header = status["header"]
            assert isinstance(header, dict)
            if server.number != number and status.get("leader") == header["member_id"]:
                return True
    return False


def test_brokers_go_on_with_the_others(tmp_path: Path, etcd: NetworkedEtcd) -> None:
    """The others elect a leader. Brokers whose sessions are at the server that was cut off go on at another one, within
    their sessions: none registers again. A broker that is killed meanwhile has a successor before the cut is healed;
    and each acknowledged record is there once."""
    with Cluster(tmp_path, etcd, zookeeper_session_timeout_ms=SESSION_MS) as cluster:
        topic = cluster.create("t", replicas=[[1, 2, 3]])
        with Witness(cluster, topic) as witness:
            witness.until_acked()
            before = leader_of(etcd).number
            cut = StoreFaults(etcd, random.Random(1)).cut_store_leader()
            next(cut)
            until("another server leads", lambda: leads_without(etcd, before))
            witness.until_acked(200)
            cluster.create("made-behind-the-cut")
            assert [broker.count("broker registered") for broker in cluster.brokers.values()] == [1, 1, 1]
            cluster.kill(1)
            witness.until_acked()
            assert cluster.leader(topic) in (2, 3)
            next(cut, None)
            cluster.restart(1)
            cluster.until_in_sync(topic)
            witness.judge()
