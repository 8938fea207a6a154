"""Values that are JSON, as columns of a schema: core decodes them into a few plain types, and Arrow casts the rest.

    schema -> nodes (core's types) -> JsonDecoder.decode(values) -> Arrow arrays -> cast to the schema's types

A value that is wrong is a row of nulls, with a sentence that says what is wrong. Fields that the schema does not have
are dropped; fields that a value does not have are null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pybroker.client.producing.column_sources import byte_column
from pybroker.core import JsonDecoder
from pybroker.frames import texts
from pybroker.frames.nodes import DecodedColumn, array_of, by_level

if TYPE_CHECKING:
    from pybroker.core.columns.value_columns import Kind

_SENTENCES: Final = {
    "syntax": "{place} is not JSON at byte {position}",
    "kind": "{place} is not of type {type}",
    "range": "{place} is beyond the range of {type}",
    "twice": "{place} is there twice",
    "utf8": "{place} is not UTF-8 at byte {position}",
    "deep": "{place} is nested deeper than 128 levels",
    "more": "something follows the JSON object at byte {position}",
    "no object": "the value is not a JSON object",
}
TEXT_MAX: Final = 200


class Decoded(NamedTuple):
    """A column for each field of the schema, and (row, why) of the values that are wrong, which are rows of nulls.

    unknown: fields that the schema does not have; the first few."""

    columns: list[pa.Array]
    bad: list[tuple[int, str]]
    unknown: tuple[str, ...] = ()


class JsonValues:
    """Decodes values by a schema; any threads may do so at once."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        children = [_node(field.name, field.name, field.type) for field in schema]
        self._root = DecodedColumn("struct", "", "", pa.struct(list(schema)), children)
        self._levels = by_level(self._root)
        self._decoder = JsonDecoder((n.kind, n.name.encode(), len(n.children)) for n in self._levels)

    def select(self, fields: pa.Schema) -> JsonValues:
        """The same for some of the fields: the others are only passed over."""
        return self if fields.names == self.schema.names else JsonValues(fields)

    def decode(self, values: pa.Array) -> Decoded:
        """The columns of an array of binary values."""
        batch = self._decoder.decode(byte_column(values))
        why = {row: self._sentence(problem, node, position) for row, problem, node, position in batch.bad}
        columns = []
        for node, column in zip(self._root.children, batch.root.children, strict=True):
            made = array_of(node, column, pa.string())
            if made.type != node.type:
                made = _converted(node, made, why)
            columns.append(made)
        unknown = tuple(name.decode("utf-8", "replace") for name in batch.unknown)
        return Decoded(columns, sorted(why.items()), unknown)

    def _sentence(self, problem: str, at: int, position: int) -> str:
        node = self._levels[at]
        place = f"field {node.path}" if node.path else "the value"
        return _SENTENCES[problem].format(place=place, type=node.type, position=position)


def _node(name: str, path: str, kind: pa.DataType) -> DecodedColumn:
    """The node for a type, and those for what it is made of."""
    types = pa.types
    children: list[DecodedColumn] = []
    if types.is_boolean(kind):
        core: Kind = "bool"
    elif types.is_integer(kind) and not types.is_uint64(kind):
        core = "int"
    elif types.is_floating(kind):
        core = "double"
    elif types.is_struct(kind) and kind.num_fields:
        core, children = "struct", [_node(field.name, f"{path}.{field.name}", field.type) for field in kind]
    elif types.is_map(kind) and types.is_string(kind.key_type):
        core = "map"
        children = [_node("key", path, kind.key_type), _node("value", f"{path}[]", kind.item_type)]
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        core, children = "list", [_node("item", f"{path}[]", kind.value_type)]
    elif types.is_nested(kind):
        raise ValueError(f"field {path} is of type {kind}, as which no JSON is read")
    else:
        core = "text"
    return DecodedColumn(core, name, path, kind, children)


def _converted(node: DecodedColumn, made: pa.Array, why: dict[int, str]) -> pa.Array:
    """The array in the type of the schema. Values that the type does not have become null, and their rows bad."""

    def convert(array: pa.Array) -> pa.Array:
        return texts.converted(array, node.type)

    try:
        return convert(made)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if isinstance(error, pa.ArrowNotImplementedError):
            raise ValueError(f"field {node.path} is of type {node.type}, as which no JSON is read") from None
    unfit = list(_unfit(made, convert, 0))
    for row in unfit:
        shown = str(made[row])
        shown = shown if len(shown) <= TEXT_MAX else f"{shown[:TEXT_MAX]}..."
        why.setdefault(row, f"field {node.path} is {shown!r}, which is not {node.type}")
    keep = [True] * len(made)
    for row in unfit:
        keep[row] = False
    return convert(pc.if_else(pa.array(keep), made, pa.scalar(None, made.type)))


def _unfit(array: pa.Array, convert: Callable[[pa.Array], pa.Array], start: int) -> Iterable[int]:
    """The rows that cannot be converted, found by halves."""
    try:
        convert(array)
    except pa.ArrowInvalid:
        half = len(array) // 2
        if not half:
            yield start
            return
        nested = pa.types.is_nested(array.type)  # of which a slice has all that the whole is made of
        for first, part in ((0, array[:half]), (half, array[half:])):
            compact = part.take(pa.array(range(len(part)))) if nested else part
            yield from _unfit(compact, convert, start + first)
