"""Spark's error texts, as one sentence each."""

from __future__ import annotations

import pytest

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.pipeline.error_messages import sentence
from pybroker.spark.pipeline.preflight import check_master
from tests.harness import free_port
from tests.rows import with_each

LOST = "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in "
LOST += "stage 0.0 (TID 3) (10.0.0.7 executor 1): org.apache.spark.api.python.PythonException: Traceback (most recent "
LOST += "call last):\n"


@with_each(
    ("account", "expected"),
    [
        (
            LOST + "  File \"worker.py\", line 5\nModuleNotFoundError: No module named 'pybroker.spark'\n\n\tat java",
            "Spark's worker on 10.0.0.7 has no pybroker: install it in the workers' Python",
        ),
        (
            LOST + "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
            "different version: 3.10 than that in driver: 3.11, PySpark cannot run",
            "the Python of Spark's worker on 10.0.0.7 is 3.10, and the driver's is 3.11; they must be the same",
        ),
        (
            LOST + 'java.io.IOException: Cannot run program "/opt/py/bin/python": error=2, No such file',
            "Spark's worker on 10.0.0.7 has no /opt/py/bin/python: set spark.pyspark.python to",
        ),
        (
            LOST + "  File \"a.py\", line 1\npybroker.errors.KafkaError: OFFSET_OUT_OF_RANGE: records are lost: t-0",
            "records are lost: t-0",
        ),
        (LOST + '  File "a.py", line 1\nValueError: odd\n\n\tat x', "ValueError: odd (Spark's worker on 10.0.0.7)"),
        (
            "Job aborted: Lost task 0.3 in stage 1.0 (TID 9) (10.0.0.8 executor 4): ExecutorLostFailure (executor 4 "
            "exited caused by one of the running tasks) Reason: Command exited with code 137\nDriver stacktrace:",
            "Spark lost the executor on 10.0.0.8 again and again: Command exited with code 137",
        ),
        (
            "Lost task 0.0 in stage 1.0 (TID 9) (h executor 4): java.lang.OutOfMemoryError: Java heap space",
            "Spark's executor on h ran out of memory: raise spark.executor.memory",
        ),
        (
            'o.a.h.UnsupportedFileSystemException: No FileSystem for scheme "s3"',
            "Spark has no file system for s3://: plain Parquet and checkpoints need a disk that",
        ),
        (
            "j.RuntimeException: j.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            "Spark has no file system for s3a://: ",
        ),
        ("j.IllegalArgumentException: java.net.UnknownHostException: nn", "the host name nn is unknown"),
        (
            "java.net.ConnectException: Call From vm/127.0.0.1 to nn:8020 failed on connection exception: "
            "java.net.ConnectException: Connection refused; For more details see: ...",
            "could not reach nn:8020: connection refused",
        ),
        (LOST + "java.io.IOException: No space left on device\n\tat java", "a disk on 10.0.0.7 is full: the table's, "),
        ("java.io.FileNotFoundException: /c/x (Permission denied)", "/c/x: permission denied"),
        ("java.nio.file.NoSuchFileException: /a/b.tar.gz", "/a/b.tar.gz does not exist"),
        (
            "io.k8s.KubernetesClientException: An error has occurred.\n\tat java\nCaused by: j.io.IOException: closed"
            "\n\tat java\nCaused by: java.net.ConnectException: Connection refused: /10.0.0.1:6443\n\tat java",
            "io.k8s.KubernetesClientException: An error has occurred. (java.net.ConnectException: Connection refused: "
            "/10.0.0.1:6443)",
        ),
        ("java.lang.IllegalStateException: it broke\n\tat java", "java.lang.IllegalStateException: it broke"),
        ("", "the query failed, and Spark reports no cause"),
    ],
)
def test_an_account_becomes_a_sentence(account: str, expected: str) -> None:
    """An error of Spark becomes one sentence with the host, if the scheduler names one, and with what to do, if that is
    known."""
    found = sentence(account)
    assert found.startswith(expected) and "\n" not in found


@pytest.mark.parametrize(
    ("master", "told"),
    [
        ("http://127.0.0.1:8080", "a standalone cluster's is spark://HOST:PORT"),
        ("spark://somewhere", "a standalone cluster's is spark://HOST:PORT"),
        ("spark://127.0.0.1:99999", "no Spark master at 127.0.0.1:99999: "),
        ("spark://{port}", "connection refused"),
        ("spark://{port},{port}", "connection refused; 127.0.0.1:"),
    ],
)
def test_a_master_that_is_none(master: str, told: str) -> None:
    """A master URL that names no Spark master fails at once: Spark would try for a minute."""
    with pytest.raises(KafkaError) as caught:
        check_master(master.format(port=f"127.0.0.1:{free_port()}"))
    assert caught.value.code == INVALID_CONFIG and told in caught.value.message


@pytest.mark.parametrize("master", [None, "local[2]", "local-cluster[1,1,1024]", "yarn", "k8s://https://h:6443"])
def test_other_masters_are_left_to_spark(master: str | None) -> None:
    check_master(master)
