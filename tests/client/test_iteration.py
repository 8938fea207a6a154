"""Iteration over fetched records one by one, and the position at each moment."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from pybroker import DamagedRecords, IllegalStateError
from pybroker.client.aio.consumer import AsyncConsumer
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.consuming.fetch_collector import FetchCollector
from pybroker.client.consuming.group import GroupMembership, RebalanceListener
from pybroker.client.producing.producer import Producer
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from tests.client.kit import WAIT_S, consumer_of, create, read
from tests.harness import Server, eventually, until

COUNT = 3000
FROM_THE_START: Any = {"auto_offset_reset": "earliest"}


def fill_columns(server: Server, topic: str, count: int = COUNT, **settings: Any) -> None:
    with Producer(bootstrap_servers=server.bootstrap, **settings) as producer:
        producer.send_columns(topic, [b"%d" % n for n in range(count)], partition=0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list with an entry for each full poll, instead of taking a buffered record."""
    counted: list[int] = []
    once = FetchCollector.records
    monkeypatch.setattr(FetchCollector, "records", lambda self, most: counted.append(most) or once(self, most))
    return counted


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_each_record_comes_once_and_in_order(shared_broker: Server, topic: str, codec: str, reads: list[int]) -> None:
    """Each record comes once and in order, with any codec and batch size, and with a poll for each fetch, not for each
    record."""
    create(shared_broker, topic)
    fill_columns(shared_broker, topic, compression_type=codec, batch_size=1000)
    with consumer_of(shared_broker, topic) as consumer:
        found = list(itertools.islice(consumer, COUNT))
        assert [int(record.value or b"") for record in found] == list(range(COUNT))
        assert [record.offset for record in found] == list(range(COUNT))
        assert consumer.position((topic, 0)) == COUNT
    assert len(reads) < COUNT / 10


def test_next_takes_what_is_at_hand(shared_broker: Server, topic: str, reads: list[int]) -> None:
    """next() takes a buffered record as a loop does, and leaves an exact position."""
    create(shared_broker, topic)
    fill_columns(shared_broker, topic)
    with consumer_of(shared_broker, topic) as consumer:
        for n in range(COUNT):
            assert next(consumer).offset == n
            if n % 100 == 0:
                assert consumer.position((topic, 0)) == n + 1
    assert len(reads) < 200


