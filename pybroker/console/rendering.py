"""Records as text for a page: what is shown is bounded, and never more than text."""

import json
from html import escape
from typing import Final, NamedTuple

from pybroker.client.consuming.consumer import Record
from pybroker.console.avro_view import AvroView
from pybroker.logs import printable

FORMATS: Final = ("text", "json", "hex")
AVRO: Final = "avro"
"""The format that a console with a schema registry has beside these."""
VALUES_MAX: Final = 120_000
"""Characters of HTML that the values of one page have together."""
KEY_MAX: Final = 500
HEADERS_MAX: Final = 1000
JSON_BYTES_MAX: Final = 64 << 10
HEX_LINE: Final = 16


class ShownBytes(NamedTuple):
    """A key or a value as text; `note` says what is not shown, or why not as asked."""

    text: str
    note: str = ""


class ShownRecord(NamedTuple):
    """A record for a page."""

    partition: int
    offset: int
    timestamp_ms: int
    key: ShownBytes
    value: ShownBytes
    headers: tuple[tuple[str, str], ...]
    headers_note: str


class RecordView(NamedTuple):
    """The formats in which a viewer wants values and keys, with the schemas for Avro."""

    value_as: str
    key_as: str
    avro: AvroView | None = None


def shown_record(record: Record, view: RecordView, most: int) -> ShownRecord:
    """Return a record as text, with a value of `most` characters of HTML at most."""
    headers, left = [], HEADERS_MAX
    for name, value in record.headers:
        pair = (_cut(printable(name), left // 2), shown_bytes(value, "text", left // 2).text)
        left -= sum(len(escape(text)) for text in pair) + 20
        if left <= 0:
            break
        headers.append(pair)
    hidden = len(record.headers) - len(headers)
    return ShownRecord(
        record.partition, record.offset, record.timestamp_ms,
        shown_bytes(record.key, view.key_as, KEY_MAX, view.avro),
        shown_bytes(record.value, view.value_as, most, view.avro),
        tuple(headers), f"{hidden:,} more" if hidden else "",
    )  # fmt: skip


def shown_bytes(data: bytes | None, how: str, most: int, avro: AvroView | None = None) -> ShownBytes:
    """Return bytes as text of `most` characters of HTML at most."""
    if data is None:
        return ShownBytes("", "null")
    if how == "hex":
        return _with_note(_hex(data[: most // 4]), data, most)
    if how in ("json", AVRO) and len(data) <= JSON_BYTES_MAX:
        try:
            if how == AVRO and avro is not None:
                return _with_note(_lines(avro.json(data)), data, most)
            return _with_note(_lines(json.dumps(json.loads(data), indent=2, ensure_ascii=False)), data, most)
        except (ValueError, RecursionError) as error:
            shown = shown_bytes(data, "text", most)
            why = str(error) if how == AVRO else "not JSON"
            return shown._replace(note=", ".join(filter(None, (why, shown.note))))
    head = data[:most]
    try:
        text, note = head.decode(), ""
    except UnicodeDecodeError as error:
        is_cut = len(head) < len(data) and error.end >= len(head) - 3 and error.reason == "unexpected end of data"
        text, note = head.decode(errors="ignore" if is_cut else "backslashreplace"), "" if is_cut else "not UTF-8"
    shown = _with_note(_lines(text), data, most)
    return shown._replace(note=", ".join(filter(None, (note, shown.note))))


def _with_note(text: str, data: bytes, most: int) -> ShownBytes:
    cut = _cut(text, most)
    is_whole = len(cut) == len(text) and len(data) <= most
    return ShownBytes(cut, "" if is_whole else f"the beginning of {len(data):,} bytes")


def _cut(text: str, most: int) -> str:
    """Return a text cut to so many characters of HTML at most."""
    text = text[: max(0, most)]
    while text and len(escape(text)) > most:
        text = text[: len(text) * 3 // 4]
    return text


def _lines(text: str) -> str:
    """Return a text with its line ends, and other control characters escaped."""
    return "\n".join(map(printable, text.split("\n")))


def _hex(data: bytes) -> str:
    rows = []
    for at in range(0, len(data), HEX_LINE):
        row = data[at : at + HEX_LINE]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:08x}  {row.hex(' '):<{3 * HEX_LINE}} {plain}")
    return "\n".join(rows)
