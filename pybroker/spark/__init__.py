"""Kafka topics as Spark DataFrames, batch and streaming, with no JAR: the data source `pybroker`.

    spark.read.format("pybroker").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "events")

The options, the schema and the JSON of offsets are those of Spark's own connector (format "kafka"). Spark finds the
source by itself where pybroker is installed; in a checkout, call `register(spark)`. See docs/spark.md.
"""

from typing import TYPE_CHECKING

from pybroker.spark.untyped import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register format "pybroker" with a session; its workers' Python reads the source.

    On Spark Connect the server's Python reads it, and needs pybroker; the server replaces an earlier source of that
    name."""
    from pybroker.spark.jvm import is_remote
    from pybroker.spark.source import KafkaSource

    if is_remote(spark):
        spark.dataSource.register(KafkaSource)
        return
    session: JavaObject = spark
    known = session._jsparkSession.sessionState().dataSourceManager()
    name = KafkaSource.name()
    if known.dataSourceExists(name):  # Spark may have found the source itself, with another Python for the workers
        if known.lookupDataSource(name).dataSourceCls().pythonExec() == spark.sparkContext.pythonExec:
            return
    else:  # Spark checks the name in the active session, which may be another one
        spark._get_j_spark_session_module(spark._jvm).setActiveSession(session._jsparkSession)
    spark.dataSource.register(KafkaSource)
