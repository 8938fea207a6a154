"""Records as objects, for those who want each one and not columns."""

from collections.abc import Callable, Iterable
from typing import Final

from pybroker.core import Bytes
from pybroker.core.columns.partition_batches import PartitionBatches

class Record:
    """One record that was read; equal to another with the same fields."""

    topic: Final[str]
    partition: Final[int]
    offset: Final[int]
    timestamp_ms: Final[int]
    timestamp_type: Final[int]  # 0 CreateTime: the producer's, 1 LogAppendTime: the broker's
    key: Final[bytes | None]
    value: Final[bytes | None]
    headers: Final[list[tuple[str, bytes | None]]]
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        timestamp_type: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> None: ...

def read_records(
    batches: PartitionBatches,
    topic: str,
    partition: int,
    most: int,
    decompress: Callable[[int, memoryview, int], Bytes],
) -> list[Record]:
    """The partition's next records as objects, all that are left or `most`; `decompress` as of Columns.

    Raises LogError (2, 10, 43, 76, 87) with the batch's offset, once the records before were returned."""
