"""The schema of JSON values, where none is given: by the first of them, as polars and pandas do.

Whole numbers are int64, others double, and what does not fit in one type is text: so are fields that are null in all
values, numbers beyond int64, empty objects, and what is nested too deeply. As text a field keeps any value, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from pybroker.avro.framing import unframed

DEPTH_MAX: Final = 16
FIELDS_MAX: Final = 2_000
"""Of one object; an inner one that has more is text, as its names are data."""
_WHOLE_MAX: Final = 1 << 63

Shape = str | list["Shape"] | dict[str, "Shape"]
"""null, bool, int, double or text; [items]; an object's fields."""


def infer_schema(values: Iterable[bytes | None]) -> pa.Schema:
    """The schema of those that are JSON objects. ValueError for more than FIELDS_MAX fields."""
    shape: Shape = {}
    for value in values:
        found = _loaded(value)
        if isinstance(found, dict):
            shape = _merged(shape, {name: _shape(each, 1) for name, each in found.items()})
    assert isinstance(shape, dict)
    if len(shape) > FIELDS_MAX:
        raise ValueError(f"the values have more than {FIELDS_MAX} fields: give a schema")
    return pa.schema([pa.field(name, _type(each)) for name, each in shape.items()])


def _loaded(value: bytes | None) -> object:
    """The JSON of a value, without a schema registry's frame; None where there is none."""
    if not value:
        return None
    try:
        return json.loads(unframed(value), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _shape(value: object, depth: int) -> Shape:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -_WHOLE_MAX <= value < _WHOLE_MAX else "text"
    if isinstance(value, float):
        return "double"
    if depth >= DEPTH_MAX or isinstance(value, str):
        return "text"
    if isinstance(value, dict):
        return {name: _shape(each, depth + 1) for name, each in value.items()} or "text"
    items: Shape = "null"
    for each in value if isinstance(value, list) else ():
        items = _merged(items, _shape(each, depth + 1))
    return [items]


def _merged(one: Shape, other: Shape) -> Shape:
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    if {str(one), str(other)} == {"int", "double"}:
        return "double"
    if isinstance(one, dict) and isinstance(other, dict):
        for name, each in other.items():
            one[name] = _merged(one[name], each) if name in one else each
        return one
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    return "text"


def _type(shape: Shape) -> pa.DataType:
    if isinstance(shape, dict):
        if len(shape) > FIELDS_MAX:
            return pa.string()
        return pa.struct([pa.field(name, _type(each)) for name, each in shape.items()])
    if isinstance(shape, list):
        return pa.list_(_type(shape[0]))
    return {"bool": pa.bool_(), "int": pa.int64(), "double": pa.float64()}.get(shape, pa.string())
