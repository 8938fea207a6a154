"""A topic of JSON as a typed frame, compared with a consumer, json.loads and polars: one broker, in turns."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import aiokafka
import fastavro
import polars as pl
import pyarrow as pa
import pytest

import pybroker
from bench.figures import show
from pybroker.client.admin import Admin
from tests.harness import BrokerProcess

ROWS = 1_000_000
ROUNDS = 3
PARTITIONS = 4
TOPIC = "orders"
SHARE_MIN = 10.0
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("user", pa.string()),
        ("amount", pa.float64()),
        ("currency", pa.string()),
        ("paid", pa.bool_()),
        ("at", pa.timestamp("ms", "UTC")),
        ("items", pa.int32()),
        ("note", pa.string()),
    ]
)
POLARS = {
    "id": pl.Int64, "user": pl.String, "amount": pl.Float64, "currency": pl.String, "paid": pl.Boolean,
    "at": pl.String, "items": pl.Int32, "note": pl.String,
}  # fmt: skip


AT = {"type": "long", "logicalType": "timestamp-millis"}
NOTE = ["null", "string"]


def values(count: int) -> list[bytes]:
    """Return JSON objects of 148 bytes on average, as json.dumps writes them."""
    random = Random(1)
    return [
        json.dumps(
            {
                "id": number,
                "user": f"user-{random.randrange(100_000)}",
                "amount": round(random.random() * 1000, 2),
                "currency": "EUR",
                "paid": random.random() < 0.5,
                "at": f"2026-11-29T01:45:{number % 60:02}Z",
                "items": random.randrange(9),
                "note": None if number % 3 else "a note with an \u00e9",
            }
        ).encode()
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def broker(shared_log_dir: Path) -> Iterator[BrokerProcess]:
    """A broker in a process of its own, with the topic."""
    with BrokerProcess(shared_log_dir / "data") as started:
        with Admin(started.bootstrap) as admin:
            for topic in (TOPIC, "avro", "copy"):
                admin.create_topic(topic, partitions=PARTITIONS)
        with pybroker.Producer(bootstrap_servers=started.bootstrap) as producer:
            producer.send_columns(TOPIC, values(ROWS), [b"%d" % n for n in range(ROWS)])
        yield started


def ours(broker: BrokerProcess, **how: Any) -> Any:
    return pybroker.read_topic(TOPIC, bootstrap_servers=broker.bootstrap, format="json", **how)


def theirs(broker: BrokerProcess, topic: str = TOPIC, decode: Callable[[bytes], Any] = json.loads) -> list[Any]:
    """Read with aiokafka, and make one Python object a record, as its users do."""

    async def read() -> list[Any]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap, max_partition_fetch_bytes=8 << 20, max_poll_records=100_000
        )
        await consumer.start()
        try:
            partitions = [aiokafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning()
            rows: list[Any] = []
            while len(rows) < ROWS:
                found = await consumer.getmany(timeout_ms=1000)
                rows += [decode(record.value) for records in found.values() for record in records]
            return rows
        finally:
            await consumer.stop()

    return asyncio.run(read())


def frame(rows: list[Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=POLARS).with_columns(pl.col("at").str.to_datetime(time_unit="ms", time_zone="UTC"))


def best_s(loops: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the seconds of the best round of each loop, in turns, and see that each has all rows."""
    found: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(ROUNDS):
        for name, loop in loops.items():
            start_s = time.perf_counter()
            made = loop()
            found[name].append(time.perf_counter() - start_s)
            assert len(made) == ROWS
            del made
    return {name: min(times) for name, times in found.items()}


def test_read_json(broker: BrokerProcess) -> None:
    """All fields with their types, with a schema and without one, out of a broker and out of its files."""
    data = str(broker.data_dir)
    seconds = best_s(
        {
            "aiokafka, json and polars": lambda: frame(theirs(broker)),
            "read_topic, with a schema": lambda: ours(broker, schema=SCHEMA),
            "read_topic, types inferred": lambda: ours(broker),
            "read_topic, two columns": lambda: ours(broker, schema=SCHEMA, columns=["id", "amount"]),
            "read_topic, records as they are": lambda: pybroker.read_topic(TOPIC, bootstrap_servers=broker.bootstrap),
            "read_topic, log_dir": lambda: pybroker.read_topic(TOPIC, log_dir=data, format="json", schema=SCHEMA),
        }
    )
    peer = "aiokafka, json and polars"
    slow_s = seconds.pop(peer)
    for name, took_s in seconds.items():
        share = slow_s / took_s
        met = share >= SHARE_MIN if name == "read_topic, with a schema" else None
        rate = f"{ROWS / took_s / 1e6:.2f} M records/s"
        beside, target = f"{peer} {ROWS / slow_s / 1e6:.2f} M", f"{share:.1f}x (>= {SHARE_MIN:.0f})"
        show(name, "148 B of JSON", rate, beside, target, met)


def test_read_avro(broker: BrokerProcess) -> None:
    """The same fields in Avro."""
    kinds = dict(zip(SCHEMA.names, ("long", "string", "double", "string", "boolean", AT, "int", NOTE), strict=True))
    schema = {"type": "record", "name": "o", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    table = ours(broker, schema=SCHEMA, columns=SCHEMA.names)
    known, out = fastavro.parse_schema(schema), io.BytesIO()
    with pybroker.Producer(bootstrap_servers=broker.bootstrap) as producer:
        for batch in table.to_batches(max_chunksize=50_000):
            ends = [0]
            for row in batch.to_pylist():
                fastavro.schemaless_writer(out, known, row)
                ends.append(out.tell())
            data, keys = out.getvalue(), [b"%d" % number for number in range(len(batch))]
            producer.send_columns("avro", [data[a:b] for a, b in pairwise(ends)], keys)
            out = io.BytesIO()
    peer, name = "aiokafka, fastavro and polars", "read_topic, Avro"
    decode = partial(_decoded, known)
    seconds = best_s(
        {
            peer: lambda: pl.DataFrame(theirs(broker, "avro", decode)),
            name: lambda: pybroker.read_topic(
                "avro", bootstrap_servers=broker.bootstrap, format="avro", schema=schema
            ),
        }
    )
    share, rate = seconds[peer] / seconds[name], f"{ROWS / seconds[name] / 1e6:.2f} M records/s"
    show(name, "8 fields", rate, f"{peer} {ROWS / seconds[peer] / 1e6:.2f} M", f"{share:.1f}x")


def _decoded(schema: Any, value: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(value), schema, None)


def test_write_json(broker: BrokerProcess) -> None:
    """The same table as JSON objects into a topic, beside a producer that is given one object a row."""
    table = ours(broker, schema=SCHEMA, columns=SCHEMA.names)

    def by_record() -> pa.Table:
        with pybroker.Producer(bootstrap_servers=broker.bootstrap) as producer:
            for row in table.select([name for name in SCHEMA.names if name != "at"]).to_pylist():
                producer.send("copy", json.dumps(row))
        return table

    def by_table() -> pa.Table:
        pybroker.write_topic("copy", table, bootstrap_servers=broker.bootstrap)
        return table

    seconds = best_s({"Producer.send": by_record, "write_topic": by_table})
    share = seconds["Producer.send"] / seconds["write_topic"]
    rate, beside = (f"{ROWS / seconds[name] / 1e6:.2f} M records/s" for name in ("write_topic", "Producer.send"))
    show("write_topic", "8 columns as JSON", rate, f"to_pylist, json.dumps, Producer.send {beside}", f"{share:.1f}x")
