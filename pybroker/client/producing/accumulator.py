"""The records of a producer that are not acknowledged: a queue of batches for each partition, and a bound for them all.

    send() --append--> open batch --full, lingered, flush--> ready --sent--> in flight --answered--> ended
                                                               ^------- to be sent again -------+

`core.Appender` is the way in, which many threads take at once; the sender takes batches out, on the loop's thread.
"""

import atexit
import contextlib
import os
import random
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pybroker import errors, fork_safety
from pybroker.core import Appender, Delivery, OpenQueue, PendingBatch, SealedBatch
from pybroker.errors import KafkaError
from pybroker.logs import unfailing

EXIT_S: Final = 10.0
"""Seconds for acknowledgements at the end of the interpreter, and of a `with` that an exception leaves."""

_LOOK_S: Final = 0.1  # how long a caller waits for memory before it looks again

_NAMED_MAX: Final = 10  # partitions in one line of the log

_log = unfailing(__name__)


class Queue(OpenQueue):
    """The batches of one partition, and the sender's state of it."""

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(topic, partition)
        self.in_flight: list[PendingBatch] = []
        self.not_before_s = 0.0
        """A retry waits until then."""
        self.refusal: KafkaError | None = None
        """The last refusal of a batch that is sent again."""
        # Sequences (KIP-98), which each partition counts on its own; see sender.
        self.producer_id = -1
        self.epoch = -1
        self.next_sequence = 0
        self.renewing = False

    def __len__(self) -> int:
        return len(self.ready) + len(self.in_flight) + (self.open is not None)

    def batches(self) -> list[PendingBatch]:
        """All batches, oldest first. For any thread: read against their direction, so that none is missed."""
        batch = self.open
        ready = tuple(self.ready)
        return [*self.in_flight, *ready, *([] if batch is None else [batch])]


