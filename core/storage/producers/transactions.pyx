"""The transactions that hold back the last stable offset: open ones, and those whose marker is not replicated.

Without the latter the last stable offset could go back after a failover that loses a marker.

    open       a queue ordered by first offset. A transaction begins at the log's end, so it is added at the tail; one
               that ends is found by binary search. Ended ones are removed when they reach the head, or are most.
    waiting    ended ones whose marker is at or above the high watermark, as a sliding window: they leave in the order
               of their markers, and one that begins later and leaves earlier than another can never be the oldest.
               So both first offsets and markers ascend, and the oldest is the first.

Each operation costs O(log n) or less, on average over all. Memory is reserved before a batch is written, as a written
batch can no longer be refused.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memmove, memset

cdef enum:
    FIRST_CAPACITY = 16
    ENDED_MIN = 64               # ended ones in the queue that are not worth a removal


cdef void transactions_free(transactions_t* t) noexcept nogil:
    free(t.open)
    free(t.waiting)
    memset(t, 0, sizeof(transactions_t))


cdef void transactions_cut(transactions_t* t, int64_t end) noexcept nogil:
    """Forget the open transactions, and waiting ones whose marker is at `end` or later: the log is cut there."""
    t.head = t.tail = t.ended = 0
    while t.waiting_tail > t.waiting_head and t.waiting[t.waiting_tail - 1].marker >= end:
        t.waiting_tail -= 1


cdef int make_room(
    void** items, size_t size, int64_t* head, int64_t* tail, int64_t* capacity, int64_t more) noexcept nogil:
    """Make room for so many more items at the tail of a queue: move it to the front of its memory, and have that half
    empty then, so that a move is rare."""
    cdef int64_t wanted = max(capacity[0], <int64_t>FIRST_CAPACITY)
    cdef void* larger
    if tail[0] + more <= capacity[0]:
        return 0
    if head[0] > 0:
        memmove(items[0], <char*>items[0] + size * head[0], size * (tail[0] - head[0]))
        tail[0] -= head[0]
        head[0] = 0
    while wanted < 2 * (tail[0] + more):
        wanted *= 2
    if wanted > capacity[0]:
        larger = realloc(items[0], size * wanted)
        if larger == NULL:
            return -ENOMEM
        items[0] = larger
        capacity[0] = wanted
    return 0


cdef int transactions_reserve(transactions_t* t, int64_t more) noexcept nogil:
    """Make room for so many more transactions that begin or end; -ENOMEM without memory."""
    cdef int status = make_room(<void**>&t.open, sizeof(opened_t), &t.head, &t.tail, &t.capacity, more)
    if status == 0:
        status = make_room(
            <void**>&t.waiting, sizeof(ended_t), &t.waiting_head, &t.waiting_tail, &t.waiting_capacity, more)
    return status


cdef int64_t find(const transactions_t* t, int64_t first) noexcept nogil:
    """The index of the first transaction that begins at `first` or later."""
    cdef int64_t low = t.head, high = t.tail, middle
    while low < high:
        middle = (low + high) >> 1
        if t.open[middle].first < first:
            low = middle + 1
        else:
            high = middle
    return low


cdef int transactions_begin(transactions_t* t, int64_t first) noexcept nogil:
    """Add an open transaction; it cannot fail after transactions_reserve."""
    cdef int64_t at
    cdef int status = transactions_reserve(t, 1)
    if status < 0:
        return status
    at = t.tail
    if at > t.head and t.open[at - 1].first >= first:  # a damaged log: two that begin at one offset, or out of order
        at = find(t, first)
        memmove(t.open + at + 1, t.open + at, sizeof(opened_t) * (t.tail - at))
    t.open[at].first = first
    t.open[at].ended = 0
    t.tail += 1
    return 0


cdef void leave_head(transactions_t* t) noexcept nogil:
    while t.head < t.tail and t.open[t.head].ended:
        t.head += 1
        t.ended -= 1


cdef void remove_ended(transactions_t* t) noexcept nogil:
    cdef int64_t i, kept = 0
    for i in range(t.head, t.tail):
        if not t.open[i].ended:
            t.open[kept] = t.open[i]
            kept += 1
    t.head = t.ended = 0
    t.tail = kept


cdef int transactions_end(transactions_t* t, int64_t first, int64_t marker, int64_t high_watermark) noexcept nogil:
    """End the open transaction that begins at `first`; it waits while its marker is not below the high watermark. It
    cannot fail after transactions_reserve."""
    cdef int64_t at
    cdef int status = transactions_reserve(t, 1)
    if status < 0:
        return status
    at = find(t, first)
    while at < t.tail and t.open[at].first == first and t.open[at].ended:
        at += 1
    if at < t.tail and t.open[at].first == first:
        t.open[at].ended = 1
        t.ended += 1
        leave_head(t)
        if t.ended > ENDED_MIN and 2 * t.ended > t.tail - t.head:
            remove_ended(t)
    if marker < high_watermark:
        return 0
    while t.waiting_tail > t.waiting_head and t.waiting[t.waiting_tail - 1].first >= first:
        t.waiting_tail -= 1
    t.waiting[t.waiting_tail].first = first
    t.waiting[t.waiting_tail].marker = marker
    t.waiting_tail += 1
    return 0


cdef void transactions_swap_waiting(transactions_t* t, transactions_t* other) noexcept nogil:
    t.waiting, other.waiting = other.waiting, t.waiting
    t.waiting_head, other.waiting_head = other.waiting_head, t.waiting_head
    t.waiting_tail, other.waiting_tail = other.waiting_tail, t.waiting_tail
    t.waiting_capacity, other.waiting_capacity = other.waiting_capacity, t.waiting_capacity


cdef int64_t transactions_first_open(const transactions_t* t) noexcept nogil:
    """The first offset of the oldest open transaction, or NOTHING_OPEN."""
    return t.open[t.head].first if t.head < t.tail else NOTHING_OPEN


cdef int64_t transactions_first_beside(const transactions_t* t, int64_t first) noexcept nogil:
    """The first offset of the oldest open transaction that does not begin at `first`, or NOTHING_OPEN."""
    cdef int64_t i = t.head
    if i < t.tail and t.open[i].first == first:
        i += 1
        while i < t.tail and t.open[i].ended:
            i += 1
    return t.open[i].first if i < t.tail else NOTHING_OPEN


cdef int64_t transactions_first_waiting(transactions_t* t, int64_t high_watermark) noexcept nogil:
    """The first offset of the oldest transaction whose marker is not below the high watermark, or NOTHING_OPEN. The
    others are forgotten: a high watermark does not go back."""
    while t.waiting_head < t.waiting_tail and t.waiting[t.waiting_head].marker < high_watermark:
        t.waiting_head += 1
    return t.waiting[t.waiting_head].first if t.waiting_head < t.waiting_tail else NOTHING_OPEN


cdef int ascending(const void* a, const void* b) noexcept nogil:
    cdef int64_t x = (<const opened_t*>a).first, y = (<const opened_t*>b).first
    return (x > y) - (x < y)


cdef int transactions_take(transactions_t* t, const sequence_t* producers) noexcept nogil:
    """Replace the open transactions by those of a producer state; waiting ones stay."""
    cdef int32_t i
    cdef int64_t n = 0
    cdef int status
    t.head = t.tail = t.ended = 0
    for i in range(producers.capacity):
        n += producers.table[i].id >= 0 and producers.table[i].txn_first_offset >= 0
    status = transactions_reserve(t, n)
    if status < 0:
        return status
    for i in range(producers.capacity):
        if producers.table[i].id >= 0 and producers.table[i].txn_first_offset >= 0:
            t.open[t.tail].first = producers.table[i].txn_first_offset
            t.open[t.tail].ended = 0
            t.tail += 1
    if t.tail > 0:
        qsort(t.open, t.tail, sizeof(opened_t), ascending)
    return 0
