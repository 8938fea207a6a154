"""Check pybroker's durability on this machine: write a million records, kill -9 the broker, read all of them back.

    python examples/demo.py [--records N]

The demo starts `pybroker serve` on its own data directory, creates a topic of 6 partitions, and produces records of 100
bytes with confluent-kafka over TCP (idempotent, acks=all). Once all are acknowledged it kills the broker with SIGKILL
and starts it again. Then it reads everything back, and checks the count, the order in each partition, the offsets and a
checksum. With Spark and Java installed, the pipeline also writes all records into a table. The exit code is 0 if
everything agrees; otherwise 1, with a sentence that names the difference.
"""

import argparse
import hashlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from pybroker.errors import KafkaError
from pybroker.spark.java import find_java

TOPIC: Final = "demo"
PARTITIONS: Final = 6
RECORD_BYTES: Final = 100
NUMBER_BYTES: Final = 8
PADDING: Final = hashlib.shake_256(b"pybroker").digest(1 << 16)  # not compressible, the same on every run

READY_S_MAX: Final = 30.0
STOP_S_MAX: Final = 30.0
SILENCE_S_MAX: Final = 20.0
"""Seconds without an acknowledgement or a record before the demo gives up."""


class DemoFailed(Exception):
    """A check that failed, in one sentence."""


class Broker:
    """`pybroker serve` on one data directory, which survives the process."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.address = ""
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "pybroker", "serve", "--data-dir", str(self.data_dir), "--port", "0"]
        say(f"$ pybroker {' '.join(command[3:])}")
        started = time.monotonic()
        self.process = subprocess.Popen([*command, "--log-level", "warning"], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        with alarm(READY_S_MAX, self.process):
            line = self.process.stdout.readline()
        ready = re.match(r"pybroker ready on (\S+:\d+)", line)
        if not ready:
            raise DemoFailed(f"the broker did not get ready in {READY_S_MAX:g} s (it said {line!r})")
        self.address = ready[1]
        say(f"  {line.strip()}")
        say(f"  {time.monotonic() - started:.2f} s from the start of the process to that line")

    def kill(self) -> None:
        """Send SIGKILL: the process can write nothing more."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Send SIGTERM; the process must exit with code 0."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"the broker did not stop in {STOP_S_MAX:g} s after SIGTERM") from None
        if code:
            raise DemoFailed(f"the broker ended with code {code} after SIGTERM")


@contextmanager
def alarm(seconds: float, process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a process that exceeds the time limit, so that its pipe closes."""
    previous = signal.signal(signal.SIGALRM, lambda *_: process.kill())
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


class Meter:
    """Progress of one stage: a line that is rewritten on a terminal, a line every few seconds elsewhere."""

    def __init__(self, doing: str, total: int) -> None:
        self.doing = doing
        self.total = total
        self.started = time.monotonic()
        self.shown = self.started
        self.every_s = 0.1 if sys.stdout.isatty() else 2.0

    def show(self, done: int) -> None:
        now = time.monotonic()
        if now - self.shown >= self.every_s:
            self.shown = now
            rate = done / (now - self.started)
            text = f"  {self.doing} {done:,} of {self.total:,} ({rate:,.0f} records/s)"
            print(
                f"\r{text}\x1b[K" if sys.stdout.isatty() else text, end="" if sys.stdout.isatty() else "\n", flush=True
            )

    def finish(self) -> float:
        """Print and return the records a second of the whole stage."""
        seconds = time.monotonic() - self.started
        rate = self.total / seconds
        clear = "\r\x1b[K" if sys.stdout.isatty() else ""
        megabytes = rate * RECORD_BYTES / 1e6
        say(f"{clear}  {self.doing} {self.total:,} in {seconds:.2f} s: {rate:,.0f} records/s, {megabytes:,.1f} MB/s")
        return rate


def say(text: str) -> None:
    print(text, flush=True)


def value_of(number: int) -> bytes:
    """Return the record of this number: the number itself, and padding that depends on it."""
    at = number * 61 % (len(PADDING) - RECORD_BYTES)
    return number.to_bytes(NUMBER_BYTES, "big") + PADDING[at : at + RECORD_BYTES - NUMBER_BYTES]


def create_topic(broker: Broker) -> None:
    arguments = ["topics", "create", TOPIC, "--partitions", str(PARTITIONS), "--bootstrap-server", broker.address]
    say(f"$ pybroker {' '.join(arguments)}")
    done = subprocess.run([sys.executable, "-m", "pybroker", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise DemoFailed(f"the topic could not be created: {done.stderr.strip()}")
    say(f"  {done.stdout.strip()}")


def produce(broker: Broker, records: int) -> list[str]:
    """Produce record n to partition n mod 6, and wait until all are acknowledged; return each partition's checksum."""
    failures: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
            "delivery.timeout.ms": int(SILENCE_S_MAX * 1000),
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failures.append(error),
        }
    )
    sums = [hashlib.sha256() for _ in range(PARTITIONS)]
    meter = Meter("produced", records)
    for number in range(records):
        value = value_of(number)
        sums[number % PARTITIONS].update(value)
        _produce_one(producer, value, number % PARTITIONS)
        if number % 4096 == 0:
            meter.show(number)
            if failures:
                break
    left = producer.flush(SILENCE_S_MAX)
    if failures or left:
        raise DemoFailed(f"{len(failures)} records failed ({failures[:1]}) and {left} were not acknowledged in time")
    meter.finish()
    return [each.hexdigest() for each in sums]


