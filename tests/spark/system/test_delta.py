"""The pipeline into a table of Delta Lake, read by delta-rs: what is in it, what is not, and what a crash leaves."""

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
from pybroker.spark.pipeline.delta import DeltaLake
from pybroker.spark.pipeline.runner import Pipeline
from pybroker.spark.pipeline.table import Batch
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
    """Partitioned by day; a second run adds what is new; readers prune by partition and statistics, and lose none."""
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
    """Files that were written and not committed are in no table; a batch that was committed is known by its number."""
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
    """Its log begins at 0 again: the next batch must not be committed behind the end of the one that is gone."""
    table = opened(ingest)
    for number in range(2):
        add(table, Batch("aaaaaaaa", number), number)
    schema = ingest.held().schema()
    shutil.rmtree(ingest.table)
    with pytest.raises(KafkaError, match="is gone, or was made anew"):
        table.is_done(Batch("aaaaaaaa", 2))
    DeltaTable.create(str(ingest.table), schema)
    with pytest.raises(KafkaError, match="is gone, or was made anew"):
        table.is_done(Batch("aaaaaaaa", 2))


def opened(ingest: DeltaIngest, **how: Any) -> DeltaLake:
    table = DeltaLake(ingest.topics.spark, ingest.job(partition_by=(), **how))
    table.recover()
    return table


def add(table: DeltaLake, batch: Batch, *numbers: int) -> None:
    rows = table.spark.createDataFrame([(n, "k", "t", 0, n) for n in numbers], ROWS).coalesce(1)
    table.add(batch, rows, lambda count: None if count == len(numbers) else pytest.fail(f"{count} rows"))



@pytest.mark.long
def test_two_drivers_of_one_query_commit_a_batch_once(ingest: DeltaIngest) -> None:
    """One that was taken for dead goes on beside its successor: the second to commit finds that it is done."""
    one, other = opened(ingest), opened(ingest)
    batch = Batch("aaaaaaaa", 0)
    assert not one.is_done(batch) and not other.is_done(batch)
    add(one, batch, 1, 2)
    add(other, batch, 1, 2)
    assert ingest.ids() == [1, 2] and other.is_done(batch)
    assert not other.is_done(Batch("aaaaaaaa", 1)) and not other.is_done(Batch("bbbbbbbb", 0))


def test_writers_beside_it_are_no_harm(ingest: DeltaIngest) -> None:
    """Others append, and add a column, between two batches: a commit that they were faster than is made anew."""
    table = opened(ingest)
    other = DeltaTable(ingest.table)
    other.alter.add_columns([Schema.from_arrow(pa.schema([("theirs", pa.string())])).fields[0]])
    add(table, Batch("aaaaaaaa", 0), 1)
    assert ingest.ids() == [1] and ingest.rows()[0]["theirs"] is None


def test_what_is_done_is_known_when_the_log_is_cut(ingest: DeltaIngest) -> None:
    """Delta removes old entries of its log once a checkpoint has them: the transaction is in the checkpoint."""
    table = opened(ingest)
    add(table, Batch("aaaaaaaa", 7), 1)
    held = DeltaTable(ingest.table)
    held.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    held.create_checkpoint()
    held.cleanup_metadata()
    assert len(list((ingest.table / "_delta_log").glob("*.json"))) == 1
    assert opened(ingest).is_done(Batch("aaaaaaaa", 7))


@pytest.mark.long
def test_columns_are_added(ingest: DeltaIngest) -> None:
    """A record from before has null in a column that came later, and a later one in a column that went; a narrower type
    is stored as the table has it."""
    ingest.topics.produce(ingest.topic, [event(0)])
    ingest.run()
    ingest.topics.produce(ingest.topic, [Record('{"id": 1, "more": 2.5}', timestamp_ms=START_MS)])
    ingest.run(schema="more double, id int")
    assert [(r["id"], r["kind"], r["more"]) for r in ingest.rows()] == [(0, "k", None), (1, None, 2.5)]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"schema": "id string"}, "column id is string, and int64 in the table .*: columns may be added"),
        ({"schema": "id bigint, ID2 int, Kind string"}, "column Kind is kind in the table"),
        ({"schema": "id decimal(20,0)"}, "column id is decimal"),
        ({"partition_by": ()}, "is partitioned by date, and the job by nothing"),
        ({"partition_by": ("kafka_timestamp",)}, "cannot be partitioned by kafka_timestamp"),
        ({"schema": "id bigint, i interval day to second"}, "column i is interval day to second"),
        ({"schema": "id bigint, needed int"}, "column strict of the table .* is NOT NULL"),
    ],
)
def test_a_table_that_does_not_fit_is_told(ingest: DeltaIngest, how: dict[str, Any], sentence: str) -> None:
    """Before a record is read, with the column."""
    columns = [("id", pa.int64()), ("kind", pa.string()), ("date", pa.date32())]
    fields = [pa.field(*each) for each in columns]
    if "needed" in how.get("schema", ""):
        fields.append(pa.field("strict", pa.int32(), nullable=False))
    DeltaTable.create(ingest.table, Schema.from_arrow(pa.schema(fields)), partition_by=["date"])
    with pytest.raises(KafkaError, match=sentence):
        Pipeline(ingest.topics.spark, ingest.job(**how), ingest.progress).start()


