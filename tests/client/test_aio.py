"""The asyncio clients: they wait without blocking the event loop, and lose nothing when cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pybroker import errors
from pybroker.client.aio.consumer import AsyncConsumer
from pybroker.client.aio.producer import AsyncProducer
from pybroker.client.net.group_offsets import OffsetAndMetadata
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from tests.client.kit import WAIT_S, create, find_nobody, read_all
from tests.harness import BrokerProcess, Server, looked


async def test_there_and_back(target: Server, topic: str) -> None:
    """Awaited records are stored, and read again: by record, as columns, in a loop."""
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
    """An AsyncConsumer in a group subscribes and commits as a Consumer does."""
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
    """The loop goes on while a poll waits: other tasks run, and a new record ends the wait at once."""
    create(shared_broker, topic)
    async with (
        AsyncConsumer(bootstrap_servers=shared_broker.bootstrap) as consumer,
        AsyncProducer(bootstrap_servers=shared_broker.bootstrap, linger_ms=0) as producer,
    ):
        await consumer.assign([(topic, 0)])
        await consumer.position((topic, 0))
        polling = asyncio.create_task(consumer.poll(30_000))
        for _ in range(20):
            await looked()
        assert not polling.done()
        await (await producer.send(topic, b"now"))
        assert [r.value for r in await asyncio.wait_for(polling, WAIT_S)] == [b"now"]


async def test_a_cancelled_poll_loses_nothing(shared_broker: Server, topic: str) -> None:
    """A cancelled poll loses nothing: polls with and without cancellation return each record once, in order."""
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
    """Refused calls raise the errors of the blocking clients."""
    async with AsyncProducer(bootstrap_servers="127.0.0.1:1", max_block_ms=200) as producer:
        find_nobody(producer.producer._network)
        with pytest.raises(KafkaError, match="no metadata of topic 't'") as caught:
            await producer.send("t", b"")
        assert caught.value.code == errors.NETWORK_EXCEPTION
    async with AsyncConsumer(bootstrap_servers="127.0.0.1:1") as consumer:
        with pytest.raises(TypeError, match="columns is a list of names"):
            await consumer.poll_arrow(columns="value")


async def test_tasks_do_not_wait_for_each_other(start_broker: Callable[..., BrokerProcess], topic: str) -> None:
    """Tasks do not wait for each other: while a send waits for a missing topic, others send, flush and close; its wait
    can be cancelled."""
    broker = start_broker(sets={"auto.create.topics.enable": "false"})
    create(broker, topic)
    producer = AsyncProducer(bootstrap_servers=broker.bootstrap, max_block_ms=3_600_000)
    waiting = [
        asyncio.create_task(producer.send("typo", b"")),
        asyncio.create_task(producer.send_columns("typo", [b""])),
        asyncio.create_task(producer.partitions_for("typo")),
    ]
    async with asyncio.timeout(WAIT_S):
        sent = [await producer.send(topic, b"%d" % n) for n in range(10)]
        await producer.flush()
        assert [(await future).offset for future in sent] == list(range(10))
        assert [found.offset for found in await producer.send_columns(topic, [b"10"])] == [10]
        assert not any(task.done() for task in waiting)
        given_up = waiting.pop(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await producer.close()
        for task in waiting:  # they fail now, an hour before their timeout
            with pytest.raises(KafkaError, match="the producer is closed"):
                await task


async def test_sends_that_wait_keep_their_order(shared_broker: Server, topic: str) -> None:
    """Sends that wait for metadata, or for memory, keep the order of their calls."""
    create(shared_broker, topic)
    async with AsyncProducer(
        bootstrap_servers=shared_broker.bootstrap, buffer_memory=40_000, batch_size=10_000
    ) as producer:
        sends = [asyncio.create_task(producer.send(topic, b"%d" % n + b" " * 999, partition=0)) for n in range(300)]
        assert [(await (await send)).offset for send in sends] == list(range(300))
    values = [record.value for record in read_all(shared_broker, topic, 300)]
    assert [int(value or b"") for value in values] == list(range(300))


async def test_a_flush_has_a_limit(shared_broker: Server, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush has a limit and then raises TimeoutError; closing the producer has a limit as well."""
    create(shared_broker, topic)
    producer = AsyncProducer(bootstrap_servers=shared_broker.bootstrap)
    await producer.partitions_for(topic)
    monkeypatch.setattr(producer.producer._sender, "_send_to", lambda leader, candidates: None)
    lost = await producer.send(topic, b"")
    with pytest.raises(TimeoutError, match="not everything was acknowledged"):
        await producer.flush(0.01)
    await asyncio.wait_for(producer.close(timeout_s=0.01), WAIT_S)
    with pytest.raises(KafkaError, match="closed before it was sent"):
        await lost
