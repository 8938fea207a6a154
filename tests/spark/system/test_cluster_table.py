"""Tables on a cluster: paths that executors do not share, and an executor that was lost but still runs."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.harness import ROOT, until
from tests.spark import ledger
from tests.spark.cluster import MARKS, SparkCluster

pytestmark = [*MARKS, pytest.mark.long]

SLOW_S = 150.0
PROBE_S_MAX = 2.0
# Each process has its own directory of this name.
NOT_SHARED = "/proc/self/cwd"

JOB = """
import json, sys, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import Observation, functions as F
from pybroker.errors import KafkaError
from pybroker.spark.pipeline import Job
from pybroker.spark.pipeline.executors import hold_against
from pybroker.spark.pipeline.preflight import WorkerCheck
from pybroker.spark.pipeline.tables.table import MicroBatch
from pybroker.spark.pipeline.tables.table_formats import open_table
from pybroker.spark.session import session

master, settings, directory = sys.argv[1:4]
spark = session("table", master, json.loads(settings))


class Trial:
    def __init__(self, root, **given):
        self.job = Job("h:1", root, "t", schema="id bigint", partition_by=(), checkpoint="none", **given)
        self.table = open_table(spark, self.job)
        self.number = 0

    def start(self):
        self.table.recover()

    def add(self, rows):
        seen = Observation(f"batch {self.number}")
        watched = rows.observe(seen, F.count(F.lit(1)).alias("all"))
        check = lambda staged: hold_against(spark, self.job.table, staged, seen.get["all"])
        self.table.add(MicroBatch("abcdefgh", self.number), watched, check)
        self.number += 1
        return f"{seen.get['all']} rows"


def asked(root):
    begun = time.monotonic()
    WorkerCheck(spark, [], root).check()
    return f"{time.monotonic() - begun:.2f} s"


def told(name, work, *given):
    try:
        print(name, work(*given), flush=True)
    except KafkaError as error:
        print(name, error.message, flush=True)


def wait_for(name):
    print("now", name, flush=True)
    while not Path(directory, name).exists():
        time.sleep(0.05)


@F.udf("long")
def once_failing(number):
    assert number != 999 or TaskContext.get().attemptNumber()
    return number

"""


class Driver:
    """A driver with two executors; it waits for a signal at each step."""

    def __init__(self, cluster: SparkCluster, directory: Path, steps: str, *given: object, **more: str) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        settings = cluster.settings(Path(sys.executable)) | {"spark.ui.showConsoleProgress": "false"} | more
        script = directory / "job.py"
        script.write_text(JOB + steps)
        given = (script, cluster.url, json.dumps(settings), directory, *given)
        self.process = cluster.driver(*given, env={"PYTHONPATH": str(ROOT)}, cwd=directory)

    def at(self, step: str) -> None:
        self.process.wait_line(f"now {step}", SLOW_S)

    def go(self, step: str) -> None:
        (self.directory / step).touch()

    def end(self) -> dict[str, str]:
        """The lines that it printed, by their first word."""
        assert self.process.wait(SLOW_S) == 0, self.process.output()
        return {line.split(" ")[0]: line.partition(" ")[2] for line in self.process.lines}


def rows_of(table: Path) -> Counter[int]:
    files = ledger.data_files(table)
    return Counter(number for path in files for number in pq.ParquetFile(path).read(["id"])["id"].to_pylist())


def state(pid: int) -> str:
    """The process state as ps shows it: Z for an ended process whose parent has not reaped it yet."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


UNSHARED = """
wait_for("executors")
told("none", asked, sys.argv[3] + "/shared")
told("warm", asked, sys.argv[3] + "/shared-too")
told("all", asked, "/proc/self/cwd/nowhere")
told("half", asked, "/proc/self/cwd/half")
half = Trial("/proc/self/cwd/half")
half.start()
told("batch", half.add, spark.range(0, 1000, 1, 8))
shared = Trial(sys.argv[3] + "/shared")
told("failing", shared.add, spark.range(0, 2000, 1, 4).select(once_failing("id").alias("id")))
"""


