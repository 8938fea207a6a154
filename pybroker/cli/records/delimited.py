"""Records as delimited text, in the format of Kafka's console tools; bytes pass unchanged.

    [header:value,header:value TAB] [key SEPARATOR] value DELIMITER

Nothing is quoted: only `--json` represents content that holds a separator (see `jsonlines`).
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from pybroker.cli.main import Failure

if TYPE_CHECKING:
    from pybroker.client.consuming.consumer import Record

HEADERS_END: Final = b"\t"
HEADER_SEPARATOR: Final = b","
HEADER_NAME_END: Final = b":"
NO_HEADERS: Final = b"NO_HEADERS"
RECORD_BYTES_MAX: Final = 64 << 20
"""The limit for a record read from a pipe, before the broker's limit is known."""

_CHUNK_BYTES: Final = 1 << 16
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}
_SHOWN: Final = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}


class Outgoing(NamedTuple):
    """A record to produce; the producer chooses the fields that are None."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


class Notation(NamedTuple):
    """The format of a record: the key, if any, before its separator; headers, if any, before everything."""

    delimiter: bytes
    key_separator: bytes | None
    headers: bool
    null: bytes | None


def unescaped(text: bytes) -> bytes:
    r"""Return the bytes of `text` with \n, \t, \r, \0, \\ and \xNN replaced. ValueError for another escape."""

    def plain(found: re.Match[bytes]) -> bytes:
        if found[1]:
            return bytes.fromhex(found[1].decode())
        if found[2] not in _ESCAPED:
            raise ValueError(r"the escapes are \n, \t, \r, \0, \\ and \xNN")
        return _ESCAPED[found[2]]

    return _ESCAPE.sub(plain, text)


# -- reading ----------------------------------------------------------------------------------------------------------


def split(stream: BinaryIO, delimiter: bytes) -> Iterator[bytes]:
    """Yield the text between delimiters as soon as it is complete; with an empty delimiter all input is one record.
    Text after the last delimiter is a record unless it is empty. Failure for one longer than RECORD_BYTES_MAX."""
    rest = bytearray()
    number = 1
    read = getattr(stream, "read1", stream.read)
    while chunk := read(_CHUNK_BYTES):
        searched = max(0, len(rest) - len(delimiter) + 1)
        rest += chunk
        if delimiter and rest.find(delimiter, searched) >= 0:
            *whole, last = bytes(rest).split(delimiter)
            yield from whole
            number += len(whole)
            rest = bytearray(last)
        if len(rest) > RECORD_BYTES_MAX:
            raise Failure(f"record {number} of the input is longer than {RECORD_BYTES_MAX} bytes")
    if rest:
        yield bytes(rest)


def parse(line: bytes, notation: Notation) -> Outgoing:
    """Parse a line. ValueError if a part is missing."""
    headers: Sequence[tuple[str, bytes | None]] = ()
    if notation.headers:
        head, end, line = line.partition(HEADERS_END)
        if not end:
            raise ValueError("has no tab that ends its headers")
        headers = () if head in (b"", NO_HEADERS) else [_header(pair, notation.null) for pair in head.split(b",")]
    key = None
    if notation.key_separator is not None:
        name, end, line = line.partition(notation.key_separator)
        if not end:
            raise ValueError(f"has no {notation.key_separator!r} after its key".replace(" b'", " '"))
        key = _or_null(name, notation.null)
    return Outgoing(key, _or_null(line, notation.null), headers)


def _header(pair: bytes, null: bytes | None) -> tuple[str, bytes | None]:
    name, end, value = pair.partition(HEADER_NAME_END)
    if not end:
        raise ValueError(f"has a header without a colon: {pair[:40]!r}")
    return name.decode("utf-8", "surrogateescape"), _or_null(value, null)


def _or_null(data: bytes, null: bytes | None) -> bytes | None:
    return None if null is not None and data == null else data


# -- writing ----------------------------------------------------------------------------------------------------------


def show(record: "Record", notation: Notation) -> bytes:
    """Return a record as a line with its delimiter."""
    null = notation.null if notation.null is not None else b""
    line = null if record.value is None else record.value
    if notation.key_separator is not None:
        line = (null if record.key is None else record.key) + notation.key_separator + line
    if notation.headers:
        pairs = [
            name.encode("utf-8", "surrogateescape") + HEADER_NAME_END + (null if data is None else data)
            for name, data in record.headers
        ]
        line = (HEADER_SEPARATOR.join(pairs) or NO_HEADERS) + HEADERS_END + line
    return bytes(line) + notation.delimiter


def harmless(line: bytes) -> bytes:
    """Return a line with control characters escaped, for a terminal."""
    return line.decode(errors="backslashreplace").translate(_SHOWN).encode()