def test_a_record_counts_once_it_is_yielded(target: Server, topic: str) -> None:
    """A record counts as consumed once it is yielded: position(), lag() and commit() inside the loop are exact, and
    exclude records that were only fetched."""
    create(target, topic)
    fill_columns(target, topic)
    tp, group = TopicPartition(topic, 0), f"group-of-{topic}"
    settings: dict[str, Any] = {"group_id": group, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    with Consumer(topic, bootstrap_servers=target.bootstrap, **settings) as consumer:
        for n, record in enumerate(consumer):
            assert record.offset == n
            if n % 97 == 0:
                assert consumer.position(tp) == n + 1
                assert consumer.lag() == {tp: COUNT - n - 1}
            if n == 500:
                consumer.commit()
                committed = consumer.committed([tp])[tp]
                assert committed is not None and committed.offset == 501
            if n == 700:
                break
        assert consumer.position(tp) == 701
    with Consumer(topic, bootstrap_servers=target.bootstrap, **settings) as consumer:
        assert next(consumer).offset == 501


def test_automatic_commits_leave_out_what_was_not_yielded(target: Server, topic: str) -> None:
    """Automatic commits leave out records that were not yielded: in the background, during a record's work, and at the
    end."""
    create(target, topic)
    fill_columns(target, topic)
    tp = TopicPartition(topic, 0)
    settings: dict[str, Any] = {"group_id": f"group-of-{topic}", "auto_offset_reset": "earliest"}
    with (
        Consumer(topic, bootstrap_servers=target.bootstrap, auto_commit_interval_ms=50, **settings) as consumer,
        Consumer(bootstrap_servers=target.bootstrap, **settings) as looks,
    ):
        seen = 0

        def committed() -> int:
            at = looks.committed([tp])[tp]
            return -1 if at is None else at.offset

        loop = iter(consumer)

        def more() -> bool:
            nonlocal seen
            seen = next(loop).offset + 1
            assert committed() < seen, "the record in hand is not done before the next is asked for"
            return committed() >= 20

        until("some records are committed in the background", more)
    with Consumer(bootstrap_servers=target.bootstrap, **settings) as looks:
        at = looks.committed([tp])[tp]
        assert at is not None and at.offset == seen < COUNT, "close() commits what was yielded"


def test_other_calls_between_two_records(shared_broker: Server, topic: str) -> None:
    """Other calls between two records do not disturb a loop: after seeks, polls, columns and a pause, each record is
    read once."""
    create(shared_broker, topic)
    fill_columns(shared_broker, topic)
    tp = (topic, 0)
    with consumer_of(shared_broker, topic) as consumer:
        assert [r.offset for r in itertools.islice(consumer, 10)] == list(range(10))
        assert [r.offset for r in consumer.poll(10_000, 5)] == list(range(10, 15))
        assert next(consumer).offset == 15
        assert consumer.poll_numpy(10_000, 4, columns=["offset"]).offset.tolist() == [16, 17, 18, 19]  # type: ignore[union-attr]
        assert consumer.poll_arrow(10_000, 3, columns=["offset"]).column("offset").to_pylist() == [20, 21, 22]
        offsets = []
        for record in consumer:
            offsets.append(record.offset)
            if record.offset == 30:
                consumer.seek(tp, 100)
            if record.offset == 110:
                consumer.pause(tp)
                assert consumer.poll(50) == [] and consumer.position(tp) == 111
                consumer.resume(tp)
            if record.offset == 120:
                break
        assert offsets == [*range(23, 31), *range(100, 121)]
        both = zip(consumer, consumer, strict=False)  # two loops share the consumer
        assert [[a.offset, b.offset] for a, b in itertools.islice(both, 50)] == [[n, n + 1] for n in range(121, 221, 2)]


def test_partitions_that_go_take_their_fetched_records_along(target: Server, topic: str) -> None:
    """Revoked partitions take their fetched records along: the next member begins after the last yielded record, and
    none is lost or repeated."""
    create(target, topic, partitions=2)
    with Producer(bootstrap_servers=target.bootstrap) as producer:
        for p in (0, 1):
            producer.send_columns(topic, [b"%d" % n for n in range(1000)], partition=p)
    settings: dict[str, Any] = {
        "group_id": f"group-of-{topic}", "auto_offset_reset": "earliest", "heartbeat_interval_ms": 100,
    }  # fmt: skip
    seen: list[tuple[int, int]] = []
    revoked: list[TopicPartition] = []

    class Listener(RebalanceListener):
        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            revoked.extend(partitions)

    with Consumer(bootstrap_servers=target.bootstrap, **settings) as first:
        first.subscribe([topic], listener=Listener())
        with Consumer(topic, bootstrap_servers=target.bootstrap, max_poll_records=1, **settings) as second:
            loop = iter(first)
            seen += [(r.partition, r.offset) for r in itertools.islice(loop, 50)]

            def shared() -> bool:
                for record in [next(loop), *second.poll(0)]:
                    seen.append((record.partition, record.offset))
                return bool(revoked and second.assignment() and len(first.assignment()) == 1)

            until("each has a partition", shared)
            rest = 2000 - len(seen)
            deadline_s = time.monotonic() + WAIT_S
            while rest > 0 and time.monotonic() < deadline_s:
                came = [*first.poll(10, 500), *second.poll(10, 500)]
                seen += [(r.partition, r.offset) for r in came]
                rest -= len(came)
    assert sorted(seen) == [(p, n) for p in (0, 1) for n in range(1000)]


def test_a_slow_loop_stays_in_its_group(target: Server, topic: str) -> None:
    """A slow loop stays in its group: each record takes a part of max_poll_interval_ms, all of them take more than it,
    and the loop counts as polling."""
    create(target, topic)
    fill_columns(target, topic)
    settings: dict[str, Any] = {"group_id": f"group-of-{topic}", "auto_offset_reset": "earliest"}
    limits: dict[str, Any] = {"max_poll_interval_ms": 3_600_000, "heartbeat_interval_ms": 200}
    with Consumer(topic, bootstrap_servers=target.bootstrap, **settings, **limits) as consumer:
        next(consumer)
        group = consumer._group
        assert isinstance(group, GroupMembership)
        member = group.member_id
        for _ in itertools.islice(consumer, 6):
            group._polled_s -= 1000  # as if the record's work had begun so long ago
            heard_s = group._heard_s
            until("a heartbeat is answered", lambda: group._heard_s > heard_s)  # noqa: B023
        assert consumer.position((topic, 0)) == 7 and group.member_id == member


def test_a_closed_consumer_ends_its_loop_with_an_error(shared_broker: Server, topic: str) -> None:
    create(shared_broker, topic)
    fill_columns(shared_broker, topic, 100)
    consumer = consumer_of(shared_broker, topic)
    with pytest.raises(KafkaError, match="the consumer is closed"):
        for record in consumer:
            if record.offset == 10:
                consumer.close()
    assert record.offset == 10


def test_damage_is_raised_where_it_lies(shared_broker: Server, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage is raised at its offset, after the records before it; a seek goes on behind it."""
    create(shared_broker, topic)
    for n in range(3):
        fill_columns(shared_broker, topic, 10 if n else 20)
    begin = FetchCollector._begin

    def flipped(self: FetchCollector, chunk: Any, data: memoryview, start: int) -> None:
        spoiled = bytearray(data)
        size = 12 + int.from_bytes(spoiled[8:12], "big")
        if int.from_bytes(spoiled[:8], "big") == 0 and len(spoiled) > size + 80:
            spoiled[size + 70] ^= 0xFF
        begin(self, chunk, memoryview(bytes(spoiled)), start)

    monkeypatch.setattr(FetchCollector, "_begin", flipped)
    with consumer_of(shared_broker, topic) as consumer:
        offsets = []
        with pytest.raises(DamagedRecords) as caught:
            for record in consumer:
                offsets.append(record.offset)
                if len(offsets) > 30:
                    break
        monkeypatch.undo()
        assert offsets == list(range(20)) and caught.value.offset == 20
        consumer.seek((topic, 0), 30)
        assert [r.offset for r in itertools.islice(consumer, 10)] == list(range(30, 40))


def test_nothing_to_read() -> None:
    """A loop without topics and partitions raises, as Java's client does: it has nothing to wait for."""
    with Consumer(bootstrap_servers="127.0.0.1:1") as consumer:
        calls: list[Callable[[], object]] = [consumer.poll, lambda: next(consumer), consumer.poll_numpy]
        for call in calls:
            with pytest.raises(IllegalStateError, match=r"nothing to read: subscribe\(\) to topics, or assign\(\)"):
                call()
        consumer.assign([("t", 0)])
        assert consumer.poll() == []
        with pytest.raises(IllegalStateError, match=r"partitions are assigned, .*: call unsubscribe\(\) first"):
            consumer.subscribe(["t"])
        consumer.unsubscribe()
        consumer.subscribe(["t"])
        assert consumer.subscription() == {"t"} and consumer.poll() == []
        with pytest.raises(IllegalStateError, match=r"topics are subscribed, .*: call unsubscribe\(\) first"):
            consumer.assign([("t", 0)])
        consumer.unsubscribe()
        with pytest.raises(IllegalStateError, match="nothing to read"):
            consumer.poll()


def test_topics_without_a_group(shared_broker: Server, topic: str) -> None:
    """Topics without a group are read in all partitions, later ones too, from their start."""
    from pybroker.client.admin import Admin

    create(shared_broker, topic, partitions=2)
    other = f"{topic}-other"
    create(shared_broker, other)
    with (
        Producer(bootstrap_servers=shared_broker.bootstrap) as producer,
        Consumer(
            topic, other, bootstrap_servers=shared_broker.bootstrap, auto_offset_reset="earliest",
            metadata_max_age_ms=200,
        ) as consumer,
        Admin(shared_broker.bootstrap) as admin,
    ):  # fmt: skip
        for name, partition in ((topic, 0), (topic, 1), (other, 0)):
            producer.send(name, b"first", partition=partition)
        assert sorted((r.topic, r.partition) for r in itertools.islice(consumer, 3)) == [
            (topic, 0), (topic, 1), (other, 0),
        ]  # fmt: skip
        admin.create_partitions(topic, 3)
        producer.send(topic, b"added", partition=2).result(WAIT_S)
        assert next(consumer).value == b"added" and len(consumer.assignment()) == 4


async def test_async_each_record_comes_once_and_in_order(shared_broker: Server, topic: str, reads: list[int]) -> None:
    """The AsyncConsumer's loop returns each record once and in order from its buffer, with an exact position."""
    create(shared_broker, topic)
    fill_columns(shared_broker, topic)
    async with AsyncConsumer(topic, bootstrap_servers=shared_broker.bootstrap, **FROM_THE_START) as consumer:
        n = 0
        async for record in consumer:
            assert record.offset == n
            n += 1
            if n % 500 == 0:
                assert await consumer.position((topic, 0)) == n
            if n == 2000:
                break
        assert [r.offset for r in await consumer.poll(10_000, 3)] == [2000, 2001, 2002]
        assert (await anext(consumer)).offset == 2003
        await consumer.seek((topic, 0), 10)
        assert (await anext(consumer)).offset == 10
    assert len(reads) < 300


async def test_async_iteration_that_is_cancelled_loses_nothing(shared_broker: Server, topic: str) -> None:
    """A cancelled loop of an AsyncConsumer loses nothing: loops with and without cancellation yield each record once,
    in order."""
    create(shared_broker, topic)
    fill_columns(shared_broker, topic, 2000)
    async with AsyncConsumer(topic, bootstrap_servers=shared_broker.bootstrap, **FROM_THE_START) as consumer:
        found: list[int] = []
        turn = 0
        while len(found) < 2000:
            turn += 1
            try:
                async with asyncio.timeout(0.0003 * (turn % 7) if turn % 3 else 10):
                    async for record in consumer:
                        found.append(record.offset)
                        if len(found) % 50 == 0:
                            await asyncio.sleep(0)
                            break
            except TimeoutError:
                continue
        assert found == list(range(2000))


async def test_async_loops_of_two_tasks_and_other_calls(shared_broker: Server, topic: str) -> None:
    """Two tasks that iterate an AsyncConsumer, and one that asks for positions, share the records; other tasks run
    meanwhile."""
    create(shared_broker, topic)
    fill_columns(shared_broker, topic)
    async with AsyncConsumer(topic, bootstrap_servers=shared_broker.bootstrap, **FROM_THE_START) as consumer:
        found = [(await anext(consumer)).offset]
        turns = 0

        async def loop() -> None:
            async for record in consumer:
                found.append(record.offset)
                if len(found) >= COUNT:
                    return
                if record.offset % 10 == 0:
                    await asyncio.sleep(0)

        async def look() -> None:
            nonlocal turns
            while True:
                await consumer.position((topic, 0))
                turns += 1

        looking = asyncio.create_task(look())
        tasks = [asyncio.create_task(loop()) for _ in range(2)]
        async with asyncio.timeout(WAIT_S):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in [looking, *tasks]:
            task.cancel()
        assert sorted(found) == list(range(COUNT)) and turns > 3


def test_records_by_poll_stay_as_they_were(shared_broker: Server, topic: str) -> None:
    """A poll after a loop that stopped within a fetch returns the rest of the fetch."""
    create(shared_broker, topic)
    fill_columns(shared_broker, topic)
    with consumer_of(shared_broker, topic) as consumer:
        assert next(iter(consumer)).offset == 0
        assert [r.offset for r in read(consumer, COUNT - 1)] == list(range(1, COUNT))


async def test_async_a_cancelled_step_consumes_nothing(shared_broker: Server, topic: str) -> None:
    """A cancelled step of an AsyncConsumer's loop consumes nothing; the records of a cancelled poll come first, and
    completely."""
    create(shared_broker, topic)
    async with AsyncConsumer(topic, bootstrap_servers=shared_broker.bootstrap, **FROM_THE_START) as consumer:
        step = asyncio.create_task(anext(consumer))
        await eventually("the step waits for an answer", lambda: consumer.consumer._fetcher._under_way)
        step.cancel()
        fill_columns(shared_broker, topic, 100)
        await eventually("records are fetched", lambda: consumer.consumer._fetcher.chunks)
        assert await consumer.position((topic, 0)) == 0
        polling = asyncio.create_task(consumer.poll(10_000, 20))
        await asyncio.sleep(0)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        assert [(await anext(consumer)).offset for _ in range(5)] == list(range(5))
        assert [r.offset for r in await consumer.poll(10_000, 3)] == [5, 6, 7]
        assert [(await anext(consumer)).offset for _ in range(92)] == list(range(8, 100))


async def test_async_damage_is_raised_too(shared_broker: Server, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An AsyncConsumer raises damage at its offset, after the records before it."""
    create(shared_broker, topic)
    fill_columns(shared_broker, topic, 10)
    begin = FetchCollector._begin

    def flipped(self: FetchCollector, chunk: Any, data: memoryview, start: int) -> None:
        spoiled = bytearray(data)
        spoiled[70] ^= 0xFF
        begin(self, chunk, memoryview(bytes(spoiled)), start)

    monkeypatch.setattr(FetchCollector, "_begin", flipped)
    async with AsyncConsumer(topic, bootstrap_servers=shared_broker.bootstrap, **FROM_THE_START) as consumer:
        with pytest.raises(DamagedRecords) as caught:
            await anext(consumer)
        assert caught.value.offset == 0
