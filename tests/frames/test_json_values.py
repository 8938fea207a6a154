"""JSON values as columns: as json.loads reads them, with each type of a schema, and what hostile values become."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.frames.json_values import JsonValues

MANY = pa.schema(
    [
        ("id", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.int64())),
        ("st", pa.struct([("x", pa.int64()), ("ys", pa.list_(pa.struct([("z", pa.string())])))])),
        ("m", pa.map_(pa.string(), pa.float64())),
    ]
)


def decode(schema: Any, *values: bytes | str | None) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The rows, and the reasons of those that are wrong."""
    schema = schema if isinstance(schema, pa.Schema) else pa.schema(schema)
    given_ = [value.encode() if isinstance(value, str) else value for value in values]
    decoded = JsonValues(schema).decode(pa.array(given_, pa.binary()))
    for column in decoded.columns:
        column.validate(full=True)
    table = pa.table(decoded.columns, schema=schema)
    assert table.num_rows == len(values)
    return table.to_pylist(), dict(decoded.bad)


def of(kind: pa.DataType, text: str) -> Any:
    """The value of one field `a`, or the reason why it is none."""
    rows, bad = decode([("a", kind)], f'{{"a":{text}}}')
    return bad[0] if bad else rows[0]["a"]


# -- beside json.loads -------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
WHOLE = st.integers(-(1 << 63), (1 << 63) - 1)
REAL = st.floats(allow_nan=False, allow_infinity=False)


def some(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | value


INNER = st.just({}) | st.fixed_dictionaries({"z": TEXT})
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "id": some(WHOLE),
        "f": some(REAL),
        "s": some(TEXT),
        "b": some(st.booleans()),
        "l": some(st.lists(some(WHOLE), max_size=4)),
        "st": some(st.fixed_dictionaries({}, optional={"x": some(WHOLE), "ys": some(st.lists(some(INNER)))})),
        "m": some(st.dictionaries(TEXT, some(REAL), max_size=3)),
        "unknown": st.recursive(TEXT | REAL | st.none(), lambda each: st.lists(each) | st.dictionaries(TEXT, each)),
    },
)  # fmt: skip


def expected(row: dict[str, Any]) -> dict[str, Any]:
    made = {field.name: row.get(field.name) for field in MANY}
    if made["st"] is not None:
        ys = made["st"].get("ys")
        ys = None if ys is None else [None if y is None else {"z": y.get("z")} for y in ys]
        made["st"] = {"x": made["st"].get("x"), "ys": ys}
    made["m"] = None if made["m"] is None else list(made["m"].items())
    return made


@given(st.lists(ROWS, max_size=5), st.booleans(), st.sampled_from([None, 2]))
def test_it_reads_what_json_reads(rows: list[dict[str, Any]], ascii_only: bool, indent: int | None) -> None:
    """Objects as json.dumps writes them, with escapes or without, on one line or several."""
    values = [json.dumps(row, ensure_ascii=ascii_only, indent=indent) for row in rows]
    assert decode(MANY, *values) == ([expected(row) for row in rows], {})


@given(st.binary(max_size=40) | st.text('{}[]":,\\ntrue0123.eE-\n ', max_size=25).map(str.encode))
def test_it_refuses_what_json_refuses(text: bytes) -> None:
    """Bytes that are nearly an object: either both read them, and see the same field, or neither does."""
    value = b'{"s":1' + text
    try:
        found = json.loads(value.decode(), parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError):
        found = None
    rows, bad = decode([("t", pa.string())], value)
    if found is None:
        assert bad and rows == [{"t": None}]
    elif not bad:
        there = found.get("t")
        assert (rows[0]["t"] is None) == (there is None)
    else:
        assert "there twice" in bad[0] or "UTF-8" in bad[0]  # json.loads takes the last, and half a surrogate pair


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**40), 10**40))
def test_a_number_is_the_nearest_double(number: float) -> None:
    """Short ones take a fast way, long ones the library's."""
    assert of(pa.float64(), repr(number)) == float(number)


