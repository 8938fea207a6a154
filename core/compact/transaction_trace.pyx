"""Transactions on the way of a round of compaction through a log, as in Kafka's cleaner (CleanedTransactionMetadata).

Everything below the round's bound is decided. The records of aborted transactions are removed. A marker stays while a
batch of its transaction is left, be it an empty one: else a consumer would wait for the end of an aborted transaction,
or take it for a part of the next one. The round meets the batches of a transaction before its marker, so at the marker
it is known whether any is left; the state goes on from one group of segments to the next.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, qsort, realloc
from libc.string cimport memmove, memset

from pybroker.core.batch.batch cimport TRANSACTIONAL, batch_last_offset, batch_payload, batch_payload_size, batch_t
from pybroker.core.batch.marker cimport COMMIT, NO_MARKER, marker_read, marker_t

cdef enum:
    FIRST_CAPACITY = 64


cdef int by_producer(const void* a, const void* b) noexcept nogil:
    cdef const aborted_t* x = <const aborted_t*>a
    cdef const aborted_t* y = <const aborted_t*>b
    if x.producer_id != y.producer_id:
        return (x.producer_id > y.producer_id) - (x.producer_id < y.producer_id)
    return (x.last > y.last) - (x.last < y.last)


cdef int trace_sort(trace_t* t) noexcept nogil:
    """Begin, with the list of aborted transactions filled."""
    if t.aborted.count > 0:
        qsort(t.aborted.items, <size_t>t.aborted.count, sizeof(aborted_t), by_producer)
    t.met = <uint8_t*>calloc(<size_t>t.aborted.count + 1, 1)
    return 0 if t.met != NULL else -ENOMEM


cdef void trace_free(trace_t* t) noexcept nogil:
    free(t.aborted.items)
    free(t.met)
    free(t.committed)
    memset(t, 0, sizeof(trace_t))


cdef int64_t find_aborted(const trace_t* t, int64_t producer_id, int64_t offset) noexcept nogil:
    """The number of the producer's first aborted transaction that ends at `offset` or later; -1 if there is none."""
    cdef int64_t low = 0, high = t.aborted.count, middle
    cdef const aborted_t* e
    while low < high:
        middle = (low + high) >> 1
        e = &t.aborted.items[middle]
        if e.producer_id < producer_id or (e.producer_id == producer_id and e.last < offset):
            low = middle + 1
        else:
            high = middle
    return low if low < t.aborted.count and t.aborted.items[low].producer_id == producer_id else -1


cdef int64_t aborted_of(const trace_t* t, const batch_t* b) noexcept nogil:
    """The number of the aborted transaction that a batch of data belongs to; -1 if it belongs to none."""
    cdef int64_t i = -1
    if b.attributes & TRANSACTIONAL and b.producer_id >= 0 and t.aborted.count > 0:
        i = find_aborted(t, b.producer_id, batch_last_offset(b))
    return i if i >= 0 and t.aborted.items[i].first <= batch_last_offset(b) else -1


cdef bint trace_is_aborted(const trace_t* t, const batch_t* b) noexcept nogil:
    return aborted_of(t, b) >= 0


cdef int64_t place_of(const trace_t* t, int64_t producer_id) noexcept nogil:
    cdef int64_t low = 0, high = t.committed_count, middle
    while low < high:
        middle = (low + high) >> 1
        if t.committed[middle] < producer_id:
            low = middle + 1
        else:
            high = middle
    return low


cdef int add_committed(trace_t* t, int64_t producer_id) noexcept nogil:
    cdef int64_t at = place_of(t, producer_id)
    cdef int64_t capacity = t.committed_capacity * 2 if t.committed_capacity else FIRST_CAPACITY
    cdef int64_t* larger
    if at < t.committed_count and t.committed[at] == producer_id:
        return 0
    if t.committed_count == t.committed_capacity:
        larger = <int64_t*>realloc(t.committed, sizeof(int64_t) * <size_t>capacity)
        if larger == NULL:
            return -ENOMEM
        t.committed = larger
        t.committed_capacity = capacity
    memmove(t.committed + at + 1, t.committed + at, sizeof(int64_t) * <size_t>(t.committed_count - at))
    t.committed[at] = producer_id
    t.committed_count += 1
    return 0


cdef bint take_committed(trace_t* t, int64_t producer_id) noexcept nogil:
    """Remove a producer; True if it was there."""
    cdef int64_t at = place_of(t, producer_id)
    if at == t.committed_count or t.committed[at] != producer_id:
        return False
    t.committed_count -= 1
    memmove(t.committed + at, t.committed + at + 1, sizeof(int64_t) * <size_t>(t.committed_count - at))
    return True


cdef int trace_batch(trace_t* t, const batch_t* b) noexcept nogil:
    """Meet a batch of data: 1 if its transaction was aborted, else 0; or -ENOMEM."""
    cdef int64_t i = aborted_of(t, b)
    if i >= 0:
        t.met[i] = 1
        return 1
    return add_committed(t, b.producer_id) if b.attributes & TRANSACTIONAL and b.producer_id >= 0 else 0


cdef bint trace_marker(trace_t* t, const batch_t* b, const aborted_t** stays) noexcept nogil:
    """Meet a control batch: True if it may go, as no batch of its transaction is left. `stays`: its entry of the
    transaction index, if that is still needed; else NULL."""
    cdef marker_t marker
    cdef int64_t i
    stays[0] = NULL
    if b.count == 0:
        return True
    marker_read(b, batch_payload(b), <size_t>batch_payload_size(b), &marker)
    if marker.type == NO_MARKER:
        return False
    if marker.type == COMMIT:
        return not take_committed(t, b.producer_id)
    i = find_aborted(t, b.producer_id, b.base_offset)
    if i < 0 or t.aborted.items[i].last != b.base_offset or not t.met[i]:
        return True
    stays[0] = &t.aborted.items[i]
    return False
