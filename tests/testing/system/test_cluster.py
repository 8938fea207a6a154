"""A cluster in a test: replicated, stopped broker by broker, in sync again, inspected, read, and quick to start."""

from __future__ import annotations

import functools
import os
import threading
import time

import confluent_kafka as ck
import pytest

import pybroker.testing
from pybroker.errors import KafkaError
from pybroker.testing import BrokerFailed, ClusterHandle, Record
from pybroker.testing.process import Subprocess
from tests.harness import until
from tests.testing.kit import KINDS, Kind, send

START_S_MAX = 1.5


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


def read(cluster: ClusterHandle, topic: str, count: int) -> list[bytes | None]:
    """The values of a one-partition topic, read with confluent-kafka."""
    consumer = ck.Consumer(cluster.confluent_config(group_id="readers"))
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found += [each.value() for each in consumer.consume(1000, 0.2) if each.error() is None]
    consumer.close()
    return found


def test_brokers_come_and_go(kind: Kind) -> None:
    """Brokers come and go without loss: records from before and during a leader's death are there, and a rolling
    restart goes unnoticed."""
    with pybroker.testing.cluster(**kind) as cluster:
        assert cluster.running == cluster.brokers == [1, 2, 3]
        topic = cluster.create_topic("orders", partitions=3)
        cluster.produce(topic, "before")
        leader = cluster.leader(topic)
        cluster.kill(leader)
        assert leader not in cluster.running
        producer = ck.Producer(cluster.confluent_config(acks="all", enable_idempotence=True))
        assert send(producer, topic, "while it is dead", partition=0) == [None]
        assert cluster.leader(topic) not in (-1, leader)
        cluster.wait_in_sync()
        assert len(cluster.in_sync(topic)) == 2
        cluster.start()
        cluster.wait_in_sync(topic)
        assert cluster.running == [1, 2, 3]
        written = [b"before", b"while it is dead"]
        for number in cluster.brokers:
            cluster.restart(number)
            cluster.wait_in_sync(topic)
            assert send(producer, topic, str(number), partition=0) == [None]
            written.append(b"%d" % number)
        assert cluster.controller in cluster.brokers
        assert [record.value for record in cluster.records(topic)] == written
        assert read(cluster, topic, len(written)) == written


def test_all_are_killed_and_come_back(kind: Kind) -> None:
    """A cluster whose brokers are all killed comes back with every acknowledged record."""
    with pybroker.testing.cluster(2, **kind) as cluster:
        cluster.produce("t", "a", "b")
        cluster.kill()
        assert cluster.running == []
        cluster.start()
        cluster.wait_in_sync("t")
        cluster.restart()
        assert [record.value for record in cluster.records("t")] == [b"a", b"b"]
        cluster.produce("t", "c")
        assert [record.value for record in cluster.records("t")] == [b"a", b"b", b"c"]


def test_nobody_is_asked_while_no_broker_runs(pybroker_cluster: ClusterHandle) -> None:
    """A call while no broker runs fails at once with a sentence."""
    topic = pybroker_cluster.create_topic("orders")
    pybroker_cluster.kill()
    began = time.monotonic()
    for ask in (pybroker_cluster.wait_in_sync, pybroker_cluster.leader, pybroker_cluster.produce):
        with pytest.raises(BrokerFailed, match="no broker of the cluster runs"):
            ask(topic)
    assert time.monotonic() - began < 1
    pybroker_cluster.start()
    pybroker_cluster.wait_in_sync(topic)


def leads_any(cluster: ClusterHandle, topic: str, number: int) -> bool:
    return any(cluster.leader(topic, partition) == number for partition in range(3))


def test_a_clean_stop_is_no_death(pybroker_cluster: ClusterHandle, caplog: pytest.LogCaptureFixture) -> None:
    """A clean stop logs no warning of a dead broker, even if the controller stops, which hands over first."""
    caplog.set_level("INFO", "pybroker")
    topic = pybroker_cluster.create_topic("t", partitions=3)
    for number in pybroker_cluster.brokers:
        pybroker_cluster.wait_in_sync(topic)
        pybroker_cluster.stop(number)
        leads = functools.partial(leads_any, pybroker_cluster, topic, number)
        until("others lead", lambda leads=leads: not leads())
        pybroker_cluster.start(number)
    pybroker_cluster.wait_in_sync(topic)
    assert "is dead" not in caplog.text and "controlled shutdown failed" not in caplog.text
    assert "controller resigned" in caplog.text


def test_a_group_begins_while_a_broker_is_dead(pybroker_cluster: ClusterHandle) -> None:
    """A group can begin while a broker is dead: its topic exists from the start, as it could not be created with fewer
    brokers than replicas."""
    pybroker_cluster.produce("t", "a")
    pybroker_cluster.kill(pybroker_cluster.leader("t"))
    assert read(pybroker_cluster, "t", 1) == [b"a"]


