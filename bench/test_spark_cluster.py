"""The pipeline and the source on a standalone cluster: two executors of one core each; driver and broker use the same
two cores.

Each session is a driver process of its own; compared ones run in turns. They are compared with the same read in
local[2], rows in memory (spark_memory.py), and a plain Spark job that does a pipeline's work on text files.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.figures import show
from bench.spark_memory import KEY_BYTES, TASKS, VALUE_BYTES
from bench.spark_topic import RECORDS_A_BATCH, fill
from pybroker.errors import KafkaError
from pybroker.spark.java import find_java
from tests.harness import ROOT, BrokerProcess, Process
from tests.spark.cluster import SparkCluster

ROWS = int(os.environ.get("PYBROKER_BENCH_SPARK_ROWS", "4000000"))
ROUNDS = 3
TURNS = 2
SLOW_S = 400.0
READ_TOPIC, JSON_TOPIC, SMALL_TOPIC = "a-topic-by-a-name", "events", "few"
EVENT = b'{"id": 123456, "kind": "click", "text": "' + b"x" * 58 + b'"}'
EVENTS = 1_000_000 // (TASKS * RECORDS_A_BATCH) * TASKS * RECORDS_A_BATCH
SCHEMA = "id bigint, kind string"
FIRST_BATCH_S = 12.0
BATCHES = int(os.environ.get("PYBROKER_BENCH_SPARK_BATCHES", "1000"))
EARLY = BATCHES // 5
"""Batches after which Spark's retained state no longer grows: the last hundred, and progress of a hundred more."""
ROWS_A_BATCH = 100
HEAP_MIB_MORE = 16

pytestmark = pytest.mark.timeout(1800)

READ = """
import json, sys, time
from bench.spark_memory import MemorySource
from pybroker.spark.session import session

master, settings, bootstrap, topic, rows, rounds = sys.argv[1:]
rows = int(rows)
spark = session("read", master, json.loads(settings))
spark.dataSource.register(MemorySource)
where = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
frames = {
    "memory": spark.read.format("memory_rows").options(rows=str(rows), step=str(rows)).load(),
    "pybroker": spark.read.format("pybroker").options(**where).load(),
}
found = dict.fromkeys(frames, 0.0)
for turn in range(int(rounds) + 1):
    for name, frame in frames.items():
        begun = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        if turn:
            found[name] = max(found[name], rows / (time.perf_counter() - begun))
print("found", json.dumps(found), flush=True)
spark.stop()
"""

PLAIN = """
import json, os, sys
from pyspark.sql import SparkSession, functions as F

master, settings, files, home, schema = sys.argv[1:]
settings = json.loads(settings)
os.environ["PYSPARK_PYTHON"] = settings["spark.pyspark.python"]
quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
builder = SparkSession.builder.master(master)
for name, value in {**quiet, **settings}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def batch(rows, number):
    parsed = rows.select(F.from_json("value", schema).alias("row"))
    parsed.select("row.*", F.current_date().alias("date")).write.partitionBy("date").parquet(f"{home}/table")
    print("done", flush=True)

writer = spark.readStream.format("text").load(files).writeStream.foreachBatch(batch)
writer.option("checkpointLocation", f"{home}/checkpoint").trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""

MANY = """
import gc, json, sys, time
from pybroker.spark.pipeline import Job
from pybroker.spark.pipeline.progress import PipelineProgress
from pybroker.spark.pipeline.runner import Pipeline
from pybroker.spark.session import session

settings, bootstrap, topic, table, schema, batches, early, rows = sys.argv[1:]
batches, early = int(batches), int(early)
spark = session("many", "local[2]", json.loads(settings))
spark.sparkContext.setLogLevel("OFF")
job = Job(bootstrap, table, topic, schema=schema, trigger_s=None, max_offsets=int(rows))


def memory():
    # What is still used once everything has been collected, in MiB.
    gc.collect()
    for _ in range(3):
        spark._jvm.System.gc()
    heap = spark._jvm.java.lang.Runtime.getRuntime()
    with open("/proc/self/statm") as file:
        return [(heap.totalMemory() - heap.freeMemory()) / (1 << 20), int(file.read().split()[1]) / 256]


