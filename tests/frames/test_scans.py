"""Scans: batches for DuckDB and others, and a LazyFrame of polars that reads only what a query needs."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import pybroker
from pybroker.frames import scanning
from pybroker.frames.ranges import NO_BOUNDS
from pybroker.testing import BrokerHandle

START_MS = 1_700_000_000_000
ROWS = 3000
TOPIC = "scanned"


@pytest.fixture(scope="module", autouse=True)
def scanned(frames_broker: BrokerHandle) -> None:
    """A topic of three partitions: a record a millisecond, in turns."""
    frames_broker.create_topic(TOPIC, partitions=3)
    with pybroker.Producer(bootstrap_servers=frames_broker.bootstrap_servers) as producer:
        for n in range(ROWS):
            value = json.dumps({"id": n, "kind": "abc"[n % 3], "price": n / 4})
            producer.send(TOPIC, value, partition=n % 3, timestamp_ms=START_MS + n)


@pytest.fixture
def lazy(servers: str) -> pl.LazyFrame:
    return pybroker.scan_polars(TOPIC, bootstrap_servers=servers, format="json")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[scanning.TopicRequest]]:
    """The request of each pass, in their order."""
    made: list[scanning.TopicRequest] = []
    begin = scanning.Scan.__init__

    def note(self: scanning.Scan, request: scanning.TopicRequest) -> None:
        made.append(request)
        begin(self, request)

    monkeypatch.setattr(scanning.Scan, "__init__", note)
    return made


def test_a_reader_of_batches(servers: str) -> None:
    """The reader has a schema before anything is read, and all rows, those of a partition in order."""
    reader = pybroker.scan_topic(TOPIC, bootstrap_servers=servers, format="json", columns=["id", "kafka_partition"])
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema == pa.schema([("id", pa.int64()), ("kafka_partition", pa.int32())])
    rows = reader.read_all().to_pylist()
    for partition in range(3):
        assert [r["id"] for r in rows if r["kafka_partition"] == partition] == list(range(partition, ROWS, 3))


def test_duckdb_takes_it(servers: str) -> None:
    """By its name in a query."""
    orders = pybroker.scan_topic(TOPIC, bootstrap_servers=servers, format="json")
    found = duckdb.sql("select kind, count(*) n, max(price) p from orders group by kind order by kind").fetchall()
    assert orders is not None
    assert found == [("a", 1000, 749.25), ("b", 1000, 749.5), ("c", 1000, 749.75)]


def test_pandas_takes_it(servers: str) -> None:
    frame = pybroker.scan_topic(TOPIC, bootstrap_servers=servers, format="json", n_rows=10).read_pandas()
    assert frame.shape == (10, 6) and frame["price"].dtype == float


def test_a_reader_that_is_dropped_closes_its_client(servers: str) -> None:
    """Begun or not, read to its end or not: no thread stays."""
    before = set(threading.enumerate())
    for batches in (0, 1):
        reader = pybroker.scan_topic(TOPIC, bootstrap_servers=servers, format="json")
        for _ in range(batches):
            reader.read_next_batch()
        del reader
        assert set(threading.enumerate()) <= before


def test_errors_of_a_scan(servers: str, topic: str, frames_broker: BrokerHandle) -> None:
    """They are raised after the last batch; a function sees them; there is nothing to return them with."""
    frames_broker.create_topic(topic)
    with pybroker.Producer(bootstrap_servers=servers) as producer:
        for value in (b'{"id":1}', b"x", b'{"id":2}'):
            producer.send(topic, value)
    ask: dict[str, Any] = {"bootstrap_servers": servers, "format": "json"}
    reader = pybroker.scan_topic(topic, **ask)
    assert reader.read_next_batch()["id"].to_pylist() == [1, 2]
    with pytest.raises(pybroker.BadRecords, match=r"1 record does not decode: .*, offset 1: ") as caught:
        reader.read_next_batch()
    assert caught.value.errors["value"].to_pylist() == [b"x"] and caught.value.table is None
    found: list[pa.Table] = []
    assert pybroker.scan_topic(topic, on_error=found.append, **ask).read_all().num_rows == 2 and len(found) == 1
    for scan in (pybroker.scan_topic, pybroker.scan_polars):
        with pytest.raises(ValueError, match="a scan has nothing to return errors with"):
            scan(topic, on_error="return", **ask)
        with pytest.raises(TypeError, match=r"columns is a list of names, such as \['id'\], and not one name"):
            scan(topic, columns="id", **ask)
    with pytest.raises((pybroker.BadRecords, pl.exceptions.ComputeError), match="1 record does not decode"):
        pybroker.scan_polars(topic, **ask).collect()


# -- polars ------------------------------------------------------------------------------------------------------------


def test_a_lazy_frame(lazy: pl.LazyFrame) -> None:
    """The frame has a schema without its data, and can be collected again and again."""
    assert lazy.collect_schema() == pl.Schema({
        "id": pl.Int64, "kind": pl.String, "price": pl.Float64, "kafka_partition": pl.Int32, "kafka_offset": pl.Int64,
        "kafka_timestamp": pl.Datetime("ms", "UTC")})  # fmt: skip
    for _ in range(2):
        assert lazy.select(pl.len()).collect().item() == ROWS
    found = lazy.filter(pl.col("kind") == "b").group_by("kafka_partition").agg(pl.col("price").max()).collect()
    assert found.rows() == [(1, 749.5)]


def test_only_what_a_query_uses_is_decoded(lazy: pl.LazyFrame, requests: list[scanning.TopicRequest]) -> None:
    """The columns of a query, those of its conditions too, and its first rows."""
    assert lazy.filter(pl.col("id") >= 2990).select("price").collect()["price"].sum() == pytest.approx(7486.25)
    assert requests[-1].columns == ["id", "price"]
    assert lazy.select("kind").head(5).collect().height == 5
    assert (requests[-1].columns, requests[-1].n_rows) == (["kind"], 5)


@pytest.mark.parametrize(
    ("condition", "rows", "bounds"),
    [
        (pl.col("kafka_partition") == 1, 1000, {"partitions": frozenset([1])}),
        (pl.col("kafka_offset") >= 990, 30, {"first": 990}),
        ((pl.col("kafka_offset") > 10) & (pl.col("kafka_offset") < 20), 27, {"first": 11, "end": 20}),
        ((pl.lit(10) <= pl.col("kafka_offset")) & (pl.col("kafka_offset") <= 19), 30, {"first": 10, "end": 20}),
        ((pl.col("kafka_partition") == 2) & (pl.col("kafka_offset") == 7), 1,
         {"partitions": frozenset([2]), "first": 7, "end": 8}),
        ((pl.col("kafka_partition") == 2) & (pl.col("kafka_partition") == 1), 0, {"partitions": frozenset()}),
        (pl.col("kafka_offset") < -1, 0, {"end": 0}),
        (pl.col("kafka_timestamp") >= datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(milliseconds=2990), 10,
         {"not_before_ms": START_MS + 2990}),
        (pl.col("kafka_timestamp") < datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(milliseconds=10), 10, {}),
        (pl.col("kafka_timestamp") > datetime(2040, 1, 1, tzinfo=UTC), 0, {"not_before_ms": 2_208_988_800_000}),
        ((pl.col("kafka_offset") >= 990) | (pl.col("id") == 1), 31, {}),
        (~(pl.col("kafka_offset") >= 990), 2970, {"end": 990}),
        (pl.col("kafka_offset") != 0, 2997, {}),
        (pl.col("kafka_offset").is_between(5, 6), 6, {"first": 5, "end": 7}),
        (pl.col("kafka_offset").is_between(5, 7, closed="none"), 3, {"first": 5, "end": 8}),
        (pl.col("kafka_offset").is_in([1, 2]), 6, {}),
    ],
)  # fmt: skip
def test_ranges_of_a_query(
    lazy: pl.LazyFrame, requests: list[scanning.TopicRequest], condition: pl.Expr, rows: int, bounds: dict[str, Any]
) -> None:
    """Conditions on partitions, offsets and times narrow what is read; the rows are right in any case."""
    assert lazy.filter(condition).collect().height == rows
    assert requests[-1].within == NO_BOUNDS._replace(**bounds)


def test_records_as_they_are(servers: str, requests: list[scanning.TopicRequest]) -> None:
    """Without a format the columns have Kafka's own names, by which ranges are found, too."""
    lazy = pybroker.scan_polars(TOPIC, bootstrap_servers=servers)
    assert lazy.filter(pl.col("offset") >= 999).select("value").collect().height == 3
    assert requests[-1].within.first == 999
    assert len(requests) == 2, "a pass for the schema and one for the rows"


def test_a_text_of_polars_that_is_none_of_ours(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """polars may write its expressions in another way one day: then all is read, and filtered."""
    lazy = pybroker.scan_polars(TOPIC, bootstrap_servers=servers, format="json", schema={"id": int})
    monkeypatch.setattr(json, "loads", lambda text: {"Expr": text})
    assert lazy.filter(pl.col("kafka_offset") >= 990).collect().height == 30


def test_without_polars(monkeypatch: pytest.MonkeyPatch, servers: str) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ModuleNotFoundError, match="scan_polars needs polars: pip install polars"):
        pybroker.scan_polars(TOPIC, bootstrap_servers=servers)
