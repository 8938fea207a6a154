"""Columns: records as NumPy and Arrow read them."""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from pybroker.core.batch.block import Block
from pybroker.core.columns.partition_batches import PartitionBatches

Bytes = bytes | bytearray | memoryview

COLUMNS: Final[tuple[str, ...]]
"""The names offset, timestamp, timestamp_type, key, value, headers."""

class Columns:
    """Columns that grow with every read, in Arrow's layout.

    columns: some of COLUMNS, the others cost nothing. timestamp_unit: of the timestamp column, 1 ms is 1000 us.
    decompress(codec, packed, bytes_max) returns the records of a compressed batch, at most bytes_max."""

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
        """The bytes of keys, values and headers so far."""
    def read(
        self,
        batches: PartitionBatches,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        tag: object = None,
    ) -> int:
        """Add the partition's next records, all that are left or max_records; the number added.

        It ends early, at the end of a batch, when nbytes has reached max_bytes, or before a column would exceed 2 GiB:
        `batches.finished` is then False, and take() makes room. `tag` is recorded with the rows. Raises LogError with
        the batch's offset; the rows before it are added.
        """
    def take(self) -> ColumnBatch:
        """Return the rows so far, and empty the columns."""

class Binary:
    """A column of nullable bytes: `length` rows, int32 `offsets` into `data`, one bit a row in `validity`."""

    length: Final[int]
    nulls: Final[int]
    offsets: Final[Block]  # length + 1
    data: Final[Block]
    validity: Final[Block | None]  # least significant bit first, 0 is null; None without nulls

class Headers:
    """A list of (key, value) for each row: int32 `offsets` into two columns; keys are UTF-8 as in Kafka, but not
    checked."""

    offsets: Final[Block]  # rows + 1
    key: Final[Binary]
    value: Final[Binary]

class ColumnBatch:
    """The rows returned by Columns.take(); a column that was not requested is None."""

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
