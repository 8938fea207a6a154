"""The JVM of a driver, as Python sees it: a separate process, which can be killed alone."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from pybroker.spark.untyped import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GONE: Final = (
    "Spark's driver lost its JVM, which crashed or was killed, perhaps by the kernel for lack of memory: start the "
    "pipeline again; it continues from its checkpoint"
)


def is_gone() -> bool:
    """True if this process had a JVM that no longer answers."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkContext

    if SparkContext._gateway is None:
        return False
    try:
        return not SparkContext._gateway.jvm.System.currentTimeMillis()
    except (Py4JError, OSError):
        return True


def stop(spark: "SparkSession") -> None:
    """Stop a session, whether or not its JVM still runs."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # with this PySpark reports a JVM that is gone
        spark.stop()


def hush(spark: "SparkSession") -> None:
    """Silence the accumulator server of the pipeline's own session: it prints a stack trace when the JVM is gone."""
    server: JavaObject = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is None:
        return
    told = server.handle_error

    def handle_error(*given: object) -> None:
        if not isinstance(sys.exception(), EOFError | OSError):
            told(*given)

    server.handle_error = handle_error


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the stack traces that Py4J logs, mostly as the root logger, for calls of a JVM that is gone."""

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
