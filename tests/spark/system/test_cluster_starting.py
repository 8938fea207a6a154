"""Ways to start a job: the user's settings win, output goes to the right stream, and the job ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pybroker.testing import Record
from tests.harness import HOST, ROOT, BrokerProcess, Process, until
from tests.spark import ledger
from tests.spark.cluster import MARKS, SMALL_JVM, SparkCluster
from tests.spark.tables import committed
from tests.spark.topics import Topics

pytestmark = MARKS

SLOW_S = 150.0
SMALL = ("--conf", "spark.driver.memory=512m", "--conf", f"spark.driver.extraJavaOptions={SMALL_JVM}")

SHOW = """
import json, os, sys
from pybroker.spark.session import session

spark = session("ours", settings=json.loads(sys.argv[1]))
held = dict(spark.sparkContext.getConf().getAll()) | {"pythonExec": spark.sparkContext.pythonExec}
if held["spark.python.unix.domain.socket.enabled"] == "true":
    assert spark.conf.get("spark.sql.streaming.checkpointFileManagerClass", None) is None
print("held", json.dumps(held))
spark.stop()
"""


@pytest.fixture
def topics(shared_broker: BrokerProcess) -> Topics:
    return Topics(shared_broker)


class Started:
    """A command with its standard output in a file; `process` shows its standard error."""

    def __init__(self, directory: Path, command: Sequence[object], cwd: Path = ROOT, **env: str) -> None:
        directory.mkdir(exist_ok=True)
        self._out = directory / "standard-output"
        words = ["sh", "-c", f"exec \"$@\" >'{self._out}'", "sh", *map(str, command)]
        self.process = Process(words, {"SPARK_LOCAL_IP": HOST, **env}, cwd)

    @property
    def out(self) -> str:
        return self._out.read_text()

    def end(self) -> str:
        """Wait until it has succeeded, and return its standard output."""
        code = self.process.wait(SLOW_S)
        assert code == 0, f"{code}\n{self.process.output()}\n{self.out}"
        return self.out


def spark_submit(cluster: SparkCluster | None = None) -> str:
    import pyspark

    home = cluster.home if cluster else Path(pyspark.__file__).parent
    return str(home / "bin" / "spark-submit")


def held(out: str) -> dict[str, Any]:
    (line,) = [line for line in out.splitlines() if line.startswith("held ")]
    found: dict[str, Any] = json.loads(line.removeprefix("held "))
    return found


@pytest.mark.long
def test_what_the_user_says_wins(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    """Settings of the user win: spark-defaults.conf, spark-submit's options and --conf, in this order; ours fill the
    gaps."""
    script = tmp_path / "job.py"
    script.write_text(SHOW)
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.ui.showConsoleProgress true\nspark.python.unix.domain.socket.enabled false\n"
        "spark.sql.shuffle.partitions 3\nspark.default.parallelism 3\nspark.master local[1]\n"
        "spark.sql.streaming.checkpointFileManagerClass some.Class\n"
    )
    python = {"PYSPARK_PYTHON": sys.executable}
    own = json.dumps({"spark.default.parallelism": "5"})
    options = ("--name", "theirs", "--conf", "spark.sql.shuffle.partitions=4", *SMALL)
    given = {"SPARK_CONF_DIR": str(tmp_path), **python}
    found = held(Started(tmp_path / "a", [spark_submit(), *options, script, own], **given).end())
    assert found["spark.app.name"] == "theirs" and found["spark.master"] == "local[1]"
    assert found["spark.ui.showConsoleProgress"] == "true" and found["spark.ui.enabled"] == "false"
    assert found["spark.python.unix.domain.socket.enabled"] == "false"
    assert found["spark.sql.shuffle.partitions"] == "4" and found["spark.default.parallelism"] == "5"
    assert found["spark.sql.streaming.checkpointFileManagerClass"] == "some.Class"
    assert found["spark.driver.host"] == HOST

    # Without spark-submit: the session's JVM has read the same file.
    plain = json.dumps({"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": SMALL_JVM})
    found = held(Started(tmp_path / "b", [sys.executable, script, plain], SPARK_CONF_DIR=str(tmp_path)).end())
    assert found["spark.app.name"] == "ours" and found["spark.sql.shuffle.partitions"] == "3"
    assert found["spark.python.unix.domain.socket.enabled"] == "false"
    assert found["pythonExec"] == sys.executable and found["spark.ui.showConsoleProgress"] == "true"

    # On a cluster the workers have the Python of Spark's settings; ours fill the gaps.
    workers = str(spark_cluster.environment().python)
    settings = {**spark_cluster.settings(), "spark.master": spark_cluster.url, "spark.app.name": "named"}
    command = [sys.executable, script, json.dumps(settings)]
    found = held(Started(tmp_path / "c", command, PYSPARK_PYTHON="python-of-nobody").end())
    assert found["pythonExec"] == workers and found["spark.app.name"] == "named"
    assert found["spark.python.unix.domain.socket.enabled"] == "true"
    assert found["spark.ui.showConsoleProgress"] == "false"


# -- the pipeline ------------------------------------------------------------------------------------------------------


def numbers(topics: Topics, topic: str, *span: int) -> None:
    topics.produce(topic, [Record(json.dumps({"id": n}), partition=n % 2) for n in range(*span)])


def ids(table: Path) -> list[int]:
    files = ledger.data_files(table)
    return sorted(n for path in files for n in pq.ParquetFile(path).read(["id"])["id"].to_pylist())


def arguments(topics: Topics, topic: str, table: Path, *more: object) -> list[object]:
    """The arguments of a pipeline with the topic's name as its group; small batches, so that there are several."""
    named = ("--name", topic, "--compact-files", 0, "--max-records", 50)
    where = ("-b", topics.broker.bootstrap, "-t", topic, "--table", table)
    return ["pipeline", *where, "--schema", "id bigint", "--json", *named, *more]


