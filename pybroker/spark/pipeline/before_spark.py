"""Check all of a job that can be checked without Spark, whose start takes from ten seconds to half a minute."""

import os
from collections.abc import Mapping
from typing import Final

from pybroker.decisions.topics import check_name
from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.jvm import under_spark_submit
from pybroker.spark.options import parse_source
from pybroker.spark.pipeline.job import Job
from pybroker.spark.pipeline.parsing import formats
from pybroker.spark.pipeline.parsing.partition_values import check_names
from pybroker.spark.pipeline.tables.storage import LOCAL_SCHEMES, TableStorage, is_s3, scheme
from pybroker.spark.pipeline.tables.table import check_destination
from pybroker.spark.pipeline.tables.table_formats import check_table_package

HADOOP: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR")
"""Directories with settings that may give paths without a scheme another file system."""


def check_job(job: Job) -> None:
    """Raise KafkaError with one sentence for a mistake in the job's options. Asks no broker."""
    check_table_package(job)
    formats.check_format_package(job)
    _check_settings(job.conf)
    parse_source(job.source_options(), streaming=True)
    for topic in filter(None, [*(job.topics or "").split(","), job.dead_letters]):
        _check_topic(topic.strip())
    columns = formats.declared(job)
    if columns is not None:
        check_names(job, formats.columns(job, columns))
    _check_places(job)


def _check_settings(conf: Mapping[str, str]) -> None:
    for name in conf:
        if not name.startswith("spark."):
            raise _wrong(f"{name} is not a setting of Spark: their names begin with spark. (or spark.hadoop.)")


def _check_topic(name: str) -> None:
    try:
        check_name(name)
    except KafkaError as error:
        raise _wrong(f"topic {name!r}: {error.message}") from error


def _check_places(job: Job) -> None:
    """The table's name, and files where directories belong."""
    check_destination(job)
    if job.table_format == "delta" and not is_s3(job.table):
        TableStorage.of(job.table, job.table_options).open()
    if job.table_format != "iceberg":
        _check_directory(job, job.table, spark=job.table_format == "parquet")
    if job.checkpoint is not None:
        _check_directory(job, job.checkpoint, spark=True)


def _check_directory(job: Job, place: str, *, spark: bool) -> None:
    """KafkaError if a local path, or a directory above it, is a file. spark: Hadoop's settings apply to the path."""
    if scheme(place) not in LOCAL_SCHEMES or (spark and not scheme(place) and _may_be_remote(job)):
        return
    path = TableStorage.of(place, {}).directory or ""
    while path and not os.path.lexists(path):
        path = os.path.dirname(path)
    if os.path.isfile(path):
        raise _wrong(f"{path} is a file, not a directory: choose another place than {place}")


def _may_be_remote(job: Job) -> bool:
    """True if Hadoop's default file system may not be this machine's."""
    return under_spark_submit() or "spark.hadoop.fs.defaultFS" in job.conf or any(os.environ.get(n) for n in HADOOP)


def _wrong(why: str) -> KafkaError:
    return KafkaError(INVALID_CONFIG, why)
