"""Columns: 100 B values decoded and encoded on one core, and read from files in the page cache.

Figures are records a second of processor time. read_log is compared with a read through one mapping, without Arrow.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import pybroker
from bench.figures import Body, Loop, Rounds, show
from bench.payloads import KIB, MIB, NOW_MS, stamp_into
from pybroker.core import (
    COLUMNS,
    BatchBuilder,
    ByteColumn,
    Columns,
    Encoder,
    PartitionBatches,
    build_batch,
    partitions_of,
)
from pybroker.protocol.compression import compress, decompress

VALUE_BYTES = 100
ROUNDS = 6
M = 1e6


def values(n: int) -> list[bytes]:
    """Return values that are half noise, half constant, so that they compress."""
    random = Random(1)
    return [random.randbytes(VALUE_BYTES // 2) + b"x" * (VALUE_BYTES // 2) for _ in range(n)]


def log_of(count: int, codec: int, records: int) -> bytearray:
    """Return batches of `records` records with a codec, until they have at least `count` records."""
    made = [(NOW_MS + i // 8, None, value, ()) for i, value in enumerate(values(count))]
    squeeze = (lambda data: compress(codec, data)) if codec else None
    batch = build_batch(made, attributes=codec, compress=squeeze)
    data = bytearray(batch * -(-records // count))
    for i in range(len(data) // len(batch)):
        stamp_into(data, i * len(batch), i * count)
    return data


def plain(body: Callable[[], object]) -> Loop:
    @contextmanager
    def loop() -> Iterator[Body]:
        def run() -> None:
            body()

        yield run

    return loop


def rate(rounds: Rounds, name: str, records: int) -> float:
    return records / rounds[name].cpu_best_s / M


def report(what: str, payload: str, found: float, beside: str, target: int | None) -> None:
    met = None if target is None else found >= target
    show(what, payload, f"{found:.1f} M records/s a core", beside, "" if target is None else f">= {target}", met)


@pytest.mark.parametrize(("codec", "name", "target"), [(0, "uncompressed", 60), (3, "lz4", 15), (4, "zstd", None)])
def test_decode(benchmark: Any, codec: int, name: str, target: int | None) -> None:
    """A Fetch answer of 1 MiB batches into all columns, its CRCs checked; compared with the values alone."""
    data = log_of(8000, codec, 64_000)

    def decode(columns: Columns) -> None:
        for _ in range(10):
            assert columns.read(PartitionBatches(data)) == 64_000
            columns.take()

    alone, every = Columns(["value"], decompress=decompress), Columns(decompress=decompress)
    loops = {"value": plain(lambda: decode(alone)), "all": plain(lambda: decode(every))}
    rounds = Rounds(loops).run(benchmark, ROUNDS)
    found, beside = rate(rounds, "all", 640_000), rate(rounds, "value", 640_000)
    payload = f"{VALUE_BYTES} B values, {len(COLUMNS)} columns"
    report(f"decode {name}", payload, found, f"{beside:.1f} with values alone", target)


def test_encode(benchmark: Any) -> None:
    """Arrow's layout into 1 MiB batches with CRCs; compared with keys to 16 partitions, and one append a record."""
    n = 200_000
    listed = values(n)
    column = ByteColumn.of_offsets(b"".join(listed), np.arange(0, n * VALUE_BYTES + 1, VALUE_BYTES, dtype=np.int32))
    keys = ByteColumn.of_list([b"key-%d" % i for i in range(n)])
    times = np.arange(NOW_MS, NOW_MS + n)

    def columnar() -> None:
        encoder = Encoder(batch_size=MIB)
        encoder.add(column, timestamps=times)
        encoder.finish()

    def keyed() -> None:
        encoder = Encoder(partitions=16, batch_size=MIB)
        encoder.add(column, keys=keys, timestamps=times, partitions=partitions_of(keys, 16))
        encoder.finish()

    def appended() -> None:
        builder = BatchBuilder(batch_size=16 * KIB)
        for value in listed:
            if not builder.append(NOW_MS, None, value):
                builder.seal()
                builder.append(NOW_MS, None, value)

    loops = {"appended": plain(appended), "keyed": plain(keyed), "columnar": plain(columnar)}
    rounds = Rounds(loops).run(benchmark, ROUNDS)
    found, keyed_found = rate(rounds, "columnar", n), rate(rounds, "keyed", n)
    report("encode columns", f"{VALUE_BYTES} B values, 1 MiB batches", found, f"{keyed_found:.1f} by key", 20)
    found = rate(rounds, "appended", n)
    show(
        "append records",
        f"{VALUE_BYTES} B values",
        f"{found:.1f} M records/s",
        "a Python call each",
        ">= 1.1",
        found >= 1.1,
    )


@pytest.mark.parametrize(("codec", "name", "target"), [(0, "uncompressed", 45), (3, "lz4", 30), (4, "zstd", 12)])
def test_read_log(benchmark: Any, log_dir: Path, codec: int, name: str, target: int | None) -> None:
    """A segment in the page cache into Arrow batches of all columns; compared with the same columns from a mapping."""
    records = 2_000_000
    directory = log_dir / "t-0"
    directory.mkdir()
    path = directory / f"{0:020}.log"
    path.write_bytes(log_of(150, codec, records))
    mapped = Columns(decompress=decompress)

    def read() -> None:
        assert sum(batch.num_rows for batch in pybroker.read_log(directory)) >= records

    def read_mapping() -> None:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
            pages.madvise(mmap.MADV_SEQUENTIAL)
            batches = PartitionBatches(pages)
            while not batches.finished:
                mapped.read(batches, max_records=1 << 16)
                mapped.take()
            del batches

    rounds = Rounds({"mapping": plain(read_mapping), "read_log": plain(read)}).run(benchmark, ROUNDS)
    found = rate(rounds, "read_log", records)
    payload = f"{VALUE_BYTES} B values, 16 KiB batches, {os.path.getsize(path) // MIB} MiB"
    beside = f"{rate(rounds, 'mapping', records):.1f} from a mapping, no Arrow"
    report(f"read_log {name}", payload, found, beside, target)
