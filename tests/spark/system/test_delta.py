"""The pipeline into a Delta Lake table, read with delta-rs: its rows, the rows that it refuses, and what a crash
leaves."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from pyspark.errors import StreamingQueryException

from pybroker.errors import KafkaError
from pybroker.spark.pipeline.runner import Pipeline
from pybroker.spark.pipeline.tables.delta import DeltaLake
from pybroker.spark.pipeline.tables.table import MicroBatch
from pybroker.testing import Record
from tests.spark.tables import (
    DAY_MS,
    ROWS,
    SCHEMA,
    START_MS,
    DeltaIngest,
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
def ingest(topics: Topics, topic: str, tmp_path: Path) -> DeltaIngest:
    return DeltaIngest(topics, topic, tmp_path / "table")


def test_json_becomes_a_delta_table(ingest: DeltaIngest) -> None:
    """JSON becomes a Delta table by day; a second run adds new records. Readers prune by partition and statistics, and
    lose no rows."""
    ingest.topics.produce(ingest.topic, [event(0), event(1, timestamp_ms=START_MS + DAY_MS)])
    ingest.run()
    ingest.topics.produce(ingest.topic, [event(2)])
    ingest.run()
    assert ingest.ids() == [0, 1, 2]
    row = ingest.rows()[0]
    assert (row["kind"], row["kafka_topic"], row["kafka_offset"]) == ("k", ingest.topic, 0)
    assert row["date"] == datetime.date(2023, 11, 14) and row["kafka_timestamp"].timestamp() == START_MS / 1000
    assert DeltaTable(ingest.table).metadata().partition_columns == ["date"]
    assert ingest.ids(filters=[("date", "=", datetime.date(2023, 11, 15))]) == [1]
    assert ingest.ids(filters=[("id", ">=", 2)]) == [2]
    assert ingest.ids(filters=[("kafka_timestamp", ">", row["kafka_timestamp"])]) == [1]
    assert (ingest.progress.rows, ingest.progress.dead_letters) == (3, 0)


def test_every_type_arrives(ingest: DeltaIngest) -> None:
    every_type_arrives(ingest)
    assert ingest.ids(filters=[("kind", "=", "a/b =%ü")]) == [0]


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
def test_a_crash_beside_the_commit_neither_loses_nor_repeats(ingest: DeltaIngest, moment: str) -> None:
    """A crash beside the commit neither loses nor repeats: uncommitted files are in no table, and a committed batch is
    known by its number."""
    ingest.topics.produce(ingest.topic, [event(n, timestamp_ms=START_MS + n * DAY_MS) for n in range(3)])

    with pytest.raises(StreamingQueryException, match="crash"):
        ingest.run(dying(moment))
    assert ingest.ids() == ([] if moment == "before the commit" else [0, 1, 2])
    ingest.topics.produce(ingest.topic, [event(3)])
    ingest.run()
    assert ingest.ids() == [0, 1, 2, 3]
    orphans = DeltaTable(ingest.table).vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
    assert len(orphans) == (3 if moment == "before the commit" else 0), "and the checkpoint is not among them"


@pytest.mark.long
def test_a_checkpoint_that_was_restored(ingest: DeltaIngest, tmp_path: Path) -> None:
    a_restored_checkpoint_is_told(ingest, tmp_path / "checkpoint")


@pytest.mark.long
def test_a_checkpoint_with_another_table(ingest: DeltaIngest, tmp_path: Path) -> None:
    a_hole_is_told(ingest, tmp_path / "checkpoint", str(tmp_path / "another"))


@pytest.mark.long
def test_a_column_that_another_writer_removes(ingest: DeltaIngest) -> None:
    def overwrite() -> None:
        held = ingest.held()
        fields = [f for f in pa.schema(held.schema().to_arrow()) if f.name != "kind"]
        none = pa.schema(fields).empty_table()
        write_deltalake(held, none, mode="overwrite", schema_mode="overwrite", partition_by=["date"])

    changed_by_another(ingest, overwrite)


@pytest.mark.long
def test_times_that_no_calendar_has(ingest: DeltaIngest) -> None:
    times_that_no_calendar_has(ingest)


def test_a_table_that_was_made_anew_under_the_pipeline(ingest: DeltaIngest) -> None:
    """A table that is deleted and created again under the pipeline is an error: its log begins at 0, so a commit at the
    old end must fail."""
    table = opened(ingest)
    for number in range(2):
        add(table, MicroBatch("aaaaaaaa", number), number)
    schema = ingest.held().schema()
    shutil.rmtree(ingest.table)
    with pytest.raises(KafkaError, match="was removed or recreated"):
        table.is_done(MicroBatch("aaaaaaaa", 2))
    DeltaTable.create(str(ingest.table), schema)
    with pytest.raises(KafkaError, match="was removed or recreated"):
        table.is_done(MicroBatch("aaaaaaaa", 2))


def opened(ingest: DeltaIngest, **how: Any) -> DeltaLake:
    table = DeltaLake(ingest.topics.spark, ingest.job(partition_by=(), **how))
    table.recover()
    return table


def add(table: DeltaLake, batch: MicroBatch, *numbers: int) -> None:
    rows = table.spark.createDataFrame([(n, "k", "t", 0, n) for n in numbers], ROWS).coalesce(1)
    table.add(batch, rows, lambda count: None if count == len(numbers) else pytest.fail(f"{count} rows"))



@pytest.mark.long
def test_two_drivers_of_one_query_commit_a_batch_once(ingest: DeltaIngest) -> None:
    """Two drivers of one query commit a batch once: the second, which was believed dead, finds the batch committed."""
    one, other = opened(ingest), opened(ingest)
    batch = MicroBatch("aaaaaaaa", 0)
    assert not one.is_done(batch) and not other.is_done(batch)
    add(one, batch, 1, 2)
    add(other, batch, 1, 2)
    assert ingest.ids() == [1, 2] and other.is_done(batch)
    assert not other.is_done(MicroBatch("aaaaaaaa", 1)) and not other.is_done(MicroBatch("bbbbbbbb", 0))


def test_writers_beside_it_are_no_harm(ingest: DeltaIngest) -> None:
    """Other writers append, and add a column, between two batches: a commit that loses the race is retried."""
    table = opened(ingest)
    other = DeltaTable(ingest.table)
    other.alter.add_columns([Schema.from_arrow(pa.schema([("theirs", pa.string())])).fields[0]])
    add(table, MicroBatch("aaaaaaaa", 0), 1)
    assert ingest.ids() == [1] and ingest.rows()[0]["theirs"] is None


def test_what_is_done_is_known_when_the_log_is_cut(ingest: DeltaIngest) -> None:
    """Committed batches are known after Delta removes old log entries: the checkpoint has the transaction."""
    table = opened(ingest)
    add(table, MicroBatch("aaaaaaaa", 7), 1)
    held = DeltaTable(ingest.table)
    held.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    held.create_checkpoint()
    held.cleanup_metadata()
    assert len(list((ingest.table / "_delta_log").glob("*.json"))) == 1
    assert opened(ingest).is_done(MicroBatch("aaaaaaaa", 7))


@pytest.mark.long
def test_columns_are_added(ingest: DeltaIngest) -> None:
    """Added columns are null in older records, and removed ones in newer records; a narrower type is stored as the
    table's type."""
    ingest.topics.produce(ingest.topic, [event(0)])
    ingest.run()
    ingest.topics.produce(ingest.topic, [Record('{"id": 1, "more": 2.5}', timestamp_ms=START_MS)])
    ingest.run(schema="more double, id int")
    assert [(r["id"], r["kind"], r["more"]) for r in ingest.rows()] == [(0, "k", None), (1, None, 2.5)]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"schema": "id string"}, "column id is string, but int64 in the table .*: only new columns"),
        ({"schema": "id bigint, ID2 int, Kind string"}, "column Kind is kind in the table"),
        ({"schema": "id decimal(20,0)"}, "column id is decimal"),
        ({"partition_by": ()}, "is partitioned by date, but the job by nothing"),
        ({"partition_by": ("kafka_timestamp",)}, "cannot be partitioned by kafka_timestamp"),
        ({"schema": "id bigint, i interval day to second"}, "column i is interval day to second"),
        ({"schema": "id bigint, needed int"}, "column strict of the table .* is NOT NULL"),
    ],
)
def test_a_table_that_does_not_fit_is_told(ingest: DeltaIngest, how: dict[str, Any], sentence: str) -> None:
    """A table that does not fit is reported with the column, before a record is read."""
    columns = [("id", pa.int64()), ("kind", pa.string()), ("date", pa.date32())]
    fields = [pa.field(*each) for each in columns]
    if "needed" in how.get("schema", ""):
        fields.append(pa.field("strict", pa.int32(), nullable=False))
    DeltaTable.create(ingest.table, Schema.from_arrow(pa.schema(fields)), partition_by=["date"])
    with pytest.raises(KafkaError, match=sentence):
        Pipeline(ingest.topics.spark, ingest.job(**how), ingest.progress).start()


