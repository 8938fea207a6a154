"""More partitions than file descriptors are created, written, read and restarted, and clients can connect.

The size is that of `make test-all`; `make scale` runs the same with 100,000 partitions and 20,000 descriptors.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import harness, wire
from tests.harness import BrokerProcess, free_port
from tests.wire import Wire, batch, batches

PARTITIONS = int(os.environ.get("PYBROKER_SCALE_PARTITIONS", 3000))
DESCRIPTORS = int(os.environ.get("PYBROKER_SCALE_DESCRIPTORS", 600))
IN_TOPIC = 1000
PATIENCE_S = 60 + PARTITIONS / 50
"""Timeout of a start, a stop and an answer."""
WRITERS = 4
IN_FLIGHT = 50
CONNECTIONS = DESCRIPTORS // 8
REQUEST_TIMED_OUT = 7


class Limited(BrokerProcess):
    """A broker that may open DESCRIPTORS files."""

    def command(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh", *super().command()]


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    for name in ("READY_S_MAX", "STOP_S_MAX"):
        monkeypatch.setattr(harness, name, PATIENCE_S)
    monkeypatch.setattr(wire, "ANSWER_S_MAX", PATIENCE_S)
    broker = Limited(tmp_path / "data", free_port())
    broker.start()
    yield broker
    broker.close()


@contextmanager
def clients_come_and_go(broker: BrokerProcess) -> Iterator[None]:
    """Keep many idle connections, and make new ones that send a request and close; none may wait long."""
    over = threading.Event()
    failures: list[Exception] = []

    def visit() -> None:
        while not over.wait(0.02):
            try:
                with Wire(broker.port) as guest:
                    assert guest.api_versions()
            except Exception as problem:
                failures.append(problem)

    resting = [Wire(broker.port) for _ in range(CONNECTIONS)]
    guests = threading.Thread(target=visit)
    guests.start()
    try:
        yield
    finally:
        over.set()
        guests.join()
        for connection in resting:
            connection.socket.close()
    assert not failures, failures[:3]


def topics() -> list[str]:
    return [f"t{n}" for n in range(PARTITIONS // IN_TOPIC)]


def shares() -> list[list[tuple[str, int]]]:
    """All partitions, in as many shares as there are client threads."""
    every = [(topic, partition) for topic in topics() for partition in range(IN_TOPIC)]
    return [every[n::WRITERS] for n in range(WRITERS)]


def create_all(broker: BrokerProcess) -> None:
    with Wire(broker.port) as admin:
        for topic in topics():
            assert admin.create_topic(topic, IN_TOPIC) in (0, REQUEST_TIMED_OUT)
        harness.until(
            "all are listed", lambda: sum(map(len, admin.metadata()[1].values())) == PARTITIONS, PATIENCE_S, 0.1
        )


def produce_to(broker: BrokerProcess, share: list[tuple[str, int]], offset: int) -> None:
    """Append one record to each partition; check that all are acknowledged at this offset."""
    with Wire(broker.port) as producer:
        for first in range(0, len(share), IN_FLIGHT):
            some = share[first : first + IN_FLIGHT]
            for topic, partition in some:
                producer.send(producer.produce_frame(topic, batch([b"%s-%d" % (topic.encode(), partition)]), partition))
            for key in some:
                assert producer.produced()[:2] == (0, offset), key


def read_from(broker: BrokerProcess, share: list[tuple[str, int]], count: int) -> None:
    with Wire(broker.port) as consumer:
        for topic, partition in share:
            found = consumer.fetch(topic, 0, partition, max_wait_ms=10_000)
            assert (found.error, found.high_watermark) == (0, count), (topic, partition)
            stored = batches(found.data)
            assert [b.base_offset for b in stored] == list(range(count))
            assert all(b"%s-%d" % (topic.encode(), partition) in b.data for b in stored)


def all_at_once(
    work: Callable[[BrokerProcess, list[tuple[str, int]], int], None], broker: BrokerProcess, number: int
) -> None:
    with ThreadPoolExecutor(WRITERS) as threads:
        for done in [threads.submit(work, broker, share, number) for share in shares()]:
            done.result()


def open_files(broker: BrokerProcess) -> int:
    assert broker.process is not None
    return len(os.listdir(f"/proc/{broker.process.pid}/fd"))


@pytest.mark.timeout(5 * PATIENCE_S)
def test_more_partitions_than_descriptors(limited: BrokerProcess) -> None:
    """Five times as many partitions as descriptors can be written and read, before and after a kill and a stop."""
    broker = limited
    with clients_come_and_go(broker):
        create_all(broker)
        all_at_once(produce_to, broker, 0)
        all_at_once(read_from, broker, 1)
        assert open_files(broker) < DESCRIPTORS
    broker.kill()
    broker.restart()
    with clients_come_and_go(broker):
        all_at_once(produce_to, broker, 1)
        all_at_once(read_from, broker, 2)
    broker.stop()
    broker.restart()
    with clients_come_and_go(broker):
        all_at_once(read_from, broker, 2)
    lines = broker.output().splitlines()
    assert not [line for line in lines if " ERROR " in line or "Traceback" in line]
