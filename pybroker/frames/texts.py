"""Text as values of other types: times, decimals, large integers. Arrow casts what it can; times need more care.

A time is ISO 8601, with a zone or without, which is UTC then; or a whole number, which counts the column's unit since
the epoch. What is finer than the unit is cut off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_ZONE: Final = r"([Zz]|[+-]\d\d(:?\d\d)?)$"
_NUMBER: Final = r"^[+-]?\d+$"
_FINER: Final = ("us", "ns")
_MIDNIGHT: Final = "1970-01-01T"


Leaf = Callable[[pa.Array, pa.DataType], pa.Array]
"""Has an array that is not nested in another type."""


def plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts as `read` has them, others cast."""
    return read(array, kind) if pa.types.is_string(array.type) else array.cast(kind)


def converted(array: pa.Array, kind: pa.DataType, leaf: Leaf = plain) -> pa.Array:
    """An array in another type. ArrowInvalid for a value that the type does not have. An array of lists, structs or
    maps is no slice."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        parts = [converted(array.field(at), field.type, leaf) for at, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(array.type):
        items = converted(array.values, kind.value_type, leaf)
        made = pa.Array.from_buffers(pa.list_(items.type), len(array), array.buffers()[:2], children=[items])
        return made.cast(kind)
    if pa.types.is_map(array.type):
        keys, items = converted(array.keys, kind.key_type, leaf), converted(array.items, kind.item_type, leaf)
        entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], children=[entries])
    return leaf(array, kind)


def read(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array of strings as another type. ArrowInvalid for a text that is no value of it."""
    if pa.types.is_timestamp(kind):
        try:
            return _moments(array, kind)
        except pa.ArrowInvalid:  # there are numbers among them, or what is no time
            return _choose(array, kind, _moments)
    if pa.types.is_date(kind):
        return _choose(array, kind, lambda texts, _: _moments(texts, pa.timestamp("s")).cast(kind, safe=False))
    if pa.types.is_time(kind):
        return _choose(array, kind, _times)
    if pa.types.is_duration(kind):
        return array.cast(pa.int64()).cast(kind)
    return array.cast(kind)


def _choose(array: pa.Array, kind: pa.DataType, parse: object) -> pa.Array:
    """Numbers count units, and other texts are parsed."""
    assert callable(parse)
    numbers = pc.match_substring_regex(array, _NUMBER)
    if not pc.any(numbers).as_py():
        return parse(array, kind)
    counted = _where(numbers, array).cast(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    return pc.coalesce(counted, parse(_where(pc.invert(numbers), array), kind))


def _where(mask: pa.Array, array: pa.Array) -> pa.Array:
    return pc.if_else(mask, array, pa.scalar(None, array.type))


def _moments(array: pa.Array, kind: pa.DataType) -> pa.Array:
    for zone in ("UTC", None):  # most columns have one or none in all rows, and a pattern takes longer than to parse
        with contextlib.suppress(pa.ArrowInvalid):
            return _in_unit(_parsed(array, kind.unit, zone), kind)
    zoned = pc.match_substring_regex(array, r"T.*" + _ZONE)
    zoned = pc.or_(zoned, pc.match_substring_regex(array, r" .*" + _ZONE))
    there = _parsed(_where(zoned, array), kind.unit, "UTC").cast(pa.timestamp("ns"))
    others = _parsed(_where(pc.invert(zoned), array), kind.unit, None)
    return _in_unit(pc.coalesce(there, others.cast(pa.timestamp("ns"))), kind)


def _in_unit(made: pa.Array, kind: pa.DataType) -> pa.Array:
    """Times of another unit, or of UTC, as the type has them."""
    counted = made.cast(pa.int64()).cast(pa.timestamp(made.type.unit)).cast(pa.timestamp(kind.unit), safe=False)
    return counted.cast(pa.int64()).cast(kind)


def _parsed(array: pa.Array, unit: str, zone: str | None) -> pa.Array:
    """Times of the unit, or of a finer one where the texts have more digits."""
    for finer in (unit, *_FINER):
        try:
            return array.cast(pa.timestamp(finer, zone))
        except pa.ArrowInvalid:
            if finer == _FINER[-1]:
                raise
    raise AssertionError


def _times(array: pa.Array, kind: pa.DataType) -> pa.Array:
    moments = _parsed(pc.binary_join_element_wise(pa.scalar(_MIDNIGHT), array, pa.scalar("")), kind.unit, None)
    return moments.cast(pa.timestamp(kind.unit), safe=False).cast(kind)
