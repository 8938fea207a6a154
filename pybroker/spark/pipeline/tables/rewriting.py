"""Merge small data files into larger ones, in Spark's workers.

As in a log-structured merge, files are merged with others of about their size: n of them become one n times as large.
A row is rewritten once per such step to a full file, not at each compaction.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker.errors import UNKNOWN_SERVER_ERROR, KafkaError
from pybroker.spark.pipeline.tables.data_files import (
    Values,
    WritePlan,
    WrittenFile,
    collected,
    directory_value,
    files_of,
    see,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SMALLEST: Final = 64 << 10
"""Files of up to this many bytes count as of one size."""
_READ_ROWS: Final = 65_536


class Small(NamedTuple):
    """A file that may be merged. path: under the root."""

    path: str
    size: int
    rows: int
    values: Values


def chosen(files: Iterable[Small], files_min: int, file_bytes: int) -> list[list[Small]]:
    """Return groups of files to merge: of one partition and about one size each, at least `files_min` of them."""
    tiers: dict[tuple[Values, int], list[Small]] = {}
    for file in files:
        if file.size < file_bytes // 2:
            tier = int(math.log(max(file.size, SMALLEST) / SMALLEST, max(files_min, 2)))
            tiers.setdefault((file.values, tier), []).append(file)
    return [sorted(group) for group in tiers.values() if len(group) >= max(files_min, 2)]


def rewrite(spark: "SparkSession", groups: Sequence[Sequence[Small]], plan: WritePlan) -> list[WrittenFile]:
    """Write the rows of each group into new files. KafkaError if a file has a column that the new one lacks."""
    told = [(json.dumps([[directory_value(v) for v in group[0].values], [f.path for f in group]]),) for group in groups]
    work = spark.createDataFrame(told, "told string").repartition(len(told))
    written = collected(work, _rewriter(plan), plan)
    see(plan.store, written)
    return written


def _rewriter(plan: WritePlan) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    def work(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            for text in batch.column("told").to_pylist():
                values, paths = json.loads(text)
                yield from files_of(plan, ((tuple(values), rows) for rows in _rows(plan, paths)))

    return work


def _rows(plan: WritePlan, paths: Sequence[str]) -> "Iterator[pa.RecordBatch]":
    import pyarrow.parquet as pq

    store, root = plan.store.open()
    for path in paths:
        with store.open_input_file(f"{root}/{path}") as source, pq.ParquetFile(source) as file:
            more = set(file.schema_arrow.names) - set(plan.schema.names)
            if more:
                raise KafkaError(
                    UNKNOWN_SERVER_ERROR, f"{path} has the column {min(more)}, but its table lacks it: not merged"
                )
            yield from file.iter_batches(_READ_ROWS)
