"""The last of the ISR is gone and another replica leads: the loss, and how clients notice it (KIP-101, KIP-320)."""

from __future__ import annotations

from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from pybroker import errors
from pybroker.client.consuming.consumer import Consumer, Record
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from tests.asking import ask
from tests.brokers.kit import Cluster
from tests.harness import HOST, until
from tests.wire import Wire, batch

pytestmark = [pytest.mark.java]
BOTH, ALONE = 10, 5
"""The number of records that all replicas have, and that the last of the ISR alone has."""


def allow_unclean(cluster: Cluster, topic: str) -> None:
    entry = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    cluster.admin.incremental_alter_configs([resource])[resource].result(10)


def fetch(port: int, topic: str, offset: int, epoch: int, last_epoch: int = -1) -> Any:
    """Send Fetch v12 with a client's epochs; return the partition of the answer."""
    kind = m.FetchRequest.Topics
    wanted = kind.Partitions(
        partition=0, fetch_offset=offset, current_leader_epoch=epoch, last_fetched_epoch=last_epoch,
        log_start_offset=-1, partition_max_bytes=1 << 20,
    )  # fmt: skip
    fields = {"replica_id": -1, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0}
    topics = [kind(topic=topic, partitions=[wanted])]
    answer = ask(port, "Fetch", 12, session_id=0, session_epoch=-1, topics=topics, **fields)
    return answer.responses[0].partitions[0]


