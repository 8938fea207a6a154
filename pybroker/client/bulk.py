"""Columns on their way into batches: rows are encoded piece by piece, so that sending begins with the first batch."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from pybroker import core
from pybroker.client import arguments, sources
from pybroker.core import Encoder, SealedBatch

NO_PARTITION: Final = -1
"""The tag of batches for which a partition is still to be chosen."""

_COLUMNS: Final = ("values", "keys", "headers", "partitions", "timestamps_ms")
_ROWS_FIRST: Final = 256
_ROWS_MAX: Final = 1 << 14
_BATCHES_MAX: Final = 4  # of one piece: what is made before it waits for memory


def batches(
    topic: str,
    values: Any,
    keys: Any,
    *,
    headers: Any,
    partitions: Any,
    timestamps_ms: Any,
    now_ms: int,
    count: int,
    single: bool,
    batch_size: int,
    codec: int,
    compress: Callable[[memoryview], bytes] | None,
) -> Iterator[SealedBatch]:
    """The batches of columns, their partition as tag; `count` is the topic's number of partitions;
    `single`: they all go to one, whatever their keys.

    Raises TypeError and ValueError for columns that cannot be, LogError 10 for a record of 2 GiB."""
    encoder = Encoder(partitions=count, batch_size=batch_size, attributes=codec, compress=compress)
    done, step = 0, _ROWS_FIRST
    for values_, keys_, headers_, partitions_, times in _pieces(values, keys, headers, partitions, timestamps_ms):
        column = sources.byte_column(values_)
        key_column = None if keys_ is None else sources.byte_column(keys_)
        start, rows = 0, len(column)
        places: Any = None
        if partitions_ is not None:
            places = sources.integers("partitions", partitions_, "int32", rows)
            sources.not_negative("a partition", places)
        elif key_column is not None and not single:
            places = core.partitions_of(key_column, count, before=done)
        more = {
            "keys": key_column,
            "timestamps": _timestamps(times, now_ms, rows),
            "headers": None if headers_ is None else sources.header_column(headers_),
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


def _pieces(*columns: Any) -> Iterator[tuple[Any, ...]]:
    """The columns; Arrow's chunked ones a chunk after the other, in place, if all of them are chunked or no columns."""
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


def _timestamps(given: Any, now_ms: int, rows: int) -> Any:
    if given is None:
        return now_ms
    if isinstance(given, int):
        return arguments.whole(given, "a timestamp")
    times = sources.timestamps(given, rows)
    sources.not_negative("a timestamp", times)
    return times