def _produce_one(producer: Any, value: bytes, partition: int) -> None:
    """Hand one record to the client; wait while its queue is full."""
    deadline = time.monotonic() + SILENCE_S_MAX
    while True:
        try:
            producer.produce(TOPIC, value, partition=partition)
            return
        except BufferError:
            if time.monotonic() > deadline:
                raise DemoFailed(f"nothing was acknowledged for {SILENCE_S_MAX:g} s") from None
            producer.poll(0.05)


def read_back(broker: Broker, records: int) -> list[str]:
    """Read every partition from start to end; return each partition's checksum, in the order read."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "demo",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,  # by default the consumer pauses a second when its queue is full
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    sums = [hashlib.sha256() for _ in range(PARTITIONS)]
    counts = [0] * PARTITIONS
    meter = Meter("read", records)
    last_progress = time.monotonic()
    done = 0
    while done < records:
        messages: list[Any] = consumer.consume(10_000, 0.5)
        for message in messages:
            _check(message, counts)
            sums[message.partition()].update(message.value())
        if messages:
            last_progress = time.monotonic()
        elif time.monotonic() - last_progress > SILENCE_S_MAX:
            raise DemoFailed(f"{done:,} of {records:,} records came back, then none for {SILENCE_S_MAX:g} s")
        done = sum(counts)
        meter.show(done)
    meter.finish()
    ends = [
        consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=10)[1]
        for partition in range(PARTITIONS)
    ]
    consumer.close()
    if ends != counts or done != records:
        raise DemoFailed(f"the partitions end at {ends}, where {counts} records were expected")
    return [each.hexdigest() for each in sums]


def _check(message: Any, counts: list[int]) -> None:
    """Check that the record is the next of its partition, by its offset and its number."""
    if message.error():
        raise DemoFailed(f"reading failed: {message.error()}")
    partition, offset = message.partition(), message.offset()
    number = int.from_bytes(message.value()[:NUMBER_BYTES], "big")
    expected = counts[partition]
    if offset != expected or number != partition + expected * PARTITIONS:
        raise DemoFailed(
            f"partition {partition} has record {number} at offset {offset}, where record "
            f"{partition + expected * PARTITIONS} at offset {expected} was expected"
        )
    counts[partition] += 1


def ingest(broker: Broker, records: int) -> None:
    """Write the topic into a table of Parquet files with Spark, each record once, if Spark and Java are installed."""
    missing = "" if find_spec("pyspark") else "PySpark is not installed"
    try:
        find_java()
    except KafkaError as error:
        missing = missing or error.message
    if missing:
        say(f"The pipeline on Spark is skipped: {missing}")
        return
    table = broker.data_dir.parent / "table"
    source = ["--bootstrap-server", broker.address, "--topics", TOPIC, "--format", "raw"]
    arguments = ["pipeline", *source, "--table", str(table), "--partition-by", "date", "--once", "--json"]
    say(f"$ pybroker {' '.join(arguments)}")
    done = subprocess.run([sys.executable, "-m", "pybroker", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise DemoFailed(f"the pipeline failed: {done.stderr.strip().splitlines()[-1]}")
    told = json.loads(done.stdout)
    import pyarrow.parquet as pq

    files = [path for path in table.rglob("*.parquet") if "_pybroker" not in path.parts]
    held = sum(pq.ParquetFile(path).metadata.num_rows for path in files)
    if held != records:
        raise DemoFailed(f"the table has {held:,} rows, where {records:,} were expected")
    say(f"  {held:,} rows in {len(files)} Parquet files, {told['seconds']:.1f} s with the start of the query")


def demo(broker: Broker, records: int) -> None:
    """Run the demo, from an empty directory to a clean stop."""
    started = time.monotonic()
    broker.start()
    create_topic(broker)
    say(f"confluent-kafka produces {records:,} records of {RECORD_BYTES} bytes, idempotent, acks=all")
    written = produce(broker, records)
    say("All are acknowledged: kill -9, and start again on the same directory")
    broker.kill()
    broker.start()
    say("confluent-kafka reads every partition from offset 0")
    read = read_back(broker, records)
    if read != written:
        raise DemoFailed("the checksums read differ from those written")
    say(f"  count, offsets, order per partition and SHA-256 agree: {read[0][:16]} {read[1][:16]} ...")
    ingest(broker, records)
    broker.stop()
    say(f"Stopped cleanly. All of it in {time.monotonic() - started:.1f} s.")


def main() -> None:
    parser = argparse.ArgumentParser(description="A million records, kill -9, and all of them read back.")
    parser.add_argument("--records", type=int, default=1_000_000)
    records = parser.parse_args().records
    with tempfile.TemporaryDirectory(prefix="pybroker-demo-") as scratch:
        broker = Broker(Path(scratch) / "data")
        try:
            demo(broker, records)
        except (DemoFailed, KafkaException) as error:
            sys.exit(f"demo failed: {error}")
        except KeyboardInterrupt:
            sys.exit(130)
        finally:
            if broker.process is not None and broker.process.poll() is None:
                broker.kill()


if __name__ == "__main__":
    main()
