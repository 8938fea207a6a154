"""Kafka topics as Spark DataFrames, batch and streaming, with no JAR: the data source `pybroker`.

    spark.read.format("pybroker").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "events")

The options, the schema and the JSON of offsets are those of Spark's own connector (format "kafka"). Spark finds the
source by itself where pybroker is installed; `register(spark)` tells it of a checkout. docs/spark.md has the rest.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make format "pybroker" known to a session that did not find it by itself."""
    from pybroker.spark.source import KafkaSource

    spark.dataSource.register(KafkaSource)
