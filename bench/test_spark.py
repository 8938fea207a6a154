"""Topics in Spark, compared with the limit of a Python source, and with Spark's own connector.

The limit is a source that makes its rows once and returns them again and again (spark_memory.py); for files, one that
also maps as many bytes and computes their CRC. The peer is format "kafka" with its fastest settings, with
PYBROKER_BENCH_KAFKA=yes if Maven has its jar. All read the same number of rows in one session on two cores, in turns,
and the broker runs on the same two: each is judged by its best round.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.figures import show
from bench.payloads import drop_cache
from bench.peers import with_kafka
from bench.spark_memory import BATCH_ROWS, KEY_BYTES, TASKS, VALUE_BYTES
from bench.spark_topic import fill
from pybroker.client.net.connection import BrokerConnection
from pybroker.errors import KafkaError
from pybroker.spark.java import find_java
from pybroker.testing import records
from tests.harness import HOST, ROOT, BrokerProcess, cpu_s
from tests.spark.connector import connector_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = int(os.environ.get("PYBROKER_BENCH_SPARK_ROWS", "4000000"))
STEP = 1_000_000
WRITTEN = 8_000_000
FEW_ROWS = 2_000
ROUNDS = 3
PAYLOAD = f"{VALUE_BYTES} B values, {TASKS} cores"
TOPIC = "a-topic-by-a-name"
STREAMS = False  # the connector of Spark 4.1, the last complete one at Maven, finds no checkpoint classes in Spark 4.3
TUNED = {"kafka.max.poll.records": "5000", "kafka.linger.ms": "20", "kafka.batch.size": str(1 << 20)}


def connector() -> list[Path]:
    """Return the jars of format "kafka", if it takes part."""
    return connector_jars() if with_kafka() else []


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    from bench.spark_memory import MemorySource
    from pybroker.spark.session import LOCAL_CHECKPOINTS, RAW_FILES, SMALL_ROWS, UNCHECKED_ARROW, session

    try:
        find_java()
    except KafkaError as error:
        pytest.skip(error.message)
    os.environ["PYTHONPATH"] = str(ROOT)
    jars = {"spark.jars": ",".join(map(str, connector()))} if connector() else {}
    java = {"spark.driver.extraJavaOptions": UNCHECKED_ARROW, "spark.driver.memory": "3g"}
    settings = {**java, **LOCAL_CHECKPOINTS, **RAW_FILES, **SMALL_ROWS, **jars}
    made = session("bench", f"local[{TASKS}]", settings)
    made.sparkContext.setLogLevel("OFF")
    made.dataSource.register(MemorySource)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def broker(shared_log_dir: Path) -> Iterator[BrokerProcess]:
    """A broker with a topic of ROWS records."""
    with BrokerProcess(shared_log_dir / "data") as made:
        fill(made, TOPIC, TASKS, ROWS, b"k" * KEY_BYTES, b"v" * VALUE_BYTES)
        yield made


def best(loops: dict[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the best rate of each loop, in rows a second; they run in turns, after a round that does not count."""
    for loop in loops.values():
        loop()
    found = dict.fromkeys(loops, 0.0)
    for _ in range(rounds):
        for name, loop in loops.items():
            found[name] = max(found[name], loop())
    return found


def sources(broker: BrokerProcess, reader: Any, *, beside_connector: bool) -> dict[str, DataFrame]:
    """Return the frames to compare, from spark.read or spark.readStream."""
    topic = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}
    limit = {"maxOffsetsPerTrigger": str(STEP)}
    found = {
        "limit": reader.format("memory_rows").options(rows=str(ROWS), step=str(STEP)).load(),
        "pybroker": reader.format("pybroker").options(**topic, **limit).load(),
        "logDirs": reader.format("pybroker").options(**topic, **limit, logDirs=str(broker.data_dir)).load(),
    }
    if beside_connector and connector():
        found["kafka"] = reader.format("kafka").options(**topic, **limit, **TUNED).load()
    return found


def mega(rate: float) -> str:
    return f"{rate / 1e6:.2f} M rows/s"


def compare(what: str, found: dict[str, float], name: str, share_min: float, peer_min: float | None) -> None:
    """Compare one source with the limit, and with the connector if available."""
    share = found[name] / found["limit"]
    show(what, PAYLOAD, mega(found[name]), f"in memory {mega(found['limit'])}", f"{share:.0%}", share >= share_min)
    if peer_min is not None and "kafka" in found:
        times = found[name] / found["kafka"]
        show(
            what, PAYLOAD, mega(found[name]), f"format kafka {mega(found['kafka'])}", f"{times:.1f}x", times >= peer_min
        )


