"""Columns as a pyarrow.RecordBatch: its schema, its values, and that it shares the memory."""

from __future__ import annotations

import importlib
import pickle
import sys

import numpy as np
import pyarrow as pa
import pytest

from pybroker.client.columns.arrow import HEADERS, Origin, record_batch
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
    """A record batch has all columns of Spark's Kafka source, with its types, and the records' values."""
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
    """Rows of several topics keep their names: each row gets its topic and partition, as a dictionary or as strings."""
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
    """A batch is independent: its pickle is no larger than its rows, and a change of its memory shows in no other."""
    first, second = record_batch(columns().take()), record_batch(columns().take())
    assert first.get_total_buffer_size() < 4000 and len(pickle.dumps(first)) < 8000
    for column in (first["partition"], first["topic"].indices):
        buffer = column.buffers()[1]
        with pytest.raises(ValueError, match="read-only"):
            np.frombuffer(buffer, np.int32)[:] = 7
    assert second["partition"].to_pylist() == [3] * 3 and second["topic"].to_pylist() == ["t"] * 3


def test_only_the_columns_that_were_read_are_there() -> None:
    """Only the requested columns are in the batch; a topic column needs a tag that names the topic."""
    made = Columns(["value", "timestamp"], timestamp_unit="us")
    made.read(PartitionBatches(build_batch(RECORDS)))
    batch = record_batch(made.take())
    assert batch.schema.names == ["timestamp", "value"]
    assert batch.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1_000_000, 1_001_000, 1_002_000]


def test_no_rows_make_an_empty_batch() -> None:
    """No rows make an empty batch: columns that were never read into still have their schema."""
    batch = record_batch(Columns().take())
    batch.validate(full=True)
    assert (batch.num_rows, len(batch.schema)) == (0, 8)


def test_nothing_is_copied() -> None:
    """Nothing is copied: the array's buffers are the memory that core filled, and keep it alive."""
    taken = columns("offset", "value").take()
    batch = record_batch(taken)
    assert taken.value
    value = batch.column("value").buffers()[2]
    assert value.address == np.frombuffer(taken.value.data, np.uint8).ctypes.data
    del taken
    assert value.to_pybytes() == b"v0"


def test_rows_without_headers_can_be_null() -> None:
    """Rows without headers can be null, as Spark's own connector has them."""
    batch = record_batch(columns("headers").take(), empty_headers="null")
    batch.validate(full=True)
    assert [headers is None for headers in batch.column("headers").to_pylist()] == [False, True, False]
    assert batch.column("headers").null_count == 1


@pytest.mark.parametrize("key", ["caf\udce9", "\udcff"])
def test_a_header_key_that_is_no_utf_8_reads_as_in_java(key: str) -> None:
    """A header key that is not UTF-8 is decoded as in Java, with U+FFFD: Kafka checks no header key, and Arrow needs
    valid strings."""
    made = Columns(["headers"])
    made.read(PartitionBatches(build_batch([(0, None, None, [("sound", b""), (key, None)])])))
    batch = record_batch(made.take())
    batch.validate(full=True)
    [[sound, broken]] = batch.column("headers").to_pylist()
    assert sound == {"key": "sound", "value": b""}
    assert broken == {"key": key[:-1] + "\ufffd", "value": None}


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow the error says what to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pybroker.client.columns.arrow")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'numpy>=1\.26' 'pyarrow>=18'"):
        importlib.import_module("pybroker.client.columns.arrow")
