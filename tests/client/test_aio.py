"""The twins for asyncio: they wait without standing in the way of the event loop, and lose nothing when cancelled."""

from __future__ import annotations

import asyncio

import pytest

from pybroker import errors
from pybroker.client.aio import AsyncProducer
from pybroker.client.aio_consumer import AsyncConsumer
from pybroker.client.committed import OffsetAndMetadata
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from tests.client.kit import WAIT_S, create, find_nobody
from tests.harness import Server


async def test_there_and_back(target: Server, topic: str) -> None:
    """What is awaited is stored, and read again: by record, as columns, in a loop."""
    create(target, topic)
    tp = TopicPartition(topic, 0)
    async with AsyncProducer(bootstrap_servers=target.bootstrap) as producer:
        first = await producer.send(topic, "0", key="k", timestamp_ms=7)
        assert (await first).offset == 0 and (await first).timestamp_ms == 7
        futures = [await producer.send(topic, b"%d" % n) for n in range(1, 50)]
        await producer.flush(WAIT_S)
        assert [(await future).offset for future in futures] == list(range(1, 50))
        assert [sent.offset for sent in await producer.send_columns(topic, [b"50", b"51"])] == [50]
        assert await producer.partitions_for(topic) == [0]
    async with AsyncConsumer(bootstrap_servers=target.bootstrap) as consumer:
        await consumer.assign([tp])
        await consumer.seek_to_beginning()
        async for record in consumer:
            assert record.value == b"%d" % record.offset
            if record.offset == 9:
                break
        assert await consumer.position(tp) == 10
        assert (await consumer.poll(10_000, 5))[-1].offset == 14
        assert (await consumer.poll_arrow(10_000, 5, columns=["offset"])).column("offset").to_pylist() == [
            *range(15, 20)
        ]
        assert (await consumer.poll_numpy(10_000, 1, columns=["offset"])).rows == 1
        assert await consumer.end_offsets([tp]) == {tp: 52}
        await consumer.seek_to_end(tp)
        assert await consumer.poll(50) == []


async def test_a_group(target: Server, topic: str) -> None:
    """Subscribed and committed as by the consumer that waits by itself."""
    create(target, topic)
    tp = TopicPartition(topic, 0)
    async with AsyncProducer(bootstrap_servers=target.bootstrap) as producer:
        await (await producer.send(topic, b"x"))
    settings = {"group_id": f"group-of-{topic}", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    async with AsyncConsumer(bootstrap_servers=target.bootstrap, **settings) as consumer:
        await consumer.subscribe([topic])
        assert [r.value for r in await consumer.poll(30_000)] == [b"x"]
        await consumer.commit()
        assert await consumer.committed([tp]) == {tp: OffsetAndMetadata(1, leader_epoch=0)}


async def test_the_loop_goes_on(shared_broker: Server, topic: str) -> None:
    """While a poll waits, other tasks run; what comes in ends the wait at once."""
    create(shared_broker, topic)
    async with (
        AsyncConsumer(bootstrap_servers=shared_broker.bootstrap) as consumer,
        AsyncProducer(bootstrap_servers=shared_broker.bootstrap, linger_ms=0) as producer,
    ):
        await consumer.assign([(topic, 0)])
        await consumer.position((topic, 0))
        polling = asyncio.create_task(consumer.poll(30_000))
        ticks = 0
        while ticks < 20:
            await asyncio.sleep(0.005)
            ticks += 1
        assert not polling.done()
        await (await producer.send(topic, b"now"))
        assert [r.value for r in await asyncio.wait_for(polling, WAIT_S)] == [b"now"]


async def test_a_cancelled_poll_loses_nothing(shared_broker: Server, topic: str) -> None:
    """Polls that are cancelled at any moment and polls that are not return each record once, in order."""
    create(shared_broker, topic)
    async with AsyncProducer(bootstrap_servers=shared_broker.bootstrap) as producer:
        await producer.send_columns(topic, [b"%d" % n for n in range(2000)])
    async with AsyncConsumer(bootstrap_servers=shared_broker.bootstrap) as consumer:
        await consumer.assign([(topic, 0)])
        await consumer.seek_to_beginning()
        found: list[int] = []
        turn = 0
        while len(found) < 2000:
            turn += 1
            try:
                async with asyncio.timeout(0.0002 * (turn % 7) if turn % 3 else 10):
                    found += [r.offset for r in await consumer.poll(5000, 20)]
            except TimeoutError:
                continue
        assert found == list(range(2000))


async def test_what_is_refused() -> None:
    """Errors are those of the clients that wait by themselves."""
    async with AsyncProducer(bootstrap_servers="127.0.0.1:1", max_block_ms=200) as producer:
        find_nobody(producer.producer._network)
        with pytest.raises(KafkaError, match="no metadata of topic 't'") as caught:
            await producer.send("t", b"")
        assert caught.value.code == errors.NETWORK_EXCEPTION
    async with AsyncConsumer(bootstrap_servers="127.0.0.1:1") as consumer:
        with pytest.raises(TypeError, match="columns is a list of names"):
            await consumer.poll_arrow(columns="value")
