"""A pipeline on a cluster under kills: each record of the broker's log is in the table once, and a driver that fails
prints why."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from pybroker.testing import Record
from tests.harness import BrokerProcess, Process, until
from tests.spark import ledger
from tests.spark.chaos import Chaos
from tests.spark.cluster import MARKS, SparkCluster, below
from tests.spark.driver import name_of
from tests.spark.system.test_pipeline_command import SLOW_S, SMALL
from tests.spark.topics import Topics

pytestmark = MARKS

SEED = 1


@pytest.mark.long
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_jvm_that_is_killed(table_format: str, shared_broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    """A killed JVM, as by the kernel's OOM killer, ends the pipeline with one sentence and a status other than 0."""
    topics = Topics(shared_broker)
    topics.produce(topics.create(topic), [Record("a"), Record("b")])
    table = ledger.options(table_format, tmp_path)
    named = ("-b", shared_broker.bootstrap, "-t", topic, "--format", "raw", "--every", "0", *table)
    process = Process([sys.executable, "-m", "pybroker", "pipeline", *named, *SMALL])
    done = tmp_path / "checkpoint/commits/0"
    until("a batch is done", lambda: done.exists() or not process.running, SLOW_S)
    (jvm,) = [pid for pid in below(process.pid) if name_of(pid) == "java"]
    os.kill(jvm, signal.SIGKILL)
    assert process.wait(SLOW_S) == 1, process.output()
    assert process.lines[-1].startswith("pybroker: Spark's driver"), process.output()
    assert not [line for line in process.lines if line.startswith(("Traceback", "\tat "))], process.output()


@pytest.mark.long
@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_each_kind_of_kill(table_format: str, spark_cluster: SparkCluster, tmp_path: Path) -> None:
    """A pipeline survives kills of an executor, the broker, a worker and the driver, each at work: afterwards each
    record of the log is in the table once."""
    chaos = Chaos(tmp_path, spark_cluster, SEED, table_format)
    try:
        chaos.start()
        for kill in (chaos.kill_executor, chaos.kill_broker, chaos.kill_worker, chaos.kill_driver):
            chaos.advance(SLOW_S)
            kill()
        chaos.end()
    finally:
        chaos.close()
    print(chaos.summary())
    assert not chaos.history.problems
    kinds = ("executors killed", "brokers killed", "workers killed")
    assert [chaos.counts[kind] for kind in kinds] == [1, 1, 1] and chaos.counts["drivers started"] == 1
    assert chaos.batches >= 4 and chaos.verdict.rows >= chaos.counts["acknowledged"] > 0
