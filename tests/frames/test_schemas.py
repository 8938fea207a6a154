"""Schemas as callers give them, and those that are inferred."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from pybroker.frames.inference import FIELDS_MAX, infer_schema
from pybroker.frames.schemas import arrow_schema

RECORD = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "hash", "type": {"type": "fixed", "name": "H", "size": 4}},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A"]}},
        {"name": "again", "type": "K"},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "L", "fields": [
            {"name": "n", "type": "int"}]}}},
        {"name": "tags", "type": {"type": "map", "values": "double"}},
    ],
}  # fmt: skip
OF_RECORD = pa.schema(
    [
        ("id", pa.int64()),
        ("note", pa.string()),
        ("at", pa.timestamp("ms", "UTC")),
        ("price", pa.decimal128(9, 2)),
        ("hash", pa.binary(4)),
        ("kind", pa.string()),
        ("again", pa.string()),
        ("lines", pa.list_(pa.struct([("n", pa.int32())]))),
        ("tags", pa.map_(pa.string(), pa.float64())),
    ]
)


def test_each_way_to_give_a_schema(tmp_path: Path) -> None:
    """Arrow's own, a mapping with types of three libraries, polars.Schema, and Avro as dict, JSON and path."""
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(RECORD))
    for given in (OF_RECORD, RECORD, json.dumps(RECORD), file, str(file)):
        assert arrow_schema(given) == OF_RECORD
    assert arrow_schema({"a": pa.int8(), "b": pl.Int16, "c": int, "d": "date32", "e": pl.List(pl.String)}) == pa.schema(
        [("a", pa.int8()), ("b", pa.int16()), ("c", pa.int64()), ("d", pa.date32()), ("e", pa.list_(pa.string()))]
    )
    assert arrow_schema(pl.Schema({"at": pl.Datetime("us", "UTC"), "s": pl.Struct({"x": pl.Binary})})) == pa.schema(
        [("at", pa.timestamp("us", "UTC")), ("s", pa.struct([("x", pa.binary())]))]
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["id"], "a schema is a pyarrow.Schema, a mapping .*, not list"),
        ({"id": "quick"}, "the type of 'id' is 'quick': expected is one of Arrow, polars or Python"),
        ({"id": list}, "the type of 'id' is <class 'list'>"),
        ("id bigint, price double", "schema is 'id bigint, price double', and text is .*: give a dict like"),
        ("id:int64", "schema is 'id:int64', and text is .*: give a dict like"),
        ('{"type": "rec', "the Avro schema is not JSON"),
        ('{"type": "string"}', "the Avro schema is not a record with fields"),
        ({**RECORD, "fields": [{"name": "u", "type": ["int", "string"]}]}, "the Avro type .* has no column of Arrow"),
        ({**RECORD, "fields": [{"name": "me", "type": "shop.Order"}]}, "the Avro type .*Order.* has no column"),
    ],
)
def test_what_is_no_schema(given: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        arrow_schema(given)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 2], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([True], pa.bool_()),
        (["x", None], pa.string()),
        (["2026-11-29T00:00:00Z"], pa.string()),
        ([None], pa.string()),
        ([1, "x"], pa.string()),
        ([1, True], pa.string()),
        ([1 << 63], pa.string()),
        ([{}], pa.string()),
        ([[]], pa.list_(pa.string())),
        ([[1], [2.5, None], []], pa.list_(pa.float64())),
        ([[1], "x"], pa.string()),
        ([{"x": 1}, {"y": ["a"]}, None], pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))])),
    ],
)
def test_types_are_those_of_the_values(values: list[Any], kind: pa.DataType) -> None:
    """One type for all of them; text where there is none, which loses nothing."""
    assert infer_schema(json.dumps({"a": each}).encode() for each in values) == pa.schema([("a", kind)])


def test_what_is_no_object_says_nothing() -> None:
    """Nor does nesting without an end; a registry's frame is passed over."""
    deep = b'{"a":' * 100_000
    given = [None, b"", b"x", b"[1]", b'{"a":NaN}', deep, b'\0\0\0\0\1{"b":1}', b'{"c":"x"}']
    assert infer_schema(given) == pa.schema([("b", pa.int64()), ("c", pa.string())])


def test_names_that_are_data() -> None:
    """An inner object with thousands of names is text; an outer one needs a schema."""
    wide = {str(n): n for n in range(FIELDS_MAX + 1)}
    assert infer_schema([json.dumps({"a": wide}).encode()]) == pa.schema([("a", pa.string())])
    with pytest.raises(ValueError, match="more than 2000 fields: give a schema"):
        infer_schema([json.dumps(wide).encode()])


def test_nesting_ends_as_text() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = {"a": deep}
    assert "string" in str(infer_schema([json.dumps(deep).encode()]))
