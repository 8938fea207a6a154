"""The append of records in a producer's send()."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pybroker.core.client.producer_batch import Delivery, PendingBatch

NO_TOPIC: Final[int]  # the topic, or the partition, is not known
NO_CHOICE: Final[int]  # a partition has to be chosen for a record without key and partition
NO_MEMORY: Final[int]

class OpenQueue:
    """The unsent batches of one partition: the open one, and those in `ready`."""

    topic: Final[str]
    partition: Final[int]
    ready: Final[deque[PendingBatch]]
    def __init__(self, topic: str, partition: int) -> None: ...
    @property
    def open(self) -> PendingBatch | None: ...
    def close_batch(self) -> None:
        """Move the open batch, if any, to the ready ones."""

class Appender:
    """The open batches of a producer.

    queues: a set to which a queue is added with its first record. memory: the limit for bytes of records without an
    outcome. wake: called without arguments when there is something new to send."""

    used: Final[int]
    def __init__(
        self, *, queues: set[Any], batch_size: int, memory: int, record_size_max: int, wake: Callable[[], object]
    ) -> None: ...
    def know(self, topic: str, queues: list[Any]) -> None:
        """Set the queues of a topic, by partition; queues of an earlier call keep their places."""
    def forget(self) -> None:
        """Forget all topics: from now on nothing is appended."""
    def choose(self, topic: str, partition: int) -> None:
        """Set the partition for records without a key, until its batch is closed."""
    def reserve(self, size: int) -> bool:
        """Reserve memory for ready-made batches; False if there is not enough, and some is in use."""
    def release(self, size: int) -> None:
        """Release the memory of a batch that has its outcome."""
    def append(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Iterable[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None] | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Delivery | int:
        """Append a record. value and key: bytes, str or None; headers: (str, bytes or None); partition None: choose
        one; timestamp_ms None: now. Returns a Delivery, or NO_TOPIC, NO_CHOICE, NO_MEMORY, or the size of a record that
        is too large.

        Raises TypeError for other types, ValueError for a negative partition or timestamp, OverflowError for one that
        is too large."""
