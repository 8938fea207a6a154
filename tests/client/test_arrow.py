"""Columns as a pyarrow.RecordBatch: its schema, its values, and that they are the same memory."""

from __future__ import annotations

import importlib
import pickle
import sys

import numpy as np
import pyarrow as pa
import pytest

from pybroker.client.arrow import HEADERS, Origin, record_batch
from pybroker.core import Columns, PartitionBatches, build_batch

RECORDS = [
    (1000, b"k", b"v0", [("a", b"1"), ("b", None)]),
    (1001, None, b"", []),
    (1002, b"", None, [("a", b"\xff")]),
]


def columns(*names: str, **how: object) -> Columns:
    made = Columns(names, **how) if names else Columns(**how)  # type: ignore[arg-type]
    made.read(PartitionBatches(build_batch(RECORDS, base_offset=5)), tag=Origin("t", 3))
    return made


def test_a_record_batch_has_spark_s_columns() -> None:
    """All columns, with the types that Spark's Kafka source has, and the records' values in them."""
    batch = record_batch(columns().take())
    batch.validate(full=True)
    assert [(field.name, field.type) for field in batch.schema] == [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
    rows = batch.to_pylist()
    assert [(row["topic"], row["partition"], row["offset"], row["timestamp_type"]) for row in rows] == [
        ("t", 3, 5 + i, 0) for i in range(3)
    ]
    assert [row["timestamp"].timestamp() for row in rows] == [1.0, 1.001, 1.002]
    assert [(row["key"], row["value"]) for row in rows] == [(b"k", b"v0"), (None, b""), (b"", None)]
    assert [[(h["key"], h["value"]) for h in row["headers"]] for row in rows] == [
        [("a", b"1"), ("b", None)],
        [],
        [("a", b"\xff")],
    ]


def test_rows_of_several_topics_keep_their_names() -> None:
    """Runs of rows become a topic and a partition a row, as a dictionary or as strings."""
    made = columns("offset")
    made.read(PartitionBatches(build_batch(RECORDS[:1])), tag=Origin("u", 0))
    made.read(PartitionBatches(build_batch(RECORDS[:1])), tag=Origin("t", 1))
    taken = made.take()
    for kind in ("dictionary", "string"):
        batch = record_batch(taken, topics=kind)  # type: ignore[arg-type]
        assert batch.column("topic").to_pylist() == ["t", "t", "t", "u", "t"]
        assert batch.column("partition").to_pylist() == [3, 3, 3, 0, 1]
    assert batch.schema.field("topic").type == pa.string()


def test_a_batch_is_its_own() -> None:
    """Pickled it is no larger than its rows, and what is done to its memory is seen in no other."""
    first, second = record_batch(columns().take()), record_batch(columns().take())
    assert first.get_total_buffer_size() < 4000 and len(pickle.dumps(first)) < 8000
    for column in (first["partition"], first["topic"].indices):
        buffer = column.buffers()[1]
        with pytest.raises(ValueError, match="read-only"):
            np.frombuffer(buffer, np.int32)[:] = 7
    assert second["partition"].to_pylist() == [3] * 3 and second["topic"].to_pylist() == ["t"] * 3


def test_only_the_columns_that_were_read_are_there() -> None:
    """What was not asked for is not in the batch, nor is a topic that no tag names."""
    made = Columns(["value", "timestamp"], timestamp_unit="us")
    made.read(PartitionBatches(build_batch(RECORDS)))
    batch = record_batch(made.take())
    assert batch.schema.names == ["timestamp", "value"]
    assert batch.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1_000_000, 1_001_000, 1_002_000]


def test_no_rows_make_an_empty_batch() -> None:
    """Columns that were never read into have their schema all the same."""
    batch = record_batch(Columns().take())
    batch.validate(full=True)
    assert (batch.num_rows, len(batch.schema)) == (0, 8)


def test_nothing_is_copied() -> None:
    """The array's buffers are the memory that core filled, and keep it alive."""
    taken = columns("offset", "value").take()
    batch = record_batch(taken)
    assert taken.value
    value = batch.column("value").buffers()[2]
    assert value.address == np.frombuffer(taken.value.data, np.uint8).ctypes.data
    del taken
    assert value.to_pybytes() == b"v0"


def test_rows_without_headers_can_be_null() -> None:
    """As Spark's own connector has them."""
    batch = record_batch(columns("headers").take(), empty_headers="null")
    batch.validate(full=True)
    assert [headers is None for headers in batch.column("headers").to_pylist()] == [False, True, False]
    assert batch.column("headers").null_count == 1


@pytest.mark.parametrize("key", ["caf\udce9", "\udcff"])
def test_a_header_key_that_is_no_utf_8_reads_as_in_java(key: str) -> None:
    """Kafka checks no header key; Java shows U+FFFD where it does not decode, and Arrow wants sound strings."""
    made = Columns(["headers"])
    made.read(PartitionBatches(build_batch([(0, None, None, [("sound", b""), (key, None)])])))
    batch = record_batch(made.take())
    batch.validate(full=True)
    [[sound, broken]] = batch.column("headers").to_pylist()
    assert sound == {"key": "sound", "value": b""}
    assert broken == {"key": key[:-1] + "\ufffd", "value": None}


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what brings it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pybroker.client.arrow")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pybroker\[arrow\]'"):
        importlib.import_module("pybroker.client.arrow")
