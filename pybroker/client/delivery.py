"""What becomes of a record that was sent: a batch is acknowledged or refused, and with it each of its records."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pybroker import core
from pybroker.errors import KafkaError
from pybroker.protocol import compression

Headers = Sequence[tuple[str, bytes | None]]

_RECORD_OVERHEAD: Final = 21  # what a record takes beside its key, value and headers, at most
_HEADER_OVERHEAD: Final = 10
_BATCH_OVERHEAD: Final = 61

_log = logging.getLogger(__name__)


class RecordMetadata(NamedTuple):
    """Where an acknowledged record lies; `offset` is -1 with acks=0, when nobody says."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Delivery:
    """The outcome of one record, now or later."""

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    def __init__(self, batch: "Batch", index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch.ended

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Where the record lies. Raises KafkaError if it was refused, TimeoutError if that is not known in time."""
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        batch = self._batch
        offset = -1 if batch.base_offset < 0 else batch.base_offset + self._index
        timestamp_ms = self._timestamp_ms if batch.log_append_time_ms < 0 else batch.log_append_time_ms
        return RecordMetadata(batch.topic, batch.partition, offset, timestamp_ms)

    def exception(self, timeout_s: float | None = None) -> KafkaError | None:
        """Why the record was refused, None if it is acknowledged. TimeoutError if that is not known in time."""
        if not self._batch.wait(timeout_s):
            raise TimeoutError(f"no acknowledgement within {timeout_s:g} s")
        return self._batch.error

    def add_done_callback(self, call: "Callable[[Delivery], object]") -> None:
        """Call with this delivery when its outcome is known: on the producer's thread, or now if it is known already.

        What the call raises is logged."""
        self._batch.on_end(call, self)


class Batch:
    """Records of one partition on their way: filled, then `payload` sealed for a request, then ended."""

    def __init__(self, topic: str, partition: int, now_s: float) -> None:
        self.topic = topic
        self.partition = partition
        self.created_s = now_s
        self.count = 0
        self.size = _BATCH_OVERHEAD
        self.ended = False
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.error: KafkaError | None = None
        # The sender's: what it was stamped with, and when it may be sent.
        self.sequence = -1
        self.epoch = -1
        self.attempts = 0
        self._records: list[tuple[int, bytes | None, bytes | None, Headers]] = []
        self._payload = b""
        self._calls: list[tuple[Callable[[Delivery], object], Delivery]] = []
        self._event: threading.Event | None = None

    def append(
        self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers, size: int
    ) -> Delivery:
        self._records.append((timestamp_ms, key, value, headers))
        self.count += 1
        self.size += size
        return Delivery(self, self.count - 1, timestamp_ms)

    def payload(self, codec: int, level: int | None, producer_id: int) -> bytes:
        """The batch as it is sent, stamped with its epoch and sequence."""
        self._payload = core.build_batch(
            self._records,
            attributes=codec,
            producer_id=producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            compress=(lambda data: compression.compress(codec, data, level)) if codec else None,
        )
        return self._payload

    def end(self, base_offset: int, log_append_time_ms: int, error: KafkaError | None) -> None:
        """The outcome, once: later ones are not heard."""
        if self.ended:
            return
        self.base_offset, self.log_append_time_ms, self.error = base_offset, log_append_time_ms, error
        self.ended = True
        self._records.clear()
        if self._event is not None:
            self._event.set()
        calls, self._calls = self._calls, []
        for call, delivery in calls:
            _call(call, delivery)

    def on_end(self, call: Callable[[Delivery], object], delivery: Delivery) -> None:
        self._calls.append((call, delivery))
        if self.ended:  # perhaps since before: whoever takes the calls out first makes them
            calls, self._calls = self._calls, []
            for late, one in calls:
                _call(late, one)

    def wait(self, timeout_s: float | None) -> bool:
        if self.ended:
            return True
        if self._event is None:
            self._event = threading.Event()
        return self.ended or self._event.wait(timeout_s)


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """The most that a record takes in a batch."""
    size = _RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += _HEADER_OVERHEAD + len(name) * 4 + len(content or b"")
    return size


def _call(call: Callable[[Delivery], object], delivery: Delivery) -> None:
    try:
        call(delivery)
    except Exception:
        _log.exception("a delivery callback failed")
