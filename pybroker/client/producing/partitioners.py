"""Partitioners by librdkafka's names, and callables of a program.

    murmur2_random      murmur2 of the key, as Java's client and this one by default;
    consistent_random   CRC-32 of the key, as confluent-kafka by default;
    fnv1a_random        FNV-1a of the key, as Sarama, a client for Go;
    murmur2 and so on   the same, but null keys are hashed like empty ones;
    random              a random partition for each record;
    round_robin         the partitions in turn.

With the first three, records without a key go to one partition until its batch is full.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable
from typing import Final, Literal, Protocol, get_args

from pybroker import core
from pybroker.client import arguments
from pybroker.client.net.metadata import TopicInfo
from pybroker.client.serialization.fields import Plain
from pybroker.core import ByteColumn

PartitionerName = Literal[
    "murmur2_random", "consistent_random", "fnv1a_random", "murmur2", "consistent", "fnv1a", "random", "round_robin"
]
Partitioner = Callable[[bytes | None, list[int], list[int]], int]
"""A program's own, as kafka-python has it: (key, all partitions, those with a leader) to a partition."""

_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193


class Chooser(Protocol):
    """A partitioner as the producer calls it."""

    def choose(self, topic: str, key: Plain, info: TopicInfo) -> int | None:
        """The partition of a record; None leaves it to the producer, which fills one batch after the other."""


def partitioner_of(given: PartitionerName | Partitioner | None) -> Chooser | None:
    """None for the producer's own way. ValueError for another name, TypeError for what is no callable."""
    if given is None or given == "murmur2_random":
        return None
    if isinstance(given, str):
        names = get_args(PartitionerName)
        if given not in names:
            raise ValueError(f"a partitioner is a callable or one of {', '.join(names)}, not {given!r}")
        return _Named(given)
    if not callable(given):
        raise TypeError(f"a partitioner is a name or a callable, not {given!r}")
    return _Own(given)


class _Own:
    def __init__(self, call: Partitioner) -> None:
        self._call = call

    def choose(self, topic: str, key: Plain, info: TopicInfo) -> int:
        every = [p.partition for p in info.partitions]
        led = [p.partition for p in info.partitions if p.leader >= 0]
        return arguments.whole(self._call(_plain(key), every, led), "the partition that the partitioner returns")


class _Named:
    def __init__(self, name: str) -> None:
        self._hash = _HASHES.get(name.removesuffix("_random"))
        self._sticky = name.endswith("_random")
        self._turns = itertools.count(random.randrange(1 << 16)) if name == "round_robin" else None

    def choose(self, topic: str, key: Plain, info: TopicInfo) -> int | None:
        count = len(info.partitions)
        if self._turns is not None:
            return next(self._turns) % count
        if self._hash is None:
            return random.randrange(count)
        data = _plain(key)
        if self._sticky and (data is None or (not data and self._hash is _crc32)):
            return None
        return self._hash(data or b"", count)


def _plain(key: Plain) -> bytes | None:
    return key.encode() if isinstance(key, str) else key


def _murmur2(key: bytes, count: int) -> int:
    return memoryview(core.partitions_of(ByteColumn.of_list([key]), count)).cast("B").cast("i")[0]


def _crc32(key: bytes, count: int) -> int:
    return zlib.crc32(key) % count


def _fnv1a(key: bytes, count: int) -> int:
    """The absolute value of the hash as a signed number, as in librdkafka and Sarama."""
    found = _FNV_OFFSET
    for byte in key:
        found = ((found ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return abs(found - (1 << 32) if found >= 1 << 31 else found) % count


_HASHES: Final = {"murmur2": _murmur2, "consistent": _crc32, "fnv1a": _fnv1a}
