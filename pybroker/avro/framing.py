"""The frame that producers with a Schema Registry write before each value.

    a value:  0 | id, 4 bytes, big endian | the datum, written by the schema of this id

A value without a frame may begin with the same bytes.
"""

from typing import Final

MAGIC: Final = 0
FRAME_BYTES: Final = 5


def frame(number: int) -> bytes:
    """Return the frame of values whose schema has this id."""
    return bytes((MAGIC,)) + number.to_bytes(FRAME_BYTES - 1)


def framed_id(value: bytes) -> int | None:
    """Return the id in a value's frame; None if the value is not framed."""
    if len(value) < FRAME_BYTES or value[0] != MAGIC:
        return None
    return int.from_bytes(value[1:FRAME_BYTES])


def unframed(value: bytes) -> bytes:
    """Return a value without its frame, if it has one."""
    return value if framed_id(value) is None else value[FRAME_BYTES:]
