"""Write a DataFrame to topics, at least once: all rows are acknowledged before their task, and so its batch, is done.

    the task's rows -> RowWriter -> all acknowledged -> commit message -> Spark commits the batch

Spark repeats a task that fails, and the next run of a query repeats a batch: the topic then has their rows twice. With
repeatHeaders each row of a stream carries its origin, so that a reader can drop repeats; a repeated row has the same
four headers, as long as the query computes its rows in the same order again.

Spark starts a process for each step of its planning, which imports this module: what only tasks need, they import.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.options import SinkOptions
from pybroker.spark.untyped import JavaObject
from pybroker.spark.worker_errors import sentence_only

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from pybroker.spark.writing.row_writer import Marks

_TEXT: Final = ("string", "binary")
ACCEPTED: Final[dict[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "partition": ("int",),
    "key": _TEXT,
    "value": _TEXT,
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""The columns that are written, and their possible types; other columns are ignored."""

_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"


class TaskCommitMessage(WriterCommitMessage):
    """The number of rows that a task has written, all acknowledged."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class KafkaBatchWriter(DataSourceArrowWriter):
    """The writer of df.write: it appends rows; a failed job leaves those already acknowledged."""

    def __init__(self, options: SinkOptions, schema: "StructType", overwrite: bool) -> None:
        if overwrite:
            raise KafkaError(INVALID_CONFIG, 'a topic can only be appended to: use mode("append")')
        if options.repeat_headers:
            raise KafkaError(INVALID_CONFIG, "repeatHeaders is for streams: a batch job has no batch numbers")
        self.options = options
        _check(options, schema)

    @sentence_only
    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> TaskCommitMessage:
        from pybroker.spark.writing.row_writer import RowWriter

        return TaskCommitMessage(RowWriter(self.options).write(iterator))


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """The writer of df.writeStream: a batch is committed once all of its rows are acknowledged. With
    outputMode("complete") each batch appends the whole result, as with Spark's own connector."""

    def __init__(self, options: SinkOptions, schema: "StructType") -> None:
        self.options = options
        _check(options, schema)

    @sentence_only
    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> TaskCommitMessage:
        from pybroker.spark.writing.row_writer import RowWriter

        return TaskCommitMessage(
            RowWriter(self.options).write(iterator, _marks() if self.options.repeat_headers else None)
        )


def _marks() -> "Marks":
    """Return the marks of the current task."""
    from pybroker.spark.writing.row_writer import Marks

    context: JavaObject = TaskContext.get()
    assert context is not None, "rows are written in tasks"
    query, batch = context.getLocalProperty(_QUERY_PROPERTY), context.getLocalProperty(_BATCH_PROPERTY)
    return Marks(query or "", batch or "", context.partitionId())


def _check(options: SinkOptions, schema: "StructType") -> None:
    """KafkaError for a schema that no record can be made of."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise KafkaError(INVALID_CONFIG, "column value is missing: records need a value column, and may have a key")
    if options.topic is None and "topic" not in types:
        raise KafkaError(INVALID_CONFIG, "no topic is given: set the option topic, or add a column topic")
    for name, accepted in ACCEPTED.items():
        if types.get(name, accepted[0]) not in accepted:
            raise KafkaError(INVALID_CONFIG, f"column {name} is {types[name]}; it can be {' or '.join(accepted)}")
