"""The data source "pybroker" for Spark: options in, readers and writers out; and batch reads.

Spark starts a process for each step of its planning, which imports this module: what a step does not need is imported
later.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pybroker.errors import KafkaError
from pybroker.spark import options, schema
from pybroker.spark.options import SourceOptions
from pybroker.spark.worker_errors import sentence_only

if TYPE_CHECKING:
    import pyarrow

    from pybroker.spark.reading.stream_reader import KafkaStreamReader, RefusedStream
    from pybroker.spark.writing.writer import KafkaBatchWriter, KafkaStreamWriter


class KafkaSource(DataSource):
    """Format "pybroker": topics of any broker that speaks Kafka's protocol, as DataFrames."""

    @classmethod
    def name(cls) -> str:
        return "pybroker"

    def schema(self) -> StructType:
        return schema.full(str(self.options.get("includeHeaders", "false")).lower() == "true")

    # Spark calls these with `schema=...`, so the parameter needs this name, which hides the module's.
    @sentence_only
    def reader(self, schema: StructType) -> "KafkaBatchReader":
        return KafkaBatchReader(options.parse_source(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> "KafkaStreamReader | RefusedStream":
        from pybroker.spark.reading.stream_reader import KafkaStreamReader, RefusedStream

        try:
            return KafkaStreamReader(options.parse_source(self.options, streaming=True), schema)
        except KafkaError as error:
            return RefusedStream(error)

    @sentence_only
    def writer(self, schema: StructType, overwrite: bool) -> "KafkaBatchWriter":
        from pybroker.spark.writing.writer import KafkaBatchWriter

        return KafkaBatchWriter(options.parse_sink(self.options), schema, overwrite)

    @sentence_only
    def streamWriter(self, schema: StructType, overwrite: bool) -> "KafkaStreamWriter":
        from pybroker.spark.writing.writer import KafkaStreamWriter

        return KafkaStreamWriter(options.parse_sink(self.options), schema)  # `overwrite` means outputMode("complete")


class KafkaBatchReader(DataSourceReader):
    """One batch read: its ends are fixed when it is planned, so that a repeated task reads the same."""

    def __init__(self, given: SourceOptions, wanted: StructType) -> None:
        self.options = given
        self.columns = schema.selected(wanted)

    @sentence_only
    def partitions(self) -> list[InputPartition]:
        from pybroker.spark.reading.input_partitions import input_partitions
        from pybroker.spark.reading.offset_reader import OffsetReader

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

    @sentence_only
    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        from pybroker.spark.reading.input_partitions import KafkaInputPartition
        from pybroker.spark.reading.reader import read_range

        if isinstance(partition, KafkaInputPartition):  # otherwise Spark's placeholder for an empty read
            yield from read_range(self.options, self.columns, partition)
