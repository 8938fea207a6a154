"""A broker of a cluster whose disk fails: its partitions there get other leaders, and it goes on with the rest."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pybroker.protocol import messages as m
from tests.asking import ask
from tests.brokers.kit import Cluster
from tests.brokers.witness import Witness
from tests.harness import until
from tests.stores import AnyStore
from tests.wire import Wire, batch

pytestmark = [pytest.mark.java]


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore) -> Iterator[Cluster]:
    """Three brokers with two log dirs each."""
    def log_dirs(number: int) -> str:
        return ",".join(str(tmp_path / f"broker-{number}" / name) for name in ("one", "two"))

    with Cluster(tmp_path, store, log_dirs=log_dirs) as running:
        yield running


def lies_in(cluster: Cluster, number: int, topic: str) -> Path:
    """The log dir of a broker that has partition 0 of a topic, once the broker has created it."""
    home, pattern = cluster.brokers[number].data_dir, f"*/{topic}-0"
    until(f"broker {number} has {topic}", lambda: list(home.glob(pattern)))
    (found,) = home.glob(pattern)
    return found.parent


def offline(cluster: Cluster, number: int, topic: str) -> list[int]:
    """The offline replicas of partition 0, as a broker answers."""
    asked = [m.MetadataRequest.Topics(name=topic)]
    answer = ask(cluster.brokers[number].port, "Metadata", 12, topics=asked)
    return list(answer.topics[0].partitions[0].offline_replicas)


def test_others_lead_what_lay_on_a_disk_that_failed(cluster: Cluster) -> None:
    """No acknowledged record is lost, and no session has to expire, as the broker is alive and leads the rest."""
    lost, kept = cluster.create("lost", replicas=[[1, 2, 3]]), cluster.create("kept", replicas=[[1, 2, 3]])
    disk = lies_in(cluster, 1, lost)
    assert disk != lies_in(cluster, 1, kept)
    with Witness(cluster, lost) as witness:
        witness.until_acked()
        disk.rename(disk.with_name("away"))
        until("another leads", lambda: cluster.leader(lost) in (2, 3))
        assert 1 not in cluster.partition(lost)[1]
        until("broker 2 is told", lambda: offline(cluster, 2, lost) == [1])
        assert offline(cluster, 2, kept) == []
        witness.until_acked()
        assert cluster.partition(kept) == (1, [1, 2, 3])
        cluster.brokers[1].stop()
        disk.with_name("away").rename(disk)
        cluster.start(1)
        cluster.until_in_sync(lost)
        until("it is whole", lambda: offline(cluster, 2, lost) == [])
        witness.until_acked()
        witness.judge()


def test_a_sync_that_hangs_holds_up_its_own_topic_alone(cluster: Cluster) -> None:
    """With flush.messages=1 a follower whose disk hangs leaves the ISR of the topic that waits for it. Its other
    partitions of the same leader go on, and it rejoins the ISR when the disk is back."""
    broker = cluster.brokers[2]
    synced = cluster.create("synced", replicas=[[1, 3, 2]], flush_messages="1")
    plain = cluster.create("plain", replicas=[[1, 3, 2]])
    broker.stop()
    broker.failpoints = "segment.sync=sleep:12000:0:1"
    cluster.start(2)
    for topic in (synced, plain):
        cluster.until_in_sync(topic)
    with Witness(cluster, plain) as witness, Wire(cluster.brokers[1].port) as wire:
        witness.until_acked()
        assert wire.produce(synced, batch([b"held up"]), acks=1).error == 0
        until("it is missed", lambda: cluster.partition(synced)[1] == [1, 3])
        assert 2 in cluster.partition(plain)[1]
        cluster.until_in_sync(synced)
        assert not cluster.brokers[1].count("ISR shrunk partition=plain-0")
        witness.judge()


def test_a_topic_is_not_deleted_before_its_last_replica(cluster: Cluster) -> None:
    """The last replica is on a failed disk, which the broker knows, or mostly the deletion finds. It would return with
    the disk and be in the way of a new topic of that name."""
    first = cluster.create("first", replicas=[[2, 1, 3]])
    cluster.create("elsewhere", replicas=[[1, 2, 3]])
    second = cluster.create("second", replicas=[[2, 1, 3]])
    disk, lost = lies_in(cluster, 1, first), (first, second)
    assert disk == lies_in(cluster, 1, second)
    disk.rename(disk.with_name("away"))
    cluster.admin.delete_topics([first])[first].result(20)
    until("it is missed", lambda: 1 not in cluster.partition(second)[1])
    cluster.admin.delete_topics([second])[second].result(20)
    gone = [f"*/{topic}-0" for topic in lost]
    until("others have deleted it", lambda: not any(list(cluster.brokers[2].data_dir.glob(each)) for each in gone))
    assert not any(_made(cluster, topic) for topic in lost)
    cluster.brokers[1].stop()
    disk.with_name("away").rename(disk)
    cluster.start(1)
    for topic in lost:
        until("it can be made again", partial(_made, cluster, topic), timeout_s=20, every_s=0.2)
        cluster.until_in_sync(topic)


def _made(cluster: Cluster, topic: str) -> bool:
    try:
        cluster.create(topic, replicas=[[1, 2, 3]])
    except Exception as problem:
        assert "TOPIC_ALREADY_EXISTS" in str(problem)
        return False
    return True


def test_a_log_of_a_deleted_topic_is_in_its_broker_s_way_alone(cluster: Cluster, tmp_path: Path) -> None:
    """An operator restores a deleted topic's log from a disk, while a new topic has its name: the log is never used for
    the new one, and other brokers lead."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    cluster.brokers[1].stop()
    lay = lies_in(cluster, 1, topic) / "t-0"
    shutil.copytree(lay, tmp_path / "backup")
    cluster.start(1)
    cluster.until_in_sync(topic)
    cluster.admin.delete_topics([topic])[topic].result(20)
    until("it has deleted it", lambda: not lay.exists())
    cluster.brokers[1].stop()
    shutil.copytree(tmp_path / "backup", lay)
    cluster.start(1)
    until("it can be made again", lambda: _made(cluster, topic), every_s=0.2)
    until("others lead", lambda: sorted(cluster.partition(topic)[1]) == [2, 3])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
    assert cluster.brokers[1].count("log of another topic")
