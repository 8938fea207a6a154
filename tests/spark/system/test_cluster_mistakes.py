"""Mistakes in starting a pipeline on a cluster, and the one sentence that a person gets for each.

One driver tries the mistakes in turn, nearly all in one session; the long tests use the command. Errors without Spark
are in test_pipeline_command.py and test_error_messages.py.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.testing import Record
from tests.harness import ROOT, BrokerProcess, Process, free_port
from tests.spark.cluster import MARKS, SparkCluster
from tests.spark.topics import Topics

pytestmark = MARKS

SLOW_S = 200.0
HOST = r"127\.0\.0\.[12]"

TRIALS = """
import json, sys, time
from pybroker.errors import KafkaError
from pybroker.spark.pipeline.preflight import WAITING, WorkerCheck
from pybroker.spark.session import begin

master, settings, python, trials = sys.argv[1], *map(json.loads, sys.argv[2:])


def told(name, work):
    begun = time.monotonic()
    try:
        work()
        said = "nothing"
    except KafkaError as error:
        said = error.message
    print(name, f"{time.monotonic() - begun:.1f}", said, flush=True)


spark = begin("mistakes", master, settings, silent=True)
told("nothing", lambda: WorkerCheck(spark, []).check())
for name, executable, brokers in trials:
    spark.sparkContext.pythonExec = executable or python
    told(name, lambda: WorkerCheck(spark, brokers).check())
spark.sparkContext.pythonExec = python
told("table", lambda: WorkerCheck(spark, [], "/proc/self/cwd/nowhere").check())
spark.stop()
spark = begin("too large", master, settings | {"spark.executor.memory": "8g", WAITING: "1s"}, silent=True)
told("memory", lambda: WorkerCheck(spark, []).check())
spark.stop()
"""
OTHER_VERSION = """
import collections, runpy, sys
version = collections.namedtuple("version", "major minor micro releaselevel serial")
sys.version_info = version(3, 99, 0, "final", 0)
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


class Trial:
    """A pipeline with a mistake."""

    def __init__(self, cluster: SparkCluster, topics: Topics, topic: str, table: Path) -> None:
        self.cluster, self.topics, self.topic, self.table = cluster, topics, topic, table

    def start(self, *options: str, bootstrap: str | None = None, python: Path | None = None, **conf: str) -> Process:
        """Start `pybroker pipeline` on the cluster, with this Python for the workers, and more Spark settings."""
        given = ("-b", bootstrap or self.topics.broker.bootstrap, "-t", self.topic, "--table", self.table, "--once")
        named = {"spark.pyspark.python": str(python or self.cluster.environment().python)}
        settings = self.cluster.conf(**named, **{name.replace("__", "."): value for name, value in conf.items()})
        master = () if "--master" in options else ("--master", self.cluster.url)
        schema = ("--schema", "id bigint")
        return self.cluster.driver("-m", "pybroker", "pipeline", *given, *schema, *master, *settings, *options)

    def sentence(self, process: Process) -> str:
        """The last line of a run that failed without a Java stack trace before it."""
        began = time.monotonic()
        assert process.wait(SLOW_S) in (1, 2), process.output()
        print(f"{time.monotonic() - began:.1f} s: {process.lines[-1]}")
        stacks = [line for line in process.lines if line.startswith(("\tat ", "Caused by"))]
        assert not stacks, process.output()
        assert process.lines[-1].startswith("pybroker: "), process.output()
        return process.lines[-1].removeprefix("pybroker: ")


@pytest.fixture
def trial(spark_cluster: SparkCluster, shared_broker: BrokerProcess, topic: str, tmp_path: Path) -> Trial:
    topics = Topics(shared_broker)
    topics.create(topic)
    topics.produce(topic, [Record('{"id": 1}')])
    return Trial(spark_cluster, topics, topic, tmp_path / "table")


