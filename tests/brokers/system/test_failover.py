"""Three brokers under a real client: acknowledged records survive any broker's death."""

from __future__ import annotations

import contextlib
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import OffsetSpec

from pybroker import errors
from pybroker.protocol import messages as m
from tests.asking import Asker, ask, latest
from tests.brokers.kit import QUIET, Cluster
from tests.harness import until
from tests.server.live import produce_data
from tests.stores import AnyStore
from tests.wire import batch

SESSION_S = 6
"""The session timeout of the cluster's brokers."""
pytestmark = [pytest.mark.java]


class Writer:
    """An idempotent producer with acks=all that remembers when and where each record was acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.topic = topic
        self.sent = 0
        self.acked: dict[tuple[int, int], bytes] = {}
        self.somewhere: list[tuple[int, bytes]] = []
        """The partition and value of records acknowledged without an offset."""
        self.times: list[float] = []
        self.failed: list[str] = []
        self.producer = ck.Producer({
            "bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0,
            "message.timeout.ms": 60_000, "topic.metadata.refresh.interval.ms": 1000, **QUIET,
        })  # fmt: skip

    def _told(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        self.times.append(time.monotonic())
        if message.offset() is None:  # a duplicate batch was acknowledged without its offset
            self.somewhere.append((message.partition(), message.value()))
        else:
            self.acked[message.partition(), message.offset()] = message.value()

    def write(self, count: int, partition: int = 0) -> None:
        for _ in range(count):
            self.producer.produce(self.topic, b"%d" % self.sent, partition=partition, on_delivery=self._told)
            self.sent += 1
            self.producer.poll(0)

    def write_for(self, seconds: float, partition: int = 0) -> None:
        """Write one record each 5 ms."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.write(1, partition)
            self.producer.poll(0.005)

    def settle(self) -> None:
        assert self.producer.flush(60) == 0
        assert not self.failed
        assert len(self.acked) + len(self.somewhere) == self.sent, "each record has an offset of its own"

    def judge(self, found: dict[tuple[int, int], bytes]) -> None:
        """Check that each acknowledged record was read once, at its offset, and no other record."""
        others = {place: value for place, value in found.items() if place not in self.acked}
        assert sorted((partition, value) for (partition, _), value in others.items()) == sorted(self.somewhere)
        assert found == self.acked | others

    def gap_s(self) -> float:
        return max(later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False))


def end_of(consumer: ck.Consumer, partition: ck.TopicPartition) -> int:
    """The end of a partition, as its current leader answers."""
    found: list[int] = []

    def told() -> bool:
        try:
            found.append(consumer.get_watermark_offsets(partition, timeout=5)[1])
        except ck.KafkaException:
            return False
        return True

    until("the leader says where it ends", told)
    return found[0]


def read_all(cluster: Cluster, topic: str, partition: int = 0) -> dict[tuple[int, int], bytes]:
    consumer = ck.Consumer({
        "bootstrap.servers": cluster.bootstrap, "group.id": "reader", "enable.auto.commit": False, **QUIET
    })  # fmt: skip
    end = end_of(consumer, ck.TopicPartition(topic, partition))
    consumer.assign([ck.TopicPartition(topic, partition, 0)])
    found: dict[tuple[int, int], bytes] = {}
    deadline = time.monotonic() + 30
    while len(found) < end and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.5):
            assert message.error() is None
            found[message.partition(), message.offset()] = message.value()
    consumer.close()
    return found


def test_acknowledged_is_on_all_three(cluster: Cluster) -> None:
    """Batches acknowledged with acks=all have the same bytes on each broker."""
    topic = cluster.create("t", 2)
    writer = Writer(cluster, topic)
    writer.write(500, 0)
    writer.write(500, 1)
    writer.settle()
    writer.judge(read_all(cluster, topic, 0) | read_all(cluster, topic, 1))
    until("replicas are the same", lambda: cluster.differing(topic, (0, 1)) == [])


