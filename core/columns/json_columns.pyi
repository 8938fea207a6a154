"""JSON values as typed columns."""

from collections.abc import Iterable
from typing import Final

from pybroker.core.columns.source import ByteColumn
from pybroker.core.columns.value_columns import Kind, ValueColumn

class JsonBatch:
    """The result of JsonDecoder.decode()."""

    root: Final[ValueColumn]
    """A struct, with a row for each value."""
    bad: Final[list[tuple[int, str, int, int]]]
    """(row, problem, node, position) of values that are wrong. problem: syntax, kind, range, twice, utf8, deep, more or
    no object. node: whose value it was, 0 for the text as a whole. position: in the value, in bytes."""
    unknown: Final[list[bytes]]
    """Names of fields that no node is for, as they stand in the JSON; the first 16."""

class JsonDecoder:
    """Decodes values that are JSON objects, without the GIL; any threads may do so at once.

    nodes: (kind, name, number of children) of each node of a tree, level by level, the root first: a struct. A list has
    one child, a map two: text keys and values. `text` takes any value: a string as what it means, anything else as the
    JSON that it is. Raises ValueError for nodes that are no such tree, or have more than 32 levels."""

    def __init__(self, nodes: Iterable[tuple[Kind, bytes, int]]) -> None: ...
    def decode(self, values: ByteColumn) -> JsonBatch:
        """A row for each value: its fields, nulls for those it does not have; all nulls where it is null, empty or bad.

        A schema registry's frame before the object (a 0 and four bytes) is skipped. Raises ValueError where the
        column's offsets leave its data."""
