"""Test data: batches as a client sends them, and logs full of them."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pybroker.core import LogManager, Partition, build_batch

NOW_MS = 1_700_000_000_000
KIB, MIB, GB = 1 << 10, 1 << 20, 10**9
LEADER_EPOCH = 8 + 4  # after the base offset and the length of a batch


@dataclass(frozen=True)
class Payload:
    """One uncompressed batch of records with values of `value_bytes`, as full as `batch_bytes_max` allows."""

    value_bytes: int
    batch_bytes_max: int
    batch: bytes
    count: int

    def __str__(self) -> str:
        return f"{size(self.value_bytes)} records, {size(self.batch_bytes_max)} batches"


def payload(value_bytes: int, batch_bytes_max: int) -> Payload:
    count = batch_bytes_max // value_bytes
    while True:
        batch = build_batch([(NOW_MS + i, None, os.urandom(value_bytes), ()) for i in range(count)])
        if len(batch) <= batch_bytes_max:
            return Payload(value_bytes, batch_bytes_max, batch, count)
        count -= 1 + (len(batch) - batch_bytes_max) // (value_bytes + 20)


def disk() -> Path:
    """Return the directory for logs: PYBROKER_BENCH_DIR, or the one for temporary files."""
    return Path(os.environ.get("PYBROKER_BENCH_DIR") or tempfile.gettempdir())


def drop_cache(*pids: int) -> None:
    """Flush all dirty pages, and drop the open files of these processes from memory.

    The next round then finds as much memory as the round before. If a machine's host takes free memory back, a page
    that it took costs 10 us, ten times a page that has just been freed; and dirty pages would be written during
    another broker's turn."""
    os.sync()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if entry.is_file():  # unlinked or not
                fd = os.open(entry, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)


def size(n: int) -> str:
    """Return a number of bytes in words."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if n % unit == 0:
            return f"{n // unit} {name}"
    return f"{n} B"


def stamp_into(data: bytearray, at: int, base_offset: int, leader_epoch: int = 0) -> None:
    """Write the offset and epoch into the batch at byte `at`, as a leader does; its CRC does not cover them."""
    struct.pack_into(">q", data, at, base_offset)
    struct.pack_into(">i", data, at + LEADER_EPOCH, leader_epoch)


def open_log(broker: LogManager, log_dir: Path, topic: str, config: Mapping[str, int] | None = None) -> Partition:
    """Open a partition of `topic` that this broker leads; its tail is scanned as after a crash."""
    partition = broker.open(str(log_dir), topic, 0, topic_id=bytes(16), config=config or {})
    partition.become_leader(0, 0)
    return partition