def end_of(port: int, topic: str, epoch: int, current: int) -> tuple[int, int, int]:
    """Send OffsetForLeaderEpoch; return (error, epoch, end offset)."""
    kind = m.OffsetForLeaderEpochRequest.Topics
    wanted = kind.Partitions(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    topics = [kind(topic=topic, partitions=[wanted])]
    (found,) = ask(port, "OffsetForLeaderEpoch", 4, replica_id=-1, topics=topics).topics[0].partitions
    return found.error_code, found.leader_epoch, found.end_offset


def check_what_is_told(port: int, topic: str) -> None:
    """Check that the new leader returns the former epoch's end to clients that still have that one."""
    (found,) = ask(port, "Metadata", 9, topics=[m.MetadataRequest.Topics(name=topic)]).topics[0].partitions
    now = found.leader_epoch
    was = now - 1
    assert end_of(port, topic, was, now) == (0, 0, BOTH)
    assert end_of(port, topic, was, was)[0] == errors.FENCED_LEADER_EPOCH
    assert end_of(port, topic, was, now + 1)[0] == errors.UNKNOWN_LEADER_EPOCH
    assert fetch(port, topic, BOTH, was).error_code == errors.FENCED_LEADER_EPOCH
    assert fetch(port, topic, BOTH, now + 1).error_code == errors.UNKNOWN_LEADER_EPOCH
    with Wire(port) as wire:
        for _ in range(2 * ALONE):
            assert wire.produce(topic, batch([b"after"])).error == 0
    diverging = fetch(port, topic, BOTH + ALONE, now, last_epoch=was)
    assert (diverging.error_code, diverging.diverging_epoch.end_offset) == (0, BOTH)


def new_reader(cluster: Cluster, reset: str) -> Consumer:
    return Consumer(
        bootstrap_servers=cluster.bootstrap, group_id=f"ours-{reset}", auto_offset_reset=reset, enable_auto_commit=False
    )


def tells(consumer: Consumer) -> bool:
    """True if poll() raises the loss of records, and does so again."""
    for _ in range(2):
        with pytest.raises(KafkaError, match="the log was truncated: offsets 10 to 14 are not what was read") as raised:
            until("it tells", lambda: consumer.poll(100))
        assert raised.value.code == errors.OFFSET_OUT_OF_RANGE
    return True


def led_alone(cluster: Cluster) -> str:
    """Create a topic led by broker 1 with records that all have, and some written while the others were dead."""
    topic = cluster.create("t", replicas=[[1, 2, 3]], min_insync_replicas="1")
    cluster.until_in_sync(topic)
    with Wire(cluster.brokers[1].port) as wire:
        for _ in range(BOTH):
            assert wire.produce(topic, batch([b"both"])).error == 0
        cluster.until_in_sync(topic)
        cluster.kill(2, 3)
        until("it is alone", lambda: cluster.partition(topic) == (1, [1]))
        for _ in range(ALONE):
            assert wire.produce(topic, batch([b"alone"])).error == 0
    return topic


def test_who_led_begins_behind_the_end_of_the_next(cluster: Cluster) -> None:
    """All its records are below the new leader's log start, so it drops them, copies the log, and joins the ISR."""
    topic = led_alone(cluster)
    start = ck.TopicPartition(topic, 0, BOTH + ALONE - 1)
    cluster.admin.delete_records([start])[ck.TopicPartition(topic, 0)].result(10)
    cluster.kill(1)
    cluster.restart(2, 3)
    allow_unclean(cluster, topic)
    until("another leads", lambda: cluster.leader(topic) in (2, 3))
    with Wire(cluster.brokers[cluster.leader(topic)].port) as wire:
        assert wire.produce(topic, batch([b"after"])).error == 0
    cluster.restart(1)
    cluster.until_in_sync(topic)
    assert cluster.brokers[1].count("log dropped") == 1
    assert not cluster.differing(topic)
    cluster.kill(1)
    cluster.restart(1)
    cluster.until_in_sync(topic)


def test_the_last_of_the_isr_dies(cluster: Cluster) -> None:
    """The partition is offline until an operator allows another leader; clients that read lost records notice."""
    topic = led_alone(cluster)
    reader = ck.Consumer({
        "bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "error",
        "enable.auto.commit": False, "log_level": 0,
    })  # fmt: skip
    reader.assign([ck.TopicPartition(topic, 0, 0)])
    ours = {reset: new_reader(cluster, reset) for reset in ("earliest", "none")}
    for consumer in ours.values():
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        until("all is read", lambda c=consumer: c.poll(100) is not None and c.position((topic, 0)) == BOTH + ALONE)
    read: list[bytes] = []
    until("all is read", lambda: read.extend(x.value() for x in reader.consume(50, 0.1)) or len(read) == BOTH + ALONE)
    cluster.kill(1)
    cluster.restart(2, 3)
    until("both are there", lambda: len(cluster.admin.list_topics(timeout=10).brokers) == 2)
    until("it is offline", lambda: cluster.partition(topic) == (-1, [1]))
    with Wire(cluster.brokers[2].port) as wire:
        assert wire.produce(topic, batch([b"refused"])).error in (
            errors.NOT_LEADER_OR_FOLLOWER, errors.LEADER_NOT_AVAILABLE
        )  # fmt: skip

    allow_unclean(cluster, topic)
    until("another leads", lambda: cluster.leader(topic) in (2, 3))
    leader = cluster.leader(topic)
    cluster.until_in_sync(topic, size=2)
    port = cluster.brokers[leader].port
    check_what_is_told(port, topic)

    # A client that trusted its offset would skip records that it never read.
    told: list[Any] = []
    until("it is told", lambda: told.extend(x for x in reader.consume(50, 0.1) if x.error()) or told)
    assert told[0].error().code() in (ck.KafkaError._AUTO_OFFSET_RESET, ck.KafkaError._LOG_TRUNCATION)
    reader.close()
    again: list[Record] = []
    until("ours goes back", lambda: again.extend(ours["earliest"].poll(100)) or len(again) >= 2 * ALONE)
    assert [(r.offset, r.value) for r in again] == [(BOTH + n, b"after") for n in range(2 * ALONE)]
    assert tells(ours["none"])
    cluster.restart(1)
    cluster.until_in_sync(topic)
    until("the replicas are the same", lambda: cluster.differing(topic) == [])
    ours["none"].commit()
    later = new_reader(cluster, "none")  # starts after records that were read and lost
    later.assign([(topic, 0)])
    assert tells(later)
    for consumer in (*ours.values(), later):
        consumer.close()
    last = ck.Consumer({"bootstrap.servers": f"{HOST}:{port}", "group.id": "last", "auto.offset.reset": "earliest"})
    last.assign([ck.TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    whole = [b"both"] * BOTH + [b"after"] * (2 * ALONE)
    until("all is read", lambda: values.extend(x.value() for x in last.consume(50, 0.1)) or len(values) >= len(whole))
    assert values == whole
    last.close()
