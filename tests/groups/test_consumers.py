"""Consumers of real clients in one group: they share a topic, one goes, one comes, the broker is killed under them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka as ck
import pytest

from tests.harness import BrokerProcess, until

TOPIC, PARTITIONS, CALL_S_MAX = "work", 6, 30.0


class Worker:
    """A consumer on a thread of its own: counts what it reads and commits after each batch."""

    def __init__(self, bootstrap: str, seen: dict[bytes, int], **config: Any) -> None:
        self.assigned: set[int] = set()
        self._seen = seen
        self._stop = threading.Event()
        self._consumer = ck.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "team",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 300,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                **config,
            }
        )
        self._consumer.subscribe([TOPIC])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            messages = self._consumer.consume(50, 0.05)
            for message in messages:
                if message.error() is None:
                    self._seen[message.value()] = self._seen.get(message.value(), 0) + 1
            self.assigned = {tp.partition for tp in self._consumer.assignment()}
            if any(message.error() is None for message in messages):
                try:
                    self._consumer.commit(asynchronous=False)
                except ck.KafkaException:
                    continue  # a rebalance or a dead broker: it is read again
        self._consumer.close()

    def stop(self) -> None:
        """Leave the group as a well-behaved consumer does."""
        self._stop.set()
        self._thread.join(CALL_S_MAX)


def produce(bootstrap: str, first: int, count: int) -> None:
    producer = ck.Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for n in range(first, first + count):
        producer.produce(TOPIC, b"%d" % n, partition=n % PARTITIONS)
    assert producer.flush(CALL_S_MAX) == 0


def shared(workers: list[Worker]) -> bool:
    """Every partition has exactly one owner, and nobody is idle."""
    owned = sorted(p for worker in workers for p in worker.assigned)
    return owned == list(range(PARTITIONS)) and all(worker.assigned for worker in workers)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "config",
    [
        pytest.param({}, id="eager"),
        pytest.param({"partition.assignment.strategy": "cooperative-sticky"}, id="cooperative"),
    ],
)
def test_a_team_of_consumers(start_broker: Callable[..., BrokerProcess], config: dict[str, Any]) -> None:
    """Three share, one leaves, one comes, the broker dies and returns: all is read, what was committed only once."""
    broker = start_broker(
        sets={"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 3, "num.partitions": PARTITIONS}
    )
    produce(broker.bootstrap, 0, 300)
    seen: dict[bytes, int] = {}
    team = [Worker(broker.bootstrap, seen, **config) for _ in range(3)]
    try:
        until("three share", lambda: shared(team), CALL_S_MAX)
        until("all is read", lambda: len(seen) == 300, CALL_S_MAX)
        team.pop().stop()
        until("two share", lambda: shared(team), CALL_S_MAX)
        team.append(Worker(broker.bootstrap, seen, **config))
        until("three share again", lambda: shared(team), CALL_S_MAX)
        before = dict(seen)
        time.sleep(0.5)
        broker.kill()
        broker.restart()
        produce(broker.bootstrap, 300, 300)
        until("the rest is read", lambda: len(seen) == 600, CALL_S_MAX)
        assert {value: seen[value] for value in before} == before, "what was committed was read again"
        until("three still share", lambda: shared(team), CALL_S_MAX)
    finally:
        for worker in team:
            worker.stop()


@pytest.mark.timeout(120)
def test_a_static_member_comes_back_without_a_rebalance(start_broker: Callable[..., BrokerProcess]) -> None:
    """group.instance.id: its process is replaced, the others keep what they have, and the broker logs no rebalance."""
    broker = start_broker(sets={"group.initial.rebalance.delay.ms": 0, "num.partitions": PARTITIONS})
    produce(broker.bootstrap, 0, 60)
    seen: dict[bytes, int] = {}
    team = [Worker(broker.bootstrap, seen, **{"group.instance.id": f"i{n}"}) for n in range(2)]
    try:
        until("two share", lambda: shared(team), CALL_S_MAX)
        assert broker.process is not None
        time.sleep(0.5)
        rebalances = sum(" rebalance " in line for line in broker.process.lines)
        kept = set(team[0].assigned)
        team.pop().stop()
        team.append(Worker(broker.bootstrap, seen, **{"group.instance.id": "i1"}))
        until("two share again", lambda: shared(team), CALL_S_MAX)
        assert team[0].assigned == kept
        assert sum(" rebalance " in line for line in broker.process.lines) == rebalances
    finally:
        for worker in team:
            worker.stop()
