"""Compaction: the speed of a round, and that a log of few keys stays small, however much is written.

The round is compared with its minimum: reading the same bytes twice, their CRC, and writing the result.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

import numpy as np
import pytest

from bench.build import native
from bench.figures import Body, Rounds, show
from bench.payloads import KIB, MIB, NOW_MS
from bench.peers import with_kafka
from pybroker import Admin, Alteration, ConfigOperation, ConfigResource, Producer, ResourceType
from pybroker.core import LogManager, Partition, build_batch, clean
from tests.harness import BrokerProcess, free_port, until
from tests.java.peers import SERVER, Kafka391

LOG_BYTES = 256 * MIB
BATCH_RECORDS = 128
VALUE_BYTES = 100
KEYS = 100_000
ROUNDS = 3
CONFIG = {"cleanup.policy": 2, "segment.bytes": 64 * MIB, "file.delete.delay.ms": 0}

LARGE_KEYS = int(os.environ.get("PYBROKER_BENCH_KEYS", 10_000_000))
LARGE_BATCH = 50_000

COMMITS = 300_000
"""A minute of 5,000 a second."""
GROUPS = 1_000
COMMITS_SEGMENT_BYTES = MIB


def no_codec(codec: int, data: bytes) -> bytes:
    raise AssertionError(f"nothing is compressed here, and codec {codec} was asked for")


def one_round(partition: Partition, first_dirty: int) -> int:
    done = clean(
        partition,
        first_dirty=first_dirty,
        end=partition.log_end_offset,
        now_ms=NOW_MS,
        delete_retention_ms=0,
        map_bytes=128 * MIB,
        decompress=no_codec,
        compress=no_codec,
    )
    assert done is not None
    return done.first_dirty


def batches(random: Random) -> list[bytes]:
    """Return enough batches that most keys occur again and again."""
    value = os.urandom(VALUE_BYTES)
    return [
        build_batch([(NOW_MS, b"key-%012d" % random.randrange(KEYS), value, ()) for _ in range(BATCH_RECORDS)])
        for _ in range(4 * KEYS // BATCH_RECORDS)
    ]


def filled(broker: LogManager, log_dir: Path, some: list[bytes]) -> Partition:
    partition = broker.open(str(log_dir), "clean", 0, topic_id=bytes(16), config=CONFIG)
    partition.become_leader(0, 0)
    for i in range(LOG_BYTES // len(some[0])):
        partition.append(some[i % len(some)], now_ms=NOW_MS)
    partition.roll()
    partition.flush()
    return partition


def test_a_round(benchmark: Any, log_dir: Path) -> None:
    """A quarter of a gigabyte in which four of five records are superseded."""
    some = batches(Random(1))
    kept: list[int] = []

    @contextmanager
    def rounds() -> Iterator[Body]:
        broker = LogManager()
        partition = filled(broker, log_dir, some)
        yield lambda: one_round(partition, 0) and None
        kept.append(partition.size)
        broker.close(clean=False)
        rmtree(partition.directory)

    @contextmanager
    def reads() -> Iterator[Body]:
        path = log_dir / "reads"
        path.write_bytes(b"".join(some * (LOG_BYTES // (len(some[0]) * len(some)) + 1))[:LOG_BYTES])
        fd = os.open(path, os.O_RDONLY)

        def body() -> None:
            for _ in range(2):
                native().read_and_crc(fd, LOG_BYTES, 256 * KIB)

        yield body
        os.close(fd)
        path.unlink()

    found = Rounds({"reads": reads, "rounds": rounds}).run(benchmark, ROUNDS)
    ours, limit = found["rounds"], found["reads"]
    show(
        "compaction, one round",
        f"{VALUE_BYTES} B values, {KEYS:,} keys, {LOG_BYTES // MIB} MiB, {kept[-1] // MIB} MiB stay",
        f"{LOG_BYTES / ours.wall_best_s / 1e6:,.0f} MB/s by the clock, {LOG_BYTES / ours.cpu_best_s / 1e6:,.0f} MB/s "
        f"a core, {LOG_BYTES / (VALUE_BYTES + 28) / ours.cpu_best_s / 1e6:.1f} M records/s",
        f"reading and CRC, twice: {LOG_BYTES / limit.wall_best_s / 1e6:,.0f} MB/s",
    )


def fill_topic(address: str, topic: str) -> None:
    """Write LARGE_KEYS keys, a tenth of them twice, in records of 1 KiB."""
    numbers = np.concatenate([np.arange(LARGE_KEYS), np.arange(LARGE_KEYS // 10)])
    filler = np.frombuffer(os.urandom(1000 * LARGE_BATCH), "S1000")
    with Producer(bootstrap_servers=address, linger_ms=0, buffer_memory=64 * MIB) as producer:
        for start in range(0, len(numbers), LARGE_BATCH):
            some = numbers[start : start + LARGE_BATCH]
            keys = np.char.zfill(some.astype("S12"), 12)
            producer.send_columns(topic, filler[: len(some)], keys, partition=0)
        producer.flush(120_000)


def clean_topic(address: str, log_dir: Path) -> tuple[float, int]:
    """Fill a topic and have it compacted; return the seconds, and the bytes before."""
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topic("large", configs={"segment.bytes": str(256 * MIB), "min.cleanable.dirty.ratio": "0.01"})
        fill_topic(address, "large")
        files = list((log_dir / "large-0").glob("*.log"))
        size = sum(path.stat().st_size for path in files)
        last = max(int(path.stem) for path in files)
        checkpoint = log_dir / "cleaner-offset-checkpoint"
        began_s = time.monotonic()
        policy = Alteration("cleanup.policy", ConfigOperation.SET, "compact")
        admin.alter_configs(ConfigResource(ResourceType.TOPIC, "large"), [policy])

        def is_clean() -> bool:
            return checkpoint.exists() and f"large 0 {last}\n" in checkpoint.read_text()

        until("it is compacted", is_clean, 900, 0.05)
    return time.monotonic() - began_s, size


@pytest.mark.skipif(not with_kafka(), reason="PYBROKER_BENCH_KAFKA is not yes")
@pytest.mark.timeout(1800)
def test_beside_kafka(log_dir: Path) -> None:
    """A log of 10 million keys, from the change of its policy to the last key."""
    sets = {
        "log.cleaner.threads": 1, "log.cleaner.dedupe.buffer.size": 400 * MIB, "log.cleaner.backoff.ms": 100,
        "log.segment.delete.delay.ms": 0,
    }  # fmt: skip
    with BrokerProcess(log_dir / "ours", free_port(), sets=sets) as broker:
        ours_s, size = clean_topic(broker.bootstrap, broker.data_dir)
    rmtree(log_dir / "ours")
    with Kafka(log_dir / "kafka", sets) as kafka:
        kafka_s, kafka_size = clean_topic(kafka.bootstrap, kafka.log_dir)
    rmtree(log_dir / "kafka")
    rate, kafka_rate = size / ours_s / 1e6, kafka_size / kafka_s / 1e6
    show(
        "compaction of a topic", f"1 KiB records, {LARGE_KEYS:,} keys, {size / 1e9:.1f} GB", f"{rate:,.0f} MB/s",
        f"{kafka_rate:,.0f} MB/s of Kafka 3.9.1", ">= 250 MB/s, and more than Kafka", rate >= max(250, kafka_rate),
    )  # fmt: skip


class Kafka(Kafka391):
    jvm = SERVER


def test_commits(benchmark: Any, log_dir: Path) -> None:
    """A minute's commits of 1,000 groups in one partition, compacted meanwhile: the directory stays small."""
    broker = LogManager()
    config = {**CONFIG, "segment.bytes": COMMITS_SEGMENT_BYTES}
    partition = broker.open(str(log_dir), "commits", 0, topic_id=bytes(16), config=config)
    partition.become_leader(0, 0)
    largest, written, over = [0], [0], threading.Event()

    def compact() -> None:
        first_dirty = 0
        while not over.wait(0.05):
            first_dirty = one_round(partition, first_dirty)
            largest[0] = max(largest[0], partition.size)

    def commit() -> None:
        for i in range(COMMITS):
            data = build_batch([(NOW_MS, b"group-%08d-topic-0" % (i % GROUPS), b"%024d" % i, ())])
            partition.append(data, now_ms=NOW_MS)
            written[0] += len(data)

    worker = threading.Thread(target=compact)
    worker.start()
    started = time.monotonic()
    benchmark.pedantic(commit, rounds=1)
    seconds = time.monotonic() - started
    over.set()
    worker.join()
    broker.close(clean=False)
    show(
        "commits while they are compacted",
        f"{COMMITS:,} of {GROUPS:,} groups, segments of {COMMITS_SEGMENT_BYTES // MIB} MiB",
        f"{largest[0] / MIB:.1f} MiB at most, at {COMMITS / seconds:,.0f} commits/s",
        f"{written[0] / MIB:.0f} MiB written",
        f"<= {8 * COMMITS_SEGMENT_BYTES // MIB} MiB",
        largest[0] <= 8 * COMMITS_SEGMENT_BYTES,
    )
