"""What goes wrong when a pipeline is started on a cluster, and the one sentence that a person gets for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.testing import Record
from tests.harness import BrokerProcess, Process, free_port
from tests.spark.cluster import SparkCluster
from tests.spark.topics import Topics

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.spark_cluster,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(500),
]

SLOW_S = 200.0
OTHER_VERSION = """
import collections, runpy, sys
version = collections.namedtuple("version", "major minor micro releaselevel serial")
sys.version_info = version(3, 99, 0, "final", 0)
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


class Trial:
    """A pipeline that cannot work."""

    def __init__(self, cluster: SparkCluster, topics: Topics, topic: str, table: Path) -> None:
        self.cluster, self.topics, self.topic, self.table = cluster, topics, topic, table

    def start(self, *options: str, bootstrap: str | None = None, python: Path | None = None, **conf: str) -> Process:
        """`pybroker pipeline` on the cluster, with this Python of the workers, and more settings of Spark."""
        given = ("-b", bootstrap or self.topics.broker.bootstrap, "-t", self.topic, "--table", self.table, "--once")
        named = {"spark.pyspark.python": str(python or self.cluster.environment().python)}
        settings = self.cluster.conf(**named, **{name.replace("__", "."): value for name, value in conf.items()})
        master = () if "--master" in options else ("--master", self.cluster.url)
        schema = ("--schema", "id bigint")
        return self.cluster.driver("-m", "pybroker", "pipeline", *given, *schema, *master, *settings, *options)

    def sentence(self, process: Process) -> str:
        """The last line of a run that failed, without a stack of Java's before it."""
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


@pytest.mark.parametrize("package", ["pybroker", pytest.param("pyarrow", marks=pytest.mark.long)])
def test_the_workers_lack_a_package(trial: Trial, package: str) -> None:
    python = trial.cluster.environment(package).python
    told = trial.sentence(trial.start(python=python))
    assert told.startswith("Spark's worker on ") and f"({python}) has no {package}: install it" in told


@pytest.mark.long
def test_the_workers_have_another_python(trial: Trial, other_python: Path) -> None:
    told = trial.sentence(trial.start(python=other_python))
    assert told.startswith("the Python of Spark's worker on 127.0.0.") and "they have to be the same" in told


@pytest.mark.long
def test_nobody_has_the_workers_python(trial: Trial) -> None:
    told = trial.sentence(trial.start(python=Path("/opt/nowhere/python")))
    assert told.startswith("the workers' Python, /opt/nowhere/python, is not on the driver")


def test_nobody_listens_where_the_master_should_be(trial: Trial) -> None:
    port = free_port()
    told = trial.sentence(trial.start("--master", f"spark://127.0.0.1:{port}"))
    assert told == f"no Spark master at 127.0.0.1:{port}: connection refused"


def test_the_broker_advertises_an_address_of_its_own(trial: Trial, start_broker: Callable[..., BrokerProcess]) -> None:
    """The workers' address for it is refused; the driver's, by which it was found, is not."""
    port = free_port()
    broker = start_broker(sets={"advertised.listeners": f"PLAINTEXT://127.0.0.9:{port}"})
    Topics(broker).create(trial.topic)
    told = trial.sentence(trial.start(bootstrap=broker.bootstrap))
    assert f"127.0.0.9:{port}" in told and "advertised" in told


@pytest.mark.long
def test_no_worker_has_so_much_memory(trial: Trial) -> None:
    told = trial.sentence(trial.start(spark__executor__memory="8g"))
    assert told.startswith(f"{trial.cluster.url} gave no executor in 35 s") and "spark.executor.memory=8g" in told


@pytest.fixture
def other_python(trial: Trial, tmp_path: Path) -> Path:
    """A Python that says it is of another version than this one."""
    python = trial.cluster.environment().python
    made = tmp_path / "python"
    made.write_text(f'#!{python}\n{OTHER_VERSION}')
    made.chmod(0o755)
    return made
