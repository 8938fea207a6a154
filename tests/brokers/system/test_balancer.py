"""The continuous balancer on real brokers: a new broker gets its share under any controller, and nothing is left
behind; switched off, nothing moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer

from pybroker import Admin
from pybroker.client.admin import Alteration, ConfigOperation, ConfigResource, ResourceType
from pybroker.errors import KafkaError
from tests.brokers.kit import QUIET, Cluster
from tests.brokers.system.test_reassignments import MovingCluster
from tests.brokers.witness import Witness
from tests.harness import until
from tests.stores import AnyStore

pytestmark = [pytest.mark.java]
PARTITIONS = 12
RECORD = bytes(10_000)
RECORDS = 300
"""So many of each partition: 3 MB in each of two replicas."""
WAIT_S = 240
RATE = 3_000_000
"""Bytes a second: above the ten seconds' worth that pass at once, a move of all takes some seconds."""
SETS = {
    "auto.balance.enable": "true", "auto.balance.check.interval.seconds": 1, "auto.balance.partitions.at.once": 2,
    "auto.balance.throttled.rate": RATE, "auto.balance.disk.limit.percentage": 100,
    "default.replication.factor": 2, "min.insync.replicas": 1,
}  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore, request: pytest.FixtureRequest) -> Iterator[MovingCluster]:
    """Brokers 1 to 3 with 72 MB, two replicas of each partition; broker 4 is not started yet."""
    sets = {**SETS, **getattr(request, "param", {})}
    running = MovingCluster(tmp_path, store, count=4, **sets)
    try:
        running.start(1, 2, 3)
        running.create("t", replicas=[[i % 3 + 1, (i + 1) % 3 + 1] for i in range(PARTITIONS)])
        producer = Producer({"bootstrap.servers": running.bootstrap, **QUIET})
        for number in range(RECORDS * PARTITIONS):
            producer.produce("t", RECORD, partition=number % PARTITIONS)
            producer.poll(0)
        assert producer.flush(60) == 0
        running.create("witness", replicas=[[1, 2, 3]])
        yield running
    finally:
        running.close()


def configured(cluster: Cluster) -> dict[str, str]:
    """Every config of a throttle or of the balancer's note that is set on a topic, a broker, or all brokers."""
    with Admin(cluster.bootstrap, timeout_s=10) as admin:
        brokers = [str(node.id) for node in admin.describe_cluster().nodes]
        resources = [ConfigResource(ResourceType.BROKER, name) for name in ("", *brokers)]
        resources += [ConfigResource(ResourceType.TOPIC, topic.name) for topic in admin.topics()]
        return {
            f"{resource.name or 'all'} {entry.name}": entry.value
            for resource in resources
            for entry in admin.configs(resource)
            if entry.value and ("replication.throttled" in entry.name or "note" in entry.name)
            and entry.source in (1, 2, 3)
        }  # fmt: skip


def replicas(cluster: Cluster) -> list[list[int]]:
    with Admin(cluster.bootstrap, timeout_s=10) as admin:
        return [list(p.replicas) for p in admin.topics(["t"])[0].partitions]


def held(cluster: Cluster, broker: int) -> int:
    return sum(broker in each for each in replicas(cluster))


def settled(cluster: Cluster) -> bool:
    """True if nothing moves, and nothing of a batch is left."""
    try:
        with Admin(cluster.bootstrap, timeout_s=10) as admin:
            return not admin.list_partition_reassignments() and not configured(cluster)
    except KafkaError:  # brokers were killed: an election takes a moment
        return False


def until_even(cluster: Cluster) -> None:
    """Wait until each broker has its share of the replicas, between two batches or after the last, and nothing is left
    behind."""

    def even() -> bool:
        with suppress(KafkaError):  # brokers were killed
            if settled(cluster) and all(5 <= held(cluster, broker) <= 7 for broker in range(1, 5)):
                return {len(each) for each in replicas(cluster)} == {2}
        return False

    until("each broker has its share", even, timeout_s=WAIT_S, every_s=0.2)


