"""The source, the sink and the pipeline on a standalone cluster, whose workers have a separate Python."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pybroker.testing import Record
from tests.harness import BrokerProcess
from tests.spark import ledger
from tests.spark.cluster import MARKS, SparkCluster
from tests.spark.topics import Topics

pytestmark = MARKS

SLOW_S = 150.0

JOB = """
import json, sys
from pybroker.spark.session import session

master, settings, bootstrap, topic, checkpoint = sys.argv[1:]
spark = session("reader", master, json.loads(settings))
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
read = spark.read.format("pybroker").options(**options, minPartitions=2).load()
print("read", sorted(int(row.value) for row in read.select("value").collect()))

def where(rows):
    import pybroker
    return [pybroker.__file__ for _ in rows]

print("workers", sorted(set(read.rdd.mapPartitions(where).collect())))
stream = spark.readStream.format("pybroker").options(**options, startingOffsets="earliest").load()
writer = stream.select("value").writeStream.format("pybroker").options(**options, topic=topic + "-copy")
writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


@pytest.fixture
def topics(shared_broker: BrokerProcess) -> Topics:
    return Topics(shared_broker)


@pytest.mark.long
def test_source_and_sink(spark_cluster: SparkCluster, topics: Topics, topic: str, checkpoint: str) -> None:
    """Source and sink run with the workers' pybroker, not the checkout's: a batch read, and a stream from topic to
    topic."""
    for name in (topic, f"{topic}-copy"):
        topics.create(name, partitions=2)
    for partition in range(2):
        topics.produce(topic, range(partition * 50, partition * 50 + 50), partition)
    given = (spark_cluster.url, json.dumps(spark_cluster.settings()), topics.broker.bootstrap, topic, checkpoint)
    job = spark_cluster.driver("-c", JOB, *given)
    assert job.wait(SLOW_S) == 0, job.output()
    assert f"read {list(range(100))}" in job.lines, job.output()
    assert f"workers ['{spark_cluster.environment().packages / 'pybroker/__init__.py'}']" in job.lines, job.output()
    assert sorted(int(r.value or "") for r in topics.held(f"{topic}-copy")) == list(range(100))


@pytest.mark.long
def test_pipeline(spark_cluster: SparkCluster, topics: Topics, topic: str, tmp_path: Path) -> None:
    """A pipeline with `--master spark://...` writes each record to the table once."""
    topics.create(topic, partitions=2)
    topics.produce(topic, [Record(json.dumps({"id": n}), partition=n % 2) for n in range(100)])
    table = tmp_path / "table"
    options = ("-b", topics.broker.bootstrap, "-t", topic, "--table", table, "--schema", "id bigint", "--once")
    command = ("-m", "pybroker", "pipeline", "--master", spark_cluster.url, *options, *spark_cluster.conf())
    job = spark_cluster.driver(*command)
    assert job.wait(SLOW_S) == 0, job.output()
    files = ledger.data_files(table)
    assert sorted(n for path in files for n in pq.ParquetFile(path).read(["id"])["id"].to_pylist()) == list(range(100))


def test_what_a_test_can_do_to_it(spark_cluster: SparkCluster) -> None:
    """A worker of the test cluster comes back after a kill, and its environments lack the named packages."""
    spark_cluster.kill_worker(1)
    spark_cluster.start_worker(1)
    bare = spark_cluster.environment("pybroker", "pyarrow")
    probe = "import importlib.util as u; print([bool(u.find_spec(n)) for n in ('pybroker', 'pyarrow', 'numpy')])"
    assert bare.run("-c", probe) == "[False, False, True]\n"
    assert spark_cluster.environment().run("-c", probe) == "[True, True, True]\n"
