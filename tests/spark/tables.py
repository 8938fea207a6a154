"""Pipelines into tables of each format: run until they have read every record, and read back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from pybroker.client.admin import Admin
from pybroker.spark.options import parse_source
from pybroker.spark.pipeline import Job
from pybroker.spark.pipeline.progress import PipelineProgress
from pybroker.spark.pipeline.runner import Pipeline
from pybroker.testing import Record
from tests.spark import ledger
from tests.spark.topics import Topics

PATIENCE_S = 60.0
DAY_MS = 86_400_000
START_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z
SCHEMA = "id bigint, kind string"
ROWS = "id bigint, kind string, kafka_topic string, kafka_partition int, kafka_offset bigint"


def event(number: int, **fields: Any) -> Record:
    fields.setdefault("timestamp_ms", START_MS)
    return Record(json.dumps({"id": number, "kind": "k"}), **fields)


class Ingest:
    """A pipeline over one topic that is run repeatedly. `given` are the arguments that its jobs share."""

    def __init__(self, topics: Topics, topic: str, table: str, **given: Any) -> None:
        self.topics = topics
        self.topic = topics.create(topic)
        self.given = {"table": table, "schema": SCHEMA, **given}
        self.progress = PipelineProgress()

    def job(self, **how: Any) -> Job:
        return Job(self.topics.broker.bootstrap, topics=self.topic, trigger_s=None, **{**self.given, **how})

    def run(self, break_: Callable[[Pipeline], object] = lambda _: None, **how: Any) -> None:
        pipeline = Pipeline(self.topics.spark, self.job(**how), self.progress)
        break_(pipeline)
        query = pipeline.start()
        try:
            assert query.awaitTermination(PATIENCE_S)
        finally:
            query.stop()

    def found(self, **filters: Any) -> list[dict[str, Any]]:
        raise NotImplementedError

    def rows(self, **filters: Any) -> list[dict[str, Any]]:
        return sorted(self.found(**filters), key=lambda row: (row["kafka_partition"], row["kafka_offset"]))

    def ids(self, **filters: Any) -> list[int]:
        return [row["id"] for row in self.rows(**filters)]


def committed(topics: Topics, topic: str) -> dict[int, int]:
    """The committed offsets of the group of a pipeline that is named after its topic."""
    group = parse_source(Job("h:1", "/t", topic, format="raw", name=topic).source_options(), streaming=True).group
    assert group is not None
    with closing(Admin(topics.broker.bootstrap)) as admin:
        return {tp.partition: held.offset for tp, held in admin.group_offsets([group])[group].items()}


def dying(moment: str) -> Callable[[Pipeline], None]:
    """Crash a run at its commit: "before the commit", or after it and before Spark records the batch."""

    def break_(pipeline: Pipeline) -> None:
        table: Any = pipeline.table
        commit = table._commit

        def die(*given: Any) -> None:
            if moment == "after the commit":
                commit(*given)
            raise OSError("crash")

        table._commit = die

    return break_


EVERY_TYPE = (
    "id bigint, small tinyint, good boolean, x double, d decimal(12,2), day date, at timestamp, "
    "local timestamp_ntz, tags array<string>, props map<string,int>, "
    "inner struct<a: int, b: array<struct<c: string>>>, kind string"
)


def every_type_arrives(ingest: Ingest) -> None:
    """Every type arrives, nested ones too, null and not; partitions are a text with characters that paths lack, an
    hour, and null."""
    full = {
        "id": 0, "small": 1, "good": True, "x": 0.5, "d": 10.25, "day": "2024-01-02", "at": "2024-01-02T03:04:05.678Z",
        "local": "2024-01-02T03:04:05", "tags": ["a", None], "props": {"k": 1}, "inner": {"a": 1, "b": [{"c": "d"}]},
        "kind": "a/b =%ü",
    }  # fmt: skip
    ingest.topics.produce(ingest.topic, [Record(json.dumps(full), timestamp_ms=START_MS), Record('{"id": 1}')])
    ingest.run(schema=EVERY_TYPE, partition_by=("kind", "hour"))
    row, none = ingest.rows()
    assert (row["small"], row["good"], row["x"]) == (1, True, 0.5)
    assert (str(row["d"]), str(row["day"])) == ("10.25", "2024-01-02")
    assert row["at"].isoformat() == "2024-01-02T03:04:05.678000+00:00" and row["local"].hour == 3
    assert (row["tags"], row["props"], row["inner"]) == (["a", None], [("k", 1)], {"a": 1, "b": [{"c": "d"}]})
    assert (row["kind"], row["hour"]) == ("a/b =%ü", 22)
    assert {name for name, value in none.items() if value is not None} == {
        "id", "kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "hour",
    }  # fmt: skip


class ParquetIngest(Ingest):
    """A pipeline into plain files in a directory."""

    def __init__(self, topics: Topics, topic: str, table: Path, **given: Any) -> None:
        super().__init__(topics, topic, str(table), **given)
        self.table = table

    def files(self) -> list[Path]:
        return ledger.data_files(self.table)

    def found(self, **filters: Any) -> list[dict[str, Any]]:
        """The rows that a reader without Spark finds."""
        return [row for path in self.files() for row in pq.ParquetFile(path).read().to_pylist()]


class DeltaIngest(Ingest):
    """A pipeline into a Delta table in a directory, or in a store with the options of delta-rs."""

    def __init__(self, topics: Topics, topic: str, table: Path | str, **given: Any) -> None:
        super().__init__(topics, topic, str(table), table_format="delta", **given)
        self.table = table

    def held(self) -> DeltaTable:
        return DeltaTable(self.table, storage_options=dict(self.given.get("table_options", {})))

    def found(self, **filters: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.held().to_pyarrow_table(**filters).to_pylist()
        return rows

    def files(self) -> list[str]:
        return sorted(self.held().file_uris())


class IcebergIngest(Ingest):
    """A pipeline into an Iceberg table of a catalog in a file, with its warehouse beside it or elsewhere."""

    def __init__(self, topics: Topics, topic: str, home: Path, **options: str) -> None:
        catalog = {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{home}/warehouse"}
        self.options = {**catalog, **options}
        given = {"table_options": self.options, "checkpoint": str(home / "checkpoint")}
        super().__init__(topics, topic, "cat.lake.events", table_format="iceberg", **given)

    def table(self) -> Table:
        return load_catalog("cat", **self.options).load_table("lake.events")

    def found(self, **filters: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table().scan(**filters).to_arrow().to_pylist()
        return rows


def a_hole_is_told(ingest: Ingest, checkpoint: Path, another: str) -> None:
    """A checkpoint that is ahead of its table stops the pipeline: another table lacks the checkpoint's batches. A batch
    of dead letters alone is none that the right table lacks."""
    given = {"checkpoint": str(checkpoint)}
    ingest.topics.produce(ingest.topic, [event(0)])
    ingest.run(**given)
    ingest.topics.produce(ingest.topic, [Record("{")])
    ingest.run(**given)
    ingest.topics.produce(ingest.topic, [event(2)])
    with pytest.raises(Exception, match="lacks batch 1, which the checkpoint"):
        ingest.run(table=another, **given)
    ingest.run(**given)
    assert ingest.ids() == [0, 2]


def a_restored_checkpoint_is_told(ingest: Ingest, checkpoint: Path) -> None:
    """A checkpoint that is older than the table stops the pipeline, on every start: a batch with a committed number and
    other records does not count as committed."""
    given = {"checkpoint": str(checkpoint)}
    saved = checkpoint.with_name("saved")
    for number in range(3):
        ingest.topics.produce(ingest.topic, [event(number)])
        ingest.run(**given)
        if number == 0:
            shutil.copytree(checkpoint, saved)
    shutil.rmtree(checkpoint)
    saved.rename(checkpoint)
    for _ in range(2):
        with pytest.raises(Exception, match=r"has batch \d already.* was restored to an older state"):
            ingest.run(**given)
    assert ingest.ids() == [0, 1, 2]


def changed_by_another(ingest: Ingest, change: Callable[[], object]) -> None:
    """A column that another writer drops while the pipeline runs loses no values: the run fails, and the next start has
    them."""

    def break_(pipeline: Pipeline) -> None:
        table: Any = pipeline.table
        recover = table.recover

        def then_change() -> None:
            recover()
            change()

        table.recover = then_change

    ingest.topics.produce(ingest.topic, [event(0)])
    with pytest.raises(Exception, match="another writer has changed column kind of the table"):
        ingest.run(break_)
    ingest.run()
    assert [(row["id"], row["kind"]) for row in ingest.rows()] == [(0, "k")]


def times_that_no_calendar_has(ingest: Ingest) -> None:
    """A timestamp out of range does not end the pipeline for good. The record becomes a dead letter if the table is
    partitioned by day; in plain columns the timestamp stays as it is."""
    far = '{"id": 2, "at": "+12000-01-01T00:00:00Z", "day": "+12000-01-01"}'
    old = '{"id": 3, "at": "0001-01-01T00:00:00Z", "day": "0001-01-01"}'
    ingest.topics.produce(
        ingest.topic,
        [
            event(0),
            Record('{"id": 1}', timestamp_ms=253_402_300_800_000 + DAY_MS),
            Record(far, timestamp_ms=START_MS),
            Record(old, timestamp_ms=START_MS),
        ],
    )
    ingest.run(schema="id bigint, kind string, at timestamp, day date")
    assert ingest.progress.dead_letters == 1
    assert ingest.progress.rows == 3
