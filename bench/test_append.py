"""Appends, compared with the least that a log must do: the CRC of each batch, and one pwritev of it.

Measured twice: the loop inside core, as the native data plane appends, compared with the same loop in C; and through
`Partition.append`, compared with a Python loop of the same two calls. The figure is the processor time of all threads:
it includes the flusher's work (which the compared loop leaves to the kernel), but no other process. Also shown: time by
the clock; the loop into reserved space, as in a segment, which is faster; and in core that loop with the same
write-behind, whose difference to ours is our overhead.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from bench.build import native
from bench.figures import Body, Loop, Rounds, show
from bench.payloads import GB, KIB, MIB, NOW_MS, Payload, open_log, payload
from pybroker.core import LogManager, crc32c
from pybroker.protocol.records import CRC_FROM

ROUND_BYTES = 192 * MIB
ROUNDS = 3
SHARE_MIN = 0.8
RESERVE_MIN, RESERVE_MAX = 64 * KIB, 64 * MIB
BEHIND_LEAST = 8 * MIB  # a broker's write_behind_bytes
FALLOC_FL_KEEP_SIZE = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def reserve(fd: int, reserved: int, end: int) -> int:
    """Reserve space ahead in a segment's steps; return the bytes reserved now."""
    if end <= reserved:
        return reserved
    end += min(max(reserved, RESERVE_MIN), RESERVE_MAX)
    if _libc.fallocate(fd, FALLOC_FL_KEEP_SIZE, reserved, end - reserved) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")
    return end


def write_in_python(fd: int, batch: bytes, times: int, *, ahead: bool = False) -> None:
    at = reserved = 0
    body = memoryview(batch)[CRC_FROM:]
    for _ in range(times):
        crc32c(body)
        if ahead:
            reserved = reserve(fd, reserved, at + len(batch))
        at += os.pwritev(fd, (batch,), at)


def append_in_python(partition: Any, batch: bytes, times: int, now_ms: int) -> None:
    append = partition.append
    for _ in range(times):
        append(batch, now_ms=now_ms)


Append = Callable[..., None]
Write = Callable[[int, bytes, int], None]
DOORS: dict[str, tuple[Append, dict[str, Write]]] = {
    "in core": (
        native().append,
        {
            "writes": native().crc_and_write,
            "ahead": partial(native().crc_and_write, ahead=True),
            "begun": partial(native().crc_and_write, ahead=True, behind_least=BEHIND_LEAST),
        },
    ),
    "from Python": (append_in_python, {"writes": write_in_python, "ahead": partial(write_in_python, ahead=True)}),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("batch_bytes", [16 * KIB, MIB], ids=["16KiB", "1MiB"])
@pytest.mark.parametrize("value_bytes", [100, KIB], ids=["100B", "1KiB"])
def test_append(benchmark: Any, log_dir: Path, value_bytes: int, batch_bytes: int, door: str) -> None:
    """An append costs at most a quarter more than CRC and pwritev of the same bytes."""
    what = payload(value_bytes, batch_bytes)
    times = ROUND_BYTES // len(what.batch)
    append, beside = DOORS[door]

    @contextmanager
    def appends() -> Iterator[Body]:
        broker = LogManager()
        partition = open_log(broker, log_dir, "append")

        def body() -> Callable[[], object]:
            append(partition, what.batch, times, NOW_MS)
            return lambda: broker.close(clean=False)  # once the flusher has done its work

        yield body
        assert partition.log_end_offset == times * what.count
        rmtree(partition.directory)

    @contextmanager
    def writes(write: Write) -> Iterator[Body]:
        path = log_dir / "writes"
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        yield lambda: write(fd, what.batch, times)
        assert os.fstat(fd).st_size == times * len(what.batch)
        os.close(fd)
        path.unlink()

    loops: dict[str, Loop] = {name: partial(writes, loop) for name, loop in beside.items()}
    report(door, what, times, Rounds({**loops, "appends": appends}).run(benchmark, ROUNDS))


def report(door: str, what: Payload, times: int, rounds: Rounds) -> None:
    ours, limit = rounds["appends"], rounds["writes"]
    total = times * len(what.batch)
    shares = {name: costs.cpu_best_s / ours.cpu_best_s for name, costs in rounds.costs.items()}
    begun = f", {shares['begun']:.0%} with write-behind too" if "begun" in shares else ""
    wall = limit.wall_best_s / ours.wall_best_s
    show(
        f"append {door}",
        str(what),
        f"{total / ours.wall_best_s / 1e6:,.0f} MB/s, {times * what.count / ours.wall_best_s / 1e6:.1f} M records/s, "
        f"{ours.cpu_best_s / total * GB:.2f} cpu-s/GB",
        f"CRC + pwritev {total / limit.wall_best_s / 1e6:,.0f} MB/s, {limit.cpu_best_s / total * GB:.2f} cpu-s/GB",
        f"{shares['writes']:.0%} of it by cpu (>= {SHARE_MIN:.0%}), {wall:.0%} by the clock; "
        f"by cpu {shares['ahead']:.0%} of it into space reserved ahead{begun}",
        shares["writes"] >= SHARE_MIN,
    )