def test_batch_read(spark: SparkSession, broker: BrokerProcess) -> None:
    """All columns into nothing: >= 72 % of the limit, >= 82 % by files, >= 2x the connector; the broker's own time."""
    logs = ",".join(str(broker.partition_dir(TOPIC, index)) for index in range(TASKS))

    def read(frame: DataFrame) -> Callable[[], float]:
        def loop() -> float:
            started = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            return ROWS // BATCH_ROWS * BATCH_ROWS / (time.perf_counter() - started)

        return loop

    frames = sources(broker, spark.read, beside_connector=True)
    frames["crc"] = spark.read.format("memory_rows").options(rows=str(ROWS), logs=logs).load()
    found = best({name: read(frame) for name, frame in frames.items()})
    assert broker.process is not None
    before = cpu_s(broker.process.pid)
    read(frames["pybroker"])()
    spent = (cpu_s(broker.process.pid) - before) / (ROWS / 1e6)
    print({name: mega(rate) for name, rate in found.items()}, f"broker {spent:.3f} core-s/Mrow")
    show("broker while Spark reads", PAYLOAD, f"{spent:.3f} core-s/Mrow", "0.03", "", spent <= 0.03 or None)
    compare("batch read", found, "pybroker", 0.72, 2.0)
    of_memory = f"{found['crc'] / found['limit']:.0%}"
    show("the CRC of files alone", PAYLOAD, mega(found["crc"]), f"in memory {mega(found['limit'])}", of_memory)
    compare("batch read of files", found, "logDirs", 0.82, None)


def test_stream_read(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    """A million rows a micro-batch, from the second one on: >= 72 % of the limit, >= 1.4x the connector if it runs."""
    runs = iter(range(1000))

    def stream(frame: DataFrame) -> Callable[[], float]:
        def loop() -> float:
            writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / str(next(runs))))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            steady = [p for p in query.recentProgress if p["numInputRows"]][1:]
            return (
                sum(p["numInputRows"] for p in steady) / sum(p["durationMs"]["triggerExecution"] for p in steady) * 1e3
            )

        return loop

    frames = sources(broker, spark.readStream, beside_connector=STREAMS)
    frames.pop("logDirs")
    found = best({name: stream(frame) for name, frame in frames.items()}, rounds=2)
    print({name: mega(rate) for name, rate in found.items()})
    compare("stream of 1 M row batches", found, "pybroker", 0.72, 1.4)


def test_small_batches(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    """The fixed cost of a micro-batch: one of 2,000 rows takes 75 ms or less."""
    topic = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": TOPIC}
    end = {"startingOffsets": json.dumps({TOPIC: {str(p): ROWS // TASKS - FEW_ROWS * 40 for p in range(TASKS)}})}
    frame = spark.readStream.format("pybroker").options(**topic, **end, maxOffsetsPerTrigger=str(FEW_ROWS)).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    took = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]]
    median = statistics.median(took[len(took) // 2 :])
    show("micro-batch of 2,000 rows", PAYLOAD, f"{median:.0f} ms", "75 ms", f"{median / 75:.0%}", median <= 75)


def test_write(spark: SparkSession, broker: BrokerProcess) -> None:
    """Rows in Spark's memory, into a topic: >= 1.5 M rows/s, >= 2x the connector."""
    count = WRITTEN if connector() else WRITTEN // 4  # compared with it, a job's fixed cost should not count
    rows = spark.range(count).selectExpr("encode(lpad(id, 100, 'v'), 'UTF-8') as value").repartition(TASKS).cache()
    rows.count()

    def write(format_: str, **options: str) -> Callable[[], float]:
        def loop() -> float:
            target = f"written-{format_}"
            assert broker.process is not None
            drop_cache(broker.process.pid)
            started = time.perf_counter()
            writer = rows.write.format(format_).option("kafka.bootstrap.servers", broker.bootstrap)
            writer.option("topic", target).options(**options).mode("append").save()
            return count / (time.perf_counter() - started)

        with BrokerConnection(HOST, broker.port) as connection:
            records.create_topic(connection, f"written-{format_}", TASKS, {"retention.bytes": str(512 << 20)})
        return loop

    loops = {"pybroker": write("pybroker")}
    if connector():
        loops["kafka"] = write("kafka", **TUNED)
    found = best(loops, rounds=3)
    print({name: mega(rate) for name, rate in found.items()})
    enough = found["pybroker"] >= 1.5e6
    show("write", PAYLOAD, mega(found["pybroker"]), "1.5 M rows/s", f"{found['pybroker'] / 1.5e6:.0%}", enough)
    if "kafka" in found:
        times = found["pybroker"] / found["kafka"]
        show(
            "write",
            PAYLOAD,
            mega(found["pybroker"]),
            f"format kafka {mega(found['kafka'])}",
            f"{times:.1f}x",
            times >= 2,
        )
