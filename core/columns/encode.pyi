"""Batches made of columns."""

from collections.abc import Callable

from _typeshed import ReadableBuffer as Buffer

from pybroker.core.batch.block import Block
from pybroker.core.batch.builder import SealedBatch
from pybroker.core.columns.source import ByteColumn, HeaderColumn

Bytes = bytes | bytearray | memoryview

class Encoder:
    """Batches of several partitions, filled from columns without the GIL.

    batch_size: bytes of a batch, uncompressed; only a record that is larger makes a larger one. records_max: records of
    a batch. attributes: the codec's number, with `compress(plain)` to apply it."""

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
        """Add the rows from `start` to `stop` (None: all); the batches that are full, their partition as tag.

        timestamps: milliseconds, one for all rows or an int64 each. partitions: an int32 each, as partitions_of makes
        them; None, and -1, is no partition: those rows fill batches of their own, tag -1. before: rows of the column
        that earlier calls had. Raises ValueError for a row that is unsound, LogError 10 for one that no batch holds:
        the rows before it are added, `finish()` has them."""
    def finish(self) -> list[SealedBatch]:
        """The batches that are not full, of each partition that has one."""

def partitions_of(keys: ByteColumn, partitions: int, *, before: int = 0) -> Block:
    """The partition of each key among so many, an int32 a row, as Java's producer finds it; -1 for a null key.

    before: as in Encoder.add."""
