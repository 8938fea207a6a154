"""The records of a producer that are not acknowledged: a queue of batches for each partition, and a bound for them all.

    send() --append--> open batch --full, lingered, flush--> ready --sent--> in flight --answered--> ended
                                                               ^------- to be sent again -------+

Callers append on their threads; the sender takes batches on the loop's. One lock holds for both, never for long.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from pybroker import errors
from pybroker.client.delivery import Batch, Delivery, Headers, record_size
from pybroker.errors import KafkaError


class Queue:
    """The batches of one partition; what a sender may do with them is the business of `sender`."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.open: Batch | None = None
        self.ready: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.not_before_s = 0.0
        """A retry waits until then."""
        # Sequences (KIP-98), which each partition counts on its own; see sender.
        self.epoch = -1
        self.producer_id = -1
        self.next_sequence = 0
        self.renewing = False

    def __len__(self) -> int:
        return len(self.ready) + len(self.in_flight) + (self.open is not None)

    def batches(self) -> Iterator[Batch]:
        yield from self.in_flight
        yield from self.ready
        if self.open is not None:
            yield self.open


class Accumulator:
    """Every queue of a producer, and the memory that they may take."""

    def __init__(
        self, *, batch_size: int, linger_s: float, buffer_memory: int, record_size_max: int, wake: Callable[[], object]
    ) -> None:
        self.linger_s = linger_s
        self.queues: dict[tuple[str, int], Queue] = {}
        self.busy: set[Queue] = set()
        """Queues that hold a batch."""
        self.flushes = 0
        """While somebody flushes no batch lingers."""
        self._batch_size = batch_size
        self._memory = buffer_memory
        self._record_size_max = record_size_max
        self._wake = wake
        self._used = 0
        self._waiting = 0
        self._changed = threading.Condition()
        self._closed = False

    # -- callers -------------------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        partition: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        block_s: float,
    ) -> Delivery:
        """Add a record, waiting for memory up to `block_s`. KafkaError: 10 if it is too large, 7 if there was none."""
        size = record_size(key, value, headers)
        if size > min(self._record_size_max, self._memory):
            limit = "max_request_size" if self._record_size_max <= self._memory else "buffer_memory"
            value_of = min(self._record_size_max, self._memory)
            raise KafkaError(errors.MESSAGE_TOO_LARGE, f"a record of {size} bytes, where {limit} allows {value_of}")
        with self._changed:
            if self._used + size > self._memory:
                self._wait_for_memory(size, block_s)
            if self._closed:
                raise KafkaError(errors.INVALID_REQUEST, "the producer is closed")
            queue = self.queues.get((topic, partition))
            if queue is None:
                queue = self.queues[topic, partition] = Queue(topic, partition)
            batch, wake = queue.open, False
            if batch is None or batch.size + size > self._batch_size:
                wake = batch is not None or self.linger_s == 0 or queue not in self.busy
                if batch is not None:
                    queue.ready.append(batch)
                batch = queue.open = Batch(topic, partition, time.monotonic())
                self.busy.add(queue)
            self._used += size
            delivery = batch.append(timestamp_ms, key, value, headers, size)
        if wake:
            self._wake()
        return delivery

    def _wait_for_memory(self, size: int, block_s: float) -> None:
        self._waiting += 1
        self._wake()  # what lingers need not: memory is short
        try:
            if not self._changed.wait_for(lambda: self._used + size <= self._memory or self._closed, block_s):
                raise KafkaError(
                    errors.REQUEST_TIMED_OUT,
                    f"buffer_memory of {self._memory} bytes was full for {block_s:g} s: brokers take too little",
                )
        finally:
            self._waiting -= 1

    def flush(self, timeout_s: float | None) -> bool:
        """Send everything that is here now and wait for its outcome; False if that takes longer."""
        with self._changed:
            self.flushes += 1
            pending = [batch for queue in self.busy for batch in queue.batches()]
        self._wake()
        try:
            with self._changed:
                return self._changed.wait_for(lambda: all(batch.ended for batch in pending), timeout_s)
        finally:
            with self._changed:
                self.flushes -= 1

    def close(self) -> None:
        """Take no more records."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # -- the sender ----------------------------------------------------------------------------------------------------

    @property
    def hurried(self) -> bool:
        """Whether batches are sent without waiting to be full."""
        return bool(self.flushes or self._waiting or self._closed)

    def seal(self, queue: Queue, now_s: float) -> None:
        """Move the open batch of a queue to those that are ready, if its time has come."""
        batch = queue.open
        if batch is not None and (self.hurried or batch.created_s + self.linger_s <= now_s):
            with self._changed:
                if queue.open is batch:
                    queue.ready.append(batch)
                    queue.open = None

    def end(self, queue: Queue, batch: Batch, base_offset: int, time_ms: int, error: KafkaError | None) -> None:
        """A batch has its outcome: its memory is free, and who waits for either is woken."""
        if batch.ended:
            return
        size = batch.size
        batch.end(base_offset, time_ms, error)
        with self._changed:
            self._used -= size - 61
            self._changed.notify_all()

    def rest(self, queue: Queue) -> None:
        """A queue that holds nothing is busy no more."""
        with self._changed:
            if not len(queue):
                self.busy.discard(queue)
