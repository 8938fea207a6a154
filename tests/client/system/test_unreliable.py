"""A producer at a broker with every fault: each batch has one outcome in time. An acknowledged record is stored at its
offset, once and in order if the producer is idempotent."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from typing import Any

import pytest

from pybroker import Delivery, Producer, errors
from pybroker.core import PendingBatch
from pybroker.errors import KafkaError
from tests.client.unreliable import UnreliableBroker
from tests.harness import until

PARTITIONS = 3
LATE_S = 2.0
MISFORTUNES = {
    "slow": 0.5, "closed before": 0.05, "closed after": 0.05, "reset": 0.05, "reset after the answer": 0.05,
    "not leader": 0.15, "timed out after": 0.1, "refused": 0.03, "throttled": 0.05, "no leader": 0.2,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "retry_backoff_ms": 20, "retry_backoff_max_ms": 100, "reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50,
}  # fmt: skip


def number_of(value: bytes) -> int:
    return int(value[:8])


def judge(broker: UnreliableBroker, sent: list[tuple[int, Delivery]], *, in_order: bool) -> None:
    """Check `sent`, the partition and outcome of each record, whose value begins with its index in this list."""
    assert all(delivery.done() for _, delivery in sent)
    for number, (partition, delivery) in enumerate(sent):
        if delivery.exception(0) is None:
            assert number_of(broker.log[partition][delivery.result(0).offset]) == number
    for log in broker.log.values():
        numbers = [number_of(value) for value in log]
        assert not in_order or numbers == sorted(set(numbers))


@pytest.mark.parametrize("seed", range(16))
def test_every_batch_has_one_outcome(seed: int) -> None:
    """Every batch has one outcome, for all failures, batch sizes, splits, retries and timeouts."""
    chosen = random.Random(seed)
    chance = {what: chosen.choice([0, 0, likely]) for what, likely in MISFORTUNES.items()}
    idempotent, timeout_s = chosen.random() < 0.6, chosen.choice([0.7, 3, 20])
    how: dict[str, Any] = QUICK | {
        "enable_idempotence": idempotent, "linger_ms": chosen.choice([0, 1, 50]),
        "batch_size": chosen.choice([200, 1000, 16384]), "delivery_timeout_ms": int(timeout_s * 1000),
        "request_timeout_ms": chosen.choice([400, 5000]), "compression_type": chosen.choice(["none", "lz4"]),
        "max_request_size": chosen.choice([1 << 20, 600]), "retries": chosen.choice([2147483647, 3]),
        "max_in_flight_requests_per_connection": chosen.choice([1, 5]),
    }  # fmt: skip
    sent: list[tuple[int, Delivery]] = []
    with UnreliableBroker(PARTITIONS, seed, chance, chosen.choice([1 << 30, 400, 1500])) as broker:
        producer = Producer(bootstrap_servers=broker.bootstrap, **how)
        for number in range(400):
            partition = chosen.randrange(PARTITIONS)
            value = b"%08d" % number + b"x" * chosen.choice([0, 10, 100])
            sent.append((partition, producer.send("t", value, partition=partition)))
            if chosen.random() < 0.02:
                time.sleep(0.05 * chosen.random())
        producer.flush(timeout_s + LATE_S)
        producer.close(0)
        judge(broker, sent, in_order=idempotent)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_connection_that_breaks_while_it_is_sent_to(idempotent: bool) -> None:
    """A connection that breaks during a send fails the first of two requests at once; its batches are retried before
    others."""
    asked, silent = threading.Event(), threading.Event()
    with UnreliableBroker(2) as broker:

        def appending(partition: int, batch: bytes) -> None:
            asked.set()
            if not silent.is_set():
                silent.wait(10)
                broker.chance["closed after"] = 1

        broker.appending = appending  # type: ignore[method-assign]
        more: dict[str, Any] = {"linger_ms": 0, "max_request_size": 2000, "batch_size": 1500}
        how = QUICK | more | {"enable_idempotence": idempotent, "delivery_timeout_ms": 8000}
        with Producer(bootstrap_servers=broker.bootstrap, **how) as producer:
            producer.partitions_for("t")
            sent = [(p, producer.send("t", b"%08d" % p + b"a" * 1000, partition=p)) for p in (0, 1)]
            assert asked.wait(10)
            loop = producer._network.loop
            loop.call_soon(time.sleep, 0.3)
            loop.call_soon(silent.set)
            loop.call_soon(time.sleep, 0.3)
            sent += [(p, producer.send("t", b"%08d" % (p + 2) + b"b" * 1200, partition=p)) for p in (0, 1)]
            time.sleep(0.4)
            broker.chance.clear()
            producer.flush(10)
        assert all(delivery.done() for _, delivery in sent)


def test_not_the_leader_and_gone() -> None:
    """A broker that answers NOT_LEADER and resets the connection on which metadata is requested, as one that stops,
    loses nothing."""
    with UnreliableBroker(1, chance={"not leader": 1, "reset after the answer": 1}) as broker:
        how = QUICK | {"delivery_timeout_ms": 3000, "linger_ms": 0}
        with Producer(bootstrap_servers=broker.bootstrap, **how) as producer:
            broker.appending = lambda *_: producer._network.loop.call_soon(time.sleep, 0.2)  # type: ignore[method-assign]
            delivery = producer.send("t", b"00000000", partition=0)
            until("it was refused", lambda: broker.happened["not leader"])
            broker.chance.clear()
            producer.flush(6)
            assert delivery.exception(0) is None


def test_a_part_of_a_batch_is_cut_again() -> None:
    """A part of a split batch is split again, and a flush meanwhile waits for its parts, too."""
    under_way, go_on = threading.Event(), threading.Event()
    with UnreliableBroker(1, bytes_max=500) as broker:
        seen = iter(range(1000))

        def appending(partition: int, batch: bytes) -> None:
            if next(seen) == 1:
                under_way.set()
                go_on.wait(10)

        broker.appending = appending  # type: ignore[method-assign]
        with Producer(bootstrap_servers=broker.bootstrap, linger_ms=20, **QUICK) as producer:
            sent = [(0, producer.send("t", b"%08d" % n + b"x" * 92, partition=0)) for n in range(100)]
            assert under_way.wait(10)
            threading.Timer(0.2, go_on.set).start()
            producer.flush(10)
        judge(broker, sent, in_order=True)


@pytest.mark.parametrize("idempotent", [True, False])
def test_parts_go_behind_what_is_older(idempotent: bool) -> None:
    """Parts of a batch that was too large are queued behind an older batch that waits for its retry."""
    go_on = threading.Event()
    with UnreliableBroker(1, bytes_max=1000) as broker:
        seen = iter(range(1000))

        def appending(partition: int, batch: bytes) -> None:
            go_on.wait(10)
            broker.chance["not leader"] = float(next(seen) == 0)

        broker.appending = appending  # type: ignore[method-assign]
        how = QUICK | {"enable_idempotence": idempotent, "linger_ms": 20, "delivery_timeout_ms": 6000}
        with Producer(bootstrap_servers=broker.bootstrap, **how) as producer:
            sent = [(0, producer.send("t", b"00000000", partition=0))]
            time.sleep(0.3)
            sent += [(0, producer.send("t", b"%08d" % n + b"b" * 92, partition=0)) for n in range(1, 41)]
            time.sleep(0.3)
            go_on.set()
            producer.flush(10)
        judge(broker, sent, in_order=True)
        assert all(delivery.exception(0) is None for _, delivery in sent)


def test_records_come_while_an_epoch_is_raised() -> None:
    """Records that arrive while the epoch is raised do not break sequences, which restart for all waiting batches;
    otherwise the broker would take new records for duplicates."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with UnreliableBroker(1, chance={"refused": 0.3}) as broker:
            how = QUICK | {"batch_size": 100, "buffer_memory": 1 << 26, "delivery_timeout_ms": 4000}
            producer = Producer(bootstrap_servers=broker.bootstrap, **how)
            sent, until_s = [], time.monotonic() + 2
            while time.monotonic() < until_s:
                sent.append((0, producer.send("t", b"%08d" % len(sent) + b"x" * 60, partition=0)))
            producer.flush(4 + LATE_S)
            producer.close(0)
            judge(broker, sent, in_order=True)
    finally:
        sys.setswitchinterval(interval_s)


