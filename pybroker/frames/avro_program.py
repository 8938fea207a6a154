"""Programs by which core reads the records of one schema into the columns of another, where the two are alike.

Fields go together by name. Others of the writer are passed over, others of the reader are null where that is their
default. Types are the same, or a wider number. For anything else there is no program, and fastavro reads the records.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from pybroker.avro.values import Avro, Document
from pybroker.core import AvroDecoder
from pybroker.frames.nodes import DecodedColumn, array_of, by_level
from pybroker.frames.texts import converted

if TYPE_CHECKING:
    from pybroker.core import AvroBatch
    from pybroker.core.columns.avro_columns import Code
    from pybroker.core.columns.value_columns import Kind

_KINDS: Final[dict[str, Kind]] = {
    "boolean": "bool", "int": "int", "long": "int", "float": "double", "double": "double", "bytes": "text",
    "string": "text", "fixed": "text", "enum": "text", "array": "list", "map": "map", "record": "struct",
}  # fmt: skip
_WIDER: Final = {("int", "long"), ("float", "double")}
DEPTH_MAX: Final = 30


class NoProgram(Exception):
    """Core does not read these records."""


class _Operation(NamedTuple):
    code: Code
    branch: int
    node: DecodedColumn | None
    children: list[_Operation]
    size: int = 0
    symbols: tuple[bytes, ...] = ()


class AvroProgram:
    """Reads records of a writer's schema as columns. NoProgram where it cannot."""

    def __init__(self, writer: Document, reader: Document, fields: pa.Schema) -> None:
        _check_alike(writer, reader, "record")
        wanted = {field["name"]: field for field in reader["fields"]}
        children = [_node(name, wanted[name]["type"], fields.field(name).type, 1) for name in fields.names]
        self._root = DecodedColumn("struct", "", "", pa.struct(list(fields)), children)
        operation = _Operation("record", -1, self._root, _fields(writer, list(wanted.values()), children, 1))
        nodes = by_level(self._root)
        numbers = {id(node): number for number, node in enumerate(nodes)}
        levels = [operation]
        for each in levels:  # it grows meanwhile
            levels += each.children
        try:
            self._decoder = AvroDecoder(
                [(node.kind, node.name.encode(), len(node.children)) for node in nodes],
                [(op.code, op.branch, -1 if op.node is None else numbers[id(op.node)], len(op.children), op.size,
                  op.symbols) for op in levels],
            )  # fmt: skip
        except ValueError as error:
            raise NoProgram(str(error)) from None

    def decode(self, values: pa.Array, skip: int) -> tuple[list[pa.Array], list[int]]:
        """(columns, rows that are wrong) of an array of binary values. pyarrow's errors for a number that a column
        does not have."""
        from pybroker.client.producing.column_sources import byte_column

        batch: AvroBatch = self._decoder.decode(byte_column(values), skip=skip)
        columns = [
            converted(array_of(node, column, pa.binary()), node.type, _leaf)
            for node, column in zip(self._root.children, batch.root.children, strict=True)
        ]
        return columns, batch.bad


def _leaf(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numbers as the times that they are, and bytes as the texts or decimals."""
    types = pa.types
    if types.is_null(kind):
        return pa.nulls(len(array))
    if types.is_decimal(kind):
        values = (None if each is None else int.from_bytes(each, signed=True) for each in array.to_pylist())
        return pa.array([None if each is None else Decimal(f"{each}E-{kind.scale}") for each in values], kind)
    if types.is_integer(array.type) and kind.bit_width == 32 and types.is_temporal(kind):
        return array.cast(pa.int32()).cast(kind)
    return array.cast(kind, safe=not types.is_floating(kind))


# -- two schemas together ----------------------------------------------------------------------------------------------


def _real(schema: Avro) -> tuple[Avro, int]:
    """(type, branch of null) of a type, or of a union of one with null; -1 for no union."""
    if not isinstance(schema, list):
        return schema, -1
    if len(schema) != 2 or schema.count("null") != 1:
        raise NoProgram("a union of several types")
    return schema[1 - schema.index("null")], schema.index("null")


def _code(schema: Avro) -> Code:
    code: Code = schema["type"] if isinstance(schema, dict) else schema
    if code not in _KINDS and code != "null":
        raise NoProgram(f"the type {code!r}")
    return code


def _node(name: str, schema: Avro, kind: pa.DataType, depth: int) -> DecodedColumn:
    """The column for a type of the reader."""
    real, _ = _real(schema)
    code = _code(real)
    if depth > DEPTH_MAX:
        raise NoProgram("many levels")
    children: list[DecodedColumn] = []
    if code == "array":
        children = [_node("item", real["items"], kind.value_type, depth + 1)]
    elif code == "map":
        keys = DecodedColumn("text", "key", "", kind.key_type, [])
        children = [keys, _node("value", real["values"], kind.item_type, depth + 1)]
    elif code == "record":
        children = [_node(f["name"], f["type"], kind.field(f["name"]).type, depth + 1) for f in real["fields"]]
        if not children:
            raise NoProgram("a record without fields")
    return DecodedColumn("text" if code == "null" else _KINDS[code], name, "", kind, children)


def _fields(writer: Document, reader: list[Document], nodes: list[DecodedColumn], depth: int) -> list[_Operation]:
    """The operations of a record's fields, those of the writer in its order."""
    theirs = {field["name"]: field for field in reader}
    columns = {node.name: node for node in nodes}
    made = []
    for field in writer["fields"]:
        node = columns.pop(field["name"], None)
        wanted = theirs[field["name"]]["type"] if node is not None else None
        made.append(_operation(field["type"], wanted, node, depth + 1))
    for name, node in columns.items():
        if theirs[name].get("default", "") is not None:
            raise NoProgram("a default")
        made.append(_Operation("absent", -1, node, []))
    return made


def _operation(writer: Avro, reader: Avro | None, node: DecodedColumn | None, depth: int) -> _Operation:
    """The operation that makes a value of the writer one of the reader; without a node it is passed over."""
    theirs, branch = _real(writer)
    code = _code(theirs)
    ours: Avro = theirs
    if depth > DEPTH_MAX:
        raise NoProgram("many levels")
    if node is not None:
        ours, null = _real(reader)
        if branch >= 0 and null < 0:
            raise NoProgram("a null where the reader has none")
        _check_alike(theirs, ours, code)
    size, symbols = 0, ()
    children: list[_Operation] = []
    if code == "record":
        children = _fields(theirs, ours["fields"], [] if node is None else node.children, depth)
    elif code in ("array", "map"):
        inside = "items" if code == "array" else "values"
        children = [_operation(theirs[inside], ours[inside], None if node is None else node.children[-1], depth + 1)]
    elif code == "fixed":
        size = theirs["size"]
    elif code == "enum":
        symbols = tuple(symbol.encode() for symbol in theirs["symbols"])
    return _Operation(code, branch, node, children, size, symbols)


def _check_alike(theirs: Avro, ours: Avro, code: Code) -> None:
    if code != _code(ours) and (code, _code(ours)) not in _WIDER:
        raise NoProgram("types that differ")
    for name in ("logicalType", "precision", "scale", "size", "symbols"):
        if _of(theirs, name) != _of(ours, name):
            raise NoProgram(f"types that differ by {name}")
    if code in ("record", "enum", "fixed") and theirs["name"].split(".")[-1] != ours["name"].split(".")[-1]:
        raise NoProgram("names that differ")


def _of(schema: Avro, name: str) -> Avro:
    return schema.get(name) if isinstance(schema, dict) else None
