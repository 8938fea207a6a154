"""Writing a DataFrame to topics: at least once, each row acknowledged before its task, and so its batch, is done.

    the task's rows -> RowWriter -> all acknowledged -> commit message -> Spark commits the batch

A task that fails is run again by Spark, and a batch by the next run of its query: rows that it had written are then
there twice. With repeatHeaders each row of a stream carries where it comes from, so that a reader can drop repeats; a
row that is written again has the same four, as long as the query computes its rows in the same order again.

Spark begins a process for each step of its planning, and imports this in it: what only tasks need, they import.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from pybroker.spark.row_writer import Marks

_TEXT: Final = ("string", "binary")
ACCEPTED: Final[dict[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "partition": ("int",),
    "key": _TEXT,
    "value": _TEXT,
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""The columns that are written, and the types that they may have; other columns are left alone."""

_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"


class Written(WriterCommitMessage):
    """What a task has written, all of it acknowledged."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class KafkaBatchWriter(DataSourceArrowWriter):
    """df.write: rows are appended; a job that fails leaves those that were acknowledged."""

    def __init__(self, options: SinkOptions, schema: "StructType", overwrite: bool) -> None:
        if overwrite:
            raise KafkaError(INVALID_CONFIG, 'a topic is only appended to: say mode("append")')
        if options.repeat_headers:
            raise KafkaError(INVALID_CONFIG, "repeatHeaders is for streams: a batch job has no batches to tell apart")
        self.options = options
        _check(options, schema)

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> Written:
        from pybroker.spark.row_writer import RowWriter

        return Written(RowWriter(self.options).write(iterator))


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """df.writeStream: a batch is committed when all of its rows are acknowledged. With outputMode("complete") each
    batch appends the whole result, as with Spark's own connector."""

    def __init__(self, options: SinkOptions, schema: "StructType") -> None:
        self.options = options
        _check(options, schema)

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> Written:
        from pybroker.spark.row_writer import RowWriter

        return Written(RowWriter(self.options).write(iterator, _marks() if self.options.repeat_headers else None))


def _marks() -> "Marks":
    """Those of the task that this runs in."""
    from pybroker.spark.row_writer import Marks

    context: Any = TaskContext.get()
    assert context is not None, "rows are written in tasks"
    query, batch = context.getLocalProperty(_QUERY_PROPERTY), context.getLocalProperty(_BATCH_PROPERTY)
    return Marks(query or "", batch or "", context.partitionId())


def _check(options: SinkOptions, schema: "StructType") -> None:
    """KafkaError for a schema that no record can be made of."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise KafkaError(INVALID_CONFIG, "column value is missing: records are made of value, and perhaps of key")
    if options.topic is None and "topic" not in types:
        raise KafkaError(INVALID_CONFIG, "nothing says which topic: set the option topic, or have a column topic")
    for name, accepted in ACCEPTED.items():
        if types.get(name, accepted[0]) not in accepted:
            raise KafkaError(INVALID_CONFIG, f"column {name} is {types[name]}; it can be {' or '.join(accepted)}")
