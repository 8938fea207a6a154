"""The topics of a broker, for tests of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pybroker.client.net.connection import BrokerConnection
from pybroker.testing import Record, records
from tests.harness import HOST, BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Topics:
    """The topics of a broker: created and written with pybroker's own code, read with Spark."""

    def __init__(self, broker: BrokerProcess, spark: SparkSession | None = None) -> None:
        self.broker = broker
        self._spark = spark

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None, "these topics were made without Spark"
        return self._spark

    def connect(self) -> BrokerConnection:
        return BrokerConnection(HOST, self.broker.port)

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
        """All records of a topic, as the testing kit's slow reader finds them."""
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
