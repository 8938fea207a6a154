"""Appends and reads at random offsets, in logs of the same records cut into more and more segments.

An append touches the active segment only; a read is one look-up among segments and one search in an index. So neither
cost may grow with the number of segments. Every read is at an offset of its own, so that all segments are open at once.
Cost is processor time of all threads, which the machine's other work does not change.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from bench.build import native
from bench.figures import Body, Loop, Rounds, show
from bench.payloads import KIB, MIB, NOW_MS, Payload, open_log, payload, stamp_into
from pybroker.core import LogManager, Partition
from pybroker.protocol.records import HEADER_BYTES

SEGMENTS = (1, 100, 10_000)
BATCHES = 8 * max(SEGMENTS)
APPENDS = 4_000
READS = 40_000
READ_BYTES_MAX = 64 * KIB
LARGE_BYTES = 64 * MIB  # bytes of a segment
FILES_SPARE = 100
ROUNDS = 6
SETTLE_S = 0.05  # seconds that the flusher may run after the appends
GROWTH_MAX = 1.5


@pytest.fixture(scope="module")
def what() -> Payload:
    return payload(KIB, 4 * KIB)


@pytest.fixture(scope="module")
def logs(shared_log_dir: Path, what: Payload) -> Iterator[dict[int, Partition]]:
    """Yield a log for each number of segments, all with the same records; the last segment of each takes the
    appends."""
    allow_files(sum(SEGMENTS) + FILES_SPARE)
    broker = LogManager()
    found = {}
    for n in SEGMENTS:
        fill(shared_log_dir / f"in-{n}-0", what, n, BATCHES // n)
        found[n] = open_log(broker, shared_log_dir, f"in-{n}")
        assert (found[n].segment_count, found[n].log_end_offset) == (n, BATCHES * what.count)
    yield found
    broker.close(clean=False)


def allow_files(n: int) -> None:
    """Raise the soft limit of open files to the hard one, and skip where even that is below n."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < n:
        pytest.skip(f"{n:,} open files are needed, but the hard limit of this process is {hard:,}")


def fill(directory: Path, what: Payload, segments: int, batches: int) -> None:
    """Write the data files of a log with this many segments and batches; opening it makes the indexes."""
    directory.mkdir()
    data = bytearray(what.batch * batches)
    for base in range(0, segments * batches, batches):
        for i in range(batches):
            stamp_into(data, i * len(what.batch), (base + i) * what.count)
        (directory / f"{base * what.count:020}.log").write_bytes(data)


def test_append_among_segments(benchmark: Any, logs: dict[int, Partition], what: Payload) -> None:
    """The 10,001st segment takes an append as the first does."""

    def appends(log: Partition) -> Loop:
        @contextmanager
        def loop() -> Iterator[Body]:
            def body() -> Callable[[], object]:
                native().append(log, what.batch, APPENDS, NOW_MS)
                return lambda: time.sleep(SETTLE_S)

            yield body

        return loop

    loops = {f"in_{n}": appends(log) for n, log in logs.items()}
    report("append", str(what), APPENDS, "", Rounds(loops).run(benchmark, ROUNDS))


@pytest.mark.parametrize("door", ["in core", "from Python"])
def test_read_among_segments(benchmark: Any, logs: dict[int, Partition], what: Payload, door: str) -> None:
    """A read at a random offset finds its place among 10,000 segments as it does in one."""
    random = Random(1)
    offsets = np.array([random.randrange(BATCHES * what.count) for _ in range(READS)], dtype=np.int64)
    positions = offsets // what.count * len(what.batch)
    listed = offsets.tolist()

    def read_from_python(log: Partition) -> None:
        read = log.read
        for offset in listed:
            found = read(offset, READ_BYTES_MAX).slice
            assert found is not None
            found.close()

    def reads(log: Partition) -> Loop:
        @contextmanager
        def loop() -> Iterator[Body]:
            if door == "in core":
                yield lambda: native().read(log, offsets, READ_BYTES_MAX)
            else:
                yield lambda: read_from_python(log)

        return loop

    @contextmanager
    def headers() -> Iterator[Body]:
        fd = os.open(Path(logs[1].directory) / f"{0:020}.log", os.O_RDONLY)
        yield lambda: native().read_headers(fd, positions, HEADER_BYTES)
        os.close(fd)

    loops: dict[str, Loop] = {"headers": headers} | {f"in_{n}": reads(log) for n, log in logs.items()}
    rounds = Rounds(loops).run(benchmark, ROUNDS)
    beside = f", pread of a header {rounds['headers'].cpu_best_s / READS * 1e6:.2f} us"
    report(f"read {door}", f"random offsets, {len(what.batch) * BATCHES // MIB} MiB", READS, beside, rounds)