# -- types -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int8(), "-128", -128),
        (pa.uint64(), str((1 << 64) - 1), (1 << 64) - 1),
        (pa.int64(), str(-(1 << 63)), -(1 << 63)),
        (pa.float32(), "1.5", 1.5),
        (pa.float64(), "3", 3.0),
        (pa.string(), '"a\\u00e9\\ud83d\\ude00\\n\\/"', "a\u00e9\U0001f600\n/"),
        (pa.string(), '{"x": [1, 2]}', '{"x": [1, 2]}'),
        (pa.string(), "1.50", "1.50"),
        (pa.large_string(), '"x"', "x"),
        (pa.binary(), '"x"', b"x"),
        (pa.dictionary(pa.int32(), pa.string()), '"x"', "x"),
        (pa.decimal128(10, 2), "1.5", Decimal("1.50")),
        (pa.decimal128(10, 2), '"1.5"', Decimal("1.50")),
        (pa.timestamp("ms"), '"2026-11-29T01:45:02.1239"', datetime(2026, 11, 29, 1, 45, 2, 123_000)),
        (pa.timestamp("ms"), '"2026-11-29T01:45:02+01:00"', datetime(2026, 11, 29, 0, 45, 2)),
        (pa.timestamp("us", "UTC"), '"2026-11-29T01:45:02Z"', datetime(2026, 11, 29, 1, 45, 2, tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), '"2026-11-29 01:45:02"', datetime(2026, 11, 29, 1, 45, 2, tzinfo=UTC)),
        (pa.timestamp("s", "UTC"), "1700000000", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        (pa.date32(), '"2026-11-29"', date(2026, 11, 29)),
        (pa.time32("ms"), '"01:02:03.5"', time(1, 2, 3, 500_000)),
        (pa.duration("s"), "61", timedelta(seconds=61)),
        (pa.list_(pa.timestamp("ms")), '["2026-11-29T01:45:02Z",null]', [datetime(2026, 11, 29, 1, 45, 2), None]),
        (pa.large_list(pa.int32()), "[1,2]", [1, 2]),
        (pa.list_(pa.int32(), 2), "[1,2]", [1, 2]),
        (pa.map_(pa.string(), pa.date32()), '{"a":"1970-01-02"}', [("a", date(1970, 1, 2))]),
        (pa.struct([("x", pa.decimal128(4, 1))]), '{"x":1.5}', {"x": Decimal("1.5")}),
    ],
)
def test_each_type_of_arrow(kind: pa.DataType, text: str, value: Any) -> None:
    """The value of each type, from the JSON for it; null is null in all of them."""
    assert of(kind, text) == value
    assert of(kind, "null") is None


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (pa.int64(), str(1 << 63), "field a is beyond the range of int64"),
        (pa.int64(), "1.0", "field a is not of type int64"),
        (pa.int64(), '"1"', "field a is not of type int64"),
        (pa.int8(), "128", "field a is '128', which is not int8"),
        (pa.uint64(), "-1", "field a is '-1', which is not uint64"),
        (pa.float64(), "1e400", "field a is beyond the range of double"),
        (pa.bool_(), "1", "field a is not of type bool"),
        (pa.list_(pa.int64()), '[1,"x"]', "field a[] is not of type int64"),
        (pa.list_(pa.int8()), "[1,300]", "field a is '[1, 300]', which is not list<item: int8>"),
        (pa.struct([("x", pa.int64())]), "[1]", "field a is not of type struct<x: int64>"),
        (pa.struct([("x", pa.int64())]), '{"x":true}', "field a.x is not of type int64"),
        (pa.timestamp("ms"), '"soon"', "field a is 'soon', which is not timestamp[ms]"),
        (pa.decimal128(4, 1), "1.55", "field a is '1.55', which is not decimal128(4, 1)"),
        (pa.map_(pa.string(), pa.int64()), "[]", "field a is not of type map<string, int64>"),
    ],
)
def test_a_value_that_is_none_of_the_type(kind: pa.DataType, text: str, why: str) -> None:
    """The reason names the field."""
    assert of(kind, text) == why


def test_a_bad_row_leaves_no_trace() -> None:
    """Parts that it had added before it failed, in nested columns too, are not in the rows that follow."""
    good = '{"id":1,"s":"x","l":[1,2],"st":{"x":1,"ys":[{"z":"q"}]},"m":{"a":1}}'
    bad = '{"id":2,"s":"y","l":[3],"st":{"x":2,"ys":[{"z":"r"},{}]},"m":{"b":2,"c":"no"}}'
    rows, why = decode(MANY, good, bad, good, bad, bad, good)
    assert [*why] == [1, 3, 4] and set(why.values()) == {"field m[] is not of type double"}
    assert rows[0] == rows[2] == rows[5] and rows[0]["st"] == {"x": 1, "ys": [{"z": "q"}]}
    assert set(map(str, (rows[1], rows[3]))) == {str(dict.fromkeys(MANY.names))}