def all_is_told(started: Started, records: int) -> None:
    """Check that it succeeded: standard output is only the result, and the last line reports no lag."""
    assert json.loads(started.end())["records"] == records
    lines = [line for line in started.process.lines if " records/s" in line]
    waits = ", 0 behind" if records else ""  # no lag is reported before Spark has looked
    assert lines and lines[-1].endswith(f" records/s{waits}"), started.process.output()
    assert f"{records:,} records in " in lines[-1], started.process.output()


@pytest.mark.long
def test_spark_submit(spark_cluster: SparkCluster, topics: Topics, topic: str, tmp_path: Path) -> None:
    """spark-submit in client mode runs a pipeline: progress is on standard error, and SIGTERM, which only the JVM gets,
    ends it cleanly. Spark's own log is off before the query begins."""
    topics.create(topic, partitions=2)
    numbers(topics, topic, 0, 100)
    table = tmp_path / "table"
    options = ("--master", spark_cluster.url, *spark_cluster.conf(**{"spark.pyspark.driver.python": sys.executable}))
    command = arguments(topics, topic, table, "--every", 0)
    job = Started(tmp_path, [spark_submit(), *options, ROOT / "pybroker/__main__.py", *command], tmp_path)
    until("all is in the table", lambda: not job.process.running or ids(table) == list(range(100)), SLOW_S, 0.1)
    assert job.process.running, job.process.output() + job.out
    job.process.signal(signal.SIGTERM)
    all_is_told(job, 100)
    assert committed(topics, topic) == {0: 50, 1: 50}
    assert not [line for line in job.process.lines if " MicroBatchExecution: " in line], "Spark's log is on"


@pytest.mark.long
def test_shipped_to_the_workers(spark_cluster: SparkCluster, topics: Topics, topic: str, tmp_path: Path) -> None:
    """An archive with an environment brings pybroker to workers that lack it. A driver that has not unpacked it fails
    with one sentence; then --once ends with the group's offsets at the end."""
    topics.create(topic, partitions=2)
    numbers(topics, topic, 0, 100)
    table, home = tmp_path / "table", spark_cluster.environment().path
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(home, ".")
    shipped = {"spark.archives": f"{archive}#environment", "spark.pyspark.python": "./environment/bin/python"}
    options = ("--once", "--master", spark_cluster.url, *spark_cluster.conf(**shipped))
    command = [sys.executable, "-m", "pybroker", *arguments(topics, topic, table, *options)]
    job = Started(tmp_path, command, tmp_path)
    assert job.process.wait(SLOW_S) == 2
    sentence = "pybroker: the workers' Python, ./environment/bin/python, is not on the driver"
    assert [line for line in job.process.lines if line.startswith(sentence)], job.process.output()
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "environment")
    job = Started(tmp_path, command, tmp_path)
    all_is_told(job, 100)
    assert ids(table) == list(range(100)) and committed(topics, topic) == {0: 50, 1: 50}


@pytest.mark.long
def test_local_cluster(spark_cluster: SparkCluster, topics: Topics, topic: str, tmp_path: Path) -> None:
    """A local-cluster master works: local-cluster[2,1,1024] starts a master, workers and executors, which write to
    SPARK_HOME/work."""
    topics.create(topic, partitions=2)
    numbers(topics, topic, 0, 100)
    home = tmp_path / "spark"
    home.mkdir()
    for found in ("bin", "jars", "python"):
        (home / found).symlink_to(spark_cluster.home / found)
    settings = spark_cluster.settings()
    settings["spark.executor.memory"] = "1g"
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    options = ("--once", "--master", "local-cluster[2,1,1024]", *conf)
    command = arguments(topics, topic, tmp_path / "table", *options)
    job = Started(tmp_path, [sys.executable, "-m", "pybroker", *command], ROOT, SPARK_HOME=str(home))
    all_is_told(job, 100)
    assert ids(tmp_path / "table") == list(range(100))


