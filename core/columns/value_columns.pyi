"""Columns of decoded values."""

from typing import Final, Literal

from pybroker.core.batch.block import Block

Kind = Literal["bool", "int", "double", "text", "struct", "list", "map"]

class ValueColumn:
    """A node's rows in Arrow's layout: a bit a row in `validity`; `offsets`, int32, of text, lists and maps; `data` a
    bit a row of bool, 8 bytes of int and double, the bytes of text. Blocks of another kind's are empty."""

    kind: Final[Kind]
    rows: Final[int]
    validity: Final[Block]
    offsets: Final[Block]
    data: Final[Block]
    children: Final[list[ValueColumn]]
