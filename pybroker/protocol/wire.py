"""Formats, limits, varints and errors for the compiled readers and writers."""

from struct import Struct
from typing import Final, NoReturn

from pybroker.errors import INVALID_REQUEST, KafkaError

FORMATS: Final = {"bool": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "f64": "d", "uuid": "16s"}
"""The struct format of each fixed-size type; all are big-endian."""

SIZES: Final = {type_: Struct(f">{format_}").size for type_, format_ in FORMATS.items()}

ELEMENTS_MAX: Final = 1 << 18
"""Structs, strings and tags allowed in one message; arrays are counted before they are read. An element of two bytes
takes 200 bytes of memory and a microsecond, so limiting the size of a frame is not enough: this many take 50 MiB and
half a second. Kafka's largest clusters have 200,000 partitions."""

NUMBERS_IN_ELEMENT: Final = 8
"""Numbers in an array, such as replicas, that count as one element. In a client's request each number counts, as each
may be a partition that is answered with a struct."""

BESIDE_MAX: Final = 20_000
"""Elements in a nested array that is not cut, such as assignments or configs of a topic, and is executed at once."""

STRING_MAX: Final = 0x7FFF
"""Bytes in a string: the most that the i16 size of non-compact strings allows; Kafka limits compact ones too."""


class ProtocolError(KafkaError):
    """Malformed bytes; the only error that decoding untrusted bytes raises."""

    def __init__(self, message: str) -> None:
        super().__init__(INVALID_REQUEST, message)


class TooMany(ProtocolError):
    """Raised for a message that may be well-formed, but has more elements than its reader accepts."""


class EncodeError(ValueError):
    """A message cannot be encoded at this version; the text names the field, its value, and what is allowed."""


def refuse(what: str) -> NoReturn:
    raise ProtocolError(what)


def refuse_many(where: str, most: int, within: str = "message") -> NoReturn:
    raise TooMany(f"{where}: more than {most} elements in one {within}")


def uvarint(data: bytes | memoryview, position: int, first: int) -> tuple[int, int]:
    """Return (value, end) of an unsigned varint whose first byte was read and whose rest is at `position`; at most 32
    bits."""
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
"""Unknown tagged fields that are skipped in one section. Kafka's messages have one or two; without a limit half a
megabyte of them, from a client without a login, would block all others."""


def skip_tags(data: bytes | memoryview, position: int, end: int, count: int) -> int:
    """Skip a section of `count` unknown tagged fields, and return its end. Raises ProtocolError."""
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
            raise ProtocolError("a tagged field exceeds the message")
    return position


_SINGLE: Final = [bytes([value]) for value in range(0x80)]


def put_uvarint(value: int) -> bytes:
    """Encode an unsigned varint: groups of seven bits, the lowest first."""
    if value < 0x80:
        return _SINGLE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