def test_a_leader_is_killed(cluster: Cluster) -> None:
    """The next in-sync replica becomes leader at once, and no acknowledged record is lost; the killed broker catches up
    when it is back. The producer's timers are half a second, and it does not wait for a session to expire."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    writer = Writer(cluster, topic)
    writer.write_for(1)
    cluster.kill(1)
    writer.write_for(2)
    writer.settle()
    assert cluster.leader(topic) == 2
    assert writer.gap_s() < SESSION_S / 2
    cluster.restart(1)
    cluster.until_in_sync(topic)
    writer.write(100)
    writer.settle()
    writer.judge(read_all(cluster, topic))
    until("replicas are the same", lambda: cluster.differing(topic) == [])


def test_each_broker_is_killed_in_turn(cluster: Cluster) -> None:
    """The current leader is killed with requests in flight, twice around."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    writer = Writer(cluster, topic)
    for _ in range(4):
        writer.write_for(0.5)
        leader = cluster.leader(topic)
        cluster.kill(leader)
        writer.write_for(1)
        cluster.restart(leader)
        cluster.until_in_sync(topic)
    writer.settle()
    writer.judge(read_all(cluster, topic))
    until("replicas are the same", lambda: cluster.differing(topic) == [])


def test_all_are_killed_at_once(cluster: Cluster) -> None:
    """Acknowledged records are there when all brokers are back."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    writer = Writer(cluster, topic)
    writer.write(1000)
    writer.settle()
    cluster.kill(1, 2, 3)
    cluster.restart(1, 2, 3)
    cluster.until_in_sync(topic)
    writer.judge(read_all(cluster, topic))


def test_too_few_are_in_sync(cluster: Cluster) -> None:
    """Below min.insync.replicas acks=all is refused and acknowledged records stay; with a broker back writes go on."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    writer = Writer(cluster, topic)
    writer.write(100)
    writer.settle()
    cluster.kill(2, 3)
    until("the ISR is one", lambda: cluster.partition(topic) == (1, [1]))
    refused: list[Any] = []
    producer = ck.Producer({
        "bootstrap.servers": cluster.bootstrap, "acks": "all", "message.timeout.ms": 2000, "retries": 0, **QUIET
    })  # fmt: skip
    producer.produce(topic, b"no", partition=0, on_delivery=lambda error, _: refused.append(error))
    producer.flush(20)
    assert [error.code() for error in refused] == [ck.KafkaError.NOT_ENOUGH_REPLICAS]
    cluster.restart(2)
    cluster.until_in_sync(topic, size=2)
    writer.write(100)
    writer.settle()
    writer.judge(read_all(cluster, topic))


def test_the_controller_is_killed(cluster: Cluster) -> None:
    """The dead address refuses connections, so another controller is elected at once, before the session expires."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    first = cluster.controller()
    cluster.kill(first)
    until("another controls", lambda: cluster.controller() not in (-1, first), timeout_s=SESSION_S / 2)
    cluster.restart(first)
    cluster.until_in_sync(topic)
    writer = Writer(cluster, topic)
    writer.write_for(0.5)
    leader = cluster.leader(topic)
    cluster.kill(leader)
    writer.write_for(1)
    writer.settle()
    writer.judge(read_all(cluster, topic))


def test_deleted_records_stay_deleted(cluster: Cluster) -> None:
    """The leader dies right after its DeleteRecords answer: the next leader's log starts at the same offset."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    writer = Writer(cluster, topic)
    writer.write(100)
    writer.settle()
    until_there = ck.TopicPartition(topic, 0, 60)
    assert cluster.admin.delete_records([until_there])[until_there].result(20).low_watermark == 60
    cluster.kill(1)
    until("another leads", lambda: cluster.leader(topic) == 2)
    first = {until_there: OffsetSpec.earliest()}
    assert cluster.admin.list_offsets(first)[until_there].result(20).offset == 60


