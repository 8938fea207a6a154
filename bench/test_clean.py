"""Compaction: how fast a round goes through a log, and that a log of few keys stays small, however much is written.

Beside the round stands what it cannot do without: reading the same bytes twice, their CRC, and writing what stays.
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

from bench.build import native
from bench.figures import Body, Rounds, show
from bench.payloads import KIB, MIB, NOW_MS
from pybroker.core import Broker, Partition, build_batch, clean

LOG_BYTES = 256 * MIB
BATCH_RECORDS = 128
VALUE_BYTES = 100
KEYS = 100_000
ROUNDS = 3
CONFIG = {"cleanup.policy": 2, "segment.bytes": 64 * MIB, "file.delete.delay.ms": 0}

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
    """Enough of them that most keys come again and again."""
    value = os.urandom(VALUE_BYTES)
    return [
        build_batch([(NOW_MS, b"key-%012d" % random.randrange(KEYS), value, ()) for _ in range(BATCH_RECORDS)])
        for _ in range(4 * KEYS // BATCH_RECORDS)
    ]


def filled(broker: Broker, log_dir: Path, some: list[bytes]) -> Partition:
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
        broker = Broker()
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


def test_commits(benchmark: Any, log_dir: Path) -> None:
    """A minute's commits of 1,000 groups in one partition, compacted meanwhile: the directory stays small."""
    broker = Broker()
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
        f"{written[0] / MIB:.0f} MiB that were written",
        f"<= {8 * COMMITS_SEGMENT_BYTES // MIB} MiB",
        largest[0] <= 8 * COMMITS_SEGMENT_BYTES,
    )
