"""Our own clients on three brokers whose leaders and coordinators die: they continue, without loss or repeats."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, pairwise

import pytest

from pybroker import AsyncConsumer, AsyncProducer, Consumer, Producer
from pybroker.client.admin import Admin
from tests.brokers.server import ThreeBrokers
from tests.client.kit import WAIT_S, consumer_of, read
from tests.harness import eventually, until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("cluster")]

EVERY_S = 0.005
KNOWS_MS = 200
"""The longest wait of a client whose answer names the new leader (KIP-951), in ms."""
ROUNDS_MAX = 5


class Writer:
    """A producer that sends a number each 5 ms, and the outcome of each."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.times: list[float] = []
        self.deliveries = []
        self._producer, self._topic = producer, topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        for number in count():
            if self._ended.is_set():
                return
            delivery = self._producer.send(self._topic, b"%d" % number, partition=0)
            delivery.add_done_callback(lambda _: self.times.append(time.monotonic()))
            self.deliveries.append(delivery)
            time.sleep(EVERY_S)

    def more(self, records: int = 50) -> None:
        """Wait until this many more are acknowledged."""
        goal = len(self.times) + records
        until("more is acknowledged", lambda: len(self.times) >= goal, WAIT_S)

    def end(self) -> list[int]:
        """Stop, and return the offset of each record that was sent."""
        self._ended.set()
        self._thread.join()
        self._producer.flush(WAIT_S)
        return [delivery.result(0).offset for delivery in self.deliveries]


@pytest.fixture
def brokers(shared_cluster: ThreeBrokers, topic: str) -> Iterator[ThreeBrokers]:
    shared_cluster.topic, shared_cluster.group = topic, ""
    with Admin(shared_cluster.bootstrap) as admin:
        admin.create_topic(topic)
    yield shared_cluster
    if not shared_cluster.running:
        shared_cluster.restart()


@contextmanager
def a_leader_dies(brokers: ThreeBrokers) -> Iterator[None]:
    """Kill the leader of the topic inside the block, and restart it afterwards."""
    until("all are in sync", lambda: len(brokers.cluster.partition(brokers.topic)[1]) == 3, WAIT_S)
    brokers.kill()
    yield
    brokers.restart()


def test_a_producer_and_a_consumer_go_on(brokers: ThreeBrokers) -> None:
    """A producer and a consumer go on while two leaders die in turn: acknowledged records are read once, at their
    offset, in sent order."""
    with Producer(bootstrap_servers=brokers.bootstrap) as producer, consumer_of(brokers, brokers.topic) as consumer:
        writer, found = Writer(producer, brokers.topic), []
        for _ in range(2):
            writer.more()
            with a_leader_dies(brokers):
                writer.more()
                found += read(consumer, 10, max_records=10)
        offsets = writer.end()
        while len(found) < len(offsets):
            found += read_some(consumer)
    assert offsets == list(range(len(offsets)))
    assert [(r.offset, r.value) for r in found] == [(n, b"%d" % n) for n in range(len(offsets))]


def read_some(consumer: Consumer) -> list:
    found = consumer.poll(int(WAIT_S * 1000))
    assert found, "nothing more comes"
    return found


async def test_asynchronous_clients_go_on(brokers: ThreeBrokers) -> None:
    """Asynchronous clients go on too, and the event loop is not blocked."""
    producer = AsyncProducer(bootstrap_servers=brokers.bootstrap)
    consumer = AsyncConsumer(bootstrap_servers=brokers.bootstrap, auto_offset_reset="earliest")
    async with producer, consumer:
        await consumer.assign([(brokers.topic, 0)])
        first = [await producer.send(brokers.topic, b"%d" % n, partition=0) for n in range(100)]
        assert len([await each for each in first]) == 100
        with a_leader_dies(brokers):
            later = [await producer.send(brokers.topic, b"%d" % n, partition=0) for n in range(100, 200)]
            offsets = [(await each).offset for each in (*first, *later)]
            found = []

            async def all_read() -> bool:
                found.extend(await consumer.poll(100))
                return len(found) >= 200

            await eventually("all is read", all_read)
    assert offsets == list(range(200))
    assert [r.value for r in found] == [b"%d" % n for n in range(200)]


def test_a_group_goes_on(brokers: ThreeBrokers, topic: str) -> None:
    """A group goes on when its coordinator dies: an acknowledged commit is known to the next one, and members keep
    their ids."""
    group = f"group-of-{topic}"
    with Producer(bootstrap_servers=brokers.bootstrap) as producer:
        for n in range(100):
            producer.send(topic, b"%d" % n)
    settings = {"bootstrap_servers": brokers.bootstrap, "group_id": group, "auto_offset_reset": "earliest"}
    with Consumer(**settings, enable_auto_commit=False) as member:
        member.subscribe([topic])
        found: list = []
        while len(found) < 40:
            found += member.poll(1000, max_records=40 - len(found))
        member.commit()
        brokers.coordinator_port(group)
        brokers.kill()
        while len(found) < 100:
            found += read_some(member)
        member.commit()
        brokers.restart()
        assert [r.value for r in found] == [b"%d" % n for n in range(100)]
    with Consumer(**settings) as another:
        at = another.committed([(topic, 0)])[topic, 0]
        assert at is not None and at.offset == 100


def gap_ms(writer: Writer, brokers: ThreeBrokers) -> float:
    """The longest time in ms without an acknowledgement while the leader is stopped."""
    kit = brokers.cluster
    until("all are in sync", lambda: len(kit.partition(brokers.topic)[1]) == 3, WAIT_S)
    leader = kit.leader(brokers.topic)
    writer.more()
    since = len(writer.times) - 1
    kit.signal(leader, signal.SIGTERM)
    assert kit.brokers[leader].wait_end() == 0
    writer.more()
    kit.restart(leader)
    return 1000 * max(later - earlier for earlier, later in pairwise(writer.times[since:]))


def test_a_leader_that_stops(brokers: ThreeBrokers) -> None:
    """A leader that stops hands over first and names the next one in its answer, so a producer hardly waits. The
    shortest of several gaps counts, as the machine may be busy."""
    gaps: list[float] = []
    with Producer(bootstrap_servers=brokers.bootstrap, linger_ms=0) as producer:
        writer = Writer(producer, brokers.topic)
        while len(gaps) < ROUNDS_MAX and min(gaps, default=KNOWS_MS + 1) > KNOWS_MS:
            gaps.append(gap_ms(writer, brokers))
        offsets = writer.end()
    print("longest gaps ms", [round(gap) for gap in gaps])
    assert offsets == list(range(len(offsets)))
    assert min(gaps) <= KNOWS_MS, gaps
