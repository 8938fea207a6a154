"""A real etcd of three servers refuses writes (alarm NOSPACE): brokers serve on, and recover once there is room."""

from __future__ import annotations

import base64
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from pybroker.development.etcd_server import Etcd
from tests.brokers.kit import Cluster
from tests.brokers.store_faults import fill, make_room, start_store
from tests.brokers.witness import ALONE, Witness
from tests.harness import until
from tests.wire import Wire, batch

SESSION_MS = 5000
SESSIONS = 3
CURE = "its database is full (alarm NOSPACE): compact and defragment it, and disarm the alarm"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd of three servers with a small quota."""
    started = start_store("etcd", str(tmp_path / "etcd"))
    assert isinstance(started, Etcd)
    with started:
        yield started


def sessions(etcd: Etcd, cluster: Cluster) -> int:
    """The number of sessions that etcd has not ended."""
    start, end = (base64.b64encode(f"{cluster.chroot}/sessions{last}".encode()).decode() for last in "/0")
    return int(str(etcd.servers[0].ask("v3/kv/range", key=start, range_end=end, count_only=True).get("count", "0")))


def takes_acks_1(cluster: Cluster, number: int, topic: str) -> bool:
    """True if a broker accepts a record with acks 1, as only a leader with a lease does."""
    with Wire(cluster.brokers[number].port) as wire:
        return wire.produce(topic, batch([ALONE]), acks=1).error == 0


def test_leaders_serve_on_and_no_other_is_elected(tmp_path: Path, etcd: Etcd) -> None:
    """For several sessions, keep-alives renew leases while writes are refused. A broker that is frozen longer than its
    session begins no other one, and a leader that is killed has no successor. Once etcd is compacted, defragmented and
    disarmed, both is made up for, without a restart of the others."""
    with Cluster(tmp_path, etcd, zookeeper_session_timeout_ms=SESSION_MS) as cluster:
        topic = cluster.create("t", replicas=[[1, 2, 3]])
        with Witness(cluster, topic) as witness:
            witness.until_acked()
            fill(etcd)
            for _ in range(SESSIONS):
                time.sleep(SESSION_MS / 1000)  # a lease that was not renewed would have lapsed
                witness.until_acked()
                until("the leader has a lease", lambda: takes_acks_1(cluster, 1, topic))
            assert sessions(etcd, cluster) == 3
            with pytest.raises(KafkaException, match="NOSPACE"):
                cluster.admin.create_topics([NewTopic("u", 1, 3)])["u"].result(30)
            cluster.signal(3, signal.SIGSTOP)
            until("its session ends", lambda: sessions(etcd, cluster) == 2)
            cluster.signal(3, signal.SIGCONT)
            until("it begins no other", lambda: cluster.brokers[3].count(CURE))
            cluster.kill(1)
            until("its session ends", lambda: sessions(etcd, cluster) == 1)
            witness.until_quiet()
            witness.stays_quiet(2 * SESSION_MS / 1000)
            make_room(etcd)
            witness.until_acked()
            assert cluster.leader(topic) in (2, 3)
            cluster.restart(1)
            cluster.until_in_sync(topic)
            witness.judge(alone=None)
        assert [cluster.brokers[number].count("pybroker ready") for number in (2, 3)] == [1, 1]
