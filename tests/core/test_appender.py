"""The client's record appender without a broker: batch choice, batch content, limits, and outcomes of records."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pybroker.core import (
    NO_CHOICE,
    NO_MEMORY,
    NO_TOPIC,
    Appender,
    Delivery,
    OpenQueue,
    PendingBatch,
    RecordMetadata,
    build_batch,
)


class Setup:
    """An appender of one topic that counts its wake-ups of the sender."""

    def __init__(self, partitions: int = 1, **limits: int) -> None:
        self.wakes = 0
        self.busy: set[OpenQueue] = set()
        settings: dict[str, Any] = {"batch_size": 1000, "memory": 10_000, "record_size_max": 5000, **limits}
        self.appender = Appender(queues=self.busy, wake=self.wake, **settings)
        self.queues = [OpenQueue("t", p) for p in range(partitions)]
        self.appender.know("t", list(self.queues))

    def wake(self) -> None:
        self.wakes += 1

    def append(self, value: Any = b"v", key: Any = None, headers: Any = (), partition: int | None = 0) -> Any:
        return self.appender.append("t", value, key, headers, partition, 1000)


def ended(batch: PendingBatch | None, *outcome: Any) -> None:
    assert batch is not None and batch.end(*outcome)


def test_a_batch_is_what_build_batch_makes() -> None:
    """A batch has the bytes of build_batch for text, null, headers and timestamps."""
    s = Setup()
    rows = [
        (1000, None, b"v", []),
        (1000, b"k", None, [("h", b"1"), ("h", None)]),
        (1000, "ä".encode(), b"w" * 200, []),
    ]
    s.append("v")
    s.append(None, "k", [("h", b"1"), ("h", None)])
    s.append(bytearray(b"w" * 200), "ä")
    batch = s.queues[0].open
    assert batch is not None and batch.count == 3 and s.appender.used == batch.size
    assert bytes(batch.seal(0, None)) == build_batch(rows)
    packed = Setup()
    packed.append(b"v")
    assert packed.queues[0].open is not None
    assert bytes(packed.queues[0].open.seal(3, lambda plain: bytes(plain)[::-1])) == build_batch(
        rows[:1], attributes=3, compress=lambda plain: plain[::-1]
    )


def test_a_full_batch_is_ready_and_another_begins() -> None:
    """The sender is woken by the first record and by each full batch, not in between."""
    s = Setup(batch_size=500)
    for _ in range(10):
        assert isinstance(s.append(b"x" * 100), Delivery)
    assert [batch.count for batch in s.queues[0].ready] == [4, 4] and s.queues[0].open is not None
    assert s.busy == {s.queues[0]} and s.wakes == 1 + 2 * 2
    s.queues[0].close_batch()
    assert len(s.queues[0].ready) == 3 and s.queues[0].open is None


def test_limits() -> None:
    """A record of record_size_max bytes passes, and one byte more does not; so it is with the memory limit."""
    s = Setup(record_size_max=1009, memory=2018)
    assert isinstance(s.append(b"x" * 1000), Delivery) and s.appender.used == 1009
    assert s.append(b"x" * 1001) == 1010
    assert isinstance(s.append(b"x" * 1000), Delivery) and s.append(b"") == NO_MEMORY
    assert not s.appender.reserve(1)
    batch = s.queues[0].ready[0]
    s.appender.release(batch.size)
    assert isinstance(s.append(b""), Delivery)


def test_who_has_no_place() -> None:
    """Unknown topics and partitions are refused, and so are records without a key while no partition is chosen."""
    s = Setup(partitions=2, batch_size=300)
    assert s.appender.append("u", b"", None, None, 0, None) == NO_TOPIC
    assert s.append(partition=2) == NO_TOPIC
    with pytest.raises(ValueError, match="a record's partition is 0 or more, not -1"):
        s.append(partition=-1)
    assert s.append(partition=None) == NO_CHOICE
    assert s.append(key=b"k", partition=None).__class__ is Delivery
    s.appender.choose("t", 1)
    while isinstance(s.append(b"x" * 50, partition=None), Delivery):
        pass
    assert len(s.queues[1].ready) == 1 and s.queues[1].open is None  # the batch is full: a new partition must be chosen
    s.appender.forget()
    assert s.append() == NO_TOPIC


@pytest.mark.parametrize("fields", [{"value": 1}, {"key": 1.5}, {"headers": [(b"k", b"v")]}, {"headers": [("k", 1)]}])
def test_what_is_no_record(fields: dict[str, Any]) -> None:
    s = Setup()
    with pytest.raises(TypeError):
        s.append(**fields)
    assert s.appender.used == 0


def test_outcomes() -> None:
    """Each record gets its offset or its batch's error; the broker's timestamp wins; only the first outcome counts."""
    s = Setup()
    first, second = s.append(), s.append()
    batch = s.queues[0].open
    with pytest.raises(TimeoutError, match="no acknowledgement within 0 s"):
        first.result(0)
    called: list[Delivery] = []
    second.add_done_callback(called.append)
    second.add_done_callback(lambda delivery: 1 // 0)  # logged, and otherwise ignored
    ended(batch, 40, -1, None)
    assert batch is not None and not batch.end(50, -1, ValueError())
    assert (first.result(), second.result()) == (RecordMetadata("t", 0, 40, 1000), RecordMetadata("t", 0, 41, 1000))
    first.add_done_callback(called.append)
    assert called == [second, first] and first.done() and first.exception() is None
    s.queues[0].close_batch()
    third = s.append()
    ended(s.queues[0].open, -1, 7, None)
    assert third.result() == RecordMetadata("t", 0, -1, 7)
    s.queues[0].close_batch()
    fourth = s.append()
    ended(s.queues[0].open, -1, -1, ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        fourth.result()


def test_waiting_on_another_thread() -> None:
    """A thread that waits for a delivery is woken by its outcome."""
    s = Setup()
    delivery = s.append()
    results: list[RecordMetadata] = []
    thread = threading.Thread(target=lambda: results.append(delivery.result(30)))
    thread.start()
    ended(s.queues[0].open, 3, -1, None)
    thread.join(30)
    assert results == [RecordMetadata("t", 0, 3, 1000)]


def test_many_threads_at_once() -> None:
    """No record is lost or counted twice while threads append, close and end batches at the same time."""
    s, each = Setup(partitions=3, batch_size=400, memory=1 << 40), 4000

    def work() -> None:
        for n in range(each):
            assert isinstance(s.append(b"x" * 20, key=b"%d" % n, partition=None), Delivery)
            if n % 7 == 0:
                s.queues[n % 3].close_batch()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for queue in s.queues:
        queue.close_batch()
    batches = [batch for queue in s.queues for batch in queue.ready]
    assert sum(batch.count for batch in batches) == 4 * each
    assert sum(batch.size for batch in batches) == s.appender.used
    assert all(batch.seal(0, None).count == batch.count for batch in batches)
