"""The ways in which a job is started: what the user says wins, what a person reads is where it belongs, and it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness import HOST, ROOT, BrokerProcess, Process
from tests.spark.cluster import SMALL_JVM, SparkCluster
from tests.spark.topics import Topics

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.spark_cluster,
    pytest.mark.xdist_group("spark_cluster"),
    pytest.mark.timeout(500),
]

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
    """A command with its standard output in a file; standard error is what `process` shows."""

    def __init__(self, directory: Path, command: Sequence[object], cwd: Path = ROOT, **env: str) -> None:
        directory.mkdir(exist_ok=True)
        self._out = directory / "standard-output"
        words = ["sh", "-c", f"exec \"$@\" >'{self._out}'", "sh", *map(str, command)]
        self.process = Process(words, {"SPARK_LOCAL_IP": HOST, **env}, cwd)

    @property
    def out(self) -> str:
        return self._out.read_text()

    def end(self) -> str:
        """What it wrote to standard output, once it has ended well."""
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


def test_what_the_user_says_wins(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    """By spark-defaults.conf, by spark-submit's options and by settings, in this order; ours are for what is left."""
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

    # Without spark-submit: the JVM that the session starts has read the same file.
    plain = json.dumps({"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": SMALL_JVM})
    found = held(Started(tmp_path / "b", [sys.executable, script, plain], SPARK_CONF_DIR=str(tmp_path)).end())
    assert found["spark.app.name"] == "ours" and found["spark.sql.shuffle.partitions"] == "3"
    assert found["spark.python.unix.domain.socket.enabled"] == "false"
    assert found["pythonExec"] == sys.executable

    # On a cluster the workers have the Python that Spark's settings name; what is left is ours.
    workers = str(spark_cluster.environment().python)
    settings = {**spark_cluster.settings(), "spark.master": spark_cluster.url, "spark.app.name": "named"}
    command = [sys.executable, script, json.dumps(settings)]
    found = held(Started(tmp_path / "c", command, PYSPARK_PYTHON="python-of-nobody").end())
    assert found["pythonExec"] == workers and found["spark.app.name"] == "named"
    assert found["spark.python.unix.domain.socket.enabled"] == "true"
