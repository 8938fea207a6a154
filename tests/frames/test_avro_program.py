"""Avro by core, beside fastavro: the same columns and the same bad records, of any schema and any bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.avro.writer_schemas import writer_schemas
from pybroker.core import AvroDecoder, ByteColumn
from pybroker.frames.avro_values import AvroValues
from tests.spark.registry import Registry, encoded, framed, record

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=8),
    "string": TEXT,
}


@st.composite
def typed(draw: Any, name: str, depth: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    """A schema, and a strategy for its values; `name` is that of an enum, a fixed or a record."""
    nested = ["array", "map", "record", "union"] if depth < 3 else []
    kind = draw(st.sampled_from([*SCALARS, "enum", "fixed", *nested]))
    if kind in SCALARS:
        return kind, SCALARS[kind]
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "CC"]}, st.sampled_from(["A", "B", "CC"])
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": 3}, st.binary(min_size=3, max_size=3)
    if kind == "record":
        return draw(records(name, depth + 1))
    inner, values = draw(typed(f"{name}i", depth + 1))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=3)
    if kind == "map":
        return {"type": "map", "values": inner}, st.dictionaries(TEXT, values, max_size=3)
    if isinstance(inner, list):
        return inner, values
    return draw(st.sampled_from([["null", inner], [inner, "null"]])), st.none() | values


@st.composite
def records(draw: Any, name: str = "top", depth: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    fields = [draw(typed(f"{name}{n}", depth)) for n in range(draw(st.integers(1, 4)))]
    named = [{"name": f"f{n}", "type": kind} for n, (kind, _) in enumerate(fields)]
    values = st.fixed_dictionaries({f"f{n}": value for n, (_, value) in enumerate(fields)})
    return {"type": "record", "name": name, "fields": named}, values


def same(values: AvroValues, given_: list[bytes | None]) -> list[tuple[int, str]]:
    """The bad records, which both ways find; and both have the same columns."""
    array = pa.array(given_, pa.binary())
    fast, slow = values.decode(array), values._decode_each(array)
    for one, other in zip(fast.columns, slow.columns, strict=True):
        one.validate(full=True)
        assert repr(one.to_pylist()) == repr(other.to_pylist())  # a NaN equals none
    assert fast.bad == slow.bad
    return fast.bad


@given(st.data())
def test_any_schema(data: st.DataObject) -> None:
    """Columns of random records, all or some of the fields; core has a program for each of these schemas."""
    schema, rows = data.draw(records())
    values = AvroValues(schema, None)
    assert values._program_of(None) is not None
    given_ = [None, b"", *(encoded(schema, row) for row in data.draw(st.lists(rows, max_size=4)))]
    bad = same(values, given_)
    assert not bad
    some = pa.schema([values.schema.field(-1)])
    assert not same(values.select(some), given_)


@given(st.data(), st.integers(0, 1 << 30))
def test_any_bytes(data: st.DataObject, seed: int) -> None:
    """Records that are cut, lengthened or changed: bad by both, or the same."""
    schema, rows = data.draw(records())
    chance = random.Random(seed)
    given_ = []
    for row in data.draw(st.lists(rows, min_size=1, max_size=3)):
        good = encoded(schema, row)
        given_ += [good, good[: chance.randrange(len(good) + 1)], good + b"\0"]
        mutant = bytearray(good or b"\0")
        mutant[chance.randrange(len(mutant))] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
        given_.append(bytes(mutant))
    same(AvroValues(schema, None), given_)


ORDER = record("order", id="long", title="string", price="double")
WIDE = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "nothing", "type": "null"},
    ],
}


def test_logical_types() -> None:
    """Times, dates, decimals and uuids; a number that the decimal does not have is a bad record by both."""
    row = {"at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "day": None, "time": 1000, "price": Decimal("-1.50"),
           "key": "0c4f1dbc-6b8f-4b43-a1a5-6f6c2b8a7d11", "nothing": None}  # fmt: skip
    wide = {**WIDE, "fields": [*WIDE["fields"]]}
    wide["fields"][3] = {"name": "price", "type": {**WIDE["fields"][3]["type"], "precision": 20}}
    large = encoded(wide, {**row, "price": Decimal("12345678901.00")})
    assert same(AvroValues(WIDE, None), [encoded(WIDE, row), large]) == [
        (1, "the value is not an Avro record of the schema")]  # fmt: skip


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    with made.web:
        made.add(7, ORDER)
        yield made


@pytest.mark.parametrize(
    ("reader", "programs"),
    [
        (ORDER, True),
        (record("order", price="double", id="long"), True),
        ({**ORDER, "fields": [*ORDER["fields"], {"name": "x", "type": ["null", "int"], "default": None}]}, True),
        ({**ORDER, "fields": [*ORDER["fields"], {"name": "x", "type": "int", "default": 5}]}, False),
        (record("order", id="double"), False),
        (record("order", id=["null", "long"]), True),
        (record("order", id=["long", "string"]), None),
        (record("other", id="long"), False),
    ],
)
def test_two_schemas(registry: Registry, reader: Any, programs: bool | None) -> None:
    """Core reads what is alike and fastavro the rest, with the same result; of values with several ids, too."""
    texts = {"type": "array", "items": ["null", "string"]}
    later = record("order", price="double", more=texts, id="long", title="string")
    registry.add(8, later)
    registry.add(9, record("order", id="string"))
    schemas = writer_schemas(registry.url, {})
    if programs is None:
        with pytest.raises(ValueError, match="has no column of Arrow"):
            AvroValues(reader, schemas)
        return
    values = AvroValues(reader, schemas)
    assert (values._program_of(7) is not None) is programs
    old = framed(7, ORDER, {"id": 1, "title": "a", "price": 1.5})
    new = framed(8, later, {"price": 2.5, "more": ["x", None], "id": 2, "title": "b"})
    wrong = framed(9, record("order", id="string"), {"id": "x"})
    bad = same(values, [old, None, new, old, b"", wrong, new[:-1], b"\0\0\0\0", b"plain", framed(10, ORDER, {
        "id": 1, "title": "a", "price": 1.5}), new])  # fmt: skip
    assert {7, 8, 9} <= {row for row, _ in bad}
    assert len(same(values, [old, old])) in (0, 2)


ONE = [("struct", b"", 1), ("int", b"a", 0)]


@pytest.mark.parametrize(
    ("nodes", "operations", "words"),
    [
        ([("struct", b"", 0)], [], "a record that goes to node 0"),
        ([("struct", b"", 0)], [("record", -1, 1, 0, 0, ())], "a record that goes to node 0"),
        ([("struct", b"", 0)], [("record", -1, 0, 1, 0, ())], "operation 0 has 1 children"),
        ([("struct", b"", 1), ("int", b"a", 0)], [("record", -1, 0, 0, 0, ())], "go to the nodes"),
        (ONE, [("record", -1, 0, 1, 0, ()), ("string", -1, 1, 0, 0, ())], "another kind"),
        (ONE, [("record", -1, 0, 1, 0, ()), ("int", 2, 1, 0, 0, ())], "no sound numbers"),
        (
            [("struct", b"", 1), ("int", b"a", 0)],
            [("record", -1, 0, 2, 0, ()), ("int", -1, 1, 0, 0, ()), ("int", -1, 1, 0, 0, ())],
            "go to the nodes",
        ),
        (
            [("struct", b"", 1), ("list", b"a", 1), ("text", b"", 0)],
            [("record", -1, 0, 1, 0, ()), ("array", -1, 1, 1, 0, ()), ("fixed", -1, 2, 0, 0, ())],
            "an array whose items take no bytes",
        ),
    ],
)
def test_operations_that_do_not_fill_the_columns(nodes: Any, operations: Any, words: str) -> None:
    """They would write out of step, and are refused before anything is read."""
    with pytest.raises(ValueError, match=words):
        AvroDecoder(nodes, operations)


def test_counts_that_lie() -> None:
    """An array that says it has 2^62 items, a string of 2^60 bytes, a block of the least number: none is believed."""
    schema = record("r", l={"type": "array", "items": "string"})
    varint = fastavro.parse_schema(record("v", n="long"))
    values = [encoded(varint, {"n": n}) + rest for n in (1 << 62, -(1 << 63), -1) for rest in (b"", b"\2", b"\2a\0")]
    values.append(b"\2" + encoded(varint, {"n": 1 << 60}))
    decoded = AvroValues(schema, None)._program_of(None)
    assert decoded is not None
    columns, bad = decoded.decode(pa.array(values), 0)
    assert len(bad) >= 9 and columns[0].null_count == len(bad)
    with pytest.raises(ValueError, match="offsets of the values leave"):
        decoded._decoder.decode(ByteColumn.of_offsets(b"", memoryview(b"\0\0\0\0\x09\0\0\0")))