def test_a_new_broker_gets_its_share(cluster: MovingCluster) -> None:
    """Batch after batch moves to the empty broker, each with its reason in the log, and a producer sees no error; then
    it is quiet, and no throttle, no note and no log of a moved replica is left."""
    with Witness(cluster, "witness") as witness:
        witness.until_acked()
        before = replicas(cluster)
        cluster.start(4)
        until_even(cluster)
        witness.until_acked()
        witness.judge()

    def logged() -> int:
        return sum(broker.count("bytes than its share: t-") for broker in cluster.brokers.values())

    until("each move is logged", lambda: logged() == sum(4 in each for each in replicas(cluster)))  # a batch may begin
    for index, each in enumerate(replicas(cluster)):
        assert len({*each} - {*before[index]}) <= 1
        until("no other log is there", lambda index=index, each=each: cluster.logs("t", index) == {*each})  # type: ignore[misc]


def test_the_controller_is_killed_midway(cluster: MovingCluster) -> None:
    """The next controller ends the batch, removes its throttle, and goes on once the killed broker is back."""
    cluster.start(4)
    until("a batch is under way", lambda: "all auto.balance.note" in configured(cluster), timeout_s=WAIT_S)
    victim = cluster.controller()
    cluster.kill(victim)
    cluster.restart(victim)
    until_even(cluster)


@pytest.mark.parametrize("cluster", [{"auto.balance.throttled.rate": 200_000}], indirect=True)
def test_a_new_broker_whose_disk_is_full(cluster: MovingCluster) -> None:
    """The moves to it are taken back with their throttle, and the log says why; it gets its share once it has room."""
    cluster.brokers[4].is_fillable = True
    cluster.start(4)
    until("a batch is under way", lambda: held(cluster, 4), timeout_s=WAIT_S)
    cluster.brokers[4].full.touch()
    words = "the log dir of broker 4 is full"
    until("it is logged", lambda: any(b.count(words) for b in cluster.brokers.values()), timeout_s=WAIT_S)
    until("the moves are taken back", lambda: settled(cluster) and not held(cluster, 4), timeout_s=WAIT_S)
    cluster.brokers[4].full.unlink()
    switch(cluster, {"auto.balance.throttled.rate": str(RATE)})
    until_even(cluster)


@pytest.mark.parametrize("cluster", [{"auto.balance.enable": "false"}], indirect=True)
def test_it_is_off_by_default_and_can_be_switched_on_and_off(cluster: MovingCluster) -> None:
    """Off, nothing moves; switched on for all brokers while they run, the new one gets replicas; switched off, the
    batch under way ends and no other begins."""
    cluster.start(4)
    until("broker 4 is there", lambda: 4 in cluster.metadata().brokers)
    before = replicas(cluster)
    with Witness(cluster, "witness") as witness:
        witness.until_acked(200)
        assert replicas(cluster) == before and settled(cluster)
        switch(cluster, {"auto.balance.enable": "true"})
        until("a batch is under way", lambda: "all auto.balance.note" in configured(cluster), timeout_s=WAIT_S)
        switch(cluster, {"auto.balance.enable": "false"})
        until("the batch has ended", lambda: settled(cluster), timeout_s=WAIT_S)
        stopped = replicas(cluster)
        assert 1 <= sum(4 in each for each in stopped) <= 2
        witness.until_acked(200)
        assert replicas(cluster) == stopped
        witness.judge()


def switch(cluster: Cluster, settings: Mapping[str, str]) -> None:
    with Admin(cluster.bootstrap, timeout_s=10) as admin:
        changes = [Alteration(name, ConfigOperation.SET, value) for name, value in settings.items()]
        admin.alter_configs(ConfigResource(ResourceType.BROKER, ""), changes)
