"""Avro records as typed columns."""

from collections.abc import Iterable
from typing import Final, Literal

from pybroker.core.columns.source import ByteColumn
from pybroker.core.columns.value_columns import Kind, ValueColumn

Code = Literal[
    "absent", "null", "boolean", "int", "long", "float", "double", "bytes", "string", "fixed", "enum", "array", "map",
    "record",
]  # fmt: skip
Operation = tuple[Code, int, int, int, int, tuple[bytes, ...]]
"""(code, null branch, node, number of children, size, symbols): how a value is written. null branch: 0 or 1 of a union
with null, -1 for none. node: where it goes, -1 passes over it. size: of a fixed. symbols: of an enum."""

class AvroBatch:
    """The result of AvroDecoder.decode()."""

    root: Final[ValueColumn]
    """A struct, with a row for each value."""
    bad: Final[list[int]]
    """The rows of values that are not records of the schema."""

class AvroDecoder:
    """Decodes values that are Avro records, without the GIL; any threads may do so at once.

    nodes: as of JsonDecoder; a map's keys have no operation. operations: level by level, the root first, those of a
    record in its writer's order; `absent` makes a field null that the writer does not have. Raises ValueError for
    operations that do not fill the nodes, and for an array whose items take no bytes."""

    def __init__(self, nodes: Iterable[tuple[Kind, bytes, int]], operations: Iterable[Operation]) -> None: ...
    def decode(self, values: ByteColumn, *, skip: int = 0) -> AvroBatch:
        """A row for each value: its fields; all nulls where it is null, empty or bad. skip: bytes before each record.

        Raises ValueError where the column's offsets leave its data."""
