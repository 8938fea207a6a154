"""The hooks that the broker offers to tests: an abort like a crash, handlers that can be wrapped, file faults."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path

import pytest

from pybroker import errors
from pybroker.client.admin import Admin
from pybroker.errors import KafkaError
from pybroker.protocol.apis import SERVED
from pybroker.server.api.dispatch import Handler
from pybroker.server.broker import Broker, Table
from tests.harness import eventually
from tests.server.live import broker_on


def connections(broker: Broker) -> int:
    assert broker._sockets is not None
    return len(broker._sockets)


async def test_abort_marks_no_clean_stop_and_lets_everything_go(tmp_path: Path) -> None:
    """abort() marks no clean stop and releases everything: the directory looks as after a crash, and another broker can
    use it at once."""
    broker = broker_on(tmp_path)
    await broker.start()
    reader, writer = await asyncio.open_connection(broker.host, broker.port)
    await eventually("it is accepted", lambda: connections(broker))
    await broker.abort()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    again = broker_on(tmp_path)
    await again.start()
    await again.stop()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


async def test_the_table_of_handlers_can_be_wrapped(tmp_path: Path) -> None:
    """A handler in the table can be replaced."""

    def refuse(request: object, call: object) -> None:
        raise KafkaError(errors.POLICY_VIOLATION, "not today")

    def through(table: Table) -> Table:
        key = next(api.key for api in SERVED.values() if api.name == "CreateTopics")
        return {**table, key: Handler(refuse, table[key].failed)}

    def create(bootstrap: str) -> None:
        with Admin(bootstrap) as admin:
            admin.create_topic("t")

    broker = broker_on(tmp_path, through=through)
    await broker.start()
    try:
        with pytest.raises(KafkaError) as refused:
            await asyncio.to_thread(create, f"127.0.0.1:{broker.port}")
        assert refused.value.code == errors.POLICY_VIOLATION
    finally:
        await broker.stop()


async def test_disconnect_closes_the_connections_and_goes_on_accepting(tmp_path: Path) -> None:
    """Disconnect closes the connections, and the broker goes on accepting: a client may reconnect at once."""
    broker = broker_on(tmp_path)
    await broker.start()
    try:
        reader, writer = await asyncio.open_connection(broker.host, broker.port)
        await eventually("it is accepted", lambda: connections(broker))
        broker.disconnect()
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        _, writer = await asyncio.open_connection(broker.host, broker.port)
        writer.close()
    finally:
        await broker.stop()


async def test_file_faults_can_be_armed_and_taken_back(tmp_path: Path) -> None:
    """File faults can be armed and removed: a partition whose first segment cannot be created fails, and a later one
    succeeds."""

    def create(topic: str) -> None:
        with Admin(f"127.0.0.1:{broker.port}") as admin, contextlib.suppress(KafkaError):
            admin.create_topic(topic)

    broker = broker_on(tmp_path)
    await broker.start()
    try:
        assert broker.replicas is not None
        broker.replicas.arm("segment.create", errno.ENOSPC, 1 << 30)
        await asyncio.to_thread(create, "before")
        broker.replicas.disarm()
        await asyncio.to_thread(create, "after")
        before, after = (broker.replicas.get(topic, 0) for topic in ("before", "after"))
        assert before is None or before.log is None
        assert after is not None and after.log is not None
    finally:
        await broker.stop()
