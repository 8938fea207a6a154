"""A leader that stops under a producer hands over first, and names the new leader to clients that know KIP-951."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise

import confluent_kafka as ck
import pytest

from tests.brokers.server import ThreeBrokers
from tests.clients.adapters.neutral import Client, Producer, Record
from tests.harness import Server, until

KNOWS_MS, OTHERS_MS = 200, 500
EVERY_S = 0.005
ROUNDS_MAX = 5
"""A busy machine makes gaps longer, so the shortest counts."""
pytestmark = [pytest.mark.java, pytest.mark.xdist_group("cluster")]


def knows(client: Client) -> bool:
    """True if an answer to Produce names the new leader and its address to this client (KIP-951)."""
    return client.name.startswith("java") or (client.name == "confluent-kafka" and ck.libversion()[0] >= "2.5")


class Steady:
    """A producer of a record each 5 ms that notes when each was acknowledged."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.producer, self.topic = producer, topic
        self.sent: list[Future[int]] = []
        self.times: list[float] = []

    def write(self, enough: Callable[[], bool]) -> None:
        while not enough():
            future = self.producer.send(self.topic, Record(b"%d" % len(self.sent)))
            future.add_done_callback(lambda _: self.times.append(time.monotonic()))
            self.sent.append(future)
            time.sleep(EVERY_S)

    def write_more(self, count: int) -> None:
        goal = len(self.times) + count
        self.write(lambda: len(self.times) >= goal)

    def gap_ms(self, since: float) -> float:
        """The longest time without an acknowledgement since then, in ms."""
        times = [each for each in self.times if each >= since]
        return 1000 * max(later - earlier for earlier, later in pairwise([since, *times]))


def handed_over(cluster: ThreeBrokers, topic: str, steady: Steady) -> float:
    """Stop the leader during writes, and return the longest gap in ms."""
    kit = cluster.cluster
    until("all are in sync", lambda: len(kit.partition(topic)[1]) == 3)
    leader = kit.leader(topic)
    steady.write_more(50)
    since = steady.times[-1]
    kit.signal(leader, signal.SIGTERM)
    stopped = kit.brokers[leader]
    steady.write(lambda: not stopped.running)
    steady.write_more(50)
    assert stopped.wait_end() == 0
    assert kit.leader(topic) not in (-1, leader)
    kit.restart(leader)
    return steady.gap_ms(since)


def test_a_leader_that_stops(connect: Callable[[Server], Client], shared_cluster: ThreeBrokers, topic: str) -> None:
    """A leader that stops causes a gap of 200 ms at most for a client that knows KIP-951, 500 ms for others, and loses
    nothing."""
    client = connect(shared_cluster)
    client.create_topic(topic)
    limit, gaps = KNOWS_MS if knows(client) else OTHERS_MS, []
    with client.producer(idempotent=True, linger_ms=0) as producer:
        steady = Steady(producer, topic)
        while len(gaps) < ROUNDS_MAX and min(gaps, default=limit + 1) > limit:
            gaps.append(handed_over(shared_cluster, topic, steady))
        producer.flush()
    print(f"{client.name}: longest gaps ms", [round(gap) for gap in gaps])
    offsets = [future.result(0) for future in steady.sent]
    assert offsets == list(range(len(offsets)))
    assert [r.value for r in client.read(topic, len(offsets))] == [b"%d" % n for n in range(len(offsets))]
    assert min(gaps) <= limit, gaps
