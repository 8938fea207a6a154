"""The pipeline into an Iceberg table, read with pyiceberg: its rows, the rows that it refuses, and what a crash
leaves."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from pybroker.errors import KafkaError
from pybroker.spark.pipeline import Job
from pybroker.spark.pipeline.runner import Pipeline
from pybroker.spark.pipeline.tables.iceberg import Iceberg
from pybroker.spark.pipeline.tables.table import MicroBatch
from pybroker.testing import Record
from tests.spark.tables import (
    DAY_MS,
    ROWS,
    SCHEMA,
    START_MS,
    IcebergIngest,
    a_hole_is_told,
    a_restored_checkpoint_is_told,
    changed_by_another,
    dying,
    event,
    every_type_arrives,
    times_that_no_calendar_has,
)
from tests.spark.topics import Topics

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]


@pytest.fixture
def ingest(topics: Topics, topic: str, tmp_path: Path) -> IcebergIngest:
    return IcebergIngest(topics, topic, tmp_path)


def test_json_becomes_an_iceberg_table(ingest: IcebergIngest) -> None:
    """JSON becomes an Iceberg table by day; a second run adds new records. Readers prune by partition and statistics,
    and lose no rows."""
    ingest.topics.produce(ingest.topic, [event(0), event(1, timestamp_ms=START_MS + DAY_MS)])
    ingest.run()
    ingest.topics.produce(ingest.topic, [event(2)])
    ingest.run()
    assert ingest.ids() == [0, 1, 2]
    row = ingest.rows()[0]
    assert (row["kind"], row["kafka_topic"], row["kafka_offset"]) == ("k", ingest.topic, 0)
    assert row["date"] == datetime.date(2023, 11, 14) and row["kafka_timestamp"].timestamp() == START_MS / 1000
    assert len(list(ingest.table().scan(row_filter="date = '2023-11-15'").plan_files())) == 1
    assert ingest.ids(row_filter="date = '2023-11-15'") == [1] and ingest.ids(row_filter="id >= 2") == [2]
    assert ingest.ids(row_filter="kafka_timestamp > '2023-11-15T00:00:00+00:00'") == [1]
    summary = ingest.table().current_snapshot()
    assert summary is not None and summary.summary is not None and summary.summary["pybroker.batch"] == "1"


def test_every_type_arrives(ingest: IcebergIngest) -> None:
    every_type_arrives(ingest)
    assert ingest.ids(row_filter="kind = 'a/b =%ü'") == [0] and ingest.ids(row_filter="kind is null") == [1]
    assert ingest.ids(row_filter="d > 10.20") == [0] and ingest.ids(row_filter="day < '2024-01-02'") == []


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
def test_a_crash_beside_the_commit_neither_loses_nor_repeats(ingest: IcebergIngest, moment: str) -> None:
    """A crash beside the commit neither loses nor repeats: uncommitted files are in no table, and a committed batch is
    known by its number."""
    ingest.topics.produce(ingest.topic, [event(n, timestamp_ms=START_MS + n * DAY_MS) for n in range(3)])

    with pytest.raises(StreamingQueryException, match="crash"):
        ingest.run(dying(moment))
    assert ingest.ids() == ([] if moment == "before the commit" else [0, 1, 2])
    ingest.topics.produce(ingest.topic, [event(3)])
    ingest.run()
    assert ingest.ids() == [0, 1, 2, 3]


@pytest.mark.long
def test_a_checkpoint_that_was_restored(ingest: IcebergIngest, tmp_path: Path) -> None:
    a_restored_checkpoint_is_told(ingest, tmp_path / "checkpoint")


@pytest.mark.long
def test_a_checkpoint_with_another_table(ingest: IcebergIngest, tmp_path: Path) -> None:
    a_hole_is_told(ingest, tmp_path / "checkpoint", "cat.lake.another")


@pytest.mark.long
def test_a_column_that_another_writer_removes(ingest: IcebergIngest) -> None:
    def remove() -> None:
        with ingest.table().update_schema() as update:
            update.delete_column("kind")

    changed_by_another(ingest, remove)


@pytest.mark.long
def test_times_that_no_calendar_has(ingest: IcebergIngest) -> None:
    times_that_no_calendar_has(ingest)


def opened(ingest: IcebergIngest) -> Iceberg:
    table = Iceberg(ingest.topics.spark, ingest.job(partition_by=()))
    table.recover()
    return table


def add(table: Iceberg, batch: MicroBatch, *numbers: int, before: Callable[[], object] = lambda: None) -> None:
    rows = table.spark.createDataFrame([(n, "k", "t", 0, n) for n in numbers], ROWS).coalesce(1)

    def check(count: int) -> None:
        assert count == len(numbers)
        before()

    table.add(batch, rows, check)


@pytest.mark.long
def test_two_drivers_of_one_query_commit_a_batch_once(ingest: IcebergIngest) -> None:
    """Two drivers of one query commit a batch once: the second, believed dead, finds it committed. pyiceberg alone
    would retry the commit, and the rows would be double."""
    one, other = opened(ingest), opened(ingest)
    batch = MicroBatch("aaaaaaaa", 0)
    add(one, batch, 1, 2, before=lambda: add(other, batch, 1, 2))
    assert ingest.ids() == [1, 2] and other.is_done(batch)
    assert not other.is_done(MicroBatch("aaaaaaaa", 1)) and not other.is_done(MicroBatch("bbbbbbbb", 0))


def test_writers_beside_it_are_no_harm(ingest: IcebergIngest) -> None:
    """Other writers append, and add a column, while a batch is written: its commit is retried on top of theirs."""
    table = opened(ingest)

    def others() -> None:
        add(opened(ingest), MicroBatch("bbbbbbbb", 0), 7)
        with ingest.table().update_schema() as update:
            update.union_by_name(pa.schema([("theirs", pa.string())]))

    add(table, MicroBatch("aaaaaaaa", 0), 1, before=others)
    assert ingest.ids() == [1, 7] and ingest.rows()[0]["theirs"] is None


def test_what_is_done_is_known_when_snapshots_expire(ingest: IcebergIngest) -> None:
    """Committed batches are known after snapshots expire: a table property has the number; the last snapshot may be
    another writer's."""
    add(opened(ingest), MicroBatch("aaaaaaaa", 7), 1)
    add(opened(ingest), MicroBatch("bbbbbbbb", 0), 2)
    held = ingest.table()
    held.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in held.snapshots()[:1]]).commit()
    assert len(ingest.table().snapshots()) == 1
    assert opened(ingest).is_done(MicroBatch("aaaaaaaa", 7)) and ingest.ids() == [1, 2]


