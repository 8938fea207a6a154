"""Records that a consumer cannot read, because they are damaged where the broker keeps them, and where others go on."""

import contextlib

from pybroker import core, errors
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

ON_DISK = "damaged on the broker's disk"
KINDS = (errors.CORRUPT_MESSAGE, errors.INVALID_RECORD)
"""Codes of a batch that no other try reads."""


class DamagedRecords(KafkaError):
    """Records that cannot be read. `seek(error.partition, error.next_offset)` goes on without them.

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
        """The offsets that are known to be lost."""
        last = self.offset if self.next_offset is None else self.next_offset - 1
        return offsets(self.offset, last)


def offsets(first: int, last: int) -> str:
    """A range of offsets in words."""
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def sound_behind(data: memoryview, offset: int) -> tuple[int, int] | None:
    """(position, base offset) of the sound batch that goes on behind the bad one at the start of `data`, with `offset`
    or what follows it; None if none is there. One that the next contradicts, which lies before it, is none."""
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
    """The last offset by the header of the batch that `data` begins with; -1 if there is none."""
    try:
        return next((header.last_offset for _, header in core.iter_batches(data, check_crc=False)), -1)
    except core.LogError:
        return -1
