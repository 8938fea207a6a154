"""Tables written to topics: what other clients read of them, and that nothing is lost on the way there and back."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from hypothesis import given
from hypothesis import strategies as st

import pybroker
from pybroker.client.columns.arrow import HEADERS
from pybroker.errors import KafkaError
from pybroker.frames.json_text import json_objects
from pybroker.testing import BrokerHandle
from tests.clients.adapters.kafka_python import kafka

NESTED = pa.struct([("x", pa.int8()), ("y", pa.list_(pa.struct([("z", pa.string())])))])
WHEN = datetime(2026, 11, 29, 1, 45, 2, 123_000, UTC)


@pytest.fixture
def orders(frames_broker: BrokerHandle, topic: str) -> str:
    frames_broker.create_topic(topic, partitions=2)
    return topic


def read_by_kafka_python(servers: str, topic: str, count: int) -> list[Any]:
    consumer = kafka.KafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
    with_close = [next(consumer) for _ in range(count)]
    consumer.close()
    return with_close


def read_by_confluent(servers: str, topic: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = [message for _ in range(count) if (message := consumer.poll(30)) is not None]
    consumer.close()
    return found


def test_other_clients_read_it(servers: str, orders: str) -> None:
    """Values are JSON objects, keys text, and keys find the partitions that Java's producer finds."""
    table = pa.table({"id": [1, 2, 3], "name": ["a", None, 'q"\n'], "paid": [True, False, None]})
    assert pybroker.write_topic(orders, table, key="id", bootstrap_servers=servers) == 3
    found = sorted(read_by_kafka_python(servers, orders, 3), key=lambda record: record.key)
    assert [(record.key, json.loads(record.value)) for record in found] == [
        (b"1", {"id": 1, "name": "a", "paid": True}),
        (b"2", {"id": 2, "name": None, "paid": False}),
        (b"3", {"id": 3, "name": 'q"\n', "paid": None}),
    ]
    spread = {record.key: record.partition for record in found}
    assert spread == {key: (kafka.partitioner.default.murmur2(key) & 0x7FFFFFFF) % 2 for key in spread}
    again = read_by_confluent(servers, orders, 3)
    assert sorted(json.loads(message.value())["id"] for message in again) == [1, 2, 3]


def test_columns_are_values_headers_partitions_and_times(servers: str, orders: str) -> None:
    """Each from the column that is named; nulls are tombstones."""
    headers = pa.array([[("h", b"1"), ("e", None)], None], HEADERS)
    table = pa.table({"k": [b"\xff", None], "v": ["x", None], "h": headers, "p": [1, 0], "t": [WHEN, WHEN]})
    roles: dict[str, Any] = {"key": "k", "value": "v", "headers": "h", "partition": "p", "timestamp": "t"}
    pybroker.write_topic(orders, table, bootstrap_servers=servers, **roles)
    found = sorted(read_by_kafka_python(servers, orders, 2), key=lambda record: -record.partition)
    ms = int(WHEN.timestamp() * 1000)
    assert [(r.key, r.value, [*r.headers], r.partition, r.timestamp) for r in found] == [
        (b"\xff", b"x", [("h", b"1"), ("e", None)], 1, ms), (None, None, [], 0, ms)]  # fmt: skip


def test_some_columns_are_the_objects(servers: str, orders: str) -> None:
    """A list names them; without one all are there but those of headers, partitions and times."""
    table = pa.table({"id": [1], "secret": ["s"], "p": [1]})
    pybroker.write_topic(orders, table, value=["id"], partition="p", bootstrap_servers=servers)
    pybroker.write_topic(orders, table, partition="p", bootstrap_servers=servers)
    values = pybroker.read_topic(orders, partitions=[1], columns=["value"], bootstrap_servers=servers)["value"]
    assert values.to_pylist() == [b'{"id":1}', b'{"id":1,"secret":"s"}']


def test_a_copy_loses_nothing(servers: str, orders: str, frames_broker: BrokerHandle) -> None:
    """Records as they are, written as they are."""
    with pybroker.Producer(bootstrap_servers=servers) as producer:
        for n in range(50):
            producer.send(orders, None if n % 7 == 0 else b"\xfe%d" % n, key=b"k" if n % 3 else None,
                          headers=[("h", b"%d" % n)] if n % 2 else [], timestamp_ms=1000 + n)  # fmt: skip
    given_ = pybroker.read_topic(orders, bootstrap_servers=servers)
    frames_broker.create_topic(f"{orders}-2", partitions=2)
    pybroker.write_topic(f"{orders}-2", given_, key="key", value="value", headers="headers", partition="partition",
                         timestamp="timestamp", bootstrap_servers=servers)  # fmt: skip
    assert pybroker.read_topic(f"{orders}-2", bootstrap_servers=servers).equals(given_)


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"id": [1, 2]}),
        pa.record_batch({"id": [1, 2]}),
        pa.table({"id": [1, 2]}).to_reader(),
        pl.DataFrame({"id": [1, 2]}),
        pd.DataFrame({"id": [1, 2]}),
        duckdb.sql("select unnest([1, 2])::bigint as id"),
    ],
    ids=lambda table: type(table).__module__,
)
def test_each_kind_of_table(servers: str, orders: str, table: Any) -> None:
    assert pybroker.write_topic(orders, table, bootstrap_servers=servers) == 2
    assert sorted(pybroker.read_topic(orders, format="json", bootstrap_servers=servers)["id"].to_pylist()) == [1, 2]