def test_records_as_those_of_a_lone_broker(pybroker_cluster: ClusterHandle) -> None:
    """A cluster's records have keys, headers, timestamps, partitions and offsets, as a single broker's; a missing topic
    or partition is named."""
    pybroker_cluster.create_topic("t", partitions=2, config={"retention.ms": -1}, segment_bytes=1 << 20)
    given = [Record("a", "k", [("h", b"1")], 17), Record(None, b"k", partition=1), Record(b"", partition=1)]
    stored = pybroker_cluster.produce("t", *given, "b")
    assert [(r.partition, r.offset) for r in stored] == [(0, 0), (1, 0), (1, 1), (0, 1)]
    assert pybroker_cluster.records("t") == sorted(stored, key=lambda r: (r.partition, r.offset))
    assert pybroker_cluster.records("t", partition=1) == stored[1:3]
    assert stored[0][:4] == (b"a", b"k", (("h", b"1"),), 17)
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        pybroker_cluster.records("u")
    with pytest.raises(TimeoutError, match="t has 4 of 5 records after 0 s: 0@0 key=b'k'"):
        pybroker_cluster.records("t", count=5, timeout_s=0)
    with pytest.raises(TimeoutError, match="u has 0 of 1 records after 0 s: the broker has the topics t"):
        pybroker_cluster.records("u", count=1, timeout_s=0)
    with pytest.raises(TypeError, match="a record's value is bytes, str or None, not int"):
        pybroker_cluster.produce("t", 1)  # type: ignore[arg-type]


def test_a_broker_of_it_has_faults(kind: Kind) -> None:
    """A broker of a cluster can have faults of its own: a request that it refuses, another broker serves."""
    with pybroker.testing.cluster(**kind) as cluster:
        topic = cluster.create_topic("t")
        producer = ck.Producer(cluster.confluent_config(enable_idempotence=True))
        with cluster.faults(cluster.leader(topic)).disconnect("Produce", times=2) as lost:
            assert send(producer, topic, "once") == [None]
            assert lost.hits == 2
        assert [record.value for record in cluster.records(topic)] == [b"once"]


def test_it_is_there_soon(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster is ready soon: the quickest of three starts, to the first record on all replicas, meets the promise.
    That is for an idle machine, and is scaled by load."""
    took_s = []
    for _ in range(3):
        began = time.monotonic()
        with pybroker.testing.cluster(**kind) as cluster:
            cluster.produce("t", "a")
            took_s.append(time.monotonic() - began)
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    with capsys.disabled():
        shown = ", ".join(f"{each:.2f}" for each in took_s)
        print(f"\n  {kind}: first record on three brokers after {shown} s; load {load:.1f} on {processors} processors")
    assert min(took_s) < START_S_MAX * max(1.0, load / processors)


def test_without_java_brokers_that_begin_late_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java, brokers that start late do not wait: ZooKeeper's failure is known before their threads run."""
    begin = Subprocess.start

    def late(life: Subprocess) -> None:
        time.sleep(1)
        begin(life)

    monkeypatch.setattr(Subprocess, "start", late)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    began = time.monotonic()
    with pytest.raises(BrokerFailed, match=r"ZooKeeper did not start: .*JAVA_HOME is /nowhere"):
        pybroker.testing.cluster(mode="subprocess", store="zookeeper")
    assert time.monotonic() - began < 10


def test_threads_that_copy_from_leaders() -> None:
    """A broker has as many fetcher threads as num.replica.fetchers."""
    with pybroker.testing.cluster(1, settings={"num.replica.fetchers": 2}) as one:
        names = [thread.name for thread in threading.enumerate()]
        assert [names.count(f"pybroker-fetcher-{n}") for n in range(3)] == [1, 1, 0]
        assert one.in_sync(one.create_topic("t")) == [1]


def test_sizes_and_settings() -> None:
    """Impossible sizes and settings are refused in one sentence."""
    with pytest.raises(ValueError, match="at least one broker, not 0"):
        pybroker.testing.cluster(0)
    with pytest.raises(ValueError, match="mode is 'docker'; it can be one of inprocess, subprocess"):
        pybroker.testing.cluster(mode="docker")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="store is 'consul'; it can be one of memory, zookeeper, etcd"):
        pybroker.testing.cluster(store="consul")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mode='subprocess' needs store='zookeeper'"):
        pybroker.testing.cluster(mode="subprocess", store="memory")
    with pybroker.testing.cluster(1, settings={"num.partitions": 2}) as one:
        topic = one.create_topic("small")
        assert one.in_sync(topic) == [1]
        with pytest.raises(ValueError, match="there is no broker 2: its brokers are 1"):
            one.kill(2)
    with pytest.raises(BrokerFailed, match="is not a setting"):
        pybroker.testing.cluster(1, settings={"no.such.setting": 1})


def test_without_java_or_its_jars(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    """Missing Java or jars are named in one sentence, and no broker waits for ZooKeeper."""
    if kind.store != "zookeeper":
        pytest.skip("only ZooKeeper needs Java")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    began = time.monotonic()
    with pytest.raises(BrokerFailed, match=r"ZooKeeper did not start: .*JAVA_HOME is /nowhere"):
        pybroker.testing.cluster(**kind)
    assert time.monotonic() - began < 10
