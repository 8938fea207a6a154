"""Records that do not decode: a table of them, and what becomes of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Final, Literal

import pyarrow as pa

OnError = Literal["raise", "warn", "return"] | Callable[[pa.Table], object]
"""raise: BadRecords once all is read. warn: a warning with the count. return: a second table. A function is called with
a table of those of each batch that has some."""

ERRORS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("error", pa.string()),
    ]
)
KEPT_MAX: Final = 10_000
"""Of a scan, whose batches are not kept either."""


class BadRecords(ValueError):
    """Records that do not decode as the caller asked: `errors` has them, `count` says how many there are.

    table: the rows that did, of read_topic; None after a scan, which has returned them before."""

    def __init__(self, errors: pa.Table, count: int, table: pa.Table | None = None) -> None:
        super().__init__(_words(errors, count))
        self.errors = errors
        self.count = count
        self.table = table

    def __reduce__(self) -> tuple[type[BadRecords], tuple[pa.Table, int, pa.Table | None]]:
        return type(self), (self.errors, self.count, self.table)


class BadRecordsWarning(UserWarning):
    """Records that do not decode were left out, or fields that no column is for."""


def _words(errors: pa.Table, count: int) -> str:
    first = errors.slice(0, 1).to_pylist()[0]
    place = f"{first['topic']}-{first['partition']}, offset {first['offset']}"
    records = "1 record does not decode:" if count == 1 else f"{count:,} records do not decode, the first at"
    return f"{records} {place}: {first['error']}"


class Collected:
    """The errors of one pass, dealt with as the caller asked."""

    def __init__(self, on_error: OnError, kept_max: int | None = None) -> None:
        if not callable(on_error) and on_error not in ("raise", "warn", "return"):
            raise ValueError(f"on_error is {on_error!r}: expected is raise, warn, return or a function of a table")
        self.on_error = on_error
        self.count = 0
        self.table = ERRORS.empty_table()
        self._kept_max = kept_max

    def add(self, errors: pa.RecordBatch | None) -> None:
        """Take the errors of a batch, if it has some."""
        if errors is None or not errors.num_rows:
            return
        found = pa.Table.from_batches([errors], ERRORS)
        self.count += found.num_rows
        if callable(self.on_error):
            self.on_error(found)
        elif self._kept_max is None or self.table.num_rows < self._kept_max:
            self.table = pa.concat_tables([self.table, found])

    def end(self, table: pa.Table | None = None, stacklevel: int = 3) -> None:
        """Raise BadRecords or warn, where that was asked for and there is a reason."""
        if not self.count or callable(self.on_error):
            return
        if self.on_error == "raise":
            raise BadRecords(self.table, self.count, table)
        if self.on_error == "warn":
            words = f"{_words(self.table, self.count)}; they are left out"
            warnings.warn(words, BadRecordsWarning, stacklevel=stacklevel)


def collected_of_scan(on_error: OnError) -> Collected:
    """The errors of a scan. ValueError for "return": a scan returns batches, and no table beside them."""
    if on_error == "return":
        raise ValueError("a scan has nothing to return errors with: give on_error a function, such as a list's append")
    return Collected(on_error, KEPT_MAX)


def warn_unknown(unknown: Sequence[str], empty: Sequence[str], stacklevel: int = 3) -> None:
    """Warn of fields that an inferred schema lacks, and of fields of a given one that may be misspelt."""
    if unknown:
        words = f"fields that only later records have are left out: {', '.join(unknown)}; give a schema to have them"
        warnings.warn(words, BadRecordsWarning, stacklevel=stacklevel)
    if empty:
        warnings.warn(empty_fields(empty), BadRecordsWarning, stacklevel=stacklevel)


def empty_fields(names: Sequence[str]) -> str:
    """The sentence about fields of a schema that no record has."""
    return f"no record has a value for {', '.join(names)}, and records have fields that the schema lacks"
