"""A producer's batches, and the outcome of each of their records, which costs nothing unless it is used.

`PendingBatch.end` sets an outcome once: it wakes the threads that wait for a record of the batch, and calls the
delivery callbacks. A callback is user code and may raise anything, SystemExit and CancelledError too: the exception is
logged, at most one line per second, and the other callbacks are called.
"""

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t

import logging
import threading
from collections import namedtuple

from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.batch.block cimport block_free
from pybroker.core.batch.builder cimport SealedBatch, builder_init, builder_seal

# With `module` pickle finds it: compiled code has no frame from which namedtuple could get it.
RecordMetadata = namedtuple("RecordMetadata", "topic partition offset timestamp_ms", module=__name__)

_log = logging.getLogger("pybroker.client")

OTHER_NAMES = {
    "get": "result(timeout_s)",
    "succeeded": "done() and exception() is None",
    "failed": "done() and exception() is not None",
    "is_done": "done()",
    "value": "result()",
    "add_callback": "add_done_callback(call), or send(..., on_delivery=call)",
    "add_errback": "add_done_callback(call), or send(..., on_delivery=call)",
    "add_both": "add_done_callback(call)",
}
"""Attributes of kafka-python's futures, and ours of the same meaning."""

cdef int64_t LOG_PAUSE_NS = 1_000_000_000
cdef int64_t logged_ns = -LOG_PAUSE_NS   # when a callback's exception was last logged
cdef int64_t unlogged = 0                # exceptions since then


cpdef int log_callback(str kind) except -1:
    """Log the current exception of a callback, and how many were not logged since the last line; or only count it."""
    global logged_ns, unlogged
    cdef int64_t now_ns = monotonic_ns()
    if now_ns - logged_ns < LOG_PAUSE_NS:
        unlogged += 1
        return 0
    logged_ns = now_ns
    more, unlogged = unlogged, 0
    try:
        words = f", and {more} more since the last such line" if more else ""
        _log.exception("a %s callback failed%s", kind, words)
    except BaseException:  # a log handler is user code, too
        pass
    return 0


cdef PendingBatch pending_batch(str topic, int32_t partition, int64_t bytes_hint):
    cdef PendingBatch batch = PendingBatch.__new__(PendingBatch)
    batch.created_s = <double>monotonic_ns() * 1e-9
    batch.topic = topic
    batch.partition = partition
    builder_init(&batch.builder, bytes_hint)
    return batch


cdef Delivery pending_delivery(PendingBatch batch, int64_t timestamp_ms):
    cdef Delivery delivery = Delivery.__new__(Delivery)
    delivery.batch = batch
    delivery.index = batch.count - 1
    delivery.timestamp_ms = timestamp_ms
    return delivery


