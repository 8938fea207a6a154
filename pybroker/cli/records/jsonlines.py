"""Records as JSON Lines: `consume --json` writes and `produce --json` reads them, without loss.

    {"topic": "t", "partition": 0, "offset": 7, "timestamp": 1700000000000, "timestamp_type": "CreateTime",
     "key": null, "value": "text", "headers": [["name", {"base64": "AAH/"}]]}

Bytes that are UTF-8 become text, others {"base64": ...}; null is null. When reading, only `value` is required, and
`topic`, `offset` and `timestamp_type`, which describe where the record came from, are ignored.
"""

import base64
import json
from typing import TYPE_CHECKING, Final

from pybroker.cli.output import readable
from pybroker.cli.records.delimited import Outgoing

if TYPE_CHECKING:
    from pybroker.client.consuming.consumer import Record

TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
_KNOWN: Final = frozenset(("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"))
_INT_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1


def show(record: "Record") -> bytes:
    """Return a record as a line."""
    document = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms if record.timestamp_ms >= 0 else None,
        "timestamp_type": TIMESTAMP_TYPES[record.timestamp_type],
        "key": _shown(record.key),
        "value": _shown(record.value),
        "headers": [[_shown(_name(name)), _shown(value)] for name, value in record.headers],
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _name(text: str) -> bytes:
    """Return the bytes of a header's name, whose bytes outside UTF-8 clients keep as surrogates."""
    return text.encode("utf-8", "surrogateescape")


def _shown(data: bytes | None) -> str | dict[str, str] | None:
    return None if data is None else readable(data)


def parse(line: bytes) -> Outgoing:
    """Parse a line. ValueError, with words that follow "line 7", if it is not a record."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(document, dict) or "value" not in document:
        raise ValueError('is not a JSON object with a "value"')
    unknown = sorted(document.keys() - _KNOWN)
    if unknown:
        raise ValueError(f"has an unknown field {unknown[0]!r}; the fields are {', '.join(sorted(_KNOWN))}")
    headers = document.get("headers")
    if headers is None:
        headers = []
    if not isinstance(headers, list) or not all(
        isinstance(h, list) and len(h) == 2 and h[0] is not None for h in headers
    ):
        raise ValueError('has "headers" that are not a list of [name, value]')
    return Outgoing(
        _bytes("key", document.get("key")),
        _bytes("value", document["value"]),
        [_header(name, value) for name, value in headers],
        _number("timestamp", document.get("timestamp"), _LONG_MAX),
        _number("partition", document.get("partition"), _INT_MAX),
    )


def _header(name: object, value: object) -> tuple[str, bytes | None]:
    return (_bytes("header's name", name) or b"").decode("utf-8", "surrogateescape"), _bytes("header", value)


def _bytes(what: str, shown: object) -> bytes | None:
    try:
        if shown is None:
            return None
        if isinstance(shown, str):
            return shown.encode()
        if isinstance(shown, dict) and shown.keys() == {"base64"}:
            return base64.b64decode(shown["base64"], validate=True)
    except (ValueError, TypeError):
        pass
    raise ValueError(f'has a {what} that is not text, null or {{"base64": ...}}')


def _number(what: str, value: object, largest: int) -> int | None:
    if value is None or (type(value) is int and 0 <= value <= largest):
        return value
    raise ValueError(f'has a "{what}" that is not a number from 0 to {largest}')
