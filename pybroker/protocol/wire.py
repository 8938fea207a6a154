"""What the compiled readers and writers share: formats, limits, varints, and the one error of malformed bytes."""

from struct import Struct
from typing import Final, NoReturn

from pybroker.errors import INVALID_REQUEST, KafkaError

FORMATS: Final = {"bool": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "f64": "d", "uuid": "16s"}
"""The struct format of each type of a fixed size, all big-endian."""

SIZES: Final = {type_: Struct(f">{format_}").size for type_, format_ in FORMATS.items()}

ELEMENTS_MAX: Final = 1 << 18
"""Structs, strings and tags that one message may hold, arrays counted before they are read. An element of two bytes
costs two hundred in memory and a microsecond, so that the size of a frame alone does not bound what it takes of us:
this many take 50 MiB and half a second. A cluster of Kafka's largest size has 200,000 partitions to tell."""

NUMBERS_IN_ELEMENT: Final = 8
"""So many numbers in an array count as one element, as replicas of partitions do; in a request, each by itself: what
is asked of a partition is answered with a struct."""

BESIDE_MAX: Final = 20_000
"""Elements in an array that is not cut, of an element that is: assignments or configs of a topic. They are executed at
once."""

STRING_MAX: Final = 0x7FFF
"""Bytes in a string: what the i16 before one that is not compact can tell; Kafka holds compact ones to the same."""


class ProtocolError(KafkaError):
    """Bytes that are no message of their kind; the only thing that reading untrusted bytes raises."""

    def __init__(self, message: str) -> None:
        super().__init__(INVALID_REQUEST, message)


class TooMany(ProtocolError):
    """Raised for a message that may be well-formed, but has more elements than its reader accepts."""


class EncodeError(ValueError):
    """A message that cannot be written at its version: which field, its value, and what the field takes."""


def refuse(what: str) -> NoReturn:
    raise ProtocolError(what)


def refuse_many(where: str, most: int, within: str = "message") -> NoReturn:
    raise TooMany(f"{where}: more than {most} elements in one {within}")


def uvarint(data: bytes | memoryview, position: int, first: int) -> tuple[int, int]:
    """(value, end) of an unsigned varint whose first byte, already read, goes on at `position`; 32 bits at most."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise ProtocolError("a varint has more than 32 bits")


TAGS_MAX: Final = 1000
"""So many tagged fields that nobody knows are passed over, in one section. Kafka's messages have one or two; half a
megabyte of them, from somebody who is not logged in, would hold up all others for as long as they take."""


def skip_tags(data: bytes | memoryview, position: int, end: int, count: int) -> int:
    """The end of a section of `count` tagged fields that this version does not know. Raises ProtocolError."""
    if count > TAGS_MAX:
        raise ProtocolError(f"{count} unknown tagged fields are more than {TAGS_MAX}")
    for _ in range(count):
        for _ in range(2):  # the tag, then its size
            value = data[position]
            position += 1
            if value > 0x7F:
                value, position = uvarint(data, position, value)
        position += value
        if position > end:
            raise ProtocolError("a tagged field goes past the end")
    return position


_SINGLE: Final = [bytes([value]) for value in range(0x80)]


def put_uvarint(value: int) -> bytes:
    """An unsigned varint: groups of seven bits, the lowest first."""
    if value < 0x80:
        return _SINGLE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
