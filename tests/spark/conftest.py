"""One Spark session for all tests of a worker, and topics with records for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pybroker.client.connection import Connection
from pybroker.errors import KafkaError
from pybroker.testing import Record, records
from tests.harness import HOST, ROOT, BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2,1]: two cores, and a task that fails fails its query, as in the tests that want to see it."""
    from pybroker.spark.java import find_java
    from pybroker.spark.session import session

    try:
        find_java()
    except KafkaError as error:
        pytest.skip(error.message)
    scratch = tmp_path_factory.mktemp("spark")
    os.environ["PYTHONPATH"] = str(ROOT)  # of Spark's workers, which import what a task was pickled with
    made = session(
        "pybroker-tests",
        "local[2]",
        {
            "spark.driver.memory": "768m",
            "spark.driver.extraJavaOptions": f"{SMALL_JVM} -Dderby.system.home={scratch}",
            "spark.local.dir": str(scratch),
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        },
    )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


class Topics:
    """The topics of a broker: made and written to with pybroker's own code, read with Spark."""

    def __init__(self, broker: BrokerProcess, spark: SparkSession) -> None:
        self.broker = broker
        self.spark = spark

    def connect(self) -> Connection:
        return Connection(HOST, self.broker.port)

    def create(self, name: str, partitions: int = 1, **config: object) -> str:
        with self.connect() as connection:
            texts = {key.replace("_", "."): str(value) for key, value in config.items()}
            records.create_topic(connection, name, partitions, texts)
        return name

    def produce(self, topic: str, values: Sequence[object], partition: int = 0, **fields: Any) -> list[Record]:
        """Append values as text, or records as they are."""
        made = [v if isinstance(v, Record) else Record(str(v), partition=partition, **fields) for v in values]
        with self.connect() as connection:
            return records.produce(connection, topic, made)

    def held(self, topic: str) -> list[Record]:
        """Everything a topic has, by the slow reader of the testing kit."""
        with self.connect() as connection:
            return records.read(connection, topic, None)

    def options(self, topic: str, **options: object) -> dict[str, str]:
        given = {"kafka.bootstrap.servers": self.broker.bootstrap, "subscribe": topic}
        return given | {name: str(value) for name, value in options.items()}

    def read(self, topic: str, **options: object) -> DataFrame:
        return self.spark.read.format("pybroker").options(**self.options(topic, **options)).load()

    def stream(self, topic: str, **options: object) -> DataFrame:
        options.setdefault("startingOffsets", "earliest")
        return self.spark.readStream.format("pybroker").options(**self.options(topic, **options)).load()


@pytest.fixture
def topics(shared_broker: BrokerProcess, spark: SparkSession) -> Topics:
    return Topics(shared_broker, spark)


@pytest.fixture
def own_topics(start_broker: Callable[..., BrokerProcess], spark: SparkSession) -> Topics:
    """The topics of a broker of this test's own."""
    return Topics(start_broker(), spark)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