def test_what_lingers_longer_than_it_may_take() -> None:
    """A batch that lingers longer than its delivery timeout expires in time."""
    with UnreliableBroker(1) as broker:
        slow: dict[str, Any] = {"linger_ms": 20_000, "delivery_timeout_ms": 500}
        with Producer(bootstrap_servers=broker.bootstrap, **slow) as producer:
            error = producer.send("t", b"00000000", partition=0).exception(5)
            assert isinstance(error, KafkaError) and error.code == errors.REQUEST_TIMED_OUT


def test_a_batch_that_has_its_outcome_is_not_made() -> None:
    """A batch with an outcome is not sealed: its records are freed, and to seal it would read freed memory."""
    with UnreliableBroker(1) as broker, Producer(bootstrap_servers=broker.bootstrap, linger_ms=20_000) as producer:
        producer.send("t", b"00000000", partition=0)
        (queue,) = producer._accumulator._queues["t"]
        batch = queue.open
        assert isinstance(batch, PendingBatch)
        queue.close_batch()
        queue.ready.clear()
        batch.end(-1, -1, KafkaError(errors.REQUEST_TIMED_OUT))
        with pytest.raises(ValueError, match="has its outcome"):
            batch.seal(0, None)


def test_the_collector_sends_on_the_loop_s_thread() -> None:
    """A finalizer that sends a record on the loop's thread, just before the loop sleeps, still wakes it."""

    class Sends:
        def __del__(self) -> None:
            sent.append(producer.send("t", b"00000000", partition=0))

    sent: list[Delivery] = []
    with UnreliableBroker(1) as broker, Producer(bootstrap_servers=broker.bootstrap, linger_ms=0) as producer:
        producer.partitions_for("t")
        loop = producer._network.loop
        wait_s = loop._wait_s

        def collected() -> float | None:
            found = wait_s()
            if held:
                held.clear()
                gc.collect()
            return found

        loop._wait_s = collected  # type: ignore[method-assign]
        held = [Sends()]
        loop.call_soon(lambda: None)
        until("it was sent", lambda: sent and sent[0].done())
