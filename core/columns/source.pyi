"""Columns of bytes to encode."""

from collections.abc import Iterable
from typing import Final

from _typeshed import ReadableBuffer as Buffer

class ByteColumn:
    """A column of nullable bytes to encode; it holds its buffers."""

    def __len__(self) -> int: ...
    @staticmethod
    def of_offsets(
        data: Buffer,
        offsets: Buffer,
        *,
        validity: Buffer | None = None,
        start: int = 0,
        length: int | None = None,
        large: bool = False,
    ) -> ByteColumn:
        """Arrow's layout: row i is data[offsets[i]:offsets[i + 1]], offsets int32, or int64 if `large`.

        validity: one bit a row, None for no nulls. The column is `length` rows from row `start` on, None for all.
        Raises ValueError for buffers that are too short; offsets outside the data are found when they are used."""
    @staticmethod
    def of_fixed(data: Buffer, width: int, *, strip: bool = False) -> ByteColumn:
        """Fields of `width` bytes one after another; strip: without the zeros at their ends, as NumPy reads type S."""
    @staticmethod
    def of_list(fields: Iterable[bytes | None]) -> ByteColumn:
        """A column of Python bytes and None. Raises TypeError for any other element."""

class HeaderColumn:
    """A list of (key, value) for each row, in Arrow's layout: int32 `offsets` into two columns; a null list is
    empty."""

    keys: Final[ByteColumn]
    values: Final[ByteColumn]
    def __init__(
        self,
        offsets: Buffer,
        keys: ByteColumn,
        values: ByteColumn,
        *,
        validity: Buffer | None = None,
        start: int = 0,
        length: int | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