class Counted(PipelineProgress):
    def batch(self, *given):
        super().batch(*given)
        if self.batches in (early, batches):
            print("memory", json.dumps(memory()), flush=True)


pipeline = Pipeline(spark, job, Counted())
query = pipeline.start()
query.awaitTermination()
query.stop()
begun = time.perf_counter()
pipeline = Pipeline(spark, job, PipelineProgress())
query = pipeline.start()
query.awaitTermination()
print("start", time.perf_counter() - begun, flush=True)
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    try:
        find_java()
    except KafkaError as error:
        pytest.skip(error.message)
    made = SparkCluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture(scope="module")
def broker(shared_log_dir: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(shared_log_dir / "data") as made:
        fill(made, READ_TOPIC, TASKS, ROWS, b"k" * KEY_BYTES, b"v" * VALUE_BYTES)
        fill(made, JSON_TOPIC, TASKS, EVENTS, b"k" * KEY_BYTES, EVENT)
        fill(made, SMALL_TOPIC, 1, RECORDS_A_BATCH * -(-BATCHES * ROWS_A_BATCH // RECORDS_A_BATCH), b"k", EVENT)
        yield made


def settings(cluster: SparkCluster) -> dict[str, str]:
    """Return the settings of a cluster's driver, with the JVM's own compilers. Executors find the benchmarks' own
    source."""
    given = cluster.settings() | {"spark.executorEnv.PYTHONPATH": str(ROOT)}
    return {name: value for name, value in given.items() if not name.endswith("extraJavaOptions")}


def driver(cluster: SparkCluster, script: str, *given: object) -> Process:
    return cluster.driver("-c", script, *given, env={"PYTHONPATH": str(ROOT)})


def mega(rate: float) -> str:
    return f"{rate / 1e6:.2f} M rows/s"


def test_batch_read(cluster: SparkCluster, broker: BrokerProcess) -> None:
    """All columns into nothing on two executors: >= 92 % of local[2]."""
    found = {"local": {"memory": 0.0, "pybroker": 0.0}, "cluster": {"memory": 0.0, "pybroker": 0.0}}
    for _ in range(TURNS):
        for name, master in (("local", "local[2]"), ("cluster", cluster.url)):
            given = (master, json.dumps(settings(cluster)), broker.bootstrap, READ_TOPIC, ROWS, ROUNDS)
            process = driver(cluster, READ, *given)
            told = json.loads(process.wait_line("^found (.*)", SLOW_S)[1])
            assert process.wait(SLOW_S) == 0, process.output()
            found[name] = {each: max(rate, told[each]) for each, rate in found[name].items()}
    here, there = found["local"]["pybroker"], found["cluster"]["pybroker"]
    payload = f"{VALUE_BYTES} B values, 2 executors of 1 core"
    show("batch read", payload, mega(there), f"local[2] {mega(here)}", f"{there / here:.0%}", there >= 0.92 * here)
    limit = found["cluster"]["memory"]
    show("batch read", payload, mega(there), f"in memory {mega(limit)}", f"{there / limit:.0%}")


def test_first_batch(cluster: SparkCluster, broker: BrokerProcess, tmp_path: Path) -> None:
    """The first batch of `--once` is in the table 12 s after the start of the command."""
    files = tmp_path / "text"
    files.mkdir()
    for number in range(TASKS):
        (files / str(number)).write_bytes((EVENT + b"\n") * (EVENTS // TASKS))
    conf = [part for name, value in settings(cluster).items() for part in ("--conf", f"{name}={value}")]
    took: dict[str, list[float]] = {"plain": [], "pipeline": []}
    for turn in range(TURNS + 1):  # the first one warms up the disk
        home = tmp_path / f"plain-{turn}"
        begun = time.perf_counter()
        given = (cluster.url, json.dumps(settings(cluster)), files, home, SCHEMA)
        process = cluster.driver("-c", PLAIN, *given)
        process.wait_line("^done", SLOW_S)
        took["plain"].append(time.perf_counter() - begun)
        assert process.wait(SLOW_S) == 0, process.output()
        begun = time.perf_counter()
        table = tmp_path / f"table-{turn}"
        named = ("-b", broker.bootstrap, "-t", JSON_TOPIC, "--table", table, "--schema", SCHEMA, "--once")
        process = cluster.driver("-m", "pybroker", "pipeline", "--master", cluster.url, *named, *conf)
        process.wait_line(f"^{EVENTS:,} records in 1 batches", SLOW_S)
        took["pipeline"].append(time.perf_counter() - begun)
        assert process.wait(SLOW_S) == 0, process.output()
        shutil.rmtree(table)
    plain, ours = (min(each[1:]) for each in took.values())
    beside = f"plain Spark with text files {plain:.1f} s, so {ours - plain:.1f} s is the pipeline's"
    payload = f"{EVENTS:,} JSON records, 2 executors of 1 core"
    show("first batch of --once", payload, f"{ours:.1f} s", beside, f"{FIRST_BATCH_S:g} s", ours <= FIRST_BATCH_S)


def test_many_batches(cluster: SparkCluster, broker: BrokerProcess, tmp_path: Path) -> None:
    """After a thousand batches the driver uses as much memory as after two hundred; and a start with the state of a
    million batches takes as long as one with that of ten."""
    table, small, million = (tmp_path / name for name in ("table", "small", "million"))

    def run(table: Path, batches: int, early: int, rows: int) -> Process:
        given = json.dumps(settings(cluster) | {"spark.driver.memory": "768m"}), broker.bootstrap, SMALL_TOPIC
        process = driver(cluster, MANY, *given, table, SCHEMA, batches, early, rows)
        assert process.wait(1500) == 0, process.output()
        return process

    process = run(table, BATCHES, EARLY, ROWS_A_BATCH)
    early, late = (json.loads(line.partition(" ")[2]) for line in process.lines if line.startswith("memory "))
    for what, before, after in zip(("heap", "Python"), early, late, strict=True):
        more, payload = after - before, f"{BATCHES:,} batches"
        beside = f"{before:.1f} after {EARLY}"
        show(f"driver's {what}", payload, f"{after:.1f} MiB", beside, f"{more:+.1f} MiB", more <= HEAP_MIB_MORE)
    state = [path for path in (table / "_pybroker").rglob("*") if path.is_file()]
    show("files of state", f"{BATCHES:,} batches", str(len(state)), "1,000", "", len(state) <= 1000)
    shutil.copytree(table, million)
    renumber(million / "_pybroker", 1_000_000)
    run(small, 10, 1, BATCHES * ROWS_A_BATCH // 10)
    took = {}
    for _ in range(TURNS):
        for name, each in (("few", small), ("many", million)):
            again = run(each, BATCHES, EARLY, ROWS_A_BATCH)
            took[name] = min(took.get(name, 1e9), float(again.wait_line("^start (.*)", 1)[1]))
    few, many = took["few"], took["many"]
    share = many / few
    show("start", "1,000,000 batches done", f"{many:.2f} s", f"{few:.2f} s after 11", f"{share:.0%}", share <= 1.3)


def renumber(state: Path, last: int) -> None:
    """Renumber the state of a table, as if this were the last of many more batches."""
    offsets = state / "checkpoint/offsets"
    shift = last - max(int(path.name) for path in offsets.iterdir() if path.name.isdigit())
    for directory in (offsets, state / "checkpoint/commits"):
        for path in list(directory.iterdir()):
            if path.name.isdigit():
                path.rename(directory / f"{int(path.name) + shift}")
            else:
                path.unlink()  # checksums, which depend on the name
    for path in list((state / "done").glob("[!.]*.json")):
        query, number, *more = path.stem.split("-")
        path.rename(state / "done" / ("-".join([query, f"{int(number) + shift:09}", *more]) + path.suffix))
