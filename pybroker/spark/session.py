"""A Spark session with this source; docs/spark.md explains how to start jobs, and the settings."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pybroker import extras
from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.java import use_java
from pybroker.spark.jvm import QUIET, WORKERS_PYTHON, is_remote, silence, start_jvm, under_spark_submit

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

SETTINGS: Final[Mapping[str, str]] = {
    # JVM and Python workers talk over Unix sockets: no delayed acknowledgements of TCP, fewer copies.
    "spark.python.unix.domain.socket.enabled": "true",
}
"""Defaults that are safe for every job; any setting of the user's overrides them."""

LOCAL_CHECKPOINTS: Final[Mapping[str, str]] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Quick checkpoints on a local disk: the default checkpoint manager forks a shell for each file there. Not for file
systems without atomic renames, such as object stores."""

UNCHECKED_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Java options: Arrow reads without bounds checks in the whole JVM. Faster; a malformed batch then crashes the JVM."""

RAW_FILES: Final[Mapping[str, str]] = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem"}
"""Local files without Hadoop's .crc files, each of which starts one more process. Hadoop then misses disk errors. Not
for directories whose files already have a .crc and may be rewritten."""

SMALL_ROWS: Final[Mapping[str, str]] = {"spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1)}
"""Batches on the way to Python have maxRecordsPerBatch rows of any size, and Spark does not sum up their bytes. For
writing rows of up to a few KiB."""

LOCAL: Final[Mapping[str, str]] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

DEPLOY_MODE: Final = "spark.submit.deployMode"
LOG_LEVEL: Final = "spark.log.level"
REMOTE: Final = "SPARK_REMOTE"
"""The environment variable for a Spark Connect server; the setting is spark.remote."""
UNNAMED: Final = frozenset((None, "pyspark-shell"))
"""Spark's names for an application without one; under spark-submit the name is that of the file."""


def find_spark() -> None:
    """Find PySpark and Java. KafkaError with one sentence if one is missing."""
    if importlib.util.find_spec("pyspark") is None:
        raise KafkaError(INVALID_CONFIG, f"PySpark is not installed: {extras.install('spark')}")
    if not under_spark_submit():
        use_java()


def session(app: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> "SparkSession":
    """Return a session with format "pybroker": this process's session, or a new one.

    `master` and `settings` override those of spark-submit and spark-defaults.conf, and all of these override SETTINGS.
    `app` is the name if no other is set. Without any master it is local[*], as in Spark. KafkaError if Java or PySpark
    is missing, or the workers' Python on the driver."""
    return with_source(begin(app, master, settings))


def begin(
    app: str, master: str | None = None, settings: Mapping[str, str] | None = None, *, silent: bool = False
) -> "SparkSession":
    """Return the session of `session`, without the source. `silent` turns Spark's log off, also during the start (but
    not under spark-submit), unless the user sets spark.log.level."""
    find_spark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    builder = SparkSession.builder
    if context is None or context._jsc is None:
        conf = _configuration(app, master, settings or {})
        # Under spark-submit, setting the level before the context makes later levels ineffective.
        if silent and not under_spark_submit() and not conf.contains(LOG_LEVEL):
            silence()
        builder = builder.config(conf=conf)
    else:
        for name, value in (settings or {}).items():
            builder = builder.config(name, value)
    return builder.getOrCreate()


def with_source(spark: "SparkSession") -> "SparkSession":
    """Register the source with a session and return it. KafkaError if it cannot be used there. Takes seconds: Spark
    starts a Python."""
    from pybroker.spark import register

    if not is_remote(spark):
        _look_for(alive(spark).sparkContext.pythonExec)
    register(spark)
    return spark


def alive(spark: "SparkSession") -> "SparkSession":
    """Return the session, whose driver is this process; KafkaError if it is stopped, or one of Spark Connect."""
    if is_remote(spark):
        raise KafkaError(
            INVALID_CONFIG,
            "the given session is one of Spark Connect, where format pybroker works after register(spark); a "
            "pipeline needs a session whose driver is this process: run it without one, or with spark-submit",
        )
    if spark.sparkContext._jsc is None:
        raise KafkaError(INVALID_CONFIG, "the given Spark session is stopped")
    return spark


def check_driver(settings: Mapping[str, str]) -> None:
    """KafkaError for settings of a new session with which this process could not be the driver."""
    if os.environ.get(REMOTE) or settings.get("spark.remote"):
        raise KafkaError(
            INVALID_CONFIG,
            f"{REMOTE} or spark.remote names a Spark Connect server, but this process must be the driver: unset it, "
            "or make the session with SparkSession.builder and call pybroker.spark.register(spark)",
        )
    if settings.get(DEPLOY_MODE) == "cluster" and not under_spark_submit():
        raise KafkaError(INVALID_CONFIG, f"{DEPLOY_MODE}=cluster is for spark-submit, which moves the driver")


def _configuration(app: str, master: str | None, settings: Mapping[str, str]) -> "SparkConf":
    """Return the configuration of a new session. Starts the JVM, which reads spark-defaults.conf and spark-submit's
    options."""
    from pyspark import SparkConf

    check_driver(settings)
    given = dict(settings) if master is None else {**settings, "spark.master": master}
    start_jvm(given)
    held = SparkConf()
    for name, value in given.items():
        held.set(name, value)
    if "spark.app.name" not in given and held.get("spark.app.name") in UNNAMED | {Path(sys.argv[0]).name}:
        held.setAppName(app)
    at_home = str(held.get("spark.master")).startswith("local")
    for name, value in {**SETTINGS, **QUIET, **(LOCAL if at_home else {})}.items():
        held.setIfMissing(name, value)
    if named := held.get("spark.pyspark.python"):
        os.environ[WORKERS_PYTHON] = named  # as spark-submit does, because PySpark reads only this variable
    elif at_home:
        os.environ.setdefault(WORKERS_PYTHON, sys.executable)  # otherwise workers use the first python3 on PATH
    _look_for(os.environ.get(WORKERS_PYTHON, "python3"))
    return held


def _look_for(python: str) -> None:
    """KafkaError if the driver does not have the workers' Python."""
    if shutil.which(python) is None:
        raise KafkaError(
            INVALID_CONFIG,
            f"the workers' Python, {python}, is missing on the driver, where Spark plans reads: install it there "
            "under the same path, or unpack its archive in the directory in which the job is started",
        )