@pytest.mark.long
def test_columns_are_added_and_types_widened(ingest: IcebergIngest) -> None:
    """Added columns are null in older records, and removed ones in newer records; a column that is wider in the table
    stays so."""
    ingest.topics.produce(ingest.topic, [event(0)])
    ingest.run(schema="id int, kind string, x float")
    ingest.topics.produce(ingest.topic, [Record('{"id": 5000000000, "x": 0.1, "more": 2.5}', timestamp_ms=START_MS)])
    ingest.run(schema="more double, id bigint, x double")
    ingest.topics.produce(ingest.topic, [event(2)])
    ingest.run(schema="id int, kind string")
    found = [(r["id"], r["kind"], r["x"], r["more"]) for r in ingest.rows()]
    assert found == [(0, "k", None, None), (5_000_000_000, None, 0.1, 2.5), (2, "k", None, None)]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"schema": "id string"}, "column id is string, but int64 in the table cat.lake.events: only new columns"),
        ({"schema": "Id bigint"}, "column Id is id in the table"),
        ({"partition_by": ()}, r"is partitioned by identity\(date\), but the job by nothing"),
        ({"partition_by": ("kafka_timestamp",)}, "cannot be partitioned by kafka_timestamp"),
        ({"table_options": {"type": "nonsense"}}, "cat.lake.events cannot be opened: 'nonsense' is not a valid"),
    ],
)
def test_a_table_that_does_not_fit_is_told(ingest: IcebergIngest, how: dict[str, Any], sentence: str) -> None:
    """A table that does not fit is reported with the column, before a record is read."""
    Iceberg(ingest.topics.spark, ingest.job()).recover()
    with pytest.raises(KafkaError, match=sentence):
        Pipeline(ingest.topics.spark, ingest.job(**how), ingest.progress).start()


def test_a_name_or_a_checkpoint_that_is_missing_is_told(ingest: IcebergIngest) -> None:
    with pytest.raises(KafkaError, match=r"use CATALOG\.NAMESPACE\.NAME"):
        Iceberg(ingest.topics.spark, Job("h:1", "events", "t", table_format="iceberg", schema=SCHEMA, checkpoint="/c"))
    with pytest.raises(KafkaError, match=r"the checkpoint of cat\.lake\.events needs a place"):
        ingest.job(checkpoint=None)


def test_a_reader_sees_whole_batches(ingest: IcebergIngest) -> None:
    """A reader sees whole batches: all of a batch of several files or nothing, while it is written and committed."""
    table = opened(ingest)
    rows = table.spark.range(100, numPartitions=4).selectExpr("id", "'k' kind", "'t' kafka_topic", "0 kafka_partition")
    seen: list[int] = []
    held = ingest.table()
    table.add(MicroBatch("aaaaaaaa", 0), rows, lambda count: seen.extend([count, len(ingest.ids())]))
    assert seen == [100, 0] and len(ingest.ids()) == 100 and len(list(ingest.table().scan().plan_files())) == 4
    assert len(held.scan().to_arrow()) == 0, "a reader that has begun stays with its snapshot"


@pytest.mark.long
def test_manifests_are_merged(ingest: IcebergIngest) -> None:
    """Manifests are merged, so readers do not open one for each batch."""
    table = opened(ingest)
    with ingest.table().transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "3"})
    for number in range(5):
        add(table, MicroBatch("aaaaaaaa", number), number)
    held = ingest.table()
    snapshot = held.current_snapshot()
    assert snapshot is not None and len(snapshot.manifests(held.io)) < 4 and ingest.ids() == list(range(5))
