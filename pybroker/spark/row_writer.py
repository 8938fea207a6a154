"""The rows of a task on their way into topics, column by column.

    the task's rows -> gathered -> Producer (acks=all, idempotent) -> all acknowledged -> how many

Spark's Arrow batches are about as large as the largest batch of a topic: each by itself would leave a small one over.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pybroker.client.arrow import HEADERS
from pybroker.client.producer import Delivery, Producer
from pybroker.errors import INVALID_RECORD, KafkaError
from pybroker.spark.options import SinkOptions
from pybroker.spark.worker import settle

GATHERED_BYTES: Final = 8 << 20
REPEAT_HEADERS: Final = ("pybroker.query", "pybroker.batch", "pybroker.partition", "pybroker.index")


class RowWriter:
    """Writes the rows of one task."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, batches: Iterable[pa.RecordBatch], marks: "Marks | None" = None) -> int:
        """Every row, acknowledged; how many. KafkaError of the first that was refused."""
        settle()
        rows = 0
        refused: list[KafkaError] = []

        def note(delivery: Delivery) -> None:
            error = delivery.exception(0)
            if error is not None and not refused:
                refused.append(error)

        with Producer(bootstrap_servers=self.options.bootstrap, acks="all", **self.options.client) as producer:
            for table in self._gathered(batches, marks):
                for topic, rows_of_topic in self._by_topic(table, rows):
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
                rows += table.num_rows
                if refused:
                    break
            producer.flush()
        if refused:
            raise refused[0]
        return rows

    def _gathered(self, batches: Iterable[pa.RecordBatch], marks: "Marks | None") -> Iterator[pa.Table]:
        """The columns that records are made of, GATHERED_BYTES and more at a time."""
        parts: list[pa.RecordBatch] = []
        nbytes = rows = 0
        for batch in batches:
            headers = batch.column("headers") if self._has_headers(batch) else None
            if marks is not None:
                headers = marks.added(headers, rows, batch.num_rows)
            parts.append(_with_headers(batch, headers))
            rows += batch.num_rows
            nbytes += batch.nbytes
            if nbytes >= GATHERED_BYTES:
                yield pa.Table.from_batches(parts)
                parts, nbytes = [], 0
        if parts:
            yield pa.Table.from_batches(parts)

    def _has_headers(self, batch: pa.RecordBatch) -> bool:
        return self.options.include_headers and "headers" in batch.schema.names

    def _by_topic(self, table: pa.Table, first_row: int) -> Iterator[tuple[str, pa.Table]]:
        """The rows of each topic, in their order. KafkaError for a row without one."""
        if self.options.topic is not None:
            yield self.options.topic, table
            return
        topics = table.column("topic")
        if topics.null_count:
            row = first_row + pc.index(pc.is_null(topics), True).as_py()
            raise KafkaError(INVALID_RECORD, f"row {row} has no topic, and the option topic is not set")
        found = pc.unique(topics).to_pylist()
        for topic in found:
            yield topic, table if len(found) == 1 else table.filter(pc.equal(topics, topic))


def _by_partition(table: pa.Table) -> Iterator[tuple[pa.ChunkedArray | None, pa.Table]]:
    """The rows that name their partition, with it, and those for which the key decides."""
    column = table.column("partition") if "partition" in table.schema.names else None
    if column is None or column.null_count == len(column):
        yield None, table
    elif not column.null_count:
        yield column, table
    else:
        named = table.filter(pc.is_valid(column))
        yield named.column("partition"), named
        yield None, table.filter(pc.is_null(column))


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
