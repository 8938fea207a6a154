"""Columns of bytes to be written."""

from collections.abc import Iterable
from typing import Final

from _typeshed import ReadableBuffer as Buffer

class ByteColumn:
    """A column of bytes to be written, nulls allowed; it holds the buffers that it reads."""

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

        validity: a bit a row, None for no nulls. The column is `length` rows from row `start` on, None for all. Raises
        ValueError for buffers that are too short; offsets that leave the data are met when they are used."""
    @staticmethod
    def of_fixed(data: Buffer, width: int, *, strip: bool = False) -> ByteColumn:
        """Fields of `width` bytes one after another; strip: without the zeros at their ends, as NumPy reads its S."""
    @staticmethod
    def of_list(fields: Iterable[bytes | None]) -> ByteColumn:
        """Python's bytes and None. Raises TypeError for anything else among them."""

class HeaderColumn:
    """A list of (key, value) a row in Arrow's layout: int32 `offsets` into two columns; a null list is empty."""

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