def test_text_of_polars(servers: str, orders: str) -> None:
    """Strings, categories and lists of polars have types of their own in Arrow."""
    frame = pl.DataFrame({"s": ["a", None], "c": pl.Series(["x", "y"], dtype=pl.Categorical), "l": [["p"], []]})
    pybroker.write_topic(orders, frame, key="c", value="s", partition=0, bootstrap_servers=servers)
    pybroker.write_topic(orders, frame, key="s", partition=0, bootstrap_servers=servers)
    found = pybroker.read_topic(orders, columns=["key", "value"], bootstrap_servers=servers).to_pylist()
    assert [(row["key"], row["value"]) for row in found] == [
        (b"x", b"a"),
        (b"y", None),
        (b"a", b'{"s":"a","c":"x","l":["p"]}'),
        (None, b'{"s":null,"c":"y","l":[]}'),
    ]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"key": "nope"}, "the table has no column 'nope', but id, l, b"),
        ({"value": ["id", "nope"]}, "the table has no column 'nope'"),
        ({"value": "l"}, "column 'l' is of type list<item: int64>: the bytes of a key or value are text or binary"),
        ({"value": []}, "no column is left to be the value"),
        ({"value": ["id", "id"]}, "columns has a name twice"),
        ({}, "column 'b' has bytes that are not UTF-8, which JSON cannot hold"),
        ({"value": ["id"], "partition": -1}, "a partition"),
    ],
)
def test_columns_that_cannot_be_written(servers: str, orders: str, how: Any, words: str) -> None:
    table = pa.table({"id": [1], "l": [[1]], "b": [b"\xff"]})
    with pytest.raises((ValueError, TypeError), match=words):
        pybroker.write_topic(orders, table, bootstrap_servers=servers, **how)


def test_what_is_no_table(servers: str, orders: str) -> None:
    with pytest.raises(TypeError, match="a table is one of pyarrow, pandas, polars or DuckDB, not list"):
        pybroker.write_topic(orders, [{"id": 1}], bootstrap_servers=servers)
    assert pybroker.write_topic(orders, pa.table({"id": pa.array([], pa.int64())}), bootstrap_servers=servers) == 0


def test_a_record_that_no_broker_takes(servers: str, orders: str, frames_broker: BrokerHandle) -> None:
    """The call raises: what it returns counts acknowledged records only."""
    frames_broker.create_topic(f"{orders}-small", config={"max.message.bytes": 1000})
    with pytest.raises(KafkaError, match="larg"):
        pybroker.write_topic(f"{orders}-small", pa.table({"v": ["x" * 5000]}), value="v", bootstrap_servers=servers)


# -- rows as JSON ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1, pa.int8(), "1"),
        ((1 << 64) - 1, pa.uint64(), str((1 << 64) - 1)),
        (1.0, pa.float64(), "1.0"),
        (0.1, pa.float64(), "0.1"),
        (1e300, pa.float64(), "1e+300"),
        (float("nan"), pa.float64(), "null"),
        (float("-inf"), pa.float32(), "null"),
        (True, pa.bool_(), "true"),
        (None, pa.null(), "null"),
        (Decimal("1.50"), pa.decimal128(5, 2), "1.50"),
        ("\u00e9\U0001f600\x7f", pa.large_string(), '"\u00e9\U0001f600\x7f"'),
        (b"text", pa.binary(), '"text"'),
        (date(2026, 11, 29), pa.date32(), '"2026-11-29"'),
        (time(1, 2, 3), pa.time32("s"), '"01:02:03"'),
        (WHEN, pa.timestamp("ms", "UTC"), '"2026-11-29T01:45:02.123Z"'),
        (WHEN, pa.timestamp("ms", "Europe/Berlin"), '"2026-11-29T01:45:02.123Z"'),
        (WHEN.replace(tzinfo=None), pa.timestamp("us"), '"2026-11-29T01:45:02.123000"'),
        (timedelta(seconds=2), pa.duration("ms"), "2000"),
        ([1, None], pa.list_(pa.int64()), "[1,null]"),
        ([], pa.large_list(pa.int64()), "[]"),
        ([1, 2], pa.list_(pa.int64(), 2), "[1,2]"),
        ({"x": None, "y": [{"z": "q"}]}, NESTED, '{"x":null,"y":[{"z":"q"}]}'),
        ([("a", 1), ('"', None)], pa.map_(pa.string(), pa.int64()), '{"a":1,"\\"":null}'),
        ("x", pa.dictionary(pa.int8(), pa.string()), '"x"'),
    ],
)  # fmt: skip
def test_each_type_as_json(value: Any, kind: pa.DataType, text: str) -> None:
    """In a slice of a longer column, whose rows around it leave no trace; null is null."""
    column = pa.array([None, value, None, value], kind).slice(1, 2)
    assert json_objects(pa.record_batch({"a": column})).to_pylist() == [f'{{"a":{text}}}', '{"a":null}']


TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(TEXT, min_size=1), TEXT)
def test_any_text_is_escaped(texts: list[str], name: str) -> None:
    found = json_objects(pa.record_batch({name: pa.array(texts, pa.string())})).to_pylist()
    assert [json.loads(each) for each in found] == [{name: text} for text in texts]
