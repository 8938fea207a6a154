"""A whole broker in this process, and a client that sends it single messages."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pybroker import core
from pybroker.config import BrokerConfig
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import KNOWN
from pybroker.server.broker import Broker
from tests.harness import eventually
from tests.oracle.broker import slow_broker

KEYS = {api.name: api.key for api in KNOWN.values()}
BASE_MS = 1_700_000_000_000
ANSWER_SECONDS_MAX = 10
_numbers = itertools.count()
"""Numbers for the names of topics that tests do not name."""


def batch(*values: bytes, key: bytes | None = b"k", timestamp_ms: int = BASE_MS, **how: Any) -> bytes:
    """Build a batch of these values, with timestamps 1 ms apart."""
    return core.build_batch([(timestamp_ms + n, key, value, ()) for n, value in enumerate(values)], **how)


class Wire:
    """One connection: sends requests by name and version, and returns answers as messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._ids = itertools.count(1)

    def send(self, name: str, version: int, **fields: Any) -> int:
        """Send a request; return its correlation id."""
        number = next(self._ids)
        request = m.message(f"{name}Request")(**fields)
        frame = codec.encode_request(KEYS[name], version, number, "test", request)
        self.send_frame(frame)
        return number

    def send_frame(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def receive(self, name: str, version: int) -> tuple[int, Any]:
        """Receive the next answer: (correlation id, response)."""
        frame = await self.frame()
        return codec.decode_response(KEYS[name], version, frame)

    async def frame(self) -> bytes:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def call(self, name: str, version: int, **fields: Any) -> Any:
        number = self.send(name, version, **fields)
        answered, response = await self.receive(name, version)
        assert answered == number
        return response

    async def closed(self) -> bool:
        """True if the broker closes the connection without sending anything more."""
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True

    # -- common requests -------------------------------------------------------------------------------------------

    async def create(self, name: str, partitions: int = 1, **config: str) -> Any:
        """Create a topic; return its part of the answer. Config names have `_` for `.`."""
        kind = m.CreateTopicsRequest.Topics
        configs = [kind.Configs(name=key.replace("_", "."), value=value) for key, value in config.items()]
        topic = kind(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
        return (await self.call("CreateTopics", 7, topics=[topic], timeout_ms=5000)).topics[0]

    async def topic(self, partitions: int = 1, **config: str) -> str:
        """Create a topic with a name that is not in use; return the name."""
        name = f"t{next(_numbers)}"
        assert (await self.create(name, partitions, **config)).error_code == 0
        return name

    async def produce(self, topic: str, records: bytes, *, partition: int = 0, acks: int = -1, version: int = 9) -> Any:
        """Produce to one partition; return its part of the answer."""
        self.send("Produce", version, acks=acks, timeout_ms=1000, topic_data=produce_data(topic, {partition: records}))
        _, response = await self.receive("Produce", version)
        return response.responses[0].partition_responses[0]

    async def fetch(self, topic: str, offset: int, *, version: int = 12, **how: Any) -> Any:
        """Fetch from one partition; return its part of the answer."""
        response = await self.call("Fetch", version, **fetch_fields(topic, offset, **how))
        return response.responses[0].partitions[0]


def produce_data(topic: str, records: dict[int, bytes | None]) -> list[Any]:
    kind = m.ProduceRequest.TopicData
    return [kind(name=topic, partition_data=[kind.PartitionData(index=i, records=r) for i, r in records.items()])]


def fetch_fields(
    topic: str | bytes,
    *offsets: int,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 26,
    partition_max_bytes: int = 1 << 20,
    **more: Any,
) -> dict[str, Any]:
    """The fields of a Fetch for partitions 0, 1, ... of a topic (by name or id), from these offsets."""
    kind = m.FetchRequest.Topics
    named = {"topic_id": topic} if isinstance(topic, bytes) else {"topic": topic}
    of_partition = {k: more.pop(k) for k in ("current_leader_epoch", "last_fetched_epoch") if k in more}
    partitions = [
        kind.Partitions(partition=index, fetch_offset=offset, partition_max_bytes=partition_max_bytes, **of_partition)
        for index, offset in enumerate(offsets)
    ]
    return {
        "topics": [kind(partitions=partitions, **named)],
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        **more,
    }


def values(records: Any) -> list[bytes | None]:
    """The values of the uncompressed batches of a Fetch."""
    data = bytes(records)
    return [
        record[3]
        for position, header in core.iter_batches(data)
        for record in core.walk_records(data[position + 61 : position + header.size], header)
    ]


def broker_on(data_dir: Path, *sets: str, slow: bool = False, **how: Any) -> Broker:
    """A broker in this process, not started, on its data directory and a free port unless the settings name others.
    With `slow` it uses Python's plane. `how` is passed to Broker."""
    dirs = [] if any(s.startswith("log.dirs=") for s in sets) else [f"log.dirs={data_dir}"]
    config = BrokerConfig.load(None, [*dirs, "listeners=PLAINTEXT://127.0.0.1:0", *sets])
    if slow:
        return slow_broker(config, **how)
    return Broker(config, **how)


class Live:
    """A broker in this process that can be stopped and started again on the same data."""

    def __init__(self, data_dir: Path, sets: Sequence[str] = (), *, native_plane: bool = True) -> None:
        self.data_dir = data_dir
        self.native_plane = native_plane
        self.sets = list(sets)
        self.broker: Broker | None = None
        self._wires: list[Wire] = []

    async def start(self, *sets: str, give_up: Sequence[str] = ()) -> Broker:
        assert self.broker is None
        broker = broker_on(self.data_dir, *self.sets, *sets, slow=not self.native_plane, give_up=give_up)
        await broker.start()
        self.broker = broker
        return broker

    async def one_waits(self, at_least: int = 1) -> None:
        """Wait until at least this many fetches are parked."""
        assert self.broker is not None and self.broker.replicas is not None
        replicas = self.broker.replicas

        def parked() -> bool:
            waiters = {waiter for replica in replicas for waiter in replica._waiters or ()}
            return len(waiters) + sum(stats["parked"] for stats in replicas.plane_stats()) >= at_least

        await eventually("a fetch is parked", parked)

    def hang_up(self) -> None:
        """Close all connections at the client's end."""
        for wire in self._wires:
            wire.writer.close()
        self._wires.clear()

    async def stop(self) -> None:
        self.hang_up()
        if self.broker is not None:
            broker, self.broker = self.broker, None
            await broker.stop()

    async def restart(self, *sets: str) -> Broker:
        await self.stop()
        return await self.start(*sets)

    async def connect(
        self, listener: str | None = None, tls: ssl.SSLContext | None = None, limit: int = 1 << 27
    ) -> Wire:
        """Connect to the first listener, or to a named one; the connection reads about `limit` bytes ahead."""
        assert self.broker is not None
        port = self.broker.port if listener is None else self.broker.addresses[listener].port
        wire = Wire(*await asyncio.open_connection("127.0.0.1", port, limit=limit, ssl=tls))
        self._wires.append(wire)
        return wire
