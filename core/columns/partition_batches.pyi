"""The batches of one partition, to be read into columns or objects."""

from collections.abc import Iterable

from _typeshed import ReadableBuffer as Buffer

class PartitionBatches:
    """Record batches of one partition, from a Fetch response or a segment, to be read into Columns.

    A partial last batch is ignored. Records before start_offset, from end_offset on, and in control batches are left
    out. aborted: (producer_id, first_offset) of aborted transactions, as in a Fetch response, for read_committed.
    reserved: zeros where a batch would begin are the end, as Kafka may reserve space in the file that it writes.
    reached: the offset after the part of a segment that was read before `data`; base offsets are checked against it,
    and against next_base, the base offset of the next segment. alone: the bytes after `data` will never be read with
    it, as with a Fetch response. With a FileMap that becomes stale during a read, reading is finished without the rows
    of that read."""

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
        """The offset after the last batch passed; -1 if the batches are not from a segment."""
    @property
    def zeros(self) -> bool:
        """True if reading ended at zeros where a batch would begin."""
    @property
    def next_offset(self) -> int:
        """The next offset to fetch: after every batch that was read or skipped, at most `end_offset`."""
    @property
    def position(self) -> int:
        """The byte position of the current or next batch."""
    @property
    def stale(self) -> bool:
        """True if reading ended because the file was written during a read, truncated, or unreadable. There may be more
        from `position` and `next_offset` on, to be read from a copy."""
    @property
    def finished(self) -> bool:
        """True if no complete batch is left, or none with a requested offset."""
