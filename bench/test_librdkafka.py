"""librdkafka end to end (confluent-kafka): one producer on one core, the broker on the other, and Apache Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
import pytest

from bench.figures import show
from bench.peers import OURS, Peer, brokers
from pybroker.client.admin import LATEST, Admin

VALUE = b"x" * 100
RECORDS = 1_000_000
ROUNDS = 3
PARTITIONS = 4
SETTINGS = {"linger.ms": 5, "batch.size": 1 << 16, "queue.buffering.max.messages": RECORDS, "log_level": 0}


@pytest.fixture(scope="module")
def servers(shared_log_dir: Path) -> Iterator[list[Peer]]:
    with brokers(shared_log_dir) as started:
        yield started


@pytest.mark.parametrize("acks", ["1", "all"])
def test_one_producer(servers: list[Peer], acks: str) -> None:
    """100 B a record, from the first produce() to the last delivery; and the broker's processor time."""
    rounds: dict[str, list[tuple[float, float]]] = {peer.name: [] for peer in servers}
    for number in range(ROUNDS + 1):
        for peer in servers:
            cost = sent(peer, acks, f"rdkafka-{acks}-{number}")
            if number:  # the first one warms up
                rounds[peer.name].append(cost)
    told = {
        name: f"{RECORDS / min(wall_s for wall_s, _ in costs) / 1e6:.2f} M rec/s, "
        f"{min(cpu_s for _, cpu_s in costs) * 1e6 / RECORDS:.2f} cpu-s/M rec"
        for name, costs in rounds.items()
    }
    ours = told.pop(OURS)
    beside = "; ".join(f"{name} {text}" for name, text in told.items())
    show(f"librdkafka, acks={acks}", "100 B a record", ours, beside or "-")


def sent(peer: Peer, acks: str, topic: str) -> tuple[float, float]:
    """Return wall seconds, and processor seconds of the broker, for all records into a new topic."""
    bootstrap = "{}:{}".format(*peer.address)
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1)
        producer = ck.Producer({"bootstrap.servers": bootstrap, "acks": acks, **SETTINGS})
        producer.produce(topic, VALUE)
        assert producer.flush(60) == 0  # connected, and every partition known
        before_s, start_s = peer.cpu_s(), time.perf_counter()
        for _ in range(RECORDS):
            producer.produce(topic, VALUE)
        assert producer.flush(120) == 0
        wall_s, cpu_s = time.perf_counter() - start_s, peer.cpu_s() - before_s
        ends = admin.offsets(admin.topics([topic]), LATEST)
        assert sum(end or 0 for end in ends.values()) == RECORDS + 1
        admin.delete_topic(topic)
    return wall_s, cpu_s