class Accumulator:
    """All queues of a producer, and the limit of their memory."""

    def __init__(
        self, *, batch_size: int, linger_s: float, buffer_memory: int, record_size_max: int, wake: Callable[[], object]
    ) -> None:
        self.linger_s = linger_s
        self.busy: set[Queue] = set()
        """Queues that hold a batch."""
        self.appender = Appender(
            queues=self.busy,
            batch_size=batch_size,
            memory=buffer_memory,
            record_size_max=record_size_max,
            wake=wake,
        )
        self._queues: dict[str, list[Queue]] = {}
        self._memory = buffer_memory
        self._record_size_max = record_size_max
        self._wake = wake
        self._hurries = 0
        self._chosen: dict[str, int] = {}
        self._changed = threading.Condition()
        self._closed = False
        _open.add(self)
        _flush_at_the_end_of_a_worker()
        fork_safety.tell(self)

    # -- callers -------------------------------------------------------------------------------------------------------

    def know(self, topic: str, partitions: int) -> None:
        """Take records for a topic with this number of partitions, which may have grown."""
        with self._changed:
            if self._closed:
                raise KafkaError(errors.INVALID_REQUEST, "the producer is closed")
            known = self._queues.setdefault(topic, [])
            if len(known) < partitions or topic not in self._chosen:
                known += [Queue(topic, p) for p in range(len(known), partitions)]
                self._chosen.setdefault(topic, -1)
                self.appender.know(topic, list(known))

    def choose(self, topic: str, led: Sequence[int]) -> int:
        """Choose the next partition for records without a key: not the last one, and rather one with a short queue."""
        queues = self._queues[topic]
        available = [p for p in led if p < len(queues)] or list(range(len(queues)))
        others = [p for p in available if p != self._chosen[topic]] or available
        lengths = [len(queues[p]) for p in others]
        longest = max(lengths) + 1
        chosen = self._chosen[topic] = random.choices(others, [longest - length for length in lengths])[0]
        self.appender.choose(topic, chosen)
        return chosen

    def too_large(self, size: int) -> KafkaError:
        """The error for a record that is too large."""
        name = "max_request_size" if self._record_size_max <= self._memory else "buffer_memory"
        limit = min(self._record_size_max, self._memory)
        return KafkaError(errors.MESSAGE_TOO_LARGE, f"a record of {size} bytes, where {name} allows {limit}")

    @contextlib.contextmanager
    def hurry(self) -> Iterator[None]:
        """Send without lingering while this context lasts: some caller waits for outcomes, or for memory."""
        with self._changed:
            self._hurries += 1
        try:
            self._wake()
            yield
        finally:
            with self._changed:
                self._hurries -= 1

    def wait_for_memory(self, timeout_s: float) -> None:
        """Wait until memory is freed, the producer is closed, or a while has passed; then the caller looks again.

        The wait ends after LOOK_S at most, as memory freed just before this call wakes no waiter."""
        used = self.appender.used
        with self.hurry(), self._changed:
            self._changed.wait_for(lambda: self.appender.used < used or self._closed, min(timeout_s, _LOOK_S))

    def no_memory(self, timeout_s: float) -> KafkaError:
        words = f"buffer_memory of {self._memory} bytes was full for {timeout_s:g} s: brokers acknowledge too slowly"
        return KafkaError(errors.REQUEST_TIMED_OUT, words)

    def add(self, topic: str, partition: int, sealed: SealedBatch) -> Delivery | None:
        """Queue a complete batch after the others; None if there is no memory for it now. KafkaError once closed."""
        with self._changed:
            if self._closed:
                raise KafkaError(errors.INVALID_REQUEST, "the producer is closed")
            if not self.appender.reserve(len(sealed)):
                return None
            batch = PendingBatch.of(topic, partition, sealed)
            queue = self._queues[topic][partition]
            queue.close_batch()
            queue.ready.append(batch)
            self.busy.add(queue)
        self._wake()
        return batch.delivery()

    def pending(self) -> deque[PendingBatch]:
        """All batches without an outcome."""
        with self._changed:
            return deque(batch for queue in tuple(self.busy) for batch in queue.batches())

    def flush(self, timeout_s: float | None) -> bool:
        """Send all present batches and wait for their outcomes; False if that takes longer."""
        left = self.pending()

        def ended() -> bool:
            while left and left[0].ended:  # this runs at the end of each batch, so drop the ended ones for good
                left.popleft()
            return not left

        with self.hurry(), self._changed:
            return self._changed.wait_for(ended, timeout_s)

    def close(self) -> None:
        """Take no more records."""
        with self._changed:
            self._closed = True
            self.appender.forget()
            self._changed.notify_all()

    def name_unacknowledged(self) -> None:
        """Log which records have no outcome, if there are any."""
        counts: Counter[str] = Counter()
        for queue in tuple(self.busy):
            counts[f"{queue.topic}-{queue.partition}"] += sum(b.count for b in queue.batches() if not b.ended)
        named = [f"{count} of {partition}" for partition, count in sorted(counts.items()) if count]
        if named:
            more = f", and {len(named) - _NAMED_MAX} partitions more" if len(named) > _NAMED_MAX else ""
            words = "a producer ends with records that no broker has acknowledged, and that may be lost: %s%s"
            _log.error(words, ", ".join(named[:_NAMED_MAX]), more)

    def forked(self) -> None:
        """Drop the records in a forked child: the parent sends them. A thread of the parent may hold `_changed`."""
        self._changed = threading.Condition()
        self._closed = True
        self.appender.forget()
        error = fork_safety.refusal("producer")
        for queue in self.busy:
            for batch in queue.batches():
                batch.abandon(error)
        self.busy.clear()

    # -- the sender ----------------------------------------------------------------------------------------------------

    @property
    def hurried(self) -> bool:
        """True while batches are sent without waiting to be full."""
        return bool(self._hurries or self._closed)

    def seal(self, queue: Queue, now_s: float) -> None:
        """Move the open batch of a queue to `ready` if its linger time is over."""
        batch = queue.open
        if batch is not None and (self.hurried or batch.created_s + self.linger_s <= now_s):
            queue.close_batch()

    def end(self, batch: PendingBatch, base_offset: int, time_ms: int, error: KafkaError | None) -> None:
        """Give a batch its outcome, free its memory, and wake threads that wait for either."""
        if batch.end(base_offset, time_ms, error):
            self._release(batch)

    def end_split(self, whole: PendingBatch, outcomes: list[tuple[int, int, int, Exception | None]]) -> None:
        """The same for a batch that was sent in parts."""
        if whole.end_parts(outcomes):
            self._release(whole)

    def _release(self, batch: PendingBatch) -> None:
        self.appender.release(batch.size)
        with self._changed:
            self._changed.notify_all()

    def rest(self, queue: Queue) -> None:
        """Remove an empty queue from `busy`. One that gets a record just now adds itself again, after this."""
        with self._changed:  # flush() walks `busy`
            self.busy.discard(queue)
            if len(queue):
                self.busy.add(queue)


_open: Final["weakref.WeakSet[Accumulator]"] = weakref.WeakSet()


@atexit.register
def _flush_at_exit() -> None:
    """Flush producers that were not closed: their threads run until the interpreter is gone."""
    deadline_s = time.monotonic() + EXIT_S
    for accumulator in list(_open):
        if accumulator.busy and not accumulator.flush(max(0.0, deadline_s - time.monotonic())):
            accumulator.name_unacknowledged()


_worker = -1
"""The process that registered `_flush_at_exit` as a finalizer, because atexit does not run in it."""


def _flush_at_the_end_of_a_worker() -> None:
    """Flush at the end of a multiprocessing or ProcessPoolExecutor worker, too: it is forked, and ends by os._exit(),
    which skips atexit. Its finalizers run before that."""
    global _worker
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is None or util is None or process.parent_process() is None or _worker == os.getpid():
        return
    _worker = os.getpid()
    util.Finalize(None, _flush_at_exit, exitpriority=0)
