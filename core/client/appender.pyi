"""What a producer's send() does, record by record."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from pybroker.core.client.producer_batch import Delivery, PendingBatch

NO_TOPIC: Final[int]  # it is not known, or the partition is not
NO_CHOICE: Final[int]  # without key or partition one has to be chosen
NO_MEMORY: Final[int]

class OpenQueue:
    """The batches of one partition that are not sent yet: one that is open, and those in `ready`."""

    topic: Final[str]
    partition: Final[int]
    ready: Final[deque[PendingBatch]]
    def __init__(self, topic: str, partition: int) -> None: ...
    @property
    def open(self) -> PendingBatch | None: ...
    def close_batch(self) -> None:
        """Move the open batch, if there is one, to those that are ready."""

class Appender:
    """The open batches of a producer.

    queues: a set, to which a queue is added with its first record. memory: bytes of all records that have no outcome
    yet. wake: called without arguments when there is something new to send."""

    used: Final[int]
    def __init__(
        self, *, queues: set[Any], batch_size: int, memory: int, record_size_max: int, wake: Callable[[], object]
    ) -> None: ...
    def know(self, topic: str, queues: list[Any]) -> None:
        """The queues of a topic, by partition; those of an earlier call at their places."""
    def forget(self) -> None:
        """No topic is known any more: nothing is appended from now on."""
    def choose(self, topic: str, partition: int) -> None:
        """The partition for records without a key, until its batch is closed."""
    def reserve(self, size: int) -> bool:
        """Take memory for batches that come ready-made; False if there is not so much, and something is in use."""
    def release(self, size: int) -> None:
        """The memory of a batch that has its outcome is free."""
    def append(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Iterable[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Delivery | int:
        """Add a record of bytes, str or None; headers are (str, bytes or None), a partition of None is to be found, a
        time of None is now. A Delivery, or NO_TOPIC, NO_CHOICE, NO_MEMORY, or the bytes of a record that is too large.

        Raises TypeError for what is none of those, ValueError for a negative partition or time, OverflowError for one
        that is too large."""