def test_a_type_that_is_wider_than_the_table_is_told(ingest: DeltaIngest) -> None:
    """delta-rs cannot widen a column: the sentence says which it is."""
    ingest.run(schema="id int")
    with pytest.raises(KafkaError, match=r"column id is int64, and int32 in the table .* cannot widen"):
        ingest.run(schema="id bigint")


def test_a_table_that_asks_for_more_is_told(ingest: DeltaIngest) -> None:
    """A constraint, which the pipeline would not check."""
    ingest.run()
    DeltaTable(ingest.table).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(KafkaError, match="has checkConstraints, which the pipeline does not keep up"):
        ingest.run()


@pytest.mark.long
def test_small_files_become_one(ingest: DeltaIngest) -> None:
    """Of a partition and a size; with the same rows, from before and after a column came. A reader of an older version
    still finds its files."""
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
    """Rows that others delete while their files are merged stay deleted, and those that they merge are there once."""
    from pybroker.spark.pipeline import delta

    table = opened(ingest, compact_files=2)
    for number in range(3):
        add(table, Batch("aaaaaaaa", number), number)
    rewrite = delta.rewrite

    def slow(*given: Any) -> Any:
        made = rewrite(*given)
        DeltaTable(ingest.table).optimize.compact()
        DeltaTable(ingest.table).delete("id = 1")
        return made

    monkeypatch.setattr(delta, "rewrite", slow)
    assert table.compact(Batch("aaaaaaaa", 2)) == 0
    assert ingest.ids() == [0, 2]
    monkeypatch.undo()
    add(table, Batch("aaaaaaaa", 3), 3)
    assert table.compact(Batch("aaaaaaaa", 3)) == 2 and ingest.ids() == [0, 2, 3]


def test_a_reader_sees_whole_batches(ingest: DeltaIngest) -> None:
    """While a batch of several files is written and committed, a reader sees all of it or nothing."""
    seen: list[int] = []
    table = opened(ingest)
    rows = table.spark.range(100, numPartitions=4).selectExpr("id", "'k' kind", "'t' kafka_topic", "0 kafka_partition")

    def look(count: int) -> None:
        seen.extend([count, len(ingest.ids())])

    held = DeltaTable(ingest.table)
    table.add(Batch("aaaaaaaa", 0), rows, look)
    assert seen == [100, 0] and DeltaTable(ingest.table).count() == 100 and len(ingest.files()) == 4
    assert held.to_pyarrow_table().num_rows == 0, "a reader that has begun stays with its version"


def test_a_check_that_fails_commits_nothing(ingest: DeltaIngest) -> None:
    """And leaves no file behind."""
    table = opened(ingest)
    rows = table.spark.createDataFrame([(1, "k", "t", 0, 1)], ROWS)

    def refuse(count: int) -> None:
        raise KafkaError(-1, f"{count} rows are too few")

    with pytest.raises(KafkaError, match="too few"):
        table.add(Batch("aaaaaaaa", 0), rows, refuse)
    assert ingest.ids() == [] and not list(ingest.table.rglob("*.parquet"))


def test_a_missing_package_is_told(ingest: DeltaIngest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(KafkaError, match=r"needs the package deltalake: pip install 'pybroker\[delta\]'"):
        Pipeline(ingest.topics.spark, ingest.job(), ingest.progress)


def test_an_empty_text_is_null_as_a_partition(ingest: DeltaIngest) -> None:
    """The format has no other way to write it."""
    ingest.topics.produce(ingest.topic, [Record('{"id": 0, "kind": ""}')])
    ingest.run(partition_by=("kind",))
    assert [row["kind"] for row in ingest.rows()] == [None]


def test_a_table_with_column_mapping_is_told(ingest: DeltaIngest) -> None:
    """Its files have other names for its columns."""
    ingest.run()
    first = Path(ingest.table) / "_delta_log/00000000000000000000.json"
    mapped = '"configuration":{"delta.columnMapping.mode":"name"'
    first.write_text(first.read_text().replace('"configuration":{', mapped))
    with pytest.raises(KafkaError, match="has columnMapping, which the pipeline does not keep up"):
        ingest.run()
