"""The admin client for asyncio: the operations of the blocking one, without blocking the event loop."""

from __future__ import annotations

import asyncio
import socket

import pytest

from pybroker.client.aio.admin import AsyncAdmin
from pybroker.client.aio.producer import AsyncProducer
from pybroker.errors import KafkaError
from tests.client.kit import WAIT_S
from tests.harness import Server, eventually


async def test_operations(shared_broker: Server, topic: str) -> None:
    """An AsyncAdmin serves several tasks at once: topics, configs, offsets and groups."""
    async with AsyncAdmin(shared_broker.bootstrap) as admin:
        made = await admin.create_topic(topic, partitions=2, configs={"retention.ms": "1000"})
        assert (made.name, made.partitions) == (topic, 2)
        exists, configs, found = await asyncio.gather(
            admin.exists(topic), admin.topic_configs([topic]), admin.topics([topic])
        )
        assert exists and [c.value for c in configs[topic] if c.name == "retention.ms"] == ["1000"]
        assert [len(each.partitions) for each in found] == [2]
        async with AsyncProducer(bootstrap_servers=shared_broker.bootstrap) as producer:
            await producer.send_and_wait(topic, b"", partition=1)
        assert await admin.delete_records({(topic, 1): 1}) == {(topic, 1): 1}
        assert (await admin.describe_cluster()).nodes and await admin.quotas() == {}
        with pytest.raises(KafkaError, match="no-such-topic does not exist"):
            await admin.topics(["no-such-topic"])
        await admin.delete_topic(topic)
        assert not await admin.exists(topic)
    with pytest.raises(KafkaError, match="the admin client is closed"):
        await admin.topics()
    await admin.close()


async def test_the_loop_goes_on_while_a_call_waits() -> None:
    """A cluster that does not answer blocks only the call, and not the event loop."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with AsyncAdmin(address, timeout_s=0.5) as admin, asyncio.timeout(WAIT_S):
            asking = asyncio.create_task(admin.topics())
            turns: list[bool] = []
            await eventually("the call ends", lambda: turns.append(asking.done()) or turns[-1])  # type: ignore[func-returns-value]
            assert len(turns) > 10
            with pytest.raises(KafkaError):
                await asking
