r"""Records formatted as `%t %p %o %k %s\n`, with the letters of kcat.

Null is written as --null-value. A format's literal text may hold the escapes of `delimited`.
"""

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pybroker.cli.records.delimited import unescaped

if TYPE_CHECKING:
    from pybroker.client.consuming.consumer import Record

Show = Callable[["Record", bytes], bytes]
"""Return a part of a record as bytes, given the text for null."""


def _or(data: bytes | None, null: bytes) -> bytes:
    return null if data is None else data


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: "Record", null: bytes) -> bytes:
    pairs = (name.encode("utf-8", "surrogateescape") + b"=" + _or(value, null) for name, value in record.headers)
    return b",".join(pairs)


LETTERS: Final[dict[str, Show]] = {
    "t": lambda record, _: record.topic.encode(),
    "p": lambda record, _: b"%d" % record.partition,
    "o": lambda record, _: b"%d" % record.offset,
    "T": lambda record, _: b"%d" % record.timestamp_ms,
    "k": lambda record, null: _or(record.key, null),
    "s": lambda record, null: _or(record.value, null),
    "h": _headers,
    "K": lambda record, _: b"%d" % _length(record.key),
    "S": lambda record, _: b"%d" % _length(record.value),
    "R": lambda record, _: _length(record.value).to_bytes(4, signed=True),
    "%": lambda _, __: b"%",
}
_PART: Final = re.compile(r"%(.?)", re.DOTALL)


def compiled(text: str, delimiter: bytes) -> Show:
    """Compile a format, with the delimiter appended unless the format ends with it. ValueError for an unknown letter or
    escape."""
    literals_and_letters = _PART.split(text)
    parts: list[bytes | Show] = []
    for at, piece in enumerate(literals_and_letters):
        if at % 2 == 0:
            parts.append(unescaped(os.fsencode(piece)))
        elif piece in LETTERS:
            parts.append(LETTERS[piece])
        else:
            letters = " ".join(f"%{letter}" for letter in LETTERS)
            raise ValueError(f"%{piece} is not a format letter: the letters are {letters}")
    last = parts[-1]
    assert isinstance(last, bytes)
    if not (delimiter and last.endswith(delimiter)):
        parts.append(delimiter)

    def show(record: "Record", null: bytes) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record, null) for part in parts)

    return show
