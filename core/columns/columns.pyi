"""Columns: records as NumPy and Arrow read them."""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from pybroker.core.batch.block import Block
from pybroker.core.columns.partition_batches import PartitionBatches

Bytes = bytes | bytearray | memoryview

COLUMNS: Final[tuple[str, ...]]
"""offset, timestamp, timestamp_type, key, value, headers."""

class Columns:
    """Columns that grow with every read, in Arrow's layout.

    columns: which of COLUMNS, the others cost nothing. timestamp_unit: what one is in the column, 1000 us for 1 ms.
    decompress(codec, packed, bytes_max) makes the records of a compressed batch, at most bytes_max."""

    def __init__(
        self,
        columns: Iterable[str] = COLUMNS,
        *,
        timestamp_unit: Literal["ms", "us"] = "ms",
        decompress: Callable[[int, memoryview, int], Bytes] | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and headers so far."""
    def read(
        self,
        batches: PartitionBatches,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        tag: object = None,
    ) -> int:
        """Add the partition's next records, all that are left or max_records; how many it were.

        It ends early where nbytes has reached max_bytes, with whole batches, or a column would pass 2 GiB:
        `batches.finished` is False then, and take() makes room. `tag` is noted with the rows. Raises LogError (2, 10,
        43, 56, 76, 87) with the batch's offset; the rows before it are there.
        """
    def take(self) -> ColumnBatch:
        """The rows so far; the columns are empty after it."""

class Binary:
    """A column of bytes, nulls allowed: `length` rows, int32 `offsets` into `data`, a bit a row in `validity`."""

    length: Final[int]
    nulls: Final[int]
    offsets: Final[Block]  # length + 1
    data: Final[Block]
    validity: Final[Block | None]  # least significant bit first, 0 is null; None without nulls

class Headers:
    """A list of (key, value) a row: int32 `offsets` into two columns, the keys UTF-8 by Kafka's rule, unchecked."""

    offsets: Final[Block]  # rows + 1
    key: Final[Binary]
    value: Final[Binary]

class ColumnBatch:
    """Rows that Columns.take() gave; a column that was not asked for is None."""

    rows: Final[int]
    runs: Final[list[tuple[Any, int]]]  # (tag, rows) of each read, in order
    offset: Final[Block | None]  # int64
    timestamp: Final[Block | None]  # int64
    timestamp_unit: Final[Literal["ms", "us"]]
    timestamp_type: Final[Block | None]  # int8: 0 CreateTime, 1 LogAppendTime
    key: Final[Binary | None]
    value: Final[Binary | None]
    headers: Final[Headers | None]
    def __len__(self) -> int: ...