def test_a_type_that_is_wider_than_the_table_is_told(ingest: DeltaIngest) -> None:
    """A type wider than the table's is reported with the column: delta-rs cannot widen columns."""
    ingest.run(schema="id int")
    with pytest.raises(KafkaError, match=r"column id is int64, but int32 in the table .* cannot widen"):
        ingest.run(schema="id bigint")


def test_a_table_that_asks_for_more_is_told(ingest: DeltaIngest) -> None:
    """A table with a constraint is refused, as the pipeline would not check it."""
    ingest.run()
    DeltaTable(ingest.table).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(KafkaError, match="has checkConstraints, which the pipeline does not support"):
        ingest.run()


@pytest.mark.long
def test_small_files_become_one(ingest: DeltaIngest) -> None:
    """Small files of one partition are merged, with the same rows, also across an added column. A reader of an older
    version still finds its files."""
    for number in range(3):
        ingest.topics.produce(ingest.topic, [event(number)])
        ingest.run(compact_files=0)
    before = DeltaTable(ingest.table)
    ingest.topics.produce(ingest.topic, [Record('{"id": 3, "more": 1}', timestamp_ms=START_MS)])
    ingest.run(compact_files=4, schema=f"{SCHEMA}, more int")
    assert len(ingest.files()) == 1
    assert [(r["id"], r["more"]) for r in ingest.rows()] == [(0, None), (1, None), (2, None), (3, 1)]
    assert before.to_pyarrow_table().num_rows == 3


