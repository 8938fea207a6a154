"""Writing a DataFrame to topics: at least once, each row acknowledged before its task, and so its batch, is done.

    the task's rows -> Producer (acks=all, idempotent) -> all acknowledged -> commit message -> Spark commits the batch

A task that fails is run again by Spark, and a batch by the next run of its query: rows that it had written are then
there twice. With repeatHeaders each row of a stream carries where it comes from, so that a reader can drop repeats; a
row that is written again has the same four, as long as the query computes its rows in the same order again.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pybroker.client.arrow import HEADERS
from pybroker.client.producer import Delivery, Producer
from pybroker.errors import INVALID_CONFIG, INVALID_RECORD, KafkaError
from pybroker.spark.options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

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


class Written(WriterCommitMessage):
    """What a task has written, all of it acknowledged."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class RowWriter:
    """Writes the rows of tasks; what is wrong with the schema is said before the first of them."""

    def __init__(self, options: SinkOptions, schema: "StructType") -> None:
        self.options = options
        _check(options, schema)

    def write(self, batches: Iterable[pa.RecordBatch], marks: "Marks | None" = None) -> Written:
        """Every row, acknowledged. KafkaError of the first that was refused."""
        rows = 0
        refused: list[KafkaError] = []

        def note(delivery: Delivery) -> None:
            error = delivery.exception(0)
            if error is not None and not refused:
                refused.append(error)

        with Producer(bootstrap_servers=self.options.bootstrap, acks="all", **self.options.client) as producer:
            for batch in batches:
                headers = batch.column("headers") if self._has_headers(batch) else None
                if marks is not None:
                    headers = marks.added(headers, rows, batch.num_rows)
                columns = _with_headers(batch, headers)
                for topic, rows_of_topic in self._by_topic(columns, rows):
                    for partition, part in _by_partition(rows_of_topic):
                        names = part.schema.names
                        producer.send_columns(
                            topic,
                            part.column("value"),
                            part.column("key") if "key" in names else None,
                            headers=part.column("headers") if "headers" in names else None,
                            partition=partition,
                            on_delivery=note,
                        )
                rows += batch.num_rows
                if refused:
                    break
            producer.flush()
        if refused:
            raise refused[0]
        return Written(rows)

    def _has_headers(self, batch: pa.RecordBatch) -> bool:
        return self.options.include_headers and "headers" in batch.schema.names

    def _by_topic(self, batch: pa.RecordBatch, first_row: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of each topic, in their order. KafkaError for a row without one."""
        if self.options.topic is not None:
            yield self.options.topic, batch
            return
        topics = batch.column("topic")
        if topics.null_count:
            row = first_row + pc.index(pc.is_null(topics), True).as_py()
            raise KafkaError(INVALID_RECORD, f"row {row} has no topic, and the option topic is not set")
        found = pc.unique(topics).to_pylist()
        for topic in found:
            yield topic, batch if len(found) == 1 else batch.filter(pc.equal(topics, topic))


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[pa.Array | None, pa.RecordBatch]]:
    """The rows that name their partition, with it, and those for which the key decides."""
    column = batch.column("partition") if "partition" in batch.schema.names else None
    if column is None or column.null_count == len(column):
        yield None, batch
    elif not column.null_count:
        yield column, batch
    else:
        named = batch.filter(pc.is_valid(column))
        yield named.column("partition"), named
        yield None, batch.filter(pc.is_null(column))


def _with_headers(batch: pa.RecordBatch, headers: pa.Array | None) -> pa.RecordBatch:
    """The columns that records are made of, and these headers."""
    names = [name for name in ("topic", "partition", "key", "value") if name in batch.schema.names]
    columns = [batch.column(name) for name in names]
    if headers is not None:
        names.append("headers")
        columns.append(headers)
    return pa.RecordBatch.from_arrays(columns, names=names)


class Marks:
    """The headers that tell a row of a stream from all others: query, batch, partition, and its place in the task."""

    def __init__(self, query: str, batch: str, partition: int) -> None:
        self._fixed = [query.encode(), batch.encode(), str(partition).encode()]

    def added(self, headers: pa.Array | None, first: int, count: int) -> pa.Array:
        """The headers of rows, and behind them the marks of rows `first` and on."""
        index = [str(number).encode() for number in range(first, first + count)]
        marked = [list(zip(REPEAT_HEADERS, (*self._fixed, each), strict=True)) for each in index]
        if headers is not None:
            for own, more in zip(headers.to_pylist(), marked, strict=True):
                more[:0] = [(pair["key"], pair["value"]) for pair in own or ()]
        pairs = [[{"key": key, "value": value} for key, value in each] for each in marked]
        return pa.array(pairs, HEADERS)


class KafkaBatchWriter(DataSourceArrowWriter):
    """df.write: rows are appended; a job that fails leaves those that were acknowledged."""

    def __init__(self, options: SinkOptions, schema: "StructType", overwrite: bool) -> None:
        if overwrite:
            raise KafkaError(INVALID_CONFIG, 'a topic is only appended to: say mode("append")')
        if options.repeat_headers:
            raise KafkaError(INVALID_CONFIG, "repeatHeaders is for streams: a batch job has no batches to tell apart")
        self.writer = RowWriter(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.writer.write(iterator)


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """df.writeStream: a batch is committed when all of its rows are acknowledged."""

    def __init__(self, options: SinkOptions, schema: "StructType", overwrite: bool) -> None:
        if overwrite:
            raise KafkaError(INVALID_CONFIG, 'a topic is only appended to: say outputMode("append") or "update"')
        self.options = options
        self.writer = RowWriter(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.writer.write(iterator, _marks() if self.options.repeat_headers else None)


def _marks() -> Marks:
    """Those of the task that this runs in."""
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
