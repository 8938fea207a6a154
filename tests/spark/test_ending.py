"""The settings and results of a pipeline at its start and end, without a JVM: the user's settings win, and only
finished work is reported."""

from __future__ import annotations

import importlib.util
import signal
from typing import Any

import pytest
from pyspark.core import context

from pybroker.client.admin import Admin
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.spark.pipeline import Job, runner
from pybroker.spark.pipeline.stopping import Stopping, ctrl_c_stays
from pybroker.spark.session import LOCAL_CHECKPOINTS

((MANAGER, QUICK),) = LOCAL_CHECKPOINTS.items()
END = '{"t":{"0":5}}'


class Spark:
    """The part of a session that a pipeline uses before the query starts."""

    def __init__(self, **conf: str) -> None:
        self.held = dict(conf)
        self.log_level = "WARN"
        self.conf = self.sparkContext = self

    def get(self, name: str, default: str | None) -> str | None:
        return self.held.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.held[name] = value

    def setLogLevel(self, level: str) -> None:
        self.log_level = level


def job(**how: Any) -> Job:
    return Job("h:1", "/t", "t", format="raw", **how)


@pytest.mark.parametrize(("scheme", "manager"), [("file", QUICK), ("hdfs", None), ("s3a", None)])
def test_quick_checkpoints_are_for_a_local_disk(
    monkeypatch: pytest.MonkeyPatch, scheme: str, manager: str | None
) -> None:
    """Fast checkpoints are used only on a local disk; elsewhere Spark's own checkpoint manager is better."""
    monkeypatch.setattr(runner, "HadoopFiles", lambda *_: type("Disk", (), {"scheme": scheme}))
    spark = Spark()
    runner._settle(spark, job())  # type: ignore[arg-type]
    assert spark.held.get(MANAGER) == manager and spark.log_level == "OFF"


def test_what_the_user_settled_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint manager and a log level that the user set anywhere stay."""
    monkeypatch.setattr(runner, "HadoopFiles", lambda *_: type("Disk", (), {"scheme": "file"}))
    spark = Spark(**{MANAGER: "their.Manager", "spark.log.level": "INFO"})
    runner._settle(spark, job())  # type: ignore[arg-type]
    assert spark.held[MANAGER] == "their.Manager" and spark.log_level == "WARN"


@pytest.mark.parametrize(
    ("told", "end"),
    [
        ({"batchId": 3, "sources": [{"endOffset": END}]}, END),  # no new records since another run
        ({"batchId": 0, "sources": [{"endOffset": END}]}, None),  # no batch yet
        ({"batchId": 3, "sources": [{"endOffset": None}]}, None),
        (None, None),
    ],
)
def test_the_end_of_a_run_without_a_batch(told: dict[str, Any] | None, end: str | None) -> None:
    """A run without a batch ends where Spark found the stream. Before the first batch its start is committed, marked as
    such, and stays."""
    assert runner._reported_end(told) == end


def test_the_group_is_where_the_batches_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's offsets are committed where the batches end, once there is an end."""
    said: list[dict[TopicPartition, int]] = []

    def alter(_: Admin, group: str, offsets: dict[TopicPartition, Any]) -> None:
        assert group.endswith("named")
        said.append({tp: held.offset for tp, held in offsets.items()})

    monkeypatch.setattr(Admin, "alter_group_offsets", alter)
    runner._commit_end(job(name="named"), None)
    assert said == []
    runner._commit_end(job(name="named"), END)
    assert said == [{TopicPartition("t", 0): 5}]


def test_ctrl_c_while_a_session_begins(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C while a session begins ends the pipeline with a last line, and no more requests. PySpark takes the signal
    itself then, and would raise KeyboardInterrupt."""

    def begin(*_: Any, **__: Any) -> Spark:
        pyspark: Any = context
        pyspark.signal.signal(signal.SIGINT, signal.default_int_handler)  # as SparkContext does
        signal.raise_signal(signal.SIGINT)
        return Spark()

    for name in ("find_spark", "check_master", "check_brokers"):
        monkeypatch.setattr(runner, name, lambda *_: None)
    monkeypatch.setattr(runner, "_look", lambda _: [])
    monkeypatch.setattr(runner, "begin", begin)
    monkeypatch.setattr(runner.gateway, "stop", lambda _: None)
    monkeypatch.setattr(Stopping, "_listen_in_jvm", lambda _: None)
    before = signal.getsignal(signal.SIGINT)
    assert runner.run(job())["records"] == 0
    assert capsys.readouterr().err == "starting Spark\n0 records in 0 batches; 0 records/s\n"
    assert signal.getsignal(signal.SIGINT) is before and vars(context)["signal"] is signal


@pytest.mark.parametrize(
    ("how", "package"),
    [
        ({"table_format": "delta"}, "deltalake"),
        ({"table_format": "iceberg", "checkpoint": "/c"}, "pyiceberg"),
        ({"format": "avro", "schema": "{}"}, "fastavro"),
    ],
)
def test_a_missing_package_is_told_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], package: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else find(name))
    monkeypatch.setattr(runner, "find_spark", lambda: pytest.fail("Spark is looked for"))
    with pytest.raises(KafkaError, match=f"needs the package {package}: pip install"):
        runner.run(Job(**{"bootstrap": "h:1", "table": "/t", "topics": "t", "format": "raw", **how}))


def test_two_sessions_that_begin_at_once_leave_pyspark_as_it_was() -> None:
    """Two sessions that begin at once leave PySpark's Ctrl-C handling as it was: sessions that begin later have it
    again."""
    first, second = ctrl_c_stays(), ctrl_c_stays()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert vars(context)["signal"] is signal
