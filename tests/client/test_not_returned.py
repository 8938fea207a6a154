"""Records that a call has found, and no caller has got: none is lost, and none counts as consumed."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Any

import pytest

from pybroker.client.aio.consumer import AsyncConsumer
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.producing.producer import Producer
from pybroker.model import TopicPartition
from tests.client.kit import consumer_of, create, fill
from tests.harness import Server, until

FROM_THE_START: Any = {"auto_offset_reset": "earliest"}


def test_what_is_no_exception_loses_nothing(shared_broker: Server, topic: str) -> None:
    """Ctrl-C in a deserializer, in a poll and in a loop, loses no record: none was returned, so all come again."""
    create(shared_broker, topic)
    fill(shared_broker, topic, 0, [b"%d" % n for n in range(100)])
    interrupts = iter([50, 50])
    at = next(interrupts)

    def slow(data: bytes) -> int:
        nonlocal at
        if int(data) == at:
            at = next(interrupts, -1)
            raise KeyboardInterrupt
        return int(data)

    settings: dict[str, Any] = {"bootstrap_servers": shared_broker.bootstrap, "value_deserializer": slow}
    with Consumer(topic, **settings, **FROM_THE_START) as consumer:
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(10_000)
        assert consumer.position((topic, 0)) == 0
        found = []
        with pytest.raises(KeyboardInterrupt):
            for record in consumer:
                found.append(record.value)
        assert found == list(range(50)) and consumer.position((topic, 0)) == 50
        assert [r.value for r in itertools.islice(consumer, 50)] == list(range(50, 100))


def test_steps_that_another_thread_settles(shared_broker: Server, topic: str) -> None:
    """A thread that settles a loop, by repr() or lag(), while another opens the next chunk, moves no other place."""
    create(shared_broker, topic, partitions=2)
    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        for p in (0, 1):
            producer.send_columns(topic, [b"%d" % n for n in range(200)], partition=p)
    with consumer_of(shared_broker, topic, 2) as consumer:
        until("both are fetched", lambda: len(consumer._fetcher.chunks) == 2)
        taken = [next(consumer) for _ in range(100)]
        reader = consumer._reader

        class Overtaken:
            """Steps during whose end the other thread reads on, into the other partition."""

            def stop(self) -> int:
                offset: int = steps[0].stop()
                reader._steps = None
                assert len(reader.records(110)) == 110
                return offset

        steps: Any = reader._steps
        reader._steps = (Overtaken(), steps[1])  # type: ignore[assignment]
        reader.settle()
        other = (topic, 1 - taken[0].partition)
        assert consumer.position((topic, taken[0].partition)) == 200 and consumer.position(other) == 10


@pytest.mark.parametrize("way", ["poll", "iterate", "poll_numpy"])
async def test_async_records_of_a_cancelled_call_are_not_consumed(shared_broker: Server, topic: str, way: str) -> None:
    """Records that a cancelled call has found, and no caller has got, are not consumed: commit() and close() leave them
    out, and a seek drops them."""
    create(shared_broker, topic)
    fill(shared_broker, topic, 0, [b"%d" % n for n in range(100)])
    tp = TopicPartition(topic, 0)
    settings: dict[str, Any] = {"bootstrap_servers": shared_broker.bootstrap, "group_id": f"group-of-{topic}"}

    async def cancel(consumer: AsyncConsumer) -> None:
        call: Any = partial(consumer.poll_numpy, columns=["value"]) if way == "poll_numpy" else consumer.poll
        polling = asyncio.ensure_future(call(10_000, 20))
        await asyncio.sleep(0)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        if way == "iterate":
            assert (await anext(consumer)).offset == at
        else:
            assert consumer._found

    async with AsyncConsumer(topic, **settings, **FROM_THE_START) as consumer:
        assert (await anext(consumer)).offset == 0
        at = 1
        await cancel(consumer)
        at += way == "iterate"
        assert await consumer.position(tp) == at
        await cancel(consumer)
        at += way == "iterate"
        await consumer.commit()
        committed = (await consumer.committed([tp]))[tp]
        assert committed is not None and committed.offset == at
        await cancel(consumer)
        at += way == "iterate"
        await consumer.seek(tp, 90)
        assert (await anext(consumer)).offset == 90
        assert [r.offset for r in await consumer.poll(10_000, 3)] == [91, 92, 93]
        await consumer.seek(tp, at)
        assert (await anext(consumer)).offset == at
        at += 1
        await cancel(consumer)
        at += way == "iterate"
    async with AsyncConsumer(topic, **settings, **FROM_THE_START) as consumer:
        assert (await anext(consumer)).offset == at
