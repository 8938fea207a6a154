"""Which partition a record goes to: by its key as the Java client does, or in turns that fill whole batches."""

import random
from collections.abc import Sequence
from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_U32: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash that Java's producer takes of keys (MurmurHash2, its seed), as a number without sign."""
    size = len(data)
    h = _SEED ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _U32
        h = (h * _M & _U32) ^ ((k ^ k >> 24) * _M & _U32)
    if size & 3:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _U32
    h = (h ^ h >> 13) * _M & _U32
    return h ^ h >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of a key, the same as Java's for the same number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Sticky:
    """One partition for all records without a key until its batch is closed, then another (KIP-480).

    Which one is random, and the less likely the longer the queue of its batches is (KIP-794), so that a slow broker
    gets less than a fast one; partitions without a leader are passed over while there are others."""

    def __init__(self) -> None:
        self.current = -1

    def choose(self, available: Sequence[int], queued: Sequence[int]) -> int:
        """The next partition out of `available`, whose queues hold so many batches."""
        longest = max(queued) + 1
        weights = [longest - length for length in queued]
        others = [(p, w) for p, w in zip(available, weights, strict=True) if p != self.current or len(available) == 1]
        self.current = random.choices([p for p, _ in others], [w for _, w in others])[0]
        return self.current
