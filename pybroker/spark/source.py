"""The data source "pybroker" as Spark meets it: options in, readers and writers out; and batch reads.

Spark begins a process for each step of its planning, and imports this in it: what a step does not need is imported
where it is needed.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pybroker.spark import options, schema
from pybroker.spark.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow

    from pybroker.spark.stream import KafkaStreamReader
    from pybroker.spark.writer import KafkaBatchWriter, KafkaStreamWriter


class KafkaSource(DataSource):
    """Format "pybroker": topics of any broker that speaks Kafka's protocol, as DataFrames."""

    @classmethod
    def name(cls) -> str:
        return "pybroker"

    def schema(self) -> StructType:
        return schema.full(str(self.options.get("includeHeaders", "false")).lower() == "true")

    # Spark calls these with `schema=...`: the parameter has to have just this name, which hides the module's.
    def reader(self, schema: StructType) -> "KafkaBatchReader":
        return KafkaBatchReader(options.parse_source(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> "KafkaStreamReader":
        from pybroker.spark.stream import KafkaStreamReader

        return KafkaStreamReader(options.parse_source(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> "KafkaBatchWriter":
        from pybroker.spark.writer import KafkaBatchWriter

        return KafkaBatchWriter(options.parse_sink(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "KafkaStreamWriter":
        from pybroker.spark.writer import KafkaStreamWriter

        return KafkaStreamWriter(options.parse_sink(self.options), schema)  # `overwrite`: outputMode("complete")


class KafkaBatchReader(DataSourceReader):
    """One batch read: its ends are fixed when it is planned, so that a task that is run again reads the same."""

    def __init__(self, given: SourceOptions, wanted: StructType) -> None:
        self.options = given
        self.columns = schema.selected(wanted)

    def partitions(self) -> list[InputPartition]:
        from pybroker.spark.offset_reader import OffsetReader
        from pybroker.spark.partitions import input_partitions

        asker = OffsetReader(self.options)
        try:
            there = asker.partitions()
            start = asker.at(self.options.start, there, "startingOffsets", is_end=False)
            end = asker.at(self.options.end, there, "endingOffsets", is_end=True)
            start = asker.within(self.options.start, start, "startingOffsets")
            end = asker.within(self.options.end, end, "endingOffsets")
            return input_partitions(self.options, asker, start, end)
        finally:
            asker.close()

    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        from pybroker.spark.partitions import KafkaInputPartition
        from pybroker.spark.reader import read_range

        if isinstance(partition, KafkaInputPartition):  # else Spark's stand-in where there is nothing to read
            yield from read_range(self.options, self.columns, partition)