def test_a_clean_stop_hands_over(cluster: Cluster) -> None:
    """Leadership moves before the broker stops; the client hardly waits."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    writer = Writer(cluster, topic)
    writer.write_for(0.5)
    cluster.signal(1, signal.SIGTERM)
    writer.write_for(2)
    writer.settle()
    print(f"longest gap {writer.gap_s() * 1000:.0f} ms")
    assert cluster.brokers[1].wait_end() == 0
    assert cluster.leader(topic) == 2
    writer.judge(read_all(cluster, topic))


def test_who_asks_a_broker_that_stops_is_told_who_leads(cluster: Cluster) -> None:
    """Even a client that sends only ten times a second gets the new leader. Without an answer before its connection
    closed, a client would use its own timers: librdkafka one of a second."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    with Asker(cluster.brokers[1].port) as asker:

        def produce() -> Any:
            data = produce_data(topic, {0: batch([b"x"])})
            answer = asker.ask("Produce", 10, acks=-1, timeout_ms=1000, topic_data=data)
            return answer.responses[0].partition_responses[0]

        until("it leads", lambda: produce().error_code == errors.NONE)
        cluster.signal(1, signal.SIGTERM)
        until("another leads", lambda: cluster.told_by(2, topic).get(0, (-1, []))[0] == 2, every_s=0.005)
        time.sleep(0.1)
        answer = produce()
    assert (answer.error_code, answer.current_leader.leader_id) == (errors.NOT_LEADER_OR_FOLLOWER, 2)
    assert cluster.brokers[1].wait_end() == 0


def test_a_leader_that_freezes(start_cluster: Callable[..., Cluster]) -> None:
    """A frozen leader is replaced; when it continues, its unreplicated, unacknowledged records are truncated."""
    cluster = start_cluster(zookeeper_session_timeout_ms=2000)
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    writer = Writer(cluster, topic)
    writer.write_for(0.5)
    cluster.signal(1, signal.SIGSTOP)
    writer.write_for(5)
    cluster.signal(1, signal.SIGCONT)
    writer.write_for(1)
    writer.settle()
    cluster.until_in_sync(topic)
    assert cluster.leader(topic) != 1
    writer.judge(read_all(cluster, topic))
    until("replicas are the same", lambda: cluster.differing(topic) == [])


def test_nobody_is_told_that_there_are_no_brokers(start_cluster: Callable[..., Cluster]) -> None:
    """Killed brokers wait for their earlier sessions to expire. If such a broker answered that there are no brokers, a
    client would drop all metadata: librdkafka 2.16 for good."""
    cluster = start_cluster(zookeeper_session_timeout_ms=2000)
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    cluster.kill(*cluster.brokers)
    for broker in cluster.brokers.values():
        broker.begin()
    counts: dict[int, list[int]] = {number: [] for number in cluster.brokers}
    said = set()
    new = {"name": "u", "num_partitions": 1, "replication_factor": 3, "assignments": [], "configs": []}
    more = {"name": topic, "count": 2, "assignments": None}

    def all_are_told() -> bool:
        for number, broker in cluster.brokers.items():
            with contextlib.suppress(OSError, struct.error):
                create = [m.CreateTopicsRequest.Topics(**new)]
                created = ask(broker.port, "CreateTopics", 4, topics=create, timeout_ms=5000, validate_only=True)
                grow = [m.CreatePartitionsRequest.Topics(**more)]
                grown = ask(broker.port, "CreatePartitions", 1, topics=grow, timeout_ms=5000, validate_only=True)
                said.update((created.topics[0].error_code, grown.results[0].error_code))
                answer = ask(broker.port, "Metadata", 9, topics=None)
                assert [each.name for each in answer.topics if not each.is_internal] == [topic], "still there"
                counts[number].append(len(answer.brokers))
                ask(broker.port, "DescribeCluster", 0).brokers[0]
        return all(3 in each for each in counts.values())

    until("all are told of all", all_are_told)
    assert all(0 not in each for each in counts.values()), counts
    ready = {errors.NONE, errors.NOT_CONTROLLER, errors.INVALID_REPLICATION_FACTOR}  # while a broker is missing
    assert said <= ready, said
    for broker in cluster.brokers.values():
        broker.wait_ready()


