"""Columns as NumPy arrays over the memory that they were read into: nothing is copied."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pybroker.client import html_tables
from pybroker.core import Binary, ColumnBatch, Headers
from pybroker.model import TopicPartition


class ByteArray:
    """A column of bytes: row i is `data[offsets[i]:offsets[i + 1]]`, and null where `valid` is False."""

    def __init__(self, column: Binary) -> None:
        self.offsets: NDArray[np.int32] = _array(column.offsets, np.int32, column.length + 1)
        self.data: NDArray[np.uint8] = _array(column.data, np.uint8, len(column.data))
        self.valid: NDArray[np.bool_] | None = None
        if column.validity is not None:
            bits = _array(column.validity, np.uint8, (column.length + 7) // 8)
            self.valid = np.unpackbits(bits, count=column.length, bitorder="little").astype(np.bool_)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        shown = [_shown(self[row]) for row in range(min(len(self), _SHOWN_ROWS))]
        more = ["..."] if len(self) > _SHOWN_ROWS else []
        size = int(self.offsets[-1] - self.offsets[0])
        nulls = "" if self.valid is None else f", {len(self) - int(self.valid.sum())} null"
        return f"<ByteArray of {len(self)} rows{nulls}, {size} bytes: [{', '.join(shown + more)}]>"

    def __getitem__(self, row: int) -> bytes | None:
        size = len(self)
        if not -size <= row < size:
            raise IndexError(f"row {row} of {size}")
        row %= size
        if self.valid is not None and not self.valid[row]:
            return None
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def __iter__(self) -> Iterator[bytes | None]:
        return (self[row] for row in range(len(self)))

    def fixed(self) -> NDArray[np.uint8]:
        """Rows that all have the same size, as a matrix of bytes, which `.view(dtype)` reads as numbers or records.

        Raises ValueError where sizes differ, or a row is null."""
        sizes = np.diff(self.offsets)
        if self.valid is not None or (len(sizes) and (sizes != sizes[0]).any()):
            raise ValueError("the rows are not all of one size")
        return self.data[: self.offsets[-1]].reshape(len(self), int(sizes[0]) if len(sizes) else 0)


_SHOWN_ROWS: Final = 4
_SHOWN_BYTES: Final = 24


def _shown(value: bytes | None) -> str:
    if value is None or len(value) <= _SHOWN_BYTES:
        return repr(value)
    return f"{value[:_SHOWN_BYTES]!r}..."


class HeaderArrays(NamedTuple):
    """The headers of row i are `key` and `value` from `offsets[i]` to `offsets[i + 1]`."""

    offsets: NDArray[np.int32]
    key: ByteArray
    value: ByteArray


class RecordArrays(NamedTuple):
    """Records as columns of one length; a column that was not requested is None."""

    runs: list[tuple[TopicPartition, int]]
    """(partition, rows) of each run of rows, in order."""
    offset: NDArray[np.int64] | None
    timestamp: NDArray[np.datetime64] | None
    timestamp_type: NDArray[np.int8] | None
    key: ByteArray | None
    value: ByteArray | None
    headers: HeaderArrays | None

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.runs)

    def __repr__(self) -> str:
        named = [name for name in self._fields[1:] if getattr(self, name) is not None]
        where = ", ".join(f"{rows} of {tp}" for tp, rows in self.runs[:_SHOWN_ROWS])
        more = ", ..." if len(self.runs) > _SHOWN_ROWS else ""
        return f"<RecordArrays of {self.rows} rows ({where or 'no partition'}{more}): {', '.join(named)}>"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        named = [name for name in self._fields[1:] if name != "headers" and getattr(self, name) is not None]
        count = min(self.rows, html_tables.ROWS_SHOWN)
        origins = [tp for tp, rows in self.runs for _ in range(min(rows, count))]
        rows = [(*origins[row], *(getattr(self, name)[row] for name in named)) for row in range(count)]
        return html_tables.table(f"{self.rows} records", ["topic", "partition", *named], rows, self.rows)


def record_arrays(batch: ColumnBatch) -> RecordArrays:
    """The columns of a batch whose tags are partitions."""
    rows = batch.rows
    return RecordArrays(
        batch.runs,
        None if batch.offset is None else _array(batch.offset, np.int64, rows),
        None if batch.timestamp is None else _array(batch.timestamp, f"datetime64[{batch.timestamp_unit}]", rows),
        None if batch.timestamp_type is None else _array(batch.timestamp_type, np.int8, rows),
        None if batch.key is None else ByteArray(batch.key),
        None if batch.value is None else ByteArray(batch.value),
        None if batch.headers is None else _headers(batch.headers, rows),
    )


def _headers(headers: Headers, rows: int) -> HeaderArrays:
    return HeaderArrays(_array(headers.offsets, np.int32, rows + 1), ByteArray(headers.key), ByteArray(headers.value))


def _array(block: Any, dtype: Any, count: int) -> NDArray[Any]:
    return np.frombuffer(block, dtype, count) if count else np.empty(0, dtype)
