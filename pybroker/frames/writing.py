"""Tables as records: columns as keys and values, rows as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Unpack

import pyarrow as pa

from pybroker.client.producing.producer import Producer
from pybroker.client.settings import ProducerSettings
from pybroker.core import Delivery
from pybroker.frames.json_text import json_objects, looked_up
from pybroker.frames.layouts import names_of

ROWS_MAX: Final = 1 << 14
"""Of a piece that becomes JSON at once."""


def write_topic(
    topic: str,
    table: object,
    *,
    key: str | None = None,
    value: str | Sequence[str] | None = None,
    headers: str | None = None,
    partition: str | int | None = None,
    timestamp: str | None = None,
    **settings: Unpack[ProducerSettings],
) -> int:
    """Write a record for each row, and wait until brokers have acknowledged all; how many records it were.

    table: a pyarrow Table, RecordBatch or RecordBatchReader, a DataFrame of pandas or polars, a relation of DuckDB:
    anything with `__arrow_c_stream__`. value: the name of a column, whose bytes or text are the values; a list of
    columns, which are JSON objects; None: all columns but those of the next three. key: the name of a column; what is
    no text or bytes is written as text. headers: of list<struct<key, value>>. partition: of whole numbers, or one
    number for all. timestamp: of timestamps, or whole numbers of milliseconds. settings: a Producer's.

    Raises ValueError and TypeError for columns that cannot be written, KafkaError where a record is not acknowledged.
    What was sent before that stays: rows are no transaction."""
    batches = iter(_batches(table))
    deliveries: list[Delivery] = []
    rows = 0
    with Producer(**settings) as producer:
        for batch in batches:
            roles = [name for name in (headers, partition, timestamp) if isinstance(name, str)]
            keys = None if key is None else _bytes(_column(batch, key), key)
            deliveries += producer.send_columns(
                topic,
                _values(batch, value, roles),
                keys,
                headers=None if headers is None else _column(batch, headers),
                partition=_column(batch, partition) if isinstance(partition, str) else partition,
                timestamps_ms=None if timestamp is None else _column(batch, timestamp),
            )
            rows += batch.num_rows
        producer.flush()
        for delivery in deliveries:
            delivery.result(0)
    return rows


def _batches(table: object) -> Iterator[pa.RecordBatch]:
    """The rows of a table, at most ROWS_MAX at once. TypeError for what is none."""
    if isinstance(table, pa.RecordBatch):
        given: Iterable[pa.RecordBatch] = [table]
    elif isinstance(table, pa.Table):
        given = table.to_batches()
    elif hasattr(table, "__arrow_c_stream__"):
        given = pa.RecordBatchReader.from_stream(table)
    else:
        raise TypeError(f"a table is one of pyarrow, pandas, polars or DuckDB, not {type(table).__name__}")
    for batch in given:
        for start in range(0, batch.num_rows, ROWS_MAX):
            yield batch.slice(start, ROWS_MAX)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        raise ValueError(f"the table has no column {name!r}, but {', '.join(batch.schema.names)}")
    return batch.column(name)


def _values(batch: pa.RecordBatch, value: str | Sequence[str] | None, roles: Sequence[str]) -> pa.Array:
    if isinstance(value, str):
        return _bytes(_column(batch, value), value)
    names = [name for name in batch.schema.names if name not in roles] if value is None else names_of(value)
    if not names:
        raise ValueError("no column is left to be the value")
    return json_objects(pa.RecordBatch.from_arrays([_column(batch, name) for name in names], list(names)))


def _bytes(array: pa.Array, name: str) -> pa.Array:
    """Bytes or text as they are; other values as their text."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _bytes(looked_up(array), name)
    if pa.types.is_nested(kind):
        raise ValueError(f"column {name!r} is of type {kind}: the bytes of a key or value are text or binary")
    of_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    if any(test(kind) for test in of_bytes) or str(kind) == "binary_view":
        return array.cast(pa.binary())
    return array.cast(pa.string())