def test_acks_before_replication_are_caught(tmp_path: Path, store: AnyStore) -> None:
    """A broker acknowledges records that its frozen followers lack, and is killed: the loss is found."""
    with Cluster(tmp_path, store, bug="acks_before_replication", replica_lag_time_max_ms=60_000) as cluster:
        topic = cluster.create("t", replicas=[[1, 2, 3]])
        writer = Writer(cluster, topic)
        writer.write(10)
        writer.settle()
        cluster.signal(2, signal.SIGSTOP)
        cluster.signal(3, signal.SIGSTOP)
        writer.write(10)
        writer.settle()
        cluster.kill(1)
        cluster.signal(2, signal.SIGCONT)
        cluster.signal(3, signal.SIGCONT)
        until("another leads", lambda: cluster.leader(topic) in (2, 3))
        lost = set(writer.acked) - set(read_all(cluster, topic))
        assert len(lost) >= 10


def test_a_group_goes_on(cluster: Cluster) -> None:
    """The coordinator dies, and the next one has the committed offset."""
    topic = cluster.create("t", 1)
    writer = Writer(cluster, topic)
    writer.write(50)
    writer.settle()
    how = {
        "bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
        "enable.auto.commit": False, **QUIET,
    }  # fmt: skip
    consumer = ck.Consumer(how)
    consumer.subscribe([topic])
    got = 0
    while got < 20:
        got += len(consumer.consume(20 - got, 1))
    assert [p.offset for p in consumer.commit(asynchronous=False)] == [20]
    coordinator = next(p for p in range(2) if p == abs_hash("g") % 2)
    cluster.kill(cluster.leader("__consumer_offsets", coordinator))
    rest = []
    deadline = time.monotonic() + 40
    while len(rest) < 30 and time.monotonic() < deadline:
        rest += [message.value() for message in consumer.consume(30, 0.5)]
    assert rest == [b"%d" % number for number in range(20, 50)]
    assert [p.offset for p in consumer.commit(asynchronous=False)] == [50]
    consumer.close()
    again = ck.Consumer(how)
    assert [p.offset for p in again.committed([ck.TopicPartition(topic, 0)], timeout=20)] == [50]
    again.close()


def abs_hash(text: str) -> int:
    from pybroker.state_log.placement import partition_of

    return partition_of(text, 1 << 30)


def test_a_leader_without_its_store(tmp_path: Path, start_store: Callable[..., AnyStore]) -> None:
    """Without the store acks=all goes on, as epochs and the ISR make it safe; acks=1 is refused once the lease has
    lapsed, as another broker might lead. With the store back both go on, without an election in between."""
    with start_store() as own:
        cluster = Cluster(tmp_path, own, zookeeper_session_timeout_ms=2000)
        with cluster:
            topic = cluster.create("t", replicas=[[1, 2, 3]])
            alone = ck.Producer({
                "bootstrap.servers": cluster.bootstrap, "acks": 1, "message.timeout.ms": 1500, "linger.ms": 0, **QUIET
            })  # fmt: skip

            def accepted() -> bool:
                found: list[Any] = []
                alone.produce(topic, b"alone", partition=0, on_delivery=lambda error, _: found.append(error))
                alone.flush(10)
                return [error is None for error in found] == [True]

            writer = Writer(cluster, topic)
            writer.write(50)  # before, as an idempotent producer's id comes from the store
            writer.settle()
            assert accepted()
            own.kill()
            until("acks=1 is refused", lambda: not accepted())
            writer.write(50)
            writer.settle()
            port, end = cluster.brokers[cluster.leader(topic)].port, max(offset for _, offset in writer.acked) + 1
            code, told = latest(port, topic)
            assert code == 0 and told >= end, "its followers confirm that it leads"
            own.start()
            until("acks=1 is taken again", accepted)
            writer.write(50)
            writer.settle()
            assert set(writer.acked.items()) <= set(read_all(cluster, topic).items())
