"""The append of records in a producer's send(): a record goes to the open batch of its partition, with the GIL as lock.

    appender = Appender(queues=busy, batch_size=1 << 20, memory=32 << 20, record_size_max=1 << 20, wake=wake)
    appender.know("topic", [OpenQueue("topic", 0), OpenQueue("topic", 1)])
    made = appender.append("topic", b"value", b"key", None, None, None)

`append` returns a Delivery, or the reason why it did nothing, which Python handles. No step of it lets another thread
run between a check and the action that depends on it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t

from collections import deque

from pybroker.core.base.clock cimport wall_ms
from pybroker.core.base.status cimport raise_status
from pybroker.core.batch.builder cimport (
    builder_add, builder_size, entry_body, field_bytes, new_record_t, put_field, zigzag_size,
)
from pybroker.core.batch.murmur2 cimport murmur2_partition
from pybroker.core.batch.record cimport NULL_LENGTH
from pybroker.core.client.producer_batch cimport PendingBatch, pending_batch, pending_delivery

# Why nothing was appended. A number above 0 is the size of a record that is too large.
NO_TOPIC = -1      # the topic, or the partition, is not known
NO_CHOICE = -2     # a partition has to be chosen for a record without key and partition
NO_MEMORY = -3


cdef class OpenQueue:
    """The unsent batches of one partition: the open one, and those in `ready`."""

    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly PendingBatch open
    cdef readonly object ready
    cdef int64_t hint  # the size of the last batch: the next one begins with it

    def __init__(self, str topic not None, int32_t partition):
        self.topic = topic
        self.partition = partition
        self.ready = deque()

    def close_batch(self) -> None:
        """Move the open batch, if any, to the ready ones."""
        cdef PendingBatch batch = self.open
        if batch is not None:
            self.hint = builder_size(&batch.builder)
            self.open = None
            self.ready.append(batch)


cdef class _Topic:
    """A known topic: its queues by partition, and the partition for records without a key."""

    cdef list queues
    cdef int32_t chosen  # -1: none
    cdef bint fresh      # newly chosen: its queue may have no open batch yet


cdef inline object _plain(object content, str what):
    """Convert a field to bytes or None."""
    if isinstance(content, str):
        return (<str>content).encode()
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    raise TypeError(f"a record's {what} is bytes, str or None, not {type(content).__name__}")


cdef object _number(object given, str what):
    """Check a number of 0 or more and return it as an int: C would truncate a float."""
    if type(given) is not int:
        if isinstance(given, bool) or not hasattr(given, "__index__"):
            raise TypeError(f"a record's {what} is a whole number, not {given!r}")
        given = given.__index__()
    if given < 0:
        raise ValueError(f"a record's {what} is 0 or more, not {given}")
    return given


cdef list _pairs(object headers, new_record_t* e):
    """Convert headers to pairs of bytes, and measure them. surrogateescape keeps keys that were read as invalid
    UTF-8."""
    cdef list pairs = []
    if not isinstance(headers, (list, tuple)) and hasattr(headers, "items"):
        headers = headers.items()
    for pair in headers:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:  # of a str it would be a letter
            raise TypeError(f"a record's header is a pair of a key and a value, not {pair!r}")
        name, content = pair
        key = (<str?>name).encode("utf-8", "surrogateescape")
        if content is not None and type(content) is not bytes:
            content = _plain(content, "header")
        e.header_bytes += field_bytes(PyBytes_GET_SIZE(key))
        e.header_bytes += field_bytes(NULL_LENGTH if content is None else PyBytes_GET_SIZE(content))
        pairs.append((key, content))
    e.header_count = len(pairs)
    return pairs


cdef uint8_t* _put(uint8_t* at, object field) noexcept:
    if field is None:
        return put_field(at, NULL, NULL_LENGTH)
    return put_field(at, <const uint8_t*>PyBytes_AS_STRING(field), PyBytes_GET_SIZE(field))


cdef class Appender:
    """The open batches of a producer.

    queues: a set to which a queue is added with its first record. memory: the limit for bytes of records without an
    outcome. wake: called without arguments when there is something new to send."""

    cdef readonly int64_t used
    cdef int64_t batch_size
    cdef int64_t memory
    cdef int64_t record_size_max
    cdef dict topics
    cdef set queues
    cdef object wake

    def __init__(self, *, set queues not None, int64_t batch_size, int64_t memory, int64_t record_size_max, wake):
        self.queues = queues
        self.batch_size = batch_size
        self.memory = memory
        self.record_size_max = record_size_max
        self.wake = wake
        self.topics = {}

    def know(self, str topic not None, list queues not None) -> None:
        """Set the queues of a topic, by partition; queues of an earlier call keep their places."""
        cdef _Topic entry = _Topic.__new__(_Topic)
        entry.queues = queues
        entry.chosen = -1
        self.topics[topic] = entry

    def forget(self) -> None:
        """Forget all topics: from now on nothing is appended."""
        self.topics = {}

    def choose(self, str topic not None, int32_t partition) -> None:
        """Set the partition for records without a key, until its batch is closed."""
        cdef _Topic entry = self.topics.get(topic)
        if entry is not None and 0 <= partition < len(entry.queues):
            entry.chosen = partition
            entry.fresh = True

    def reserve(self, int64_t size) -> bool:
        """Reserve memory for ready-made batches; False if there is not enough, and some is in use."""
        if self.used and self.used + size > self.memory:
            return False
        self.used += size
        return True

    def release(self, int64_t size) -> None:
        """Release the memory of a batch that has its outcome."""
        self.used -= size

    def append(self, str topic not None, value, key, headers, partition, timestamp_ms):
        """Append a record. value and key: bytes, str or None; headers: (str, bytes or None); partition None: choose
        one; timestamp_ms None: now. Returns a Delivery, or NO_TOPIC, NO_CHOICE, NO_MEMORY, or the size of a record that
        is too large.

        Raises TypeError for other types, ValueError for a negative partition or timestamp, OverflowError for one that
        is too large."""
        cdef int32_t place = NO_CHOICE
        cdef PyObject* known
        cdef new_record_t e
        cdef list pairs = None
        if value is not None and type(value) is not bytes:
            value = _plain(value, "value")
        if key is not None and type(key) is not bytes:
            key = _plain(key, "key")
        if partition is not None:
            place = <int32_t>_number(partition, "partition")
        e.timestamp = wall_ms() if timestamp_ms is None else <int64_t>_number(timestamp_ms, "timestamp_ms")
        e.header_count = e.header_bytes = 0
        if headers:
            pairs = _pairs(headers, &e)
        e.value = NULL
        if value is not None:
            e.value = <const uint8_t*>PyBytes_AS_STRING(value)
        e.value_size = NULL_LENGTH if value is None else PyBytes_GET_SIZE(value)
        e.key = NULL
        if key is not None:
            e.key = <const uint8_t*>PyBytes_AS_STRING(key)
        e.key_size = NULL_LENGTH if key is None else PyBytes_GET_SIZE(key)
        known = PyDict_GetItem(self.topics, topic)  # borrowed, after all user code above: it could replace the entry
        if known == NULL:
            return NO_TOPIC
        return self._append(<_Topic>known, &e, pairs, place)

    cdef object _append(self, _Topic topic, new_record_t* e, list pairs, int32_t partition):
        """Choose the record's partition and batch, and append it."""
        cdef bint sticky = partition == NO_CHOICE and e.key == NULL
        cdef OpenQueue queue
        cdef PendingBatch batch
        cdef int64_t body, total
        cdef bint news = False
        if sticky:
            partition = topic.chosen
            if partition < 0:
                return NO_CHOICE
        elif partition == NO_CHOICE:
            partition = murmur2_partition(e.key, e.key_size, <int32_t>len(topic.queues))
        elif not 0 <= partition < len(topic.queues):
            return NO_TOPIC
        queue = <OpenQueue>topic.queues[partition]
        if queue.open is None:
            if sticky and not topic.fresh:
                return NO_CHOICE
            fresh = pending_batch(queue.topic, partition, queue.hint)  # may run the garbage collector and other threads
            if queue.open is None:
                queue.open = fresh
                news = True
        batch = queue.open
        body = entry_body(&batch.builder, e)
        total = zigzag_size(body) + body
        if total > self.record_size_max or total > self.memory:
            return self._undo(queue, total)
        if self.used + total > self.memory:
            return self._undo(queue, NO_MEMORY)
        if batch.count and builder_size(&batch.builder) + total > self.batch_size:
            queue.close_batch()
            self.wake()
            topic.fresh = topic.fresh and not sticky
            return self._append(topic, e, pairs, NO_CHOICE if sticky or partition < 0 else partition)
        self._add(batch, e, body, pairs)
        self.used += total
        batch.size += total
        if sticky:
            topic.fresh = False
        delivery = pending_delivery(batch, e.timestamp)
        if news:
            self.queues.add(queue)
            self.wake()
        return delivery

    cdef object _undo(self, OpenQueue queue, int64_t why):
        """Remove a batch that was created for a record which is not appended."""
        if queue.open is not None and queue.open.count == 0:
            queue.open = None
        return why

    cdef int _add(self, PendingBatch batch, new_record_t* e, int64_t body, list pairs) except -1:
        cdef uint8_t* at = NULL
        cdef int status = builder_add(&batch.builder, e, body, &at)
        if status == -ENOMEM:
            raise MemoryError
        if status != 0:
            raise_status(status, f"a batch cannot hold {builder_size(&batch.builder) + body} bytes of records")
        if pairs is not None:
            for name, content in pairs:
                at = _put(_put(at, name), content)
        batch.count += 1
        return 0
