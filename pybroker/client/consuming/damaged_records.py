"""Records that are damaged in the broker's log, and where sound ones continue."""

import contextlib

from pybroker import core, errors
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

ON_DISK = "damaged on the broker's disk"
KINDS = (errors.CORRUPT_MESSAGE, errors.INVALID_RECORD)
"""Codes of a damaged batch, for which a retry does not help."""


class DamagedRecords(KafkaError):
    """Records that cannot be read. `seek(error.partition, error.next_offset)` continues without them.

    partition: where; offset: the first that cannot be read; next_offset: the first behind the damage, which is the end
    of the log if nothing follows; None where that is not known, and a seek to offset + 1 tries the next. reason: what
    is wrong."""

    def __init__(
        self, code: int, partition: TopicPartition, offset: int, next_offset: int | None, reason: str
    ) -> None:
        self.partition, self.offset, self.next_offset, self.reason = partition, offset, next_offset, reason
        to = f"seek to offset {offset + 1 if next_offset is None else next_offset}"
        super().__init__(code, f"{partition}: {self.what} cannot be read: {reason}; {to} to go on without")

    @property
    def what(self) -> str:
        """The offsets that are lost, as text."""
        last = self.offset if self.next_offset is None else self.next_offset - 1
        return offset_range(self.offset, last)


def offset_range(first: int, last: int) -> str:
    """A range of offsets as text."""
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def sound_behind(data: memoryview, offset: int) -> tuple[int, int] | None:
    """(position, base offset) of the first sound batch after the bad one at the start of `data`, at `offset` or later;
    None without one. A batch whose offsets overlap those of the next is not sound."""
    headers = []
    with contextlib.suppress(core.LogError):
        for found in core.iter_batches(data, check_crc=False):
            headers.append(found)
    for number, (position, header) in enumerate(headers[1:], start=2):
        contradicted = any(following.base_offset <= header.last_offset for _, following in headers[number : number + 1])
        if header.last_offset >= offset and not contradicted and _is_sound(data[position : position + header.size]):
            return position, header.base_offset
    return None


def _is_sound(batch: memoryview) -> bool:
    try:
        core.check_batch(batch)
    except core.LogError:
        return False
    return True


def last_offset(data: memoryview) -> int:
    """The last offset in the header of the first batch in `data`; -1 without a batch."""
    try:
        return next((header.last_offset for _, header in core.iter_batches(data, check_crc=False)), -1)
    except core.LogError:
        return -1
