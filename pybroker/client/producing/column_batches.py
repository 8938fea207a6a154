"""Columns into batches, piece by piece, so that sending begins with the first batch."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from pybroker import core
from pybroker.client import arguments
from pybroker.client.producing import column_sources
from pybroker.core import Encoder, SealedBatch

NO_PARTITION: Final = -1
"""The tag of batches whose partition is not chosen yet."""

_COLUMNS: Final = ("values", "keys", "headers", "partitions", "timestamps_ms")
_ROWS_FIRST: Final = 256
_ROWS_MAX: Final = 1 << 14
_BATCHES_MAX: Final = 4  # of one piece: batches are made before they wait for memory


def batches(
    topic: str,
    values: object,
    keys: object,
    *,
    headers: object,
    partitions: object,
    timestamps_ms: object,
    now_ms: int,
    count: int,
    single: bool,
    batch_size: int,
    attributes: int,
    compress: Callable[[memoryview], bytes] | None,
) -> Iterator[SealedBatch]:
    """The batches of columns, their partition as tag; `count` is the topic's number of partitions;
    `single`: all rows go to one partition, without regard to keys.

    Raises TypeError and ValueError for wrong columns, LogError(MESSAGE_TOO_LARGE) for a record of 2 GiB."""
    encoder = Encoder(partitions=count, batch_size=batch_size, attributes=attributes, compress=compress)
    done, step = 0, _ROWS_FIRST
    for values_, keys_, headers_, partitions_, times in _pieces(values, keys, headers, partitions, timestamps_ms):
        column = column_sources.byte_column(values_)
        key_column = None if keys_ is None else column_sources.byte_column(keys_)
        start, rows = 0, len(column)
        places: Any = None
        if partitions_ is not None:
            places = column_sources.integers("partitions", partitions_, "int32", rows)
            column_sources.not_negative("a partition", places)
        elif key_column is not None and not single:
            places = core.partitions_of(key_column, count, before=done)
        more = {
            "keys": key_column,
            "timestamps": _timestamps(times, now_ms, rows),
            "headers": None if headers_ is None else column_sources.header_column(headers_),
            "partitions": places,
            "before": done,
        }
        while start < rows:
            stop = min(rows, start + step)
            try:
                made = encoder.add(column, start=start, stop=stop, **more)
            except ValueError as problem:
                raise ValueError(f"topic {topic!r}: {problem}") from None
            yield from made
            start = stop
            step = min(step * 2, _ROWS_MAX) if len(made) < _BATCHES_MAX else max(1, step // 2)
        done += rows
    yield from encoder.finish()


def _pieces(*columns: object) -> Iterator[tuple[object, ...]]:
    """The columns, chunk by chunk without a copy if all are Arrow's chunked arrays, else whole."""
    whole = {name: c for name, c in zip(_COLUMNS, columns, strict=True) if c is not None and not isinstance(c, int)}
    if all(hasattr(column, "iterchunks") for column in whole.values()):
        import pyarrow as pa

        pieces = pa.table(whole).to_batches()
        for piece in pieces:
            chunks = iter(piece.columns)
            yield tuple(c if c is None or isinstance(c, int) else next(chunks) for c in columns)
        if pieces:
            return
    yield columns


def _timestamps(given: object, now_ms: int, rows: int) -> Any:
    if given is None:
        return now_ms
    if isinstance(given, int):
        return arguments.whole(given, "a timestamp")
    times = column_sources.timestamps(given, rows)
    column_sources.not_negative("a timestamp", times)
    return times
