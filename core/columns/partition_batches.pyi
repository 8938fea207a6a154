"""The batches of one partition, to be read into columns or objects."""

from collections.abc import Iterable

from _typeshed import ReadableBuffer as Buffer

class PartitionBatches:
    """Record batches of one partition, as a Fetch answer or a segment has them, to be read into Columns.

    A partial last batch is left. Records before start_offset are left out, those from end_offset on are not wanted, and
    control batches are never shown. aborted: (producer_id, first_offset) of the aborted transactions, as a Fetch answer
    lists them: with it the batches is read committed. reserved: zeros where a batch would begin are the
    end, as Kafka may reserve space in the file that it writes. reached: the offset behind what was read of a segment
    before `data`; base offsets are held against it, and against next_base, where the next segment begins. alone: the
    bytes behind `data` will not be read with it, as those of a Fetch answer. A FileMap
    that becomes stale while it is read is finished there, without the rows of that read."""

    def __init__(
        self,
        data: Buffer,
        *,
        start_offset: int = 0,
        end_offset: int | None = None,
        aborted: Iterable[tuple[int, int]] | None = None,
        check_crc: bool = True,
        reserved: bool = False,
        reached: int = -1,
        next_base: int | None = None,
        alone: bool = False,
    ) -> None: ...
    @property
    def reached(self) -> int:
        """The offset behind the last batch that was passed; -1 where the batches are of no segment."""
    @property
    def zeros(self) -> bool:
        """Whether it ended at zeros where a batch would begin."""
    @property
    def next_offset(self) -> int:
        """Where to fetch next: past every batch that was read or passed over, `end_offset` at most."""
    @property
    def position(self) -> int:
        """The byte where the batch begins that is read now or next."""
    @property
    def stale(self) -> bool:
        """It ended because its file was written to while it was read, or cut, or cannot be read: from `position` and
        `next_offset` on there may be more, to be read from a copy."""
    @property
    def finished(self) -> bool:
        """No whole batch is left, or none with a wanted offset."""
