"""Filters of records: by text of the value or key, by a JSON path, by a header."""

import json
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from pybroker.client.consuming.consumer import Record

JSON_BYTES_MAX: Final = 1 << 20
"""The largest value that is read as JSON."""
WORDS_MAX: Final = 500
_STEP: Final = re.compile(r"\.?([^.\[\]=\s]+)|\[(\d{1,9})\]")
PATH_HELP: Final = "order.items[0].sku=A1, or only order.items[0].sku for records that have it"


class RecordFilter(NamedTuple):
    """The conditions that a record must meet, all of them. Empty text and an empty path are no condition; texts match
    in either case of ASCII letters."""

    text: str = ""
    key: str = ""
    path: Sequence[str | int] = ()
    wanted: str | None = None
    """The value at the path, as JSON or plain text; None if any will do."""
    header: str = ""
    header_value: str | None = None

    @classmethod
    def of(cls, text: str, key: str, path: str, header: str) -> "RecordFilter":
        """Return a filter as typed. ValueError if the path is none."""
        for words in (text, key, path, header):
            if len(words) > WORDS_MAX:
                raise ValueError(f"a filter has {WORDS_MAX} characters at most, not {len(words):,}")
        name, equals, value = header.partition("=")
        where, is_compared, wanted = path.partition("=")
        return cls(
            text, key, parse_path(where.strip()), wanted.strip() if is_compared else None, name.strip(),
            value.strip() if equals else None,
        )  # fmt: skip

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.key or self.path or self.header)

    def matches(self, record: Record) -> bool:
        """True if a record meets all conditions."""
        return (
            _contains(record.value, self.text)
            and _contains(record.key, self.key)
            and (not self.header or any(self._is_header(name, value) for name, value in record.headers))
            and (not self.path or self._is_at_path(record.value))
        )

    def _is_header(self, name: str, value: bytes | None) -> bool:
        return name == self.header and (self.header_value is None or (value or b"") == self.header_value.encode())

    def _is_at_path(self, value: bytes | None) -> bool:
        if value is None or len(value) > JSON_BYTES_MAX:
            return False
        try:
            found: object = json.loads(value)
        except (ValueError, RecursionError):
            return False
        for step in self.path:
            if isinstance(found, dict) and str(step) in found:
                found = found[str(step)]
            elif isinstance(found, list) and isinstance(step, int) and step < len(found):
                found = found[step]
            else:
                return False
        return self.wanted is None or self.wanted == (found if isinstance(found, str) else json.dumps(found))


def parse_path(text: str) -> Sequence[str | int]:
    """Return the steps of a path: names, and places in lists. ValueError if it is none."""
    rest, steps = text.removeprefix("$"), list[str | int]()
    while rest:
        found = _STEP.match(rest)
        if found is None:
            raise ValueError(f"{text!r} is not a path: write {PATH_HELP}")
        steps.append(int(found[2]) if found[2] else found[1])
        rest = rest[found.end() :]
    return tuple(steps)


def _contains(data: bytes | None, text: str) -> bool:
    return not text or (data is not None and text.encode(errors="replace").lower() in data.lower())