NOTEBOOK = """
import json, sys
from pyspark.sql import SparkSession
from pybroker.errors import KafkaError
from pybroker.spark.pipeline import Job, run

bootstrap, topic, table, conf = sys.argv[1:]
builder = SparkSession.builder.master("local[1]")
for name, value in json.loads(conf).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
job = Job(bootstrap, table, topic, schema="id bigint", trigger_s=None, name=topic)
print("first", run(job, spark=spark)["records"])
print("second", run(job, spark=spark.newSession())["records"], spark.range(3).count())
spark.stop()
try:
    run(job, spark=spark)
except KafkaError as error:
    print("third", error.message)
"""


@pytest.mark.long
def test_an_existing_session(topics: Topics, topic: str, tmp_path: Path) -> None:
    """A notebook's existing session runs the pipeline, and so does another session of its JVM; a stopped session is an
    error."""
    topics.create(topic, partitions=2)
    numbers(topics, topic, 0, 100)
    conf = {"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": SMALL_JVM, "spark.driver.host": HOST}
    given = (topics.broker.bootstrap, topic, tmp_path / "table", json.dumps(conf))
    command = [sys.executable, "-c", NOTEBOOK, *given]
    job = Started(tmp_path, command, tmp_path, PYSPARK_PYTHON=sys.executable)
    told = ["first 100", "second 0 3", "third the given Spark session is stopped"]
    assert job.end().splitlines() == told, job.process.output()


def test_cluster_deploy_mode(spark_cluster: SparkCluster, topics: Topics, topic: str, tmp_path: Path) -> None:
    """Cluster deploy mode is refused: by Spark itself for Python on a standalone cluster, and by the command, whose
    driver runs here."""
    main = ROOT / "pybroker/__main__.py"
    options = ("--master", spark_cluster.url, "--deploy-mode", "cluster")
    job = Started(tmp_path, [spark_submit(), *options, main, *arguments(topics, topic, tmp_path / "table")])
    assert job.process.wait(SLOW_S) != 0
    assert "Cluster deploy mode is currently not supported for python applications" in job.process.output()
    topics.create(topic)
    options = ("--conf", "spark.submit.deployMode=cluster", "--master", spark_cluster.url)
    command = arguments(topics, topic, tmp_path / "table", *options)
    job = Started(tmp_path, [sys.executable, "-m", "pybroker", *command])
    assert job.process.wait(SLOW_S) == 2
    sentence = "pybroker: spark.submit.deployMode=cluster is for spark-submit, which moves the driver"
    assert job.process.lines == [sentence]


@pytest.mark.long
@pytest.mark.parametrize(("way", "number"), [("spark-submit", signal.SIGINT), ("command", signal.SIGTERM)])
def test_a_signal_to_all_processes(way: str, number: int, topics: Topics, topic: str, tmp_path: Path) -> None:
    """A signal to all processes ends the pipeline cleanly: Ctrl-C, or a service manager, signals Python, its JVM and
    its workers."""
    topics.create(topic, partitions=2)
    numbers(topics, topic, 0, 100)
    table = tmp_path / "table"
    command = arguments(topics, topic, table, "--every", 0)
    start: list[object] = [sys.executable, "-m", "pybroker", *command, *SMALL]
    if way == "spark-submit":
        start = [spark_submit(), "--master", "local[1]", *SMALL, ROOT / "pybroker/__main__.py", *command]
    job = Started(tmp_path, start, PYSPARK_PYTHON=sys.executable)
    until("all is in the table", lambda: not job.process.running or ids(table) == list(range(100)), SLOW_S, 0.1)
    assert job.process.running, job.process.output() + job.out
    os.killpg(job.process.pid, number)
    all_is_told(job, 100)
    assert not [line for line in job.process.lines if line.startswith("\tat ")], job.process.output()


@pytest.mark.parametrize("everybody", [False, True], ids=["to Python", "to all processes"])
def test_stopped_while_spark_starts(everybody: bool, topics: Topics, topic: str, tmp_path: Path) -> None:
    """SIGTERM while Spark starts ends the pipeline with its last line: a JVM that dies of the signal is no failure."""
    topics.create(topic, partitions=2)
    job = Started(tmp_path, [sys.executable, "-m", "pybroker", *arguments(topics, topic, tmp_path / "table"), *SMALL])
    job.process.wait_line("WARN|Spark's default log4j profile", SLOW_S)
    if everybody:
        os.killpg(job.process.pid, signal.SIGTERM)
    else:
        job.process.signal(signal.SIGTERM)
    all_is_told(job, 0)
    assert not ids(tmp_path / "table")


@pytest.mark.long
def test_a_failure_under_spark_submit(topics: Topics, tmp_path: Path) -> None:
    """A failure under spark-submit prints one sentence to standard error, and the exit status is the command's own."""
    command = arguments(topics, "no-such-topic", tmp_path / "table")
    start = [spark_submit(), *SMALL, ROOT / "pybroker/__main__.py", *command]
    job = Started(tmp_path, start, PYSPARK_PYTHON=sys.executable)
    assert job.process.wait(SLOW_S) == 1, job.process.output()
    assert job.out == ""
    assert [line for line in job.process.lines if line.startswith("pybroker: topic no-such-topic: ")]
