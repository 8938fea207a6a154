"""Topics of Avro as tables: with a schema, with a registry, and what does not decode."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pybroker
from pybroker.errors import NETWORK_EXCEPTION, KafkaError
from tests.frames.conftest import Fill
from tests.spark.registry import Registry, encoded, framed, record

WHEN = datetime(2026, 11, 29, 1, 45, 2, 123_000, UTC)
ORDER = record("order", id="long", title="string")
LATER = record("order", title="string", id="long", note={"type": "string"})
WIDE = {
    "type": "record",
    "name": "wide",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        {"name": "lines", "type": {"type": "array", "items": record("line", n="int")}},
        {"name": "tags", "type": {"type": "map", "values": "double"}},
    ],
}
ROW = {
    "id": 1,
    "note": None,
    "at": WHEN,
    "day": date(2026, 11, 29),
    "key": "0c4f1dbc-6b8f-4b43-a1a5-6f6c2b8a7d11",
    "price": Decimal("1.50"),
    "kind": "B",
    "lines": [{"n": 1}, {"n": 2}],
    "tags": {"a": 1.5},
}


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    with made.web:
        made.add(7, ORDER)
        yield made


@pytest.fixture
def read(servers: str, topic: str) -> Callable[..., Any]:
    def call(**how: Any) -> Any:
        return pybroker.read_topic(topic, bootstrap_servers=servers, format="avro", **how)

    return call


def test_each_type(fill: Fill, topic: str, read: Callable[..., Any], tmp_path: Path) -> None:
    """Columns have Arrow's types for them; a tombstone is a row of nulls. The schema may be a path, too."""
    fill(topic, [encoded(WIDE, ROW), None])
    file = tmp_path / "wide.avsc"
    file.write_text(json.dumps(WIDE))
    for schema in (WIDE, file):
        table = read(schema=schema, columns=[field["name"] for field in WIDE["fields"]])
        assert table.to_pylist() == [{**ROW, "tags": [("a", 1.5)]}, dict.fromkeys(ROW)]
    assert table.schema.field("price").type == pa.decimal128(9, 2)


def test_some_columns(fill: Fill, topic: str, read: Callable[..., Any]) -> None:
    fill(topic, [encoded(ORDER, {"id": 1, "title": "a"})], keys=[b"k"])
    assert read(schema=ORDER, columns=["title", "kafka_key"]).to_pylist() == [{"title": "a", "kafka_key": b"k"}]


def test_what_does_not_decode(fill: Fill, topic: str, read: Callable[..., Any]) -> None:
    """Bytes that are none of the schema's, cut ones, more than a record; the reason says what framed ones need."""
    good = encoded(ORDER, {"id": 1, "title": "ab"})
    fill(topic, [good, b"\xff" * 20, good[:-1], good + b"!", framed(7, ORDER, {"id": 1, "title": "ab"}), good])
    table, errors = read(schema=ORDER, on_error="return")
    assert table["id"].to_pylist() == [1, 1] and errors["offset"].to_pylist() == [1, 2, 3, 4]
    none = "the value is not an Avro record of the schema"
    advice = f"{none}; if it is framed with schema id 7, give schema_registry"
    assert errors["error"].to_pylist() == [none, none, none, advice]


def test_a_number_that_its_column_does_not_have(fill: Fill, topic: str, read: Callable[..., Any]) -> None:
    """Avro's ints are written as longs are: one beyond 32 bits is an error, and not another number."""
    fill(topic, [encoded(record("r", n="long"), {"n": n}) for n in (1, 1 << 40, 2)])
    table, errors = read(schema=record("r", n="int"), on_error="return")
    assert table["n"].to_pylist() == [1, 2] and errors["offset"].to_pylist() == [1]


def test_a_registry(fill: Fill, topic: str, read: Callable[..., Any], registry: Registry) -> None:
    """Each value is read by its own schema. Without one of the caller's the columns are those of the first record's."""
    registry.add(8, LATER)
    values = [framed(7, ORDER, {"id": 1, "title": "a"}), framed(8, LATER, {"id": 2, "title": "b", "note": "n"})]
    fill(topic, [None, *values, framed(9, ORDER, {"id": 3, "title": "c"}), b"plain"])
    table, errors = read(schema_registry=registry.url, on_error="return")
    assert table.select(["id", "title"]).to_pylist() == [
        {"id": None, "title": None}, {"id": 1, "title": "a"}, {"id": 2, "title": "b"}]  # fmt: skip
    assert "note" not in table.column_names
    unknown, plain = errors["error"].to_pylist()
    assert "schema 9 is not known to the schema registry" in unknown
    assert plain == "the value does not begin with the frame of a schema registry"
    wanted = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": "-"}]}
    table, _ = read(schema_registry=registry.url, schema=wanted, columns=["id", "note"], on_error="return")
    assert [row["note"] for row in table.to_pylist()] == [None, "-", "n"]


def test_a_registry_with_a_login(fill: Fill, topic: str, read: Callable[..., Any], registry: Registry) -> None:
    fill(topic, [framed(7, ORDER, {"id": 1, "title": "a"})])
    registry.login = "Bearer abc"
    config = {"bearer.auth.token": "abc"}
    assert read(schema_registry=registry.url, registry_config=config)["id"].to_pylist() == [1]
    config = {"bearer.auth.token": "no"}
    with pytest.raises(KafkaError) as caught:
        read(schema_registry=registry.url, schema=record("order", id="long"), registry_config=config)
    assert caught.value.code == NETWORK_EXCEPTION and "401" in caught.value.message


def test_without_a_schema(fill: Fill, topic: str, read: Callable[..., Any], registry: Registry, servers: str) -> None:
    """The first value says which: it must be framed, and its schema known. A topic without values has no columns."""
    fill(topic, [b"plain"])
    with pytest.raises(ValueError, match="the first value does not begin with the frame of a schema registry: give"):
        read(schema_registry=registry.url)
    fill(f"{topic}-2", [b"\0\0\0\0\5x"])
    ask: dict[str, Any] = {"bootstrap_servers": servers, "format": "avro", "schema_registry": registry.url}
    with pytest.raises(ValueError, match="schema 5, of the first value, is not known to the schema registry"):
        pybroker.read_topic(f"{topic}-2", **ask)
    fill(f"{topic}-3", [None])
    assert pybroker.read_topic(f"{topic}-3", columns=["id", "kafka_offset"], **ask).to_pylist() == [{"kafka_offset": 0}]


def test_a_schema_that_cannot_be_used(fill: Fill, topic: str, read: Callable[..., Any], registry: Registry) -> None:
    """Known before anything is decoded."""
    fill(topic, [framed(7, ORDER, {"id": 1, "title": "a"})])
    wrong = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long", "default": "x"}]}
    with pytest.raises(ValueError, match="the Avro schema cannot be used"):
        read(schema=wrong, schema_registry=registry.url)


def test_without_fastavro(monkeypatch: pytest.MonkeyPatch, fill: Fill, topic: str, read: Callable[..., Any]) -> None:
    fill(topic, [encoded(ORDER, {"id": 1, "title": "a"})])
    monkeypatch.setitem(sys.modules, "fastavro", None)
    monkeypatch.delitem(sys.modules, "pybroker.frames.avro_values", raising=False)
    with pytest.raises(ModuleNotFoundError, match="format='avro' needs fastavro: pip install"):
        read(schema=ORDER)
