"""The JVM of a driver as Python sees it: a process of its own, which can be killed alone."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GONE: Final = (
    "Spark's driver lost its JVM, which crashed or was killed, as by a kernel that is out of memory: start the "
    "pipeline again, and it goes on where it was"
)


def is_gone() -> bool:
    """Whether this process had a JVM that does not answer any more."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkContext

    if SparkContext._gateway is None:
        return False
    try:
        return not SparkContext._gateway.jvm.System.currentTimeMillis()
    except (Py4JError, OSError):
        return True


def stop(spark: "SparkSession") -> None:
    """Stop a session, whether its JVM is there or not."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # by which PySpark tells of a JVM that is gone
        spark.stop()


def hush(spark: "SparkSession") -> None:
    """Of a session that is the pipeline's own: PySpark's server of accumulators prints a stack when the JVM, whose
    connection it serves, is gone."""
    server: Any = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is None:
        return
    told = server.handle_error

    def handle_error(*given: Any) -> None:
        if not isinstance(sys.exception(), EOFError | OSError):
            told(*given)

    server.handle_error = handle_error


@contextmanager
def quiet() -> Iterator[None]:
    """Without the stack that Py4J logs for each call of a JVM that is gone, most of them as the root logger."""

    def foreign(record: logging.LogRecord) -> bool:
        return "/py4j/" not in record.pathname

    root, own = logging.getLogger(), logging.getLogger("py4j")
    level = own.level
    root.addFilter(foreign)
    own.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        root.removeFilter(foreign)
        own.setLevel(level)
