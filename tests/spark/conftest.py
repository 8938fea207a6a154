"""One Spark session for all tests of a worker, and topics with records for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pybroker.errors import KafkaError
from tests.harness import ROOT, BrokerProcess
from tests.spark.cluster import SMALL_JVM as SMALL_JVM
from tests.spark.cluster import SparkCluster
from tests.spark.connector import connector_jars
from tests.spark.topics import Topics
from tests.spark.warm_python import warm_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on local[2,1]: two cores, and the first failure of a task fails its query, as some tests need."""
    from pybroker.spark.java import find_java
    from pybroker.spark.session import LOCAL_CHECKPOINTS, session

    try:
        find_java()
    except KafkaError as error:
        pytest.skip(error.message)
    scratch = tmp_path_factory.mktemp("spark")
    with ExitStack() as ends:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(ROOT))  # of Spark's workers, which import a pickled task's modules
            patch.setenv("PYSPARK_PYTHON", str(ends.enter_context(warm_python(tmp_path_factory.mktemp("python")))))
            made = session(
                "pybroker-tests",
                "local[2]",
                {
                    "spark.driver.memory": "768m",
                    "spark.driver.extraJavaOptions": f"{SMALL_JVM} -Dderby.system.home={scratch}",
                    "spark.jars": ",".join(map(str, connector_jars())),
                    "spark.local.dir": str(scratch),
                    **LOCAL_CHECKPOINTS,
                    "spark.sql.adaptive.enabled": "false",
                    "spark.sql.session.timeZone": "UTC",
                    "spark.sql.shuffle.partitions": "2",
                    "spark.sql.warehouse.dir": str(scratch / "warehouse"),
                },
            )
        made.sparkContext.setLogLevel("OFF")
        yield made
        made.stop()


@pytest.fixture(scope="session")
def clusters() -> Iterator[list[SparkCluster]]:
    """The cluster of all tests; the first test that needs one starts it."""
    held: list[SparkCluster] = []
    yield held
    for cluster in held:
        cluster.close()


@pytest.fixture(scope="module")
def spark_cluster(clusters: list[SparkCluster], tmp_path_factory: pytest.TempPathFactory) -> SparkCluster:
    """A standalone master and two workers, shared between modules unless a module left one of them dead."""
    from pybroker.spark.java import find_java

    try:
        find_java()
    except KafkaError as error:
        pytest.skip(error.message)
    if clusters and not clusters[-1].running:
        clusters.pop().close()
    if not clusters:
        clusters.append(SparkCluster(tmp_path_factory.mktemp("cluster")))
        clusters[-1].start()
    return clusters[-1]


@pytest.fixture
def topics(shared_broker: BrokerProcess, spark: SparkSession) -> Topics:
    return Topics(shared_broker, spark)


@pytest.fixture
def own_topics(start_broker: Callable[..., BrokerProcess], spark: SparkSession) -> Topics:
    """The topics of a broker that only this test uses."""
    return Topics(start_broker(), spark)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
