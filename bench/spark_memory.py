"""The upper bound for a Python data source of Spark: each worker makes its rows once, and returns them again and again.

With `logs`, directories of partitions, it also maps as many bytes as the records of these rows take and computes their
CRC: the bound for a source that reads files, which must also decode and copy.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice, repeat
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pybroker import core
from pybroker.spark import schema
from pybroker.spark.reading.worker import freeze_loaded

BATCH_ROWS = 16_384
TASKS = 2
KEY_BYTES, VALUE_BYTES = 8, 100
RECORD_BYTES = KEY_BYTES + VALUE_BYTES + 8
"""The least bytes of a record in a batch of this topic."""
WINDOW_BYTES = 64 << 20


class Share(InputPartition):
    """The number of rows of a task, and the directory that it also reads, if any."""

    def __init__(self, rows: int, log: str = "") -> None:
        super().__init__(rows)
        self.rows = rows
        self.log = log


def sums(log: str) -> Iterator[int]:
    """Yield the CRCs of stretches of a partition's segments, each as long as the records of a batch of rows."""
    for path in cycle(sorted(path for path in Path(log).glob("*.log") if path.stat().st_size)):
        size = path.stat().st_size
        for start in range(0, size, WINDOW_BYTES):
            with path.open("rb") as file:
                n = min(WINDOW_BYTES, size - start)
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
                window = mmap.mmap(file.fileno(), n, flags, mmap.PROT_READ, offset=start)
            with window, memoryview(window) as data:
                for at in range(0, n, BATCH_ROWS * RECORD_BYTES):
                    with data[at : at + BATCH_ROWS * RECORD_BYTES] as stretch:
                        yield core.crc32c(stretch)


@cache
def rows(schema_json: str) -> pa.RecordBatch:
    """Return BATCH_ROWS rows of a topic, with all requested columns."""
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
    """Makes rows for tasks, of the requested schema."""

    def __init__(self, options: dict[str, str], wanted: StructType) -> None:
        self.total = int(options["rows"])
        self.step = int(options.get("step", self.total))
        self.logs = options.get("logs", "").split(",")  # [""] means none
        self.schema = wanted.json()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        freeze_loaded()
        batch, left = rows(self.schema), partition.rows
        summed = sums(partition.log) if partition.log else repeat(0)
        while left > 0:
            next(summed)
            yield batch[:left] if left < len(batch) else batch
            left -= len(batch)


class BatchReader(Maker, DataSourceReader):
    """A batch read of `rows` rows."""

    def partitions(self) -> list[InputPartition]:
        return [Share(self.total // TASKS, log) for log in islice(cycle(self.logs), TASKS)]


class StreamReader(Maker, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of `rows` rows, `step` of them a batch."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Share((end["at"] - start["at"]) // TASKS) for _ in range(TASKS)]

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: the number of rows is fixed by the options."""

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
