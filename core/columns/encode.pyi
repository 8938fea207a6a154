"""Encoding columns into batches."""

from collections.abc import Callable

from _typeshed import ReadableBuffer as Buffer

from pybroker.core.batch.block import Block
from pybroker.core.batch.builder import SealedBatch
from pybroker.core.columns.source import ByteColumn, HeaderColumn

Bytes = bytes | bytearray | memoryview

class Encoder:
    """Batches of several partitions, filled from columns without the GIL.

    batch_size: uncompressed bytes of a batch; only a single record that is larger exceeds it. records_max: records of a
    batch. attributes: the codec's number; `compress(plain)` applies it."""

    def __init__(
        self,
        *,
        partitions: int = 0,
        batch_size: int = 1 << 20,
        records_max: int = (1 << 31) - 1,
        attributes: int = 0,
        compress: Callable[[memoryview], Bytes] | None = None,
    ) -> None: ...
    def add(
        self,
        values: ByteColumn,
        *,
        keys: ByteColumn | None = None,
        timestamps: int | Buffer,
        headers: HeaderColumn | None = None,
        partitions: Buffer | None = None,
        start: int = 0,
        stop: int | None = None,
        before: int = 0,
    ) -> list[SealedBatch]:
        """Add the rows from `start` to `stop` (None: all); return the full batches, with the partition as tag.

        timestamps: milliseconds, one for all rows or an int64 each. partitions: an int32 each, as from partitions_of;
        None and -1 are no partition: these rows fill separate batches with tag -1. before: rows of the column in
        earlier calls, for errors. Raises ValueError for an invalid row, LogError(MESSAGE_TOO_LARGE) for one that fits
        no batch: the rows before it are added, and `finish()` returns them."""
    def finish(self) -> list[SealedBatch]:
        """Return the batches that are not full, at most one for a partition."""

def partitions_of(keys: ByteColumn, partitions: int, *, before: int = 0) -> Block:
    """The partition of each key, out of `partitions`, as an int32 for each row; the same as in Java's producer. -1 for
    null.

    before: as in Encoder.add."""
