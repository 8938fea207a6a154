"""The tree of columns that core decodes values into, and the Arrow arrays that come out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from pybroker.core import ValueColumn

if TYPE_CHECKING:
    from pybroker.core.columns.value_columns import Kind


class DecodedColumn(NamedTuple):
    """A column: how core has it, its name in an object, its place for a person, and the type that it gets."""

    kind: Kind
    name: str
    path: str
    type: pa.DataType
    children: list[DecodedColumn]


def by_level(root: DecodedColumn) -> list[DecodedColumn]:
    """All nodes as core numbers them: the children of each together."""
    found = [root]
    for node in found:  # it grows meanwhile
        found += node.children
    return found


def array_of(node: DecodedColumn, column: ValueColumn, text: pa.DataType) -> pa.Array:
    """The array that core decoded, in its plain type: int64, double and the like; text: that of a text column."""
    rows, validity = column.rows, pa.py_buffer(column.validity)
    inner = [array_of(child, each, text) for child, each in zip(node.children, column.children, strict=True)]
    if node.kind == "struct":
        fields = [pa.field(child.name, each.type) for child, each in zip(node.children, inner, strict=True)]
        return pa.StructArray.from_buffers(pa.struct(fields), rows, [validity], children=inner)
    data = pa.py_buffer(column.data)
    if node.kind in ("bool", "int", "double"):
        kind = {"bool": pa.bool_(), "int": pa.int64(), "double": pa.float64()}[node.kind]
        return pa.Array.from_buffers(kind, rows, [validity, data])
    offsets = pa.py_buffer(column.offsets)
    if node.kind == "text":
        return pa.Array.from_buffers(text, rows, [validity, offsets, data])
    if node.kind == "list":
        return pa.Array.from_buffers(pa.list_(inner[0].type), rows, [validity, offsets], children=inner)
    keys, items = inner
    entries = pa.StructArray.from_arrays(
        [keys, items], fields=[pa.field("key", keys.type, nullable=False), pa.field("value", items.type)]
    )
    return pa.Array.from_buffers(pa.map_(keys.type, items.type), rows, [validity, offsets], children=[entries])
