"""Columns as NumPy arrays: the records' values, over the memory of the fetched batches."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pybroker.client.columns.arrays import RecordArrays, record_arrays
from pybroker.core import Columns, PartitionBatches, build_batch
from pybroker.model import TopicPartition

TP = TopicPartition("t", 0)


def arrays(*values: bytes | None) -> RecordArrays:
    columns = Columns()
    if values:
        rows = [(1_700_000_000_000 + n, None, value, [("n", b"%d" % n)] * n) for n, value in enumerate(values)]
        columns.read(PartitionBatches(build_batch(rows, base_offset=7)), tag=TP)
    return record_arrays(columns.take())


def test_what_the_records_hold() -> None:
    found = arrays(b"a", None, b"ccc")
    assert found.runs == [(TP, 3)] and found.rows == 3
    assert found.offset is not None and found.offset.tolist() == [7, 8, 9]
    assert found.timestamp is not None and found.timestamp[2] == np.datetime64(1_700_000_000_002, "ms")
    assert found.timestamp_type is not None and found.timestamp_type.tolist() == [0, 0, 0]
    assert found.key is not None and list(found.key) == [None] * 3
    assert found.value is not None and (list(found.value), found.value[-1]) == ([b"a", None, b"ccc"], b"ccc")
    assert found.value.valid is not None and found.value.valid.tolist() == [True, False, True]
    assert found.headers is not None and found.headers.offsets.tolist() == [0, 0, 1, 3]
    assert (list(found.headers.key), list(found.headers.value)) == ([b"n"] * 3, [b"1", b"2", b"2"])
    with pytest.raises(IndexError, match="row 3 of 3"):
        found.value[3]


def test_rows_of_one_size_are_a_matrix() -> None:
    """Rows of one size make a matrix: numbers that were sent as bytes are numbers again without a copy. Rows of several
    sizes do not."""
    value = arrays(*(np.int64(n).tobytes() for n in range(5))).value
    assert value is not None and value.fixed().view(np.int64)[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert value.fixed().base is not None
    for values in ([b"a", b"bb"], [b"a", None]):
        column = arrays(*values).value
        assert column is not None
        with pytest.raises(ValueError, match="not all of one size"):
            column.fixed()


def test_no_rows() -> None:
    found = arrays()
    assert found.rows == 0 and found.offset is not None and len(found.offset) == 0
    assert found.value is not None and list(found.value) == [] and found.value.fixed().shape == (0, 0)


def test_who_keeps_a_column_keeps_no_more_than_it() -> None:
    """A column that is kept holds only its own memory: small keys beside large values do not keep the values'
    memory."""
    batch = build_batch([(0, b"k%d" % n, b"v" * 1000, ()) for n in range(1000)])
    columns, kept, before = Columns(), [], 0
    for n in range(80):
        columns.read(PartitionBatches(batch))
        kept.append(columns.take().key)
        if n == 19:
            before = resident_bytes()
    assert resident_bytes() - before < 20 << 20
    assert all(key is not None and key.length == 1000 for key in kept)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
