"""Standard error under spark-submit, which merges both outputs of Python into its own standard output.

Text written to the JVM's System.err reaches the real standard error, and standard output stays clean.
"""

import io
import os
import sys
from typing import Any, TextIO

from pybroker.spark.jvm import under_spark_submit


class JvmErrors(io.RawIOBase):
    """The standard error of this process's JVM."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark import SparkContext

        written = bytes(data)
        try:
            SparkContext._ensure_initialized()
            assert SparkContext._jvm is not None
            SparkContext._jvm.java.lang.System.err.write(bytearray(written), 0, len(written))
        except (Py4JError, OSError):  # the JVM is gone, and with it the reader of the pipe
            return len(written)
        return len(written)


def standard_error() -> TextIO:
    """The stream for messages: sys.stderr, unless spark-submit has merged it into standard output."""
    errors: TextIO = sys.stderr
    if errors is not sys.__stderr__ or not under_spark_submit() or not one_pipe():
        return errors
    buffered = io.BufferedWriter(JvmErrors())
    return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def one_pipe() -> bool:
    """True if standard output and standard error of this process are the same file."""
    output, errors = os.fstat(1), os.fstat(2)
    return (output.st_dev, output.st_ino) == (errors.st_dev, errors.st_ino)