@pytest.fixture(scope="module")
def told(
    spark_cluster: SparkCluster, other_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """The error of each mistake, by the mistake's name. The relative path leads to the workers' Python on the driver
    only."""
    directory = tmp_path_factory.mktemp("driver")
    (directory / "environment").symlink_to(spark_cluster.environment().path)
    trials = [
        ("pybroker", str(spark_cluster.environment("pybroker").python), []),
        ("pyarrow", str(spark_cluster.environment("pyarrow").python), []),
        ("version", str(other_python), []),
        ("path", "./environment/bin/python", []),
        ("broker", None, [("127.0.0.9", free_port())]),
    ]
    python = str(spark_cluster.environment().python)
    words = (spark_cluster.url, *map(json.dumps, (spark_cluster.settings(), python, trials)))
    driver = spark_cluster.driver("-c", TRIALS, *words, env={"PYTHONPATH": str(ROOT)}, cwd=directory)
    assert driver.wait(SLOW_S) == 0, driver.output()
    print(driver.output())
    assert not [line for line in driver.lines if line.startswith(("\tat ", "Caused by", "Traceback"))], driver.output()

    def sentence(name: str) -> str:
        (line,) = [line for line in driver.lines if line.startswith(f"{name} ")]
        return line.split(" ", 2)[2]

    return sentence


@pytest.mark.long
@pytest.mark.parametrize("package", ["pybroker", "pyarrow"])
def test_without_a_package(told: Callable[[str], str], package: str) -> None:
    """A package that the workers lack is reported with the host, the Python, and how to install the package."""
    what = {"pybroker": '"$(echo pybroker-*.whl)[spark]"', "pyarrow": "'pyarrow>=18'"}[package]
    way_out = f"has no {package}: install it in the workers' Python (pip install {what}), or ship"
    assert re.match(rf"Spark's worker on {HOST} \(\S+/python-without-{package}/bin/python\) ", told(package))
    assert way_out in told(package)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("nothing", "nothing"),  # a correct setup gets no error
        ("version", rf"the Python of Spark's worker on {HOST} is 3\.99, and the driver's is \S+; they must be the"),
        ("path", rf"Spark's worker on {HOST} has no \./environment/bin/python: set spark\.pyspark\.python to "),
        ("broker", rf"Spark's worker on {HOST} cannot reach the broker at 127\.0\.0\.9:\d+ \(connection refused\), "),
        ("memory", r"spark://127\.0\.0\.1:\d+ gave no executor in 1 s: .*spark\.executor\.memory=8g"),
        ("table", rf"the driver does not see what executors on {HOST}(, {HOST})? write to \S+/nowhere: "),
    ],
)
def test_one_sentence(told: Callable[[str], str], mistake: str, sentence: str) -> None:
    """A mistake gives one sentence with the host and what to do: another version, a path that only the driver has, a
    broker out of reach, and so on."""
    assert re.match(sentence, told(mistake)), told(mistake)


@pytest.mark.long
@pytest.mark.parametrize("package", ["pybroker", "pyarrow"])
def test_the_workers_lack_a_package(trial: Trial, package: str) -> None:
    python = trial.cluster.environment(package).python
    told = trial.sentence(trial.start(python=python))
    assert told.startswith("Spark's worker on ") and f"({python}) has no {package}: install it" in told


@pytest.mark.long
def test_the_workers_have_another_python(trial: Trial, other_python: Path) -> None:
    told = trial.sentence(trial.start(python=other_python))
    assert told.startswith("the Python of Spark's worker on 127.0.0.") and "they must be the same" in told


@pytest.mark.long
def test_nobody_has_the_workers_python(trial: Trial) -> None:
    told = trial.sentence(trial.start(python=Path("/opt/nowhere/python")))
    assert told.startswith("the workers' Python, /opt/nowhere/python, is not on the driver")


def test_nobody_listens_where_the_master_should_be(trial: Trial) -> None:
    port = free_port()
    told = trial.sentence(trial.start("--master", f"spark://127.0.0.1:{port}"))
    assert told == f"no Spark master at 127.0.0.1:{port}: connection refused"


def test_the_broker_advertises_an_address_of_its_own(trial: Trial, start_broker: Callable[..., BrokerProcess]) -> None:
    """A broker that advertises an unreachable address is reported with that address, not with the bootstrap address,
    before Spark starts."""
    port = free_port()
    broker = start_broker(sets={"advertised.listeners": f"PLAINTEXT://127.0.0.9:{port}"})
    Topics(broker).create(trial.topic)
    told = trial.sentence(trial.start(bootstrap=broker.bootstrap))
    assert told.startswith(f"this machine cannot reach the broker at 127.0.0.9:{port} (connection refused), its advert")


@pytest.mark.long
def test_no_worker_has_so_much_memory(trial: Trial) -> None:
    told = trial.sentence(trial.start(spark__executor__memory="8g"))
    assert told.startswith(f"{trial.cluster.url} gave no executor in 30 s") and "spark.executor.memory=8g" in told


@pytest.fixture(scope="module")
def other_python(spark_cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that claims another version than this one's."""
    python = spark_cluster.environment().python
    made = tmp_path_factory.mktemp("other") / "python"
    made.write_text(f'#!{python}\n{OTHER_VERSION}')
    made.chmod(0o755)
    return made
