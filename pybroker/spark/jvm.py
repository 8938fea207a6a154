"""The JVM that a session starts, and its standard error.

    starting   held back: if the JVM ends, its stack trace becomes one sentence
    started    passed on at once, except the tracebacks of PySpark's workers that Spark has cut off
"""

import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.untyped import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKERS_PYTHON: Final = "PYSPARK_PYTHON"
QUIET: Final[Mapping[str, str]] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
STANDARD_ERROR: Final = 2
READ_BYTES: Final = 1 << 16
ENDED_S_MAX: Final = 5.0
"""Seconds to wait for the last output of a JVM that has ended: a child process may still hold the pipe."""
_THROWN: Final = re.compile(r'^Exception in thread "main" (?:[\w.$]+: )?(.+)$', re.MULTILINE)
_TRACEBACK: Final = b"Traceback (most recent call last):"
_CHATTER: Final = re.compile(r"^WARNING: |^Using Spark's default log4j|^\s|^NOTE: Picked up |^SLF4J")


def is_remote(spark: "SparkSession") -> bool:
    """True for a session of Spark Connect: its JVM is the server's, and out of reach."""
    return not hasattr(spark, "_jsparkSession")


def under_spark_submit() -> bool:
    """True if spark-submit started this process, so that there already is a JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM with these Spark settings, unless there is one. KafkaError with the reason if the JVM ends."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or under_spark_submit():
        SparkContext._ensure_initialized()
        return
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        conf.set(name, value)
    errors = _Errors()
    try:
        with _environment():
            gateway = launch_gateway(conf, {"stderr": errors.pipe})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        raise KafkaError(INVALID_CONFIG, f"Spark does not start: {reason(errors.ended())}") from error
    errors.pass_on()
    SparkContext._ensure_initialized(gateway=gateway)


def silence() -> None:
    """Turn Spark's log off from now on, also for a context that fails to start."""
    from pyspark import SparkContext

    jvm: JavaObject = SparkContext._jvm
    jvm.org.apache.spark.util.Utils.setLogLevel(jvm.org.apache.logging.log4j.Level.OFF)


class _Errors:
    """The standard error of a JVM. `pipe` is the JVM's end of it."""

    def __init__(self) -> None:
        self._end, self.pipe = os.pipe()
        self._held: list[bytes] | None = []
        self._tracebacks = Tracebacks()
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="standard error of the JVM", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while data := os.read(self._end, READ_BYTES):
            with self._lock:
                shown = self._tracebacks.passed(data)
                if self._held is None:
                    _write(shown)
                else:
                    self._held.append(shown)
        os.close(self._end)

    def pass_on(self) -> None:
        os.close(self.pipe)
        with self._lock:
            _write(b"".join(self._held or ()))
            self._held = None

    def ended(self) -> str:
        """Return the output of a JVM that has ended."""
        os.close(self.pipe)
        self._reader.join(ENDED_S_MAX)
        with self._lock:
            return b"".join(self._held or ()).decode(errors="replace")


class Tracebacks:
    """Removes tracebacks from a stream: a PySpark worker prints one when Spark closes its socket. They report no
    failure, and no setting turns them off."""

    def __init__(self) -> None:
        self._open = b""
        """A traceback whose end has not arrived, or the start of a line that may begin one."""

    def passed(self, data: bytes) -> bytes:
        """Return what to show now, of this data and of the data kept back before."""
        data, self._open = self._open + data, b""
        shown = []
        for line in data.splitlines(keepends=True):
            kept, self._open = self._open, self._open + line
            if not line.endswith((b"\n", b"\r")):
                if kept or _TRACEBACK.startswith(line):
                    break
            elif line.startswith(_TRACEBACK) or (kept and line.startswith(b" ")):
                continue
            if not (b"pyspark/daemon.py" in kept and line.startswith(b"BrokenPipeError")):
                shown.append(self._open)
            self._open = b""
        return b"".join(shown)


def _write(data: bytes) -> None:
    while data:
        try:
            data = data[os.write(STANDARD_ERROR, data) :]
        except OSError:  # the reader of the pipe has left
            return


def reason(told: str) -> str:
    """Return what Spark's launcher threw, or the first line from Java."""
    if thrown := _THROWN.search(told):
        return thrown[1]
    lines = [line.strip() for line in told.splitlines() if line.strip() and not _CHATTER.match(line)]
    return lines[0] if lines else "its JVM ended without output"


@contextmanager
def _environment() -> Iterator[None]:
    """Set the environment of a JVM: it finds sources with this Python, not the workers', and is not a shell, for which
    Spark would draw progress bars on standard error."""
    options = " ".join(f"-D{name}={value}" for name, value in QUIET.items())
    made = {
        WORKERS_PYTHON: os.environ.get(WORKERS_PYTHON, sys.executable),
        "SPARK_SUBMIT_OPTS": f"{options} {os.environ.get('SPARK_SUBMIT_OPTS', '')}",
    }
    before = {name: os.environ.get(name) for name in made}
    os.environ.update(made)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
