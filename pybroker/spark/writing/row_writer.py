"""Write the rows of a task to topics, column by column.

    the task's rows -> gathered -> Producer (acks=all, idempotent) -> all acknowledged -> the number of rows

Spark's Arrow batches are about as large as a topic's largest batch: each alone would leave a small rest.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pybroker.client.columns.arrow import HEADERS
from pybroker.client.producing.producer import Delivery, Producer
from pybroker.errors import INVALID_RECORD, KafkaError
from pybroker.spark.options import SinkOptions
from pybroker.spark.reading.worker import freeze_loaded

GATHERED_BYTES: Final = 8 << 20
REPEAT_HEADERS: Final = ("pybroker.query", "pybroker.batch", "pybroker.partition", "pybroker.index")


class RowWriter:
    """Writes the rows of one task."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, batches: Iterable[pa.RecordBatch], marks: "Marks | None" = None) -> int:
        """Write every row; return their number once all are acknowledged. KafkaError of the first that is refused."""
        freeze_loaded()
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
        """Yield the columns for records, gathered to GATHERED_BYTES or more."""
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
        """Yield the rows of each topic, in order. KafkaError for a row without one."""
        if self.options.topic is not None:
            yield self.options.topic, table
            return
        topics = table.column("topic")
        if topics.null_count:
            row = first_row + pc.index(pc.is_null(topics), True).as_py()
            raise KafkaError(INVALID_RECORD, f"row {row} has no topic: set the option topic, or fill the column")
        found = pc.unique(topics).to_pylist()
        for topic in found:
            yield topic, table if len(found) == 1 else table.filter(pc.equal(topics, topic))


def _by_partition(table: pa.Table) -> Iterator[tuple[pa.ChunkedArray | None, pa.Table]]:
    """Yield the rows that name their partition, with it, and those whose key decides."""
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
    """Return the columns for records, with these headers."""
    names = [name for name in ("topic", "partition", "key", "value") if name in batch.schema.names]
    columns = [batch.column(name) for name in names]
    if headers is not None:
        names.append("headers")
        columns.append(headers)
    return pa.RecordBatch.from_arrays(columns, names=names)


class Marks:
    """Headers that identify a row of a stream: query, batch, partition, and its place in the task."""

    def __init__(self, query: str, batch: str, partition: int) -> None:
        self._fixed = [query.encode(), batch.encode(), str(partition).encode()]

    def added(self, headers: pa.Array | None, first: int, count: int) -> pa.Array:
        """Return the headers of rows, followed by the marks of rows `first` and on."""
        index = [str(number).encode() for number in range(first, first + count)]
        marked = [list(zip(REPEAT_HEADERS, (*self._fixed, each), strict=True)) for each in index]
        if headers is not None:
            for own, more in zip(headers.to_pylist(), marked, strict=True):
                more[:0] = [(pair["key"], pair["value"]) for pair in own or ()]
        pairs = [[{"key": key, "value": value} for key, value in each] for each in marked]
        return pa.array(pairs, HEADERS)
