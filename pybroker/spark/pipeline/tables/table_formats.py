"""The table formats: their packages, and the table of a job."""

import importlib.util
from typing import TYPE_CHECKING

from pybroker import extras
from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.pipeline.tables.hadoop_files import HadoopFiles
from pybroker.spark.pipeline.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pybroker.spark.pipeline.job import Job


def check_table_package(job: "Job") -> None:
    """KafkaError if the package of the table's format is not installed."""
    if job.table_format != "parquet":
        package, extra = ("deltalake", "delta") if job.table_format == "delta" else ("pyiceberg", "iceberg")
        if importlib.util.find_spec(package) is None:
            raise KafkaError(
                INVALID_CONFIG,
                f"table format {job.table_format} needs the package {package}: {extras.install(extra)}",
            )


def open_table(spark: "SparkSession", job: "Job") -> Table:
    """Return a job's table, by its format. KafkaError if the format's package is not installed."""
    check_table_package(job)
    if job.table_format == "delta":
        from pybroker.spark.pipeline.tables.delta import DeltaLake

        return DeltaLake(spark, job)
    if job.table_format == "iceberg":
        from pybroker.spark.pipeline.tables.iceberg import Iceberg

        return Iceberg(spark, job)
    from pybroker.spark.pipeline.tables.parquet import ParquetTable

    return ParquetTable(spark, job)


def shared_directory(spark: "SparkSession", job: "Job") -> str | None:
    """Return the local or mounted directory that the driver and all executors must share; None if the table is
    elsewhere, or only a catalog knows its place."""
    if job.table_format == "delta":
        from pybroker.spark.pipeline.tables.storage import TableStorage

        return TableStorage.of(job.table, job.table_options).directory
    if job.table_format == "parquet":
        files = HadoopFiles(spark, job.table)
        return files.local(files.qualified(job.table)) if files.scheme == "file" else None
    return None
