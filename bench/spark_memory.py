"""The source that a Python data source of Spark cannot beat: rows made once a worker, handed over again and again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pybroker.spark import schema
from pybroker.spark.worker import settle

BATCH_ROWS = 16_384
TASKS = 2
KEY_BYTES, VALUE_BYTES = 8, 100


class Share(InputPartition):
    """How many rows a task makes."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


@cache
def rows(schema_json: str) -> pa.RecordBatch:
    """BATCH_ROWS rows of a topic, all columns that are asked for."""
    wanted = StructType.fromJson(json.loads(schema_json))
    count = BATCH_ROWS
    columns = {
        "key": pa.array([b"k" * KEY_BYTES] * count, pa.binary()),
        "value": pa.array([b"v" * VALUE_BYTES] * count, pa.binary()),
        "topic": pa.array(["a-topic-by-a-name"] * count, pa.string()),
        "partition": pa.array([1] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([1_700_000_000_000_000] * count, pa.timestamp("us", "UTC")),
        "timestampType": pa.array([0] * count, pa.int32()),
    }
    target = to_arrow_schema(wanted, timezone="UTC")
    return pa.RecordBatch.from_arrays([columns[name] for name in target.names], schema=target)


class Maker:
    """Rows for tasks, of the schema that is asked for."""

    def __init__(self, options: dict[str, str], wanted: StructType) -> None:
        self.total = int(options["rows"])
        self.step = int(options.get("step", self.total))
        self.schema = wanted.json()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        settle()
        batch, left = rows(self.schema), partition.rows
        while left > 0:
            yield batch[:left] if left < len(batch) else batch
            left -= len(batch)


class BatchReader(Maker, DataSourceReader):
    """`rows` rows."""

    def partitions(self) -> list[InputPartition]:
        return [Share(self.total // TASKS) for _ in range(TASKS)]


class StreamReader(Maker, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """As many, `step` of them a batch."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Share((end["at"] - start["at"]) // TASKS) for _ in range(TASKS)]

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """There is never more than the options say."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"at": min(self.total, start["at"] + self.step)}


class MemorySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "memory_rows"

    def schema(self) -> StructType:
        return schema.full(include_headers=False)

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(dict(self.options), schema)
