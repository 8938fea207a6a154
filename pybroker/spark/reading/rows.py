"""Columns of records as a RecordBatch with exactly the schema that Spark expects.

Spark compares the schema of the first batch with its own, names, types and nullability, and refuses dictionaries. The
columns with one value for a whole task, topic and partition, are made once and sliced without a copy.
"""

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from pybroker.client.columns.arrow import record_batch
from pybroker.spark import schema

if TYPE_CHECKING:
    from pybroker.core import ColumnBatch

DECODED: Final = {
    "key": "key",
    "value": "value",
    "offset": "offset",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    "headers": "headers",
}
"""The fields to decode for each of Spark's columns; topic and partition have one value for a whole task."""


class RowMaker:
    """Makes the batches of one task; all rows are of one partition."""

    def __init__(self, columns: tuple[str, ...], topic: str, partition: int) -> None:
        fields = StructType([StructField(name, schema.TYPES[name]) for name in columns])
        self.schema: pa.Schema = to_arrow_schema(fields, timezone="UTC")
        self.decoded = [DECODED[name] for name in columns if name in DECODED] or ["offset"]
        """The columns to decode; the offset if Spark wants none that varies by record."""
        self._one = {"topic": pa.scalar(topic, pa.string()), "partition": pa.scalar(partition, pa.int32())}
        self._repeated: dict[str, pa.Array] = {}
        self._names = [DECODED.get(name, name) for name in columns]

    def make(self, batch: "ColumnBatch") -> pa.RecordBatch:
        made = record_batch(batch, empty_headers="null")
        columns = [self._repeat(name, batch.rows) if name in self._one else made.column(name) for name in self._names]
        if "headers" in self._names:  # only the name of the list's elements differs, which Spark checks
            at = self._names.index("headers")
            columns[at] = columns[at].cast(self.schema.field(at).type)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _repeat(self, name: str, rows: int) -> pa.Array:
        made = self._repeated.get(name)
        if made is None or len(made) < rows:
            made = self._repeated[name] = pa.repeat(self._one[name], rows)
        return made[:rows]
