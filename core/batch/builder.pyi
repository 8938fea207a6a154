"""Batches built record by record."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from pybroker.core.batch.block import Block

Bytes = bytes | bytearray | memoryview

class SealedBatch(Block):
    """A batch ready to be sent; `tag` is the caller's, such as its partition."""

    tag: Final[Any]
    count: Final[int]
    def stamp(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Set the producer and the sequence (-1: none), before each send; the CRC is recomputed."""

class BatchBuilder:
    """A batch that grows record by record, up to batch_size bytes uncompressed; the first record always fits.

    `bytes_hint`: bytes to allocate with the first record."""

    count: Final[int]
    size: Final[int]  # uncompressed bytes so far, including the header
    def __init__(self, *, batch_size: int = (1 << 31) - 1, bytes_hint: int = 0) -> None: ...
    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
    ) -> bool:
        """Add a record; False, without adding it, if the batch is too full. Raises LogError(MESSAGE_TOO_LARGE) if no
        batch can hold it."""
    def seal(
        self, *, attributes: int = 0, compress: Callable[[memoryview], Bytes] | None = None, tag: object = None
    ) -> SealedBatch:
        """Return the batch of the added records; the builder is empty then, and may be used again.

        `attributes` name the codec that `compress` applies to the records. Raises ValueError without records."""

def build_batch(
    records: Sequence[tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]],
    *,
    base_offset: int = 0,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    partition_leader_epoch: int = -1,
    compress: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """Return one batch of (timestamp_ms, key, value, headers); `attributes` name the codec that `compress` applies."""
