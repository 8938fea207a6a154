"""A Spark session that knows this source; docs/spark.md tells how jobs are started, and what each setting brings."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.java import use_java
from pybroker.spark.jvm import QUIET, WORKERS_PYTHON, silence, start_jvm, under_spark_submit

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

SETTINGS: Final[Mapping[str, str]] = {
    # JVM and Python workers talk over Unix sockets: no delayed acknowledgements of TCP, fewer copies.
    "spark.python.unix.domain.socket.enabled": "true",
}
"""Safe for every job: defaults, over which wins what the user says anywhere."""

LOCAL_CHECKPOINTS: Final[Mapping[str, str]] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""For checkpoints on a local disk: the default manager of checkpoints forks a shell for each file there. Not for file
systems without atomic renames, such as object stores."""

UNCHECKED_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Java options: Arrow reads without bounds checks in the whole JVM. Faster; a malformed batch then crashes the JVM."""

RAW_FILES: Final[Mapping[str, str]] = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem"}
"""Local files without the .crc that Hadoop writes beside each, with one more process started a file. Their disk errors
then go unnoticed by Hadoop. Not for directories in which files that have a .crc may be written anew."""

SMALL_ROWS: Final[Mapping[str, str]] = {"spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1)}
"""Spark adds up no bytes before each row on its way to Python: batches are as many rows as maxRecordsPerBatch says,
however large. For writing rows of up to a few KiB."""

LOCAL: Final[Mapping[str, str]] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

DEPLOY_MODE: Final = "spark.submit.deployMode"
LOG_LEVEL: Final = "spark.log.level"
REMOTE: Final = "SPARK_REMOTE"
"""The environment's name for a server of Spark Connect; that of the settings is spark.remote."""
UNNAMED: Final = frozenset((None, "pyspark-shell"))
"""What Spark calls an application that nobody has named; under spark-submit it is the file that is run."""


def find_spark() -> None:
    """See to it that PySpark and the Java that it needs are there. KafkaError with one sentence where they are not."""
    if importlib.util.find_spec("pyspark") is None:
        raise KafkaError(INVALID_CONFIG, "PySpark is not installed: pip install 'pybroker[spark]'")
    if not under_spark_submit():
        use_java()


def session(app: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> "SparkSession":
    """A session that knows format "pybroker": the one that this process has, or a new one.

    `master` and `settings` win over spark-submit's and spark-defaults.conf's, and all of these over SETTINGS. `app` is
    the name where nobody has given one. Without any master it is local[*], as in Spark. KafkaError where Java or
    PySpark is missing, or the workers' Python on the driver."""
    return with_source(begin(app, master, settings))


def begin(
    app: str, master: str | None = None, settings: Mapping[str, str] | None = None, *, silent: bool = False
) -> "SparkSession":
    """What `session` returns, before it knows the source. `silent`: Spark logs nothing, not even as it begins (under
    spark-submit it does), unless the user says spark.log.level."""
    find_spark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    builder = SparkSession.builder
    if context is None or context._jsc is None:
        conf = _configuration(app, master, settings or {})
        # Under spark-submit a level that is set before the context makes every later one ineffective.
        if silent and not under_spark_submit() and not conf.contains(LOG_LEVEL):
            silence()
        builder = builder.config(conf=conf)
    else:
        for name, value in (settings or {}).items():
            builder = builder.config(name, value)
    return builder.getOrCreate()


def with_source(spark: "SparkSession") -> "SparkSession":
    """The session, which knows the source now. KafkaError where it could not be used there. It takes seconds: Spark
    starts a Python for it."""
    from pybroker.spark import register

    if not is_remote(spark):
        _look_for(alive(spark).sparkContext.pythonExec)
    register(spark)
    return spark


def is_remote(spark: "SparkSession") -> bool:
    """True for a session of Spark Connect: its JVM is the server's, and out of reach."""
    return not hasattr(spark, "_jsparkSession")


def alive(spark: "SparkSession") -> "SparkSession":
    """The session, whose driver is this process; KafkaError if it is stopped, or one of Spark Connect."""
    if is_remote(spark):
        raise KafkaError(
            INVALID_CONFIG,
            "the session that was given is one of Spark Connect, where format pybroker works after register(spark); a "
            "pipeline needs a session whose driver is this process: run it without one, or with spark-submit",
        )
    if spark.sparkContext._jsc is None:
        raise KafkaError(INVALID_CONFIG, "the Spark session that was given is stopped")
    return spark


def _configuration(app: str, master: str | None, settings: Mapping[str, str]) -> "SparkConf":
    """What a new session is told. It starts the JVM, which knows spark-defaults.conf and spark-submit's options."""
    from pyspark import SparkConf

    if os.environ.get(REMOTE) or settings.get("spark.remote"):
        raise KafkaError(
            INVALID_CONFIG,
            f"{REMOTE} or spark.remote names a server of Spark Connect, but here this process is the driver: unset it, "
            "or make the session with SparkSession.builder and call pybroker.spark.register(spark)",
        )
    given = dict(settings) if master is None else {**settings, "spark.master": master}
    if given.get(DEPLOY_MODE) == "cluster" and not under_spark_submit():
        raise KafkaError(INVALID_CONFIG, f"{DEPLOY_MODE}=cluster is for spark-submit, which takes the driver elsewhere")
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
        os.environ[WORKERS_PYTHON] = named  # as spark-submit does it, for PySpark reads nothing else
    elif at_home:
        os.environ.setdefault(WORKERS_PYTHON, sys.executable)  # else workers are whatever python3 is on PATH
    _look_for(os.environ.get(WORKERS_PYTHON, "python3"))
    return held


def _look_for(python: str) -> None:
    """KafkaError where the driver does not have the workers' Python."""
    if shutil.which(python) is None:
        raise KafkaError(
            INVALID_CONFIG,
            f"the workers' Python, {python}, is not on the driver, where Spark plans reads with it: install it there "
            "under the same path, or unpack the archive that has it in the directory in which the job is started",
        )
