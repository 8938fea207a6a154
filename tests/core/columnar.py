"""Turn columns back into records, for tests that compare them with the reference model."""

from __future__ import annotations

import itertools

import numpy as np

from pybroker.core import Binary, ColumnBatch, Headers

Row = tuple[int, int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]
"""(offset, timestamp, timestamp_type, key, value, headers)"""


def fields(column: Binary) -> list[bytes | None]:
    """The values of a bytes column, decoded by Arrow's rules."""
    offsets = np.frombuffer(column.offsets, np.int32).tolist()
    assert len(offsets) == column.length + 1
    assert (offsets[0], offsets[-1]) == (0, len(column.data))
    data = bytes(column.data)
    if column.validity is None:
        assert column.nulls == 0
        valid = [True] * column.length
    else:
        bits = np.unpackbits(np.frombuffer(column.validity, np.uint8), bitorder="little")
        valid = bits[: column.length].astype(bool).tolist()
        assert valid.count(False) == column.nulls > 0
    return [data[a:b] if ok else None for a, b, ok in zip(offsets, offsets[1:], valid, strict=False)]


def lists(column: Headers) -> list[list[tuple[bytes, bytes | None]]]:
    pairs = list(zip(fields(column.key), fields(column.value), strict=True))
    offsets = np.frombuffer(column.offsets, np.int32).tolist()
    assert (offsets[0], offsets[-1]) == (0, len(pairs))
    assert None not in [key for key, _ in pairs]
    return [pairs[a:b] for a, b in itertools.pairwise(offsets)]  # type: ignore[misc]


def rows(batch: ColumnBatch) -> list[Row]:
    """The records of a batch that has every column."""
    assert batch.key and batch.value and batch.headers
    columns = [
        np.frombuffer(batch.offset, np.int64).tolist(),
        np.frombuffer(batch.timestamp, np.int64).tolist(),
        np.frombuffer(batch.timestamp_type, np.int8).tolist(),
        fields(batch.key),
        fields(batch.value),
        lists(batch.headers),
    ]
    assert {len(column) for column in columns} == {batch.rows} == {len(batch)}
    return list(zip(*columns, strict=True))
