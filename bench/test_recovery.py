"""The scan of a log after a crash, from the page cache, compared with pread and CRC of the same files.

Opening such a log reads every byte past the recovery point, checks each batch and rebuilds the indexes. The compared
loop only reads and sums. Both run on one core; the figure is bytes per second of processor time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from bench.build import native
from bench.figures import Body, Rounds, show
from bench.payloads import KIB, MIB, NOW_MS, open_log, payload
from pybroker.core import LogManager

LOG_BYTES = 512 * MIB
SEGMENT_BYTES = 256 * MIB
CHUNK_BYTES = 256 * KIB
ROUNDS = 8
SCAN_GB_PER_S_MIN = 4.0


@pytest.mark.parametrize("batch_bytes", [16 * KIB, MIB], ids=["16KiB", "1MiB"])
def test_recovery_scan(benchmark: Any, log_dir: Path, batch_bytes: int) -> None:
    """A log that a crash left is scanned at 4 GB/s or more."""
    what = payload(KIB, batch_bytes)
    times = LOG_BYTES // len(what.batch)
    total = times * len(what.batch)
    config = {"segment.bytes": SEGMENT_BYTES}

    broker = LogManager()
    native().append(open_log(broker, log_dir, "scan", config), what.batch, times, NOW_MS)
    broker.close(clean=False)
    files = sorted((log_dir / "scan-0").glob("*.log"))

    @contextmanager
    def scan() -> Iterator[Body]:
        broker = LogManager()

        def body() -> None:
            broker.open(str(log_dir), "scan", 0, topic_id=bytes(16), config=config)

        yield body
        log = broker.get("scan", 0)
        assert log is not None and log.log_end_offset == times * what.count and log.recovery == ""
        broker.close(clean=False)

    @contextmanager
    def read() -> Iterator[Body]:
        def body() -> None:
            for path in files:
                read_and_sum(path)

        yield body

    rounds = Rounds({"read": read, "scan": scan}).run(benchmark, ROUNDS)
    rmtree(log_dir / "scan-0")
    ours, limit = rounds["scan"], rounds["read"]
    show(
        "recovery scan",
        f"{what}, {total // MIB} MiB in {len(files)} segments",
        f"{total / ours.cpu_best_s / 1e9:.1f} GB/s a core, {total / ours.wall_best_s / 1e9:.1f} GB/s by the clock",
        f"pread + CRC {total / limit.cpu_best_s / 1e9:.1f} GB/s a core",
        f"{limit.cpu_best_s / ours.cpu_best_s:.0%} of its speed (>= {SCAN_GB_PER_S_MIN:.0f} GB/s a core)",
        total / ours.cpu_best_s / 1e9 >= SCAN_GB_PER_S_MIN,
    )


def read_and_sum(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    native().read_and_crc(fd, os.fstat(fd).st_size, CHUNK_BYTES)
    os.close(fd)
