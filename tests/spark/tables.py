"""Pipelines into tables of Delta Lake and Iceberg, run to the end of what is there, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from pybroker.spark.pipeline import Job
from pybroker.spark.pipeline.progress import Progress
from pybroker.spark.pipeline.runner import Pipeline
from pybroker.testing import Record
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
    """A pipeline over one topic, run again and again. `given` are what its jobs have in common."""

    def __init__(self, topics: Topics, topic: str, table: str, **given: Any) -> None:
        self.topics = topics
        self.topic = topics.create(topic)
        self.given = {"table": table, "schema": SCHEMA, **given}
        self.progress = Progress()

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


class DeltaIngest(Ingest):
    """Into a table in a directory, or in a store with the options of delta-rs."""

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
    """Into a table of a catalog in a file, with its warehouse beside it or elsewhere."""

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
