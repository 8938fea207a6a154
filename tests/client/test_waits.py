"""Waits of producers end with the producer, and at their timeout, with any number of waiting calls."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from pybroker import errors
from pybroker.client.aio.producer import AsyncProducer
from pybroker.client.producing.producer import Producer
from pybroker.errors import KafkaError
from tests.client.kit import WAIT_S, create, find_nobody
from tests.harness import Server, eventually, until

FULL: dict[str, Any] = {"buffer_memory": 50_000, "batch_size": 16_000, "max_block_ms": 3_600_000}
ROWS = [b"x" * 10_000] * 20


def stop_sending(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every broker from taking records from here on."""
    monkeypatch.setattr(producer._sender, "_send_to", lambda leader, candidates: None)


def has_no_memory(producer: Producer) -> bool:
    """Leave no memory for a batch of ROWS."""
    return producer._accumulator.appender.used + 10_000 > FULL["buffer_memory"]


async def test_close_ends_the_columns_that_wait_for_memory(
    shared_broker: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """close() ends columns that wait for memory: more calls than threads would wait an hour, and all end with
    close()."""
    create(shared_broker, topic)
    producer = AsyncProducer(bootstrap_servers=shared_broker.bootstrap, **FULL)
    await producer.partitions_for(topic)
    stop_sending(producer.producer, monkeypatch)
    waiting = [asyncio.create_task(producer.send_columns(topic, ROWS)) for _ in range(6)]
    async with asyncio.timeout(WAIT_S):
        await eventually("memory is full", lambda: has_no_memory(producer.producer))
        await producer.close(timeout_s=0.01)
        for ended in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(ended, KafkaError) and "the producer is closed" in str(ended)


async def test_columns_that_wait_for_memory_can_be_cancelled(
    shared_broker: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that wait for memory can be cancelled, and hold no thread: later ones are sent."""
    create(shared_broker, topic)
    async with AsyncProducer(bootstrap_servers=shared_broker.bootstrap, **FULL) as producer:
        await producer.partitions_for(topic)
        with monkeypatch.context() as patch:
            stop_sending(producer.producer, patch)
            waiting = [asyncio.create_task(producer.send_columns(topic, ROWS)) for _ in range(6)]
            await eventually("memory is full", lambda: has_no_memory(producer.producer))
            for task in waiting:
                task.cancel()
            assert {type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)} == {
                asyncio.CancelledError
            }
        async with asyncio.timeout(WAIT_S):
            assert await producer.send_columns(topic, ROWS)


def test_close_ends_a_thread_that_waits_for_memory(
    shared_broker: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """close() ends a thread that waits for memory: its send_columns raises at once, though close() still flushes
    earlier records."""
    create(shared_broker, topic)
    producer = Producer(bootstrap_servers=shared_broker.bootstrap, **FULL)
    producer.partitions_for(topic)
    stop_sending(producer, monkeypatch)
    raised: list[KafkaError] = []

    def send() -> None:
        try:
            producer.send_columns(topic, ROWS)
        except KafkaError as error:
            raised.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    until("memory is full", lambda: has_no_memory(producer))
    assert producer._begin_close(None)  # close() flushes now
    thread.join(WAIT_S)
    producer._end_close()
    assert [str(error) for error in raised] == ["INVALID_REQUEST: the producer is closed"]


def test_memory_that_comes_free_just_before_the_wait_is_found(shared_broker: Server) -> None:
    """Memory that is freed just before a wait is found: no further memory would be freed, so the caller checks again
    before it sleeps."""
    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        wait = threading.Thread(target=producer._accumulator.wait_for_memory, args=(3600.0,), daemon=True)
        wait.start()
        wait.join(WAIT_S)
        assert not wait.is_alive()


async def test_the_wait_for_sends_before_it_counts() -> None:
    """The wait for earlier sends counts: a send behind others has max_block_ms for all of its waits, and its error
    names the cause."""
    async with AsyncProducer(bootstrap_servers="127.0.0.1:1", max_block_ms=50) as producer:
        find_nobody(producer.producer._network)
        before = asyncio.Lock()
        await before.acquire()
        producer._waiting["t"] = (before, [None])
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(KafkaError, match="no metadata of topic 't' within max_block_ms of 50"):
                await producer.send("t", b"")


async def test_the_wait_for_sends_that_wait_for_memory_counts(shared_broker: Server, topic: str) -> None:
    """The wait behind sends that wait for memory counts too, with a known topic."""
    create(shared_broker, topic)
    async with AsyncProducer(bootstrap_servers=shared_broker.bootstrap, max_block_ms=5000) as producer:
        await producer.partitions_for(topic)
        before = asyncio.Lock()
        await before.acquire()
        producer._waiting[topic] = (before, [None])
        producer.producer._block_s = 0.05
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(KafkaError, match="buffer_memory of") as caught:
                await producer.send(topic, b"")
        assert caught.value.code == errors.REQUEST_TIMED_OUT and producer._waiting[topic] == (before, [None])


async def test_a_flush_of_records_that_fail_is_quiet(
    shared_broker: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush of failing records is quiet: their own futures have the errors, and asyncio reports none of them."""
    found: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: found.append(context["message"]))
    create(shared_broker, topic, config={"max.message.bytes": "10"})
    producer = AsyncProducer(bootstrap_servers=shared_broker.bootstrap)
    sent = [await producer.send(topic, b"x" * 100) for _ in range(3)]
    await producer.flush(WAIT_S)
    stop_sending(producer.producer, monkeypatch)
    sent.append(await producer.send(topic, b""))
    with pytest.raises(TimeoutError):
        await producer.flush(0.01)
    await producer.close(0.01)
    assert all(isinstance(error, KafkaError) for error in await asyncio.gather(*sent, return_exceptions=True))
    del sent
    gc.collect()
    await asyncio.sleep(0)
    assert not found
