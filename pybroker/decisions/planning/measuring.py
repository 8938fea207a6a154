"""Log dirs as brokers report them (DescribeLogDirs), and what a plan takes from them."""

from collections.abc import Iterable
from typing import NamedTuple

from pybroker.decisions.planning.snapshot import Volume
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m


class Replica(NamedTuple):
    """A copy of a partition on a broker's disk; `offset_lag` is how far it is behind the high watermark (or, as a
    `future` copy that is being moved to another directory, behind the one that it will replace)."""

    partition: TopicPartition
    size_bytes: int
    offset_lag: int
    future: bool


class LogDir(NamedTuple):
    """A log directory of a broker; `error` is not 0 while it is offline, sizes are None from brokers before 3.3."""

    broker: int
    path: str
    error: int
    total_bytes: int | None
    usable_bytes: int | None
    replicas: tuple[Replica, ...]


def log_dirs_of(broker: int, answer: m.DescribeLogDirsResponse) -> list[LogDir]:
    """Return the log dirs in a broker's answer."""
    return [
        LogDir(
            broker,
            found.log_dir,
            found.error_code,
            found.total_bytes if found.total_bytes >= 0 else None,
            found.usable_bytes if found.usable_bytes >= 0 else None,
            tuple(
                Replica(TopicPartition(topic.name, p.partition_index), p.partition_size, p.offset_lag, p.is_future_key)
                for topic in found.topics
                for p in topic.partitions
            ),
        )
        for found in answer.results
    ]


def sizes_of(brokers: Iterable[Iterable[LogDir]]) -> dict[tuple[TopicPartition, int], int]:
    """Return the size of each replica, by partition and broker."""
    return {
        (replica.partition, log_dir.broker): replica.size_bytes
        for dirs in brokers
        for log_dir in dirs
        for replica in log_dir.replicas
        if not replica.future
    }


def size_of(
    sizes: dict[tuple[TopicPartition, int], int], partition: TopicPartition, leader: int, replicas: Iterable[int]
) -> int:
    """Return the bytes of a partition: its leader's, or else the most that a replica has."""
    return sizes.get((partition, leader)) or max((sizes.get((partition, broker), 0) for broker in replicas), default=0)


def volumes(dirs: Iterable[LogDir]) -> tuple[Volume, ...]:
    """Return the file systems of a broker's log dirs. Log dirs on one file system report the same sizes, and count
    once; log dirs that are offline do not count."""
    told = {
        (log_dir.total_bytes, log_dir.usable_bytes)
        for log_dir in dirs
        if not log_dir.error and log_dir.total_bytes and log_dir.usable_bytes is not None
    }
    return tuple(
        Volume(total, max(0, total - usable)) for total, usable in sorted(told, key=str) if total and usable is not None
    )
