"""Columns as a pyarrow.RecordBatch; only the topic and partition columns are new memory.

    topic dictionary<int32, string> or string | partition int32 | offset int64 | timestamp timestamp[ms or us, UTC]
    timestamp_type int32 | key binary | value binary | headers list<struct<key: string, value: binary>>

Those are the columns of Spark's Kafka source, in Kafka's words. pyarrow is optional: the extra `arrow`.
"""

import functools
from typing import Literal, NamedTuple

import numpy as np

try:
    import pyarrow as pa
except ModuleNotFoundError as error:
    from pybroker import extras

    raise ModuleNotFoundError(f"Arrow columns need pyarrow: {extras.install('arrow')}", name=error.name) from error
import pyarrow.compute as pc

from pybroker.core import Binary, ColumnBatch, Headers

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Origin(NamedTuple):
    """The partition of rows: the tag of `Columns.read` from which the columns topic and partition are made."""

    topic: str
    partition: int


def record_batch(
    batch: ColumnBatch,
    *,
    topics: Literal["dictionary", "string"] = "dictionary",
    empty_headers: Literal["empty", "null"] = "empty",
) -> pa.RecordBatch:
    """The columns that the batch has; topic and partition if its rows were read with an Origin as their tag.

    topics: the type of the topic column; as strings it costs their bytes a row. empty_headers: what stands for no
    headers, an empty list or, as in Spark's connector, null."""
    columns: dict[str, pa.Array] = {}
    if all(isinstance(tag, Origin) for tag, _ in batch.runs):
        columns["topic"] = _topics(batch, topics)
        columns["partition"] = _repeat([(tag.partition, rows) for tag, rows in batch.runs])
    if batch.offset is not None:
        columns["offset"] = _fixed(pa.int64(), batch, batch.offset)
    if batch.timestamp is not None:
        columns["timestamp"] = _fixed(pa.timestamp(batch.timestamp_unit, "UTC"), batch, batch.timestamp)
    if batch.timestamp_type is not None:
        columns["timestamp_type"] = _fixed(pa.int8(), batch, batch.timestamp_type).cast(pa.int32())
    if batch.key is not None:
        columns["key"] = _binary(pa.binary(), batch.key)
    if batch.value is not None:
        columns["value"] = _binary(pa.binary(), batch.value)
    if batch.headers is not None:
        columns["headers"] = _headers(batch, batch.headers, empty_headers == "null")
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _fixed(kind: pa.DataType, batch: ColumnBatch, block: object) -> pa.Array:
    return pa.Array.from_buffers(kind, batch.rows, [None, pa.py_buffer(block)], null_count=0)


def _binary(kind: pa.DataType, column: Binary) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, column.length, buffers, null_count=column.nulls)


def _headers(batch: ColumnBatch, headers: Headers, nulls: bool) -> pa.Array:
    pairs = pa.StructArray.from_arrays(
        [_strings(headers.key), _binary(pa.binary(), headers.value)], fields=list(HEADERS.value_type)
    )
    offsets = pa.py_buffer(headers.offsets)
    lists = pa.Array.from_buffers(HEADERS, batch.rows, [None, offsets], null_count=0, children=[pairs])
    if not nulls or not len(lists):
        return lists
    starts = pa.Array.from_buffers(pa.int32(), batch.rows + 1, [None, offsets])
    filled = pc.not_equal(starts[1:], starts[:-1])
    return pa.Array.from_buffers(HEADERS, batch.rows, [filled.buffers()[1], offsets], children=[pairs])


def _strings(column: Binary) -> pa.Array:
    """Header keys. Kafka does not check that they are UTF-8: wrong bytes become U+FFFD, as in Java."""
    strings = _binary(pa.string(), column)
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        found = _binary(pa.binary(), column).to_pylist()
        return pa.array([key.decode("utf-8", "replace") for key in found], pa.string())
    return strings


def _topics(batch: ColumnBatch, topics: str) -> pa.Array:
    names = list(dict.fromkeys(tag.topic for tag, _ in batch.runs))
    places = {name: place for place, name in enumerate(names)}
    indices = _repeat([(places[tag.topic], rows) for tag, rows in batch.runs])
    column = pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string()), safe=False)
    return column if topics == "dictionary" else column.cast(pa.string())


def _repeat(runs: list[tuple[int, int]]) -> pa.Array:
    """Each value repeated for its rows, as int32."""
    if len(runs) == 1:
        return _constant(*runs[0])
    values = np.empty(sum(rows for _, rows in runs), np.int32)
    start = 0
    for value, rows in runs:  # np.repeat takes rows one by one
        values[start : start + rows] = value
        start += rows
    return pa.array(values)


@functools.lru_cache(2)
def _constant(value: int, rows: int) -> pa.Array:
    """One value `rows` times. Cached, as most batches have the same size and new memory costs more than filling it;
    hence read-only."""
    values = np.full(rows, value, np.int32)
    values.flags.writeable = False
    return pa.array(values)
