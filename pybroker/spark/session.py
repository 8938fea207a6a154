"""A Spark session with the settings that are worth while for this source; docs/spark.md tells what each brings."""

import importlib.util
import os
import pkgutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final[Mapping[str, str]] = {
    # JVM and Python workers talk over Unix sockets: no delayed acknowledgements of TCP, fewer copies.
    "spark.python.unix.domain.socket.enabled": "true",
    # The default manager of checkpoints forks a shell for each file on a local disk.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Safe for every job whose checkpoints lie on a file system with atomic renames."""

UNCHECKED_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Java options: Arrow reads without bounds checks in the whole JVM. Faster; a malformed batch then crashes the JVM."""

RAW_FILES: Final[Mapping[str, str]] = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem"}
"""Local files without the .crc that Hadoop writes beside each, with one more process started a file. Their disk errors
then go unnoticed by Hadoop. Not for directories in which files that have a .crc may be written anew."""

SMALL_ROWS: Final[Mapping[str, str]] = {"spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1)}
"""Spark adds up no bytes before each row on its way to Python: batches are as many rows as maxRecordsPerBatch says,
however large. For writing rows of up to a few KiB."""

QUIET: Final[Mapping[str, str]] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
LOCAL: Final[Mapping[str, str]] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def find_spark() -> None:
    """See to it that PySpark and the Java that it needs are there. KafkaError with one sentence where they are not."""
    if importlib.util.find_spec("pyspark") is None:
        raise KafkaError(INVALID_CONFIG, "PySpark is not installed: pip install 'pybroker[spark]'")
    use_java()


def session(app: str, master: str | None = "local[*]", settings: Mapping[str, str] | None = None) -> "SparkSession":
    """A session that knows format "pybroker"; `settings` win over SETTINGS. KafkaError where Java or
    PySpark is missing.

    `master` None leaves it to spark-submit and spark-defaults.conf."""
    find_spark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers are whatever python3 is on PATH
    from pyspark.sql import SparkSession

    from pybroker.spark import register

    builder = SparkSession.builder.appName(app)
    at_home = master is not None and master.startswith("local")
    if master is not None:
        builder = builder.master(master)
    for name, value in {**SETTINGS, **QUIET, **(LOCAL if at_home else {}), **(settings or {})}.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    if not any(module.name == "pyspark_pybroker" for module in pkgutil.iter_modules()):
        register(made)  # a checkout that is not on the path: where it is, Spark has found the source by itself
    return made
