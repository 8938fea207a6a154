"""The JVM that a session starts: the errors when it ends, or when its Spark does not begin."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pybroker.spark.jvm import Tracebacks, reason
from tests.harness import BrokerProcess, Process
from tests.marks import long
from tests.spark.conftest import SMALL_JVM
from tests.spark.topics import Topics

SLOW_S = 150.0
pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            'WARNING: Using incubator modules: x\nException in thread "main" org.apache.spark.SparkException: Executor '
            "memory must be a positive number\n\tat org.apache.spark.Main\n",
            "Executor memory must be a positive number",
        ),
        (
            "NOTE: Picked up JDK_JAVA_OPTIONS: -Xss1m\nInvalid maximum heap size: -Xmxlots\nError: Could not create "
            "the Java Virtual Machine.\n",
            "Invalid maximum heap size: -Xmxlots",
        ),
        ("WARNING: Using incubator modules: x\n", "its JVM ended without output"),
    ],
)
def test_the_reason_of_a_jvm_that_ended(told: str, expected: str) -> None:
    assert reason(told) == expected


@pytest.mark.parametrize(
    ("setting", "code", "sentence"),
    [
        ("spark.executor.memory=lots", 2, "Spark does not start: Executor memory must be a positive number"),
        ("spark.driver.memory=1m", 2, "Spark does not start: "),
        long("spark.archives=/nowhere/e.tar.gz#e", 1, "/nowhere/e.tar.gz does not exist"),
    ],
)
def test_a_spark_that_does_not_start(
    shared_broker: BrokerProcess, topic: str, tmp_path: Path, setting: str, code: int, sentence: str
) -> None:
    """A Spark that does not start gives one sentence without Java's stack trace: the launcher, Java or Spark's context
    refuses a setting."""
    topics = Topics(shared_broker)
    topics.create(topic)
    given = ("-b", topics.broker.bootstrap, "-t", topic, "--table", tmp_path / "table", "--schema", "id bigint")
    small = ("--master", "local[1]", "--conf", f"spark.driver.extraJavaOptions={SMALL_JVM}", "--conf", setting)
    process = Process([sys.executable, "-m", "pybroker", "pipeline", *map(str, given), *small])
    assert process.wait(SLOW_S) == code, process.output()
    assert process.lines[-1].startswith(f"pybroker: {sentence}"), process.output()
    assert not [line for line in process.lines if line.startswith(("\tat ", "Caused by"))], process.output()


FAREWELL = b"""Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    "rest",
    [b"WARN a\n", b"\r[Stage 0:>  (0 + 1) / 2]\r[Stage 0:>  (1 + 1) / 2]\r", FAREWELL.replace(b"daemon", b"job")],
)
def test_a_worker_that_was_cut_off(rest: bytes, size: int) -> None:
    """The traceback of an interrupted worker, and nothing else, is removed from the JVM's output, however the output is
    split."""
    whole = rest + FAREWELL + rest + FAREWELL + FAREWELL + rest
    stream = Tracebacks()
    assert b"".join(stream.passed(whole[at : at + size]) for at in range(0, len(whole), size)) == rest * 3


def test_a_line_without_an_end_is_passed_on() -> None:
    """An unfinished line, as of a progress bar, is passed on."""
    assert Tracebacks().passed(b"[Stage 0:>") == b"[Stage 0:>"
