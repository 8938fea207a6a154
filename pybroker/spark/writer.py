"""Writing a DataFrame to topics: at least once, each row acknowledged before its task, and so its batch, is done.

    the task's rows -> Producer (acks=all, idempotent) -> all acknowledged -> commit message -> Spark commits the batch

A task that fails is run again by Spark, and a batch by the next run of its query: rows that it had written are then
there twice. With repeatHeaders each row of a stream carries where it comes from, so that a reader can drop repeats; a
row that is written again has the same four, as long as the query computes its rows in the same order again.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pybroker.client.producer import Delivery, Producer
from pybroker.errors import INVALID_CONFIG, INVALID_RECORD, KafkaError
from pybroker.spark.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow

_TEXT: Final = ("string", "binary")
ACCEPTED: Final[dict[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "partition": ("int",),
    "key": _TEXT,
    "value": _TEXT,
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""The columns that are written, and the types that they may have; other columns are left alone."""

REPEAT_HEADERS: Final = ("pybroker.query", "pybroker.batch", "pybroker.partition", "pybroker.index")
_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"

Headers = tuple[tuple[str, bytes | None], ...]


class Written(WriterCommitMessage):
    """What a task has written, all of it acknowledged."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class RowWriter:
    """Writes the rows of tasks; what is wrong with the schema is said before the first of them."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self.options = options
        _check(options, schema)

    def write(self, batches: "Iterable[pyarrow.RecordBatch]", repeats: Iterator[Headers]) -> Written:
        """Every row, acknowledged. KafkaError of the first that was refused."""
        rows = 0
        refused: list[KafkaError] = []

        def note(delivery: Delivery) -> None:
            error = delivery.exception(0)
            if error is not None and not refused:
                refused.append(error)

        with Producer(bootstrap_servers=self.options.bootstrap, acks="all", **self.options.client) as producer:
            for batch in batches:
                for topic, partition, key, value, headers in self._rows(batch):
                    if topic is None:
                        raise KafkaError(INVALID_RECORD, f"row {rows} has no topic, and the option topic is not set")
                    marked = headers + next(repeats)
                    producer.send(topic, value, key=key, headers=marked, partition=partition, on_delivery=note)
                    rows += 1
                if refused:
                    break
            producer.flush()
        if refused:
            raise refused[0]
        return Written(rows)

    def _rows(self, batch: "pyarrow.RecordBatch") -> Iterator[tuple[str | None, int | None, Any, Any, Headers]]:
        """(topic, partition, key, value, headers) of each row."""
        names = batch.schema.names

        def column(name: str) -> Iterable[Any]:
            return batch.column(name).to_pylist() if name in names else itertools.repeat(None, batch.num_rows)

        topics = column("topic") if self.options.topic is None else itertools.repeat(self.options.topic)
        headers = column("headers") if self.options.include_headers else itertools.repeat(None)
        for topic, partition, key, value, pairs in zip(
            topics, column("partition"), column("key"), column("value"), headers, strict=False
        ):
            yield topic, partition, key, value, tuple((pair["key"], pair["value"]) for pair in pairs or ())


class KafkaBatchWriter(DataSourceArrowWriter):
    """df.write: rows are appended; a job that fails leaves those that were acknowledged."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise KafkaError(INVALID_CONFIG, 'a topic is only appended to: say mode("append")')
        if options.repeat_headers:
            raise KafkaError(INVALID_CONFIG, "repeatHeaders is for streams: a batch job has no batches to tell apart")
        self.writer = RowWriter(options, schema)

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> Written:
        return self.writer.write(iterator, itertools.repeat(()))


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """df.writeStream: a batch is committed when all of its rows are acknowledged."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise KafkaError(INVALID_CONFIG, 'a topic is only appended to: say outputMode("append") or "update"')
        self.options = options
        self.writer = RowWriter(options, schema)

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> Written:
        return self.writer.write(iterator, _numbered() if self.options.repeat_headers else itertools.repeat(()))


def _numbered() -> Iterator[Headers]:
    """The headers of the rows of this task: query, batch, partition, and the row's place in it."""
    context = TaskContext.get()
    assert context is not None, "rows are written in tasks"
    query = context.getLocalProperty(_QUERY_PROPERTY) or ""
    batch = context.getLocalProperty(_BATCH_PROPERTY) or ""
    of_task = (query.encode(), batch.encode(), str(context.partitionId()).encode())
    for index in itertools.count():
        yield tuple(zip(REPEAT_HEADERS, (*of_task, str(index).encode()), strict=True))


def _check(options: SinkOptions, schema: StructType) -> None:
    """KafkaError for a schema that no record can be made of."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise KafkaError(INVALID_CONFIG, "column value is missing: records are made of value, and perhaps of key")
    if options.topic is None and "topic" not in types:
        raise KafkaError(INVALID_CONFIG, "nothing says which topic: set the option topic, or have a column topic")
    for name, accepted in ACCEPTED.items():
        if types.get(name, accepted[0]) not in accepted:
            raise KafkaError(INVALID_CONFIG, f"column {name} is {types[name]}; it can be {' or '.join(accepted)}")