@pytest.mark.long
def test_a_compaction_beside_another_change_gives_way(ingest: DeltaIngest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction beside another change gives way: rows that others delete meanwhile stay deleted, and others are
    there once."""
    from pybroker.spark.pipeline.tables import delta

    table = opened(ingest, compact_files=2)
    for number in range(3):
        add(table, MicroBatch("aaaaaaaa", number), number)
    rewrite = delta.rewrite

    def slow(*given: Any) -> Any:
        made = rewrite(*given)
        DeltaTable(ingest.table).optimize.compact()
        DeltaTable(ingest.table).delete("id = 1")
        return made

    monkeypatch.setattr(delta, "rewrite", slow)
    assert table.compact(MicroBatch("aaaaaaaa", 2)) == 0
    assert ingest.ids() == [0, 2]
    monkeypatch.undo()
    add(table, MicroBatch("aaaaaaaa", 3), 3)
    assert table.compact(MicroBatch("aaaaaaaa", 3)) == 2 and ingest.ids() == [0, 2, 3]


def test_a_reader_sees_whole_batches(ingest: DeltaIngest) -> None:
    """A reader sees whole batches: all of a batch of several files or nothing, while it is written and committed."""
    seen: list[int] = []
    table = opened(ingest)
    rows = table.spark.range(100, numPartitions=4).selectExpr("id", "'k' kind", "'t' kafka_topic", "0 kafka_partition")

    def look(count: int) -> None:
        seen.extend([count, len(ingest.ids())])

    held = DeltaTable(ingest.table)
    table.add(MicroBatch("aaaaaaaa", 0), rows, look)
    assert seen == [100, 0] and DeltaTable(ingest.table).count() == 100 and len(ingest.files()) == 4
    assert held.to_pyarrow_table().num_rows == 0, "a reader that has begun stays with its version"


def test_a_check_that_fails_commits_nothing(ingest: DeltaIngest) -> None:
    """A check that fails commits nothing and leaves no file."""
    table = opened(ingest)
    rows = table.spark.createDataFrame([(1, "k", "t", 0, 1)], ROWS)

    def refuse(count: int) -> None:
        raise KafkaError(-1, f"{count} rows are too few")

    with pytest.raises(KafkaError, match="too few"):
        table.add(MicroBatch("aaaaaaaa", 0), rows, refuse)
    assert ingest.ids() == [] and not list(ingest.table.rglob("*.parquet"))


def test_a_missing_package_is_told(ingest: DeltaIngest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(KafkaError, match=r"needs the package deltalake: pip install 'numpy>=1\.26' 'pyarrow"):
        Pipeline(ingest.topics.spark, ingest.job(), ingest.progress)


def test_an_empty_text_is_null_as_a_partition(ingest: DeltaIngest) -> None:
    """An empty text becomes null as a partition value, as the format cannot write it."""
    ingest.topics.produce(ingest.topic, [Record('{"id": 0, "kind": ""}')])
    ingest.run(partition_by=("kind",))
    assert [row["kind"] for row in ingest.rows()] == [None]


def test_a_table_with_column_mapping_is_told(ingest: DeltaIngest) -> None:
    """A table with column mapping is refused, as its files have other names for its columns."""
    ingest.run()
    first = Path(ingest.table) / "_delta_log/00000000000000000000.json"
    mapped = '"configuration":{"delta.columnMapping.mode":"name"'
    first.write_text(first.read_text().replace('"configuration":{', mapped))
    with pytest.raises(KafkaError, match="has columnMapping, which the pipeline does not support"):
        ingest.run()