def test_a_path_that_is_not_shared(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    """A path that no worker or one worker shares is reported before the first batch, with the hosts. Later the batch
    stops with both counts, and no rows. A retried task changes nothing."""
    driver = Driver(spark_cluster, tmp_path / "driver", UNSHARED)
    driver.at("executors")
    executors = spark_cluster.wait_executors(2)
    (shares,) = [executor for executor in executors if executor.worker == 0]
    (tmp_path / "driver/half").mkdir()
    Path(os.readlink(f"/proc/{shares.pid}/cwd"), "half").symlink_to(tmp_path / "driver/half")
    driver.go("executors")
    said = driver.end()
    assert said["none"].endswith(" s") and float(said["warm"].split(" ")[0]) < PROBE_S_MAX, said
    way_out = "use a path that the driver and all executors share, or use a table format for object stores"
    for name, hosts in (("all", "127.0.0.1, 127.0.0.2"), ("half", "127.0.0.2")):
        path = NOT_SHARED + ("/nowhere" if name == "all" else "/half")
        assert said[name] == f"the driver does not see what executors on {hosts} write to {path}: {way_out}"
    assert re.fullmatch(
        rf"1,000 rows were read, but the driver sees \d+ of them in {NOT_SHARED}/half; "
        f"executors ran on 127.0.0.1, 127.0.0.2: {way_out}",
        said["batch"],
    ), said["batch"]
    assert rows_of(tmp_path / "driver/half") == Counter()
    assert said["failing"] == "2000 rows" and rows_of(tmp_path / "driver/shared") == Counter(range(2000))


ZOMBIE = """
wait_for("executors")
trial = Trial(sys.argv[4], **json.loads(sys.argv[5]))
trial.start()
slow = "select id, reflect('java.lang.Thread', 'sleep', 10L) slept from range(0, 2000, 1, 2)"
told("first", trial.add, spark.sql(slow))
wait_for("zombie")
told("second", trial.add, spark.range(2000, 2010))
wait_for("over")
trial.start()
"""


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_an_executor_that_was_thought_dead(
    table_format: str, spark_cluster: SparkCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """An executor that Spark gave up, stopped in a task, writes on after another has committed the batch. Each row is
    in the table once; files that it adds to plain Parquet are deleted."""
    patience = {
        "spark.executor.heartbeatInterval": "1s",
        "spark.network.timeout": "4s",
        "spark.network.timeoutInterval": "1s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "4s",
        "spark.sql.files.maxRecordsPerFile": "20",  # a task makes many files, one after the other
    }
    home = tmp_path / "driver"
    name, options = ledger.named(table_format, home)
    given = json.dumps({"table_format": table_format, "table_options": options})
    driver = Driver(spark_cluster, home, ZOMBIE, name, given, **patience)
    request.addfinalizer(driver.process.kill)  # or a failed run keeps the cluster's executors
    driver.at("executors")
    executors = spark_cluster.wait_executors(2)
    zombie = next(executor for executor in executors if executor.worker == 1)
    worker = spark_cluster.workers[1]
    assert worker is not None
    driver.go("executors")
    staging = home / "table/_pybroker/staging"

    def attempts() -> int:
        """The number of task attempts that write: of plain Parquet by their directories, else by their Python
        processes."""
        if table_format != "parquet":
            return sum(bool(executor.pythons) for executor in executors)
        return len({path.parent for path in staging.rglob("*.parquet") if "_temporary" in path.parts})

    def files() -> set[Path]:
        return set(home.rglob("*.parquet"))

    def held() -> Counter[int]:
        return Counter(ledger.read(table_format, home, ["id"])["id"].to_pylist())

    until("both executors write", lambda: attempts() == 2 or not driver.process.running, SLOW_S)
    worker.signal(signal.SIGSTOP)  # or the worker kills the executor that the driver gives up
    try:
        with zombie.stopped():
            driver.at("zombie")
            assert held() == Counter(range(2000)), driver.process.output()
            assert not list(staging.rglob("*"))
            committed = files()
        # It writes on, or ends when it sees that the driver has given it up.
        until("the zombie writes or ends", lambda: files() > committed or state(zombie.pid) == "Z", SLOW_S)
        driver.go("zombie")
        driver.at("over")
        os.kill(zombie.pid, signal.SIGKILL)
    finally:
        worker.signal(signal.SIGCONT)
    driver.go("over")
    said = driver.end()
    assert (said["first"], said["second"]) == ("2000 rows", "10 rows")
    assert held() == Counter(range(2010))
    assert not staging.exists()