# -- hostile values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"nonsense", "the value is not a JSON object"),
        (b"[1]", "the value is not a JSON object"),
        (b"\xef\xbb\xbf{}", "the value is not a JSON object"),
        (b'{"id":', "the value is not JSON at byte 6"),
        (b'{"id":1,}', "the value is not JSON at byte 8"),
        (b'{"id":1}{"id":2}', "something follows the JSON object at byte 8"),
        (b'{"id":1}\n{"id":2}', "something follows the JSON object at byte 9"),
        (b'{"id":1,"id":1}', "field id is there twice"),
        (b'{"id":1,"\\u0069d":1}', "field id is there twice"),
        (b'{"s":"a\nb"}', "field s is not JSON at byte 7"),
        (b'{"s":"\xff"}', "field s is not UTF-8 at byte 8"),
        (b'{"s":"\\ud800"}', "field s is not UTF-8 at byte 13"),
        (b'{"s":"\xed\xa0\x80"}', "field s is not UTF-8 at byte 10"),
        (b'{"other":"\xc0\x80"}', "the value is not UTF-8 at byte 13"),
        (b'{"id":NaN}', "field id is not JSON at byte 6"),
        (b'{"id":01}', "field id is not JSON at byte 6"),
        (b'{"x":' + b"[" * 200_000, "the value is nested deeper than 128 levels"),
        (b'{"x":' + b'{"a":' * 200_000, "the value is nested deeper than 128 levels"),
        (b'{"s":' + b"[" * 200_000, "field s is nested deeper than 128 levels"),
        (b'{"f":1' + b"0" * 600 + b"}", "field f is beyond the range of double"),
    ],
)
def test_a_value_that_is_wrong(value: bytes, why: str) -> None:
    """A wrong value is a row of nulls with a reason, and the values beside it are read."""
    rows, bad = decode(MANY, '{"id":7}', value, '{"id":8}')
    assert bad == {1: why}
    assert [row["id"] for row in rows] == [7, None, 8]


def test_values_that_are_right_although_they_look_odd() -> None:
    """Tombstones are rows of nulls; white space, a registry's frame and unknown fields are passed over."""
    rows, bad = decode([("id", pa.int64())], None, b"", "{}", ' {\n"id" : 1\t} \r\n', b'\0\0\0\0\7{"id":2}',
                       '{"a":[{"b":{"id":9}}],"id":3}', '{"id":null}', '{"\\u0069d":4}')  # fmt: skip
    assert not bad
    assert [row["id"] for row in rows] == [None, None, None, 1, 2, 3, None, 4]


def test_fields_that_no_column_is_for_are_named() -> None:
    decoded = JsonValues(pa.schema([("id", pa.int64())])).decode(pa.array([b'{"a":1,"id":1}', b'{"b":1,"a":2}']))
    assert decoded.unknown == ("a", "b")


def test_a_type_that_no_json_has() -> None:
    """Known before anything is read."""
    with pytest.raises(ValueError, match=r"field u is of type .*union.*, as which no JSON is read"):
        JsonValues(pa.schema([("u", pa.sparse_union([pa.field("a", pa.int64())]))]))


def test_all_values_are_wrong() -> None:
    """Thousands of them, in a type that Arrow casts: each has its reason."""
    rows, bad = decode([("a", pa.int8())], *['{"a":1000}'] * 3000)
    assert len(bad) == 3000 and not any(row["a"] for row in rows)


def test_a_slice_of_values() -> None:
    """An array that begins within its buffers, as slices do."""
    values = pa.array([b'{"id":%d}' % n for n in range(10)]).slice(3, 4)
    [column] = JsonValues(pa.schema([("id", pa.int64())])).decode(values).columns
    assert column.to_pylist() == [3, 4, 5, 6]


def test_the_sign_of_zero() -> None:
    assert math.copysign(1, of(pa.float64(), "-0.0")) == -1
