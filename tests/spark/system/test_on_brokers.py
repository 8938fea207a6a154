"""The worked examples and the pipeline on three brokers whose leaders are killed in turn: each record counts once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples import log_aggregation, metric_monitoring, stream_enrichment
from pybroker import Producer
from pybroker.errors import KafkaError
from pybroker.spark.java import find_java
from pybroker.spark.pipeline import Job
from pybroker.spark.pipeline.progress import PipelineProgress
from pybroker.spark.pipeline.runner import Pipeline
from tests.brokers.kit import Cluster
from tests.brokers.system.test_failover import read_all
from tests.spark.system.test_pipeline_command import ids
from tests.stores import AnyStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]

WAVE = 40
"""The records of each topic between two kills."""


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore) -> Iterator[Cluster]:
    try:
        find_java()
    except KafkaError as error:
        pytest.skip(error.message)
    with Cluster(tmp_path / "brokers", store) as running:
        yield running


class Writer:
    """A writer of JSON, or lines, that waits until every record is acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._producer = Producer(bootstrap_servers=cluster.bootstrap)

    def write(self, topic: str, rows: list[Any]) -> None:
        for row in rows:
            self._producer.send(topic, row if isinstance(row, str) else json.dumps(row), partition=0)

    def settle(self) -> None:
        self._producer.flush()

    def close(self) -> None:
        self._producer.close()


def kill_in_turn(cluster: Cluster, topics: list[str], wave: Callable[[int], object]) -> None:
    """Kill each broker once while it leads some topics; wait until it is in sync before the next kill."""
    for number in cluster.brokers:
        wave(2 * number)
        cluster.kill(number)
        wave(2 * number + 1)
        cluster.restart(number)
        for topic in topics:
            cluster.until_in_sync(topic)


def spread(cluster: Cluster, topics: list[str]) -> None:
    """Create topics of one partition, which the brokers lead in turn."""
    for at, topic in enumerate(topics):
        order = [1 + (at + n) % 3 for n in range(3)]
        cluster.create(topic, replicas=[order])


def held(cluster: Cluster, topic: str) -> list[str]:
    """The records of a topic, as another client library reads them."""
    return [value.decode() for _, value in sorted(read_all(cluster, topic).items())]


class Examples:
    """The three examples and a pipeline at work, and the records that must exist at the end."""

    topics = (
        "metrics", "alerts", "logs", "logs-error", "logs-other", "logs-unparsed", "orders", "payments", "customers",
        "paid", "events",
    )  # fmt: skip

    def __init__(self, cluster: Cluster, spark: SparkSession, home: Path) -> None:
        self.cluster, self.table = cluster, home / "table"
        self.writer = Writer(cluster)
        self.minutes = 0
        spread(cluster, list(self.topics))
        self.writer.write("customers", [{"name": "nobody"}])
        self.writer.settle()
        bootstrap, points = cluster.bootstrap, str(home / "points")
        writers = [
            metric_monitoring.start(spark, bootstrap, 90.0, f"{points}/metrics"),
            log_aggregation.start(spark, bootstrap, f"{points}/logs"),
            stream_enrichment.start(spark, bootstrap, f"{points}/orders"),
        ]
        self.queries = [writer.start() for writer in writers]
        job = Job(bootstrap, str(self.table), "events", schema="id bigint", trigger_s=0.0)
        self.queries.append(Pipeline(spark, job, PipelineProgress()).start())

    def write(self, wave: int) -> None:
        """Write a minute of input: metrics, of which every second one is too high, and the other topics' records."""
        at, numbers = f"2026-11-21T08:{wave:02}", range(wave * WAVE, (wave + 1) * WAVE)
        self.minutes = wave
        value = 100 if wave % 2 else 50
        self.writer.write("metrics", [{"host": "a", "value": value, "at": f"{at}:{n % 60:02}Z"} for n in numbers])
        levels = ("ERROR", "INFO")
        self.writer.write("logs", [f"{at}:00Z {levels[n % 2]} billing {n}" if n % 5 else f"odd {n}" for n in numbers])
        orders = [{"order": n, "customer": "c", "amount": 1.0, "at": f"{at}:00Z"} for n in numbers]
        self.writer.write("orders", orders)
        self.writer.write("payments", [{"order": n, "at": f"{at}:30Z"} for n in numbers])
        self.writer.write("events", [{"id": n} for n in numbers])
        self.writer.settle()

    def finish(self) -> None:
        last = self.minutes + 5  # closes the earlier minutes
        self.writer.write("metrics", [{"host": "z", "value": 0, "at": f"2026-11-21T08:{last:02}:00Z"}])
        self.writer.settle()
        for query in self.queries:
            query.processAllAvailable()

    def close(self) -> None:
        for query in self.queries:
            query.stop()
        self.writer.close()


@pytest.mark.long
def test_the_examples_finish_exactly(cluster: Cluster, spark: SparkSession, tmp_path: Path) -> None:
    """The examples and a pipeline finish exactly while each broker is killed with -9 and comes back."""
    work = Examples(cluster, spark, tmp_path)
    try:
        kill_in_turn(cluster, list(work.topics), work.write)
        work.finish()
        waves = range(2, work.minutes + 1)
        numbers = [n for wave in waves for n in range(wave * WAVE, (wave + 1) * WAVE)]
        alerts = [json.loads(value) for value in held(cluster, "alerts")]
        assert sorted((a["minute"][11:16], a["samples"], a["average"]) for a in alerts) == [
            (f"08:{wave:02}", WAVE, 100.0) for wave in waves if wave % 2
        ]
        parsed = [n for n in numbers if n % 5]
        for topic, expected in (
            ("logs-error", [n for n in parsed if n % 2 == 0]),
            ("logs-other", [n for n in parsed if n % 2]),
            ("logs-unparsed", [n for n in numbers if n % 5 == 0]),
        ):
            assert [int(line.split()[-1]) for line in held(cluster, topic)] == expected
        assert sorted(json.loads(value)["order"] for value in held(cluster, "paid")) == numbers
        assert ids(work.table) == numbers
    finally:
        work.close()
