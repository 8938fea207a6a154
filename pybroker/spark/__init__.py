"""Kafka topics as Spark DataFrames, batch and streaming, with no JAR: the data source `pybroker`.

    spark.read.format("pybroker").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "events")

The options, the schema and the JSON of offsets are those of Spark's own connector (format "kafka"). Spark finds the
source by itself where pybroker is installed; `register(spark)` tells it of a checkout. docs/spark.md has the rest.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make format "pybroker" known to a session, to be read with the Python that its workers have.

    On Spark Connect it is the server's Python, which needs pybroker; the server replaces what it knew by the name."""
    from pybroker.spark.session import is_remote
    from pybroker.spark.source import KafkaSource

    if is_remote(spark):
        spark.dataSource.register(KafkaSource)
        return
    session: Any = spark
    known = session._jsparkSession.sessionState().dataSourceManager()
    name = KafkaSource.name()
    if known.dataSourceExists(name):  # perhaps Spark has found it by itself, and took another Python for the workers'
        if known.lookupDataSource(name).dataSourceCls().pythonExec() == spark.sparkContext.pythonExec:
            return
    else:  # Spark asks the active session whether the name is taken, and that may be another one
        spark._get_j_spark_session_module(spark._jvm).setActiveSession(session._jsparkSession)
    spark.dataSource.register(KafkaSource)
