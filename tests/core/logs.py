"""Helpers for tests of the log: batches of a given shape, and one partition's life across stops and crashes."""

import os
from collections.abc import Mapping
from pathlib import Path

from pybroker.core import LogError, LogManager, Partition, build_batch
from tests.core.slow_log import SlowLog

NOW = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
HEADER_BYTES = 61

CORRUPT_MESSAGE = 2
RECORD_LIST_TOO_LARGE = 18
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
KAFKA_STORAGE_ERROR = 56
INCONSISTENT_TOPIC_ID = 103

Producer = tuple[int, int, int]
"""(producer id, epoch, first sequence)"""


def batch(
    count: int = 1, *, size: int = 10, at: int = NOW, producer: Producer | None = None, fill: bytes = b"v"
) -> bytes:
    """A batch as a client sends it: `count` records of `size` bytes, one ms apart up to `at`."""
    pid, epoch, sequence = producer or (-1, -1, -1)
    records = [(at - count + 1 + i if at >= 0 else -1, None, fill * size, []) for i in range(count)]
    return build_batch(records, producer_id=pid, producer_epoch=epoch, base_sequence=sequence)


def batch_of(size: int, **how: object) -> bytes:
    """A batch of one record and exactly `size` bytes."""
    for room in range(size - HEADER_BYTES - 12, size - HEADER_BYTES):
        data = batch(size=room, **how)  # type: ignore[arg-type]
        if len(data) == size:
            return data
    raise ValueError(f"no batch has {size} bytes")


class Home:
    """The directory of one partition, and the brokers that open it one after another."""

    def __init__(
        self, path: Path, config: Mapping[str, int] | None = None, *, topic: str = "t", partition: int = 0
    ) -> None:
        self.path = path
        self.config = {"file.delete.delay.ms": 0, **(config or {})}
        self.topic, self.number = topic, partition
        self.directory = path / f"{topic}-{partition}"
        self.recovery_point = 0
        self.log_start = 0
        self.high_watermark = -1
        self.follows = False
        self.clean = False
        self.broker: LogManager | None = None

    def open(self, *, epoch_max: int = -1, compacted: bool = False, **broker: int) -> Partition:
        """Open the partition as a broker would after the last stop or crash."""
        self.broker = LogManager(**broker)
        return self.open_in(self.broker, epoch_max=epoch_max, compacted=compacted)

    def open_in(self, broker: LogManager, *, epoch_max: int = -1, compacted: bool = False) -> Partition:
        self.broker = broker
        partition = broker.open(
            str(self.path), self.topic, self.number, topic_id=TOPIC_ID, config=self.config, clean=self.clean,
            recovery_point=self.recovery_point, log_start_offset=self.log_start, epoch_max=epoch_max,
            high_watermark=self.high_watermark, compacted=compacted,
        )  # fmt: skip
        if self.follows:
            return follow(partition)
        partition.become_leader(partition.leader_epoch, 0)
        return partition

    @property
    def partition(self) -> Partition:
        assert self.broker is not None
        found = self.broker.get(self.topic, self.number)
        assert found is not None
        return found

    def checkpoint(self) -> None:
        """Write the checkpoints that a broker writes periodically."""
        self.recovery_point = self.partition.recovery_point
        self.log_start = self.partition.log_start_offset
        self.partition.write_checkpoints()

    def stop(self) -> None:
        """Stop cleanly."""
        assert self.broker is not None
        partition = self.partition
        self.broker.close()
        self.recovery_point, self.log_start = partition.recovery_point, partition.log_start_offset
        self.clean = True
        self.broker = None

    def crash(self) -> None:
        """Close without flushing. What the process wrote is in the page cache, as after SIGKILL."""
        assert self.broker is not None
        self.broker.close(clean=False)
        self.clean = False
        self.broker = None

    def reopen(self, *, clean: bool, **how: int) -> Partition:
        if clean:
            self.stop()
        else:
            self.crash()
        return self.open(**how)

    def files(self, suffix: str) -> list[Path]:
        return sorted(p for p in self.directory.iterdir() if p.suffix == suffix)

    def log_file(self, base: int = 0) -> Path:
        return self.directory / f"{base:020}.log"


def follow(partition: Partition) -> Partition:
    """Make the partition a follower of another broker, in its current epoch."""
    partition.become_follower(2, partition.leader_epoch, max(0, partition.role.partition_epoch))
    return partition


def read_all(partition: Partition, max_bytes: int = 1 << 20, *, start: int | None = None) -> bytes:
    """The bytes of every batch from the log's start, in as many reads as needed."""
    out, offset = b"", partition.log_start_offset if start is None else start
    while offset < partition.log_end_offset:
        data = read(partition, offset, max_bytes)
        assert data, f"nothing read at offset {offset}, the log ends at {partition.log_end_offset}"
        out += data
        offset = end_of(data)
    return out


def read(partition: Partition, offset: int, max_bytes: int = 1 << 20, **how: bool) -> bytes:
    """The bytes of one read; empty if none were found."""
    found = partition.read(offset, max_bytes, **how)  # type: ignore[arg-type]
    if found.slice is None:
        return b""
    data = found.slice.tobytes()
    found.slice.close()
    return data


def end_of(data: bytes) -> int:
    """The offset after the last batch in data."""
    at = 0
    while True:
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if at + size >= len(data):
            assert at + size == len(data), "an answer ends at a batch boundary"
            return int.from_bytes(data[at : at + 8], "big") + int.from_bytes(data[at + 23 : at + 27], "big") + 1
        at += size


def code_of(call: object, *args: object, **how: object) -> int:
    """The code of the LogError that a call raises; 0 if it raises none."""
    try:
        call(*args, **how)  # type: ignore[operator]
    except LogError as e:
        return e.code
    return 0


def assert_same(partition: Partition, model: SlowLog) -> None:
    """Check that log end, readable bytes, leader epochs and producer windows equal the model's."""
    assert (partition.log_start_offset, partition.log_end_offset) == (model.start, model.end)
    visible = [b for b in model.batches if b.end > model.start]
    assert read_all(partition) == b"".join(b.data for b in visible)
    assert partition.epochs() == model.epochs()
    assert {p[0] for p in partition.producers()} == set(model.windows())
    assert_windows(partition, model)


def assert_windows(partition: Partition, model: SlowLog) -> None:
    """Check that each producer's last five batches are recognised as duplicates, and that asking appends nothing."""
    known = {p[0]: p[1:3] for p in partition.producers()}
    for pid, window in model.windows().items():
        newest = window[-1].header
        assert known[pid] == (newest.producer_epoch, last_sequence(newest.base_sequence, newest.last_offset_delta))
        for sent in window:
            again = partition.append(as_sent(sent.data), now_ms=NOW)
            assert (again.duplicate, again.base_offset, again.last_offset) == (True, sent.base, sent.end - 1)
    assert partition.log_end_offset == model.end


def last_sequence(first: int, delta: int) -> int:
    return (first + delta) % 2**31


def as_sent(data: bytes) -> bytes:
    """A stored batch as its client sent it."""
    return bytes(8) + data[8:12] + b"\xff" * 4 + data[16:]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