def test_read_in_large_segments(benchmark: Any, log_dir: Path, what: Payload) -> None:
    """Look-ups by offset and time in segments whose indexes are too large to read whole: mapped searches."""
    broker = LogManager()
    config = {"segment.bytes": LARGE_BYTES, "index.interval.bytes": 4 * KIB, "message.timestamp.type": 1}
    log = open_log(broker, log_dir, "large", config)
    count = 4 * LARGE_BYTES // len(what.batch)
    for number in range(count):
        native().append(log, what.batch, 1, NOW_MS + number)
    log.flush()
    random = Random(1)
    sealed = (log.segment_count - 1) * LARGE_BYTES // len(what.batch) * what.count
    offsets = np.array([random.randrange(sealed) for _ in range(READS // 4)], dtype=np.int64)
    times = [NOW_MS + random.randrange(count) for _ in range(READS // 20)]
    end = log.log_end_offset
    assert all(log.offset_for_timestamp(each, bound=end) is not None for each in times)

    @contextmanager
    def by_offset() -> Iterator[Body]:
        yield lambda: native().read(log, offsets, READ_BYTES_MAX)

    @contextmanager
    def by_time() -> Iterator[Body]:
        yield lambda: [log.offset_for_timestamp(each, bound=end) for each in times] and None

    @contextmanager
    def headers() -> Iterator[Body]:
        fd = os.open(Path(log.directory) / f"{0:020}.log", os.O_RDONLY)
        positions = offsets // what.count * len(what.batch) % (LARGE_BYTES - len(what.batch))
        yield lambda: native().read_headers(fd, positions, HEADER_BYTES)
        os.close(fd)

    rounds = Rounds({"offset": by_offset, "time": by_time, "header": headers}).run(benchmark, ROUNDS)
    us = {name: rounds[name].cpu_best_s * 1e6 for name in ("offset", "time", "header")}
    beside = f"pread of a header {us['header'] / len(offsets):.2f} us"
    size = f"{log.segment_count} segments of {LARGE_BYTES // MIB} MiB"
    show("look-up by offset", f"random, {size}", f"{us['offset'] / len(offsets):.2f} us", beside)
    show("look-up by time, from Python", f"random, {size}", f"{us['time'] / len(times):.2f} us", beside)
    broker.close(clean=False)


def report(what: str, payload: str, times: int, beside: str, rounds: Rounds) -> None:
    first, *others = SEGMENTS
    cpu_us = {n: rounds[f"in_{n}"].cpu_best_s / times * 1e6 for n in SEGMENTS}
    clock_us = rounds[f"in_{max(SEGMENTS)}"].wall_best_s / times * 1e6
    growth = max(cpu_us[n] / cpu_us[first] for n in others)
    show(
        f"{what} among {max(SEGMENTS):,} segments",
        payload,
        f"{cpu_us[max(SEGMENTS)]:.2f} us, {clock_us:.2f} us by the clock",
        ", ".join(f"{cpu_us[n]:.2f} us in {n}" for n in SEGMENTS[:-1]) + beside,
        f"{growth:.2f}x at most (< {GROWTH_MAX}x)",
        growth < GROWTH_MAX,
    )
