"""A disk that is full while the broker runs: leaders move, one line is logged, and everything that makes room works."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import confluent_kafka as ck
import pytest

import pybroker
import pybroker.testing
from pybroker.client.admin import ResourceType
from pybroker.testing import ClusterHandle
from tests.harness import BrokerProcess, free_port, until
from tests.server.system.test_followers_disks import acked, follower, replicas_of

DISK_BYTES = 24 << 20
LAG_MS = 60_000


@pytest.fixture
def cluster() -> Iterator[ClusterHandle]:
    with pybroker.testing.cluster(settings={"replica.lag.time.max.ms": LAG_MS}) as made:
        yield made


def said(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    """The log lines of one event."""
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if line.startswith(what)]


def test_another_leads_while_the_disk_of_the_leader_is_full(
    cluster: ClusterHandle, caplog: pytest.LogCaptureFixture
) -> None:
    """Writes go on, no acknowledged record is lost, and the broker rejoins the ISR with one line for each event."""
    caplog.set_level(logging.INFO)
    topic = cluster.create_topic("t")
    acked(cluster, topic, 10)
    cluster.wait_in_sync(topic)
    leader = cluster.leader(topic)
    with cluster.faults(leader).full_disk():
        acked(cluster, topic, 100)
        assert cluster.leader(topic) != leader
        until("it is out of the ISR", lambda: leader not in cluster.in_sync(topic))
        acked(cluster, topic, 100)
    cluster.wait_in_sync(topic)
    acked(cluster, topic)
    assert len(cluster.records(topic)) == 211
    assert len(said(caplog, "log dir full")) == 1
    assert len(said(caplog, "log dir has room again")) == 1


def test_a_follower_leaves_the_isr_as_its_disk_is_full(
    cluster: ClusterHandle, caplog: pytest.LogCaptureFixture
) -> None:
    """No acknowledgement waits for replica.lag.time.max.ms, here a minute. No line is logged per partition."""
    topic = cluster.create_topic("t", partitions=3)
    acked(cluster, topic)
    cluster.wait_in_sync(topic)
    number = follower(cluster, topic)
    began_s = time.monotonic()
    with cluster.faults(number).full_disk():
        acked(cluster, topic, 100)
        until("it is out of the ISR", lambda: number not in cluster.in_sync(topic))
        acked(cluster, topic, 100)
    cluster.wait_in_sync(topic)
    assert time.monotonic() - began_s < LAG_MS / 1000
    assert said(caplog, "partition not copied") == said(caplog, "partition not followed") == []


def test_where_the_disks_of_all_are_full_one_leads_on(cluster: ClusterHandle) -> None:
    """While all disks are full reads go on, writes are refused and topics can be deleted; with room writes resume."""
    topic, other = cluster.create_topic("t", min_insync_replicas=1), cluster.create_topic("u")
    acked(cluster, topic)
    cluster.wait_in_sync(topic)
    for number in cluster.brokers:
        cluster.faults(number).full_disk()
    hasty = ck.Producer(cluster.confluent_config(acks="all", message_timeout_ms=3000))
    refused: list[object] = []
    while not all(lack(cluster, number) for number in cluster.brokers):
        hasty.produce(topic, b"refused", on_delivery=lambda error, _: refused.append(error))
        hasty.flush(20)
    assert all(refused)
    assert cluster.leader(topic) > 0
    assert len(cluster.records(topic)) == 1
    with pybroker.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.delete_topic(other)
        until("it is gone", lambda: not admin.exists(other))
    for number in cluster.brokers:
        cluster.faults(number).clear()
    acked(cluster, topic)
    cluster.wait_in_sync(topic)


@pytest.mark.parametrize("has_room", [False, True], ids=["a full disk", "one call"])
def test_a_replica_that_could_not_be_made_is_made_later(
    cluster: ClusterHandle, has_room: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A replica that failed for lack of space is created once there is some, without a restart. If there is space at
    once, it is missing for milliseconds only: the log shows it, the ISR may not."""
    caplog.set_level(logging.INFO, "pybroker")
    number = cluster.controller % len(cluster.brokers) + 1
    faults = cluster.faults(number)
    if has_room:
        replicas_of(cluster, number).arm("partition.create", errno.ENOSPC, 1)
    else:
        faults.full_disk()
        replicas_of(cluster, number).arm("partition.create", errno.ENOSPC, 1 << 30)
    topic = cluster.create_topic("t", partitions=3)
    until("it is missed", lambda: "cannot use a log" in caplog.text)
    acked(cluster, topic)
    if not has_room:
        assert number not in cluster.in_sync(topic)
        until("it is full", lambda: lack(cluster, number))
        faults.clear()
    until("it is taken back", lambda: "ISR expanded" in caplog.text)
    cluster.wait_in_sync(topic)
    acked(cluster, topic)


def lack(cluster: ClusterHandle, number: int) -> str:
    """The reason a broker's log dir takes no appends."""
    (log_dir,) = replicas_of(cluster, number).log_dirs
    return str(log_dir.space.lack)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("to mount a file system takes root, and mount")
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield path
    subprocess.run(["umount", str(path)], check=False)


@pytest.mark.parametrize("again", [False, True], ids=["running", "started again"])
def test_what_makes_room_works_on_a_full_disk(
    disk: Path, start_broker: Callable[..., BrokerProcess], again: bool
) -> None:
    """A lone broker, with its store on the same full disk, still takes changed settings and deletions of records and
    topics; with room, writes go on."""
    sets = {"log.segment.bytes": 2 << 20, "log.retention.check.interval.ms": 500, "log.segment.delete.delay.ms": 500}
    sets |= {"metrics.listener": f"127.0.0.1:{(metrics := free_port())}"}
    broker = start_broker(data_dir=disk / "data", sets=sets)
    at = f"127.0.0.1:{broker.port}"
    with pybroker.Admin(bootstrap_servers=at) as admin:
        for topic in ("t", "u"):
            admin.create_topic(topic)
    with pybroker.Producer(bootstrap_servers=at, delivery_timeout_ms=3000, linger_ms=0) as producer:
        for _ in range(100):
            try:
                producer.send("t", os.urandom(500_000)).result(20)
            except pybroker.KafkaError:
                break
        else:
            pytest.fail("the disk has room for all")
    until("the broker says so", lambda: "log dir full" in broker.output())
    with suppress(OSError), open(disk / "filler", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    if again:
        broker.stop()
        broker.start()
    ready = urlopen(f"http://127.0.0.1:{metrics}/readyz").read().decode()
    assert ready == f"{disk / 'data'} takes no writes: no space left on device\n"
    command = [sys.executable, "-m", "pybroker", "cluster", "-b", at]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"broker \d+ takes no writes in {disk / 'data'}: no space left on device", shown), shown
    with pybroker.Admin(bootstrap_servers=at) as admin:
        resource = pybroker.ConfigResource(ResourceType.TOPIC, "t")
        admin.alter_configs(resource, [pybroker.Alteration("retention.bytes", pybroker.ConfigOperation.SET, "1000000")])
        admin.delete_records({("t", 0): pybroker.HIGH_WATERMARK})
        admin.delete_topic("u")
    (disk / "filler").unlink()
    with pybroker.Producer(bootstrap_servers=at, delivery_timeout_ms=30_000, linger_ms=0) as producer:
        assert producer.send("t", b"x").result(40).offset > 0