cdef class PendingBatch:
    """Records of one partition that are sent together."""

    def __cinit__(self):
        builder_init(&self.builder, 0)
        self.producer_id = self.epoch = -1
        self.sequence = self.base_offset = self.log_append_time_ms = -1

    def __init__(self) -> None:
        raise TypeError("a PendingBatch comes from an Appender, or of a SealedBatch")

    def __dealloc__(self):
        block_free(&self.builder.block)

    @staticmethod
    def of(str topic not None, int32_t partition, SealedBatch sealed not None, created_s=None) -> PendingBatch:
        """A batch of bytes sealed before; created now, or at created_s, as the batch that it is a part of."""
        cdef PendingBatch batch = pending_batch(topic, partition, 0)
        if created_s is not None:
            batch.created_s = created_s
        batch.sealed = sealed
        batch.count = sealed.count
        batch.size = len(sealed)
        return batch

    def seal(self, int16_t attributes, compress) -> SealedBatch:
        """Return its bytes, sealed by the first call; `attributes` name the codec that `compress` applies."""
        if self.sealed is None:
            if self.ended:
                raise ValueError("the batch has its outcome, and its records are gone")
            self.sealed = builder_seal(&self.builder, attributes, compress, None)
        return self.sealed

    def delivery(self) -> Delivery:
        """A delivery for the whole batch, with the outcome of its first record."""
        cdef Delivery delivery = pending_delivery(self, -1)
        delivery.index = 0
        return delivery

    def end(self, int64_t base_offset, int64_t log_append_time_ms, error) -> bool:
        """Set its outcome: its position, or the error. False, and nothing changes, if it has one."""
        if self.ended:
            return False
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.error = error
        self.ended = True
        self.sealed = None
        block_free(&self.builder.block)
        if self.event is not None:
            self.event.set()
        self.call_out(False)
        return True

    def end_parts(self, list parts not None) -> bool:
        """Set the outcome of a batch sent in parts: (first record, base offset, log append time, error) of each."""
        if not self.ended:
            self.parts = sorted(parts, key=lambda part: part[0])
        return self.end(parts[0][1], parts[0][2], parts[0][3])

    def abandon(self, error) -> None:
        """Set an error as the outcome in a forked process, which has the batch, but not the producer that sends it.
        Callbacks run only in the parent process."""
        if not self.ended:
            self.calls = self.event = None
            self.error = error
            self.ended = True

    cdef tuple outcome(self, int32_t index):
        """(offset, log append time, error) of a record."""
        first, base_offset, by_log, error = 0, self.base_offset, self.log_append_time_ms, self.error
        for part in self.parts or ():
            if part[0] > index:
                break
            first, base_offset, by_log, error = part
        return (-1 if base_offset < 0 else base_offset + index - first), by_log, error

    cdef int call_out(self, bint raises) except -1:
        """Run the waiting callbacks. The thread that takes the list runs all of them, so each runs exactly once.

        With `raises` this is the caller's thread: an exception that is no Exception (Ctrl-C, SystemExit) is raised
        after all callbacks. On the sending thread it is logged instead."""
        leaving = None
        while self.calls:
            calls, self.calls = self.calls, None
            for call, delivery in calls:
                try:
                    call(delivery)
                except BaseException as problem:
                    if raises and not isinstance(problem, Exception):
                        leaving = leaving or problem
                    else:
                        log_callback("delivery")
        if leaving is not None:
            raise leaving
        return 0

    cdef bint wait(self, timeout_s) except -1:
        if not self.ended:
            if self.event is None:
                event = threading.Event()
                if self.event is None:
                    self.event = event
            if not self.ended:
                self.event.wait(timeout_s)
        return self.ended


@cython.freelist(1024)
@cython.no_gc  # its batch refers back to it only until the callbacks have run
cdef class Delivery:
    """The outcome of one record, now or later."""

    def __init__(self) -> None:
        raise TypeError("a Delivery comes from a producer")

    def __repr__(self) -> str:
        where = f"{self.batch.topic}-{self.batch.partition}"
        if not self.batch.ended:
            return f"<Delivery to {where}: not acknowledged yet>"
        offset, _, error = self.batch.outcome(self.index)
        return f"<Delivery to {where}: {f'offset {offset}' if error is None else f'refused, {error}'}>"

    def __getattr__(self, name):
        words = f"'Delivery' object has no attribute {name!r}"
        if name in OTHER_NAMES:
            words = f"{words}: here it is {OTHER_NAMES[name]}"
        raise AttributeError(words)

    def done(self) -> bool:
        """True if the outcome is known."""
        return self.batch.ended

    def result(self, timeout_s=None):
        """The position of the record. Raises the KafkaError of a failed record, TimeoutError without an outcome in
        time."""
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        offset, by_log, _ = self.batch.outcome(self.index)
        timestamp_ms = self.timestamp_ms if by_log < 0 else by_log
        return RecordMetadata(self.batch.topic, self.batch.partition, offset, timestamp_ms)

    def exception(self, timeout_s=None):
        """The KafkaError of a failed record; None if it is acknowledged. Raises TimeoutError without an outcome in
        time."""
        if not self.batch.wait(timeout_s):
            raise TimeoutError(f"no acknowledgement within {timeout_s:g} s")
        return self.batch.outcome(self.index)[2]

    def add_done_callback(self, call) -> None:
        """Call `call` with this delivery when its outcome is known: on the producer's thread, or here if it is known
        already."""
        cdef PendingBatch batch = self.batch
        cdef list entry = [(call, self)]
        # No allocation from here on: it may run the garbage collector, and with it other threads, one of which may
        # take the list of calls.
        if batch.calls is None:
            batch.calls = entry
        else:
            batch.calls.append(entry[0])
        if batch.ended:
            batch.call_out(True)
