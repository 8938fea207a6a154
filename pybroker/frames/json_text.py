"""Rows of Arrow as JSON objects, column by column: no Python object is made for a value.

Times are ISO 8601, in UTC where they have a zone; a number that is no number of JSON (NaN, infinity) is null.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SPECIAL: Final = r'["\\\x00-\x1f]'
_CONTROL: Final = r"[\x00-\x1f]"
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_INTEGRAL: Final = r"^-?\d+$"


def json_objects(columns: pa.RecordBatch, *, base64: bool = False) -> pa.Array:
    """A JSON object for each row, as strings. Bytes that are not UTF-8 are {"base64": ...} if that is wanted, else a
    ValueError; so are types that JSON lacks."""
    names = columns.schema.names
    parts: list[object] = []
    for at, (name, column) in enumerate(zip(names, columns.columns, strict=True)):
        parts += [f"{',' if at else '{'}{json.dumps(name)}:", _texts(column, name, base64)]
    if not parts:
        return pa.array(["{}"] * columns.num_rows, pa.string())
    return _joined(*parts, "}")


def looked_up(array: pa.Array) -> pa.Array:
    """A dictionary's values, one a row; polars has them as views, which Arrow does not look up."""
    words = array.dictionary
    words = words.cast(pa.string()) if str(words.type) == "string_view" else words
    return pa.DictionaryArray.from_arrays(array.indices, words).dictionary_decode()


def _joined(*parts: object) -> pa.Array:
    made = [pa.scalar(part) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*made, pa.scalar(""))


def _texts(array: pa.Array, name: str, base64: bool) -> pa.Array:
    """The JSON of each value; `null` for nulls."""
    return pc.fill_null(_values(array, name, base64), "null")


def _values(array: pa.Array, name: str, base64: bool) -> pa.Array:
    kind, types = array.type, pa.types
    if types.is_null(kind):
        return pa.nulls(len(array), pa.string())
    if types.is_dictionary(kind):
        return _values(looked_up(array), name, base64)
    if types.is_floating(kind):
        return _reals(array)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return array.cast(pa.string())
    if types.is_duration(kind):
        return array.cast(pa.int64()).cast(pa.string())
    if types.is_date(kind) or types.is_time(kind):
        return _joined('"', array.cast(pa.string()), '"')
    if types.is_timestamp(kind):
        plain = array.cast(pa.int64()).cast(pa.timestamp(kind.unit))  # with a zone a time takes ten times as long
        text = pc.replace_substring(plain.cast(pa.string()), " ", "T", max_replacements=1)
        return _joined('"', text, '"' if kind.tz is None else 'Z"')
    if types.is_struct(kind):
        return _structs(array, base64)
    if types.is_map(kind):
        keys, items = array.keys, _texts(array.items, f"{name}[]", base64)
        return _lists(array, _joined(_texts(keys, name, False), ":", items), "{", "}")
    if types.is_list(kind) or types.is_large_list(kind):
        return _lists(array, _texts(array.values, f"{name}[]", base64), "[", "]")
    if types.is_fixed_size_list(kind):
        return _values(array.cast(pa.list_(kind.value_type)), name, base64)
    try:
        return _joined('"', _escaped(_strings(array, name)), '"')
    except ValueError:
        if not base64 or "binary" not in str(kind):
            raise
    return pa.array([None if each is None else json.dumps(_readable(each)) for each in array.to_pylist()], pa.string())


def _readable(data: bytes) -> str | dict[str, str]:
    """Text, or bytes that are not UTF-8 as `pybroker ... --json` has them."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def _strings(array: pa.Array, name: str) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        raise ValueError(f"column {name!r} has bytes that are not UTF-8, which JSON cannot hold") from None
    except pa.ArrowNotImplementedError:
        raise ValueError(f"column {name!r} is of type {array.type}, which JSON does not have") from None


def _escaped(strings: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(strings, _SPECIAL)).as_py():
        return strings
    strings = pc.replace_substring(pc.replace_substring(strings, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(strings, _CONTROL)).as_py():
        for code in range(0x20):
            character = chr(code)
            strings = pc.replace_substring(strings, character, _SHORT.get(character, f"\\u{code:04x}"))
    return strings


def _reals(array: pa.Array) -> pa.Array:
    """With a point or an exponent, so that they are read back as what they are."""
    texts = pc.if_else(pc.is_finite(array), array.cast(pa.string()), pa.scalar(None, pa.string()))
    return pc.if_else(pc.match_substring_regex(texts, _INTEGRAL), _joined(texts, ".0"), texts)


def _structs(array: pa.Array, base64: bool) -> pa.Array:
    fields = [array.field(at) for at in range(array.type.num_fields)]
    names = [field.name for field in array.type]
    made = pa.array(["{}"] * len(array))
    if fields:
        made = json_objects(pa.RecordBatch.from_arrays(fields, names), base64=base64)
    return pc.if_else(array.is_valid(), made, pa.scalar(None, pa.string()))


def _lists(array: pa.Array, items: pa.Array, opening: str, closing: str) -> pa.Array:
    """Lists or maps, whose items are JSON already."""
    starts = np.asarray(array.offsets)
    lists = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), items)
    made = _joined(opening, pc.binary_join(lists, ","), closing)
    return pc.if_else(array.is_valid(), made, pa.scalar(None, pa.string()))
