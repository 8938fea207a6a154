"""Records as Python objects, where single records and not columns are needed."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic

from typing_extensions import TypeVar

from pybroker.core import Bytes
from pybroker.core.columns.partition_batches import PartitionBatches

Key = TypeVar("Key", default=bytes, covariant=True)
Value = TypeVar("Value", default=bytes, covariant=True)
OtherKey = TypeVar("OtherKey")
OtherValue = TypeVar("OtherValue")

class Record(Generic[Key, Value]):
    """One record that was read; equal to another with the same fields. Key and value are bytes until deserialized."""

    topic: Final[str]
    partition: Final[int]
    offset: Final[int]
    timestamp_ms: Final[int]
    timestamp_type: Final[int]  # 0 CreateTime: the producer's, 1 LogAppendTime: the broker's
    headers: Final[list[tuple[str, bytes | None]]]
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        timestamp_type: int,
        key: Key | None,
        value: Value | None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> None: ...
    @property
    def key(self) -> Key | None: ...
    @property
    def value(self) -> Value | None: ...
    def replaced(self, key: OtherKey, value: OtherValue) -> Record[OtherKey, OtherValue]:
        """A record with this key and value, and the other fields of this one."""

class RecordSteps(Iterator[Record]):
    """An iterator over the records of a partition's batches, decoded one by one.

    It ends after the last whole batch, at a batch that does not parse, `lease_s` seconds after it was made, and once
    stop() is called; read_records() continues after the last record that was returned, and raises what is wrong."""

    def __init__(
        self,
        batches: PartitionBatches,
        topic: str,
        partition: int,
        decompress: Callable[[int, memoryview, int], Bytes],
        lease_s: float,
    ) -> None: ...
    def __next__(self) -> Record: ...
    def take(self) -> Record | None:
        """The next record, or None at the end."""
    def stop(self) -> int:
        """Return no more records, and let go of the batches; the offset after the last record that was returned."""

def read_records(
    batches: PartitionBatches,
    topic: str,
    partition: int,
    most: int,
    decompress: Callable[[int, memoryview, int], Bytes],
) -> list[Record]:
    """The partition's next records as objects, all that are left or `most`; `decompress` as for Columns.

    Raises LogError with the batch's offset; the records before it are returned by an earlier call."""
