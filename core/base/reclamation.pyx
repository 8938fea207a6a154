"""Publish, pin, quiesce, free.

A reader takes a pin, follows published pointers and unpins; it never waits for a writer. A writer first unpublishes an
object and then retires it; `collect` frees what was retired before the oldest pinned reader entered. (Epoch based
reclamation, K. Fraser, "Practical lock-freedom", 2004; "epoch" means something else in Kafka, so it is an era here.)

A pin never waits for another pin: a thread that holds one takes more, so if every reactor held one and waited for its
second, all would wait for ever. When all slots are taken, another block is added.
"""

from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from pybroker.core.base.atomic cimport (
    add_i32, add_i64, cas_i32, cas_i64, cas_ptr, load_i32, load_i64, load_ptr, store_i64,
)
from pybroker.core.base.pthread cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, pthread_self,
)

cdef extern from "<sched.h>" nogil:
    int sched_yield()


cdef void reclaim_init(reclaim_t* q) noexcept nogil:
    memset(q, 0, sizeof(reclaim_t))
    q.era = 1
    q.blocks[0] = &q.first
    q.count = 1
    pthread_mutex_init(&q.lock, NULL)


cdef void reclaim_destroy(reclaim_t* q) noexcept nogil:
    """Free everything that was retired. The caller knows that no reader is left."""
    cdef retired_t* r = q.retired
    cdef retired_t* after
    cdef int i
    while r != NULL:
        after = r.next
        r.free(r.object)
        free(r)
        r = after
    q.retired = NULL
    for i in range(1, q.count):
        free(q.blocks[i])
    pthread_mutex_destroy(&q.lock)


cdef inline int64_t* era_at(reclaim_t* q, int slot) noexcept nogil:
    return &(<pins_t*>load_ptr(<void**>&q.blocks[slot // PINS])).pins[slot % PINS].era


cdef bint grow(reclaim_t* q, int32_t count) noexcept nogil:
    """Make sure there are more than `count` blocks; False at the maximum or without memory."""
    cdef pins_t* block
    if count == PIN_BLOCKS:
        return False
    if load_ptr(<void**>&q.blocks[count]) == NULL:
        block = <pins_t*>calloc(1, sizeof(pins_t))
        if block == NULL:
            return False
        if not cas_ptr(<void**>&q.blocks[count], NULL, block):
            free(block)          # another thread was faster
    # The exchange orders threads that saw the smaller count before us, with all that they had retired (see pin).
    cas_i32(&q.count, count, count + 1)
    return True


cdef int pin(reclaim_t* q) noexcept nogil:
    """Enter, and return the slot for unpin. What is loaded before unpin stays allocated."""
    cdef int32_t count = load_i32(&q.count)
    cdef int slots = count * PINS, i = <int>((<uintptr_t>pthread_self() >> 12) % slots), looked = 0
    cdef int64_t* era
    while True:
        # A stale era is harmless: it only makes the collector wait. The exchange is a full barrier: a collector that
        # looked at this slot before it had retired, and therefore unpublished, what we are about to load.
        era = era_at(q, i)
        if load_i64(era) == 0 and cas_i64(era, 0, load_i64(&q.era)):
            return i
        i = (i + 1) % slots
        looked += 1
        if looked == slots:
            looked = 0
            i = slots
            if load_i32(&q.count) == count and not grow(q, count):
                sched_yield()
            count = load_i32(&q.count)
            slots = count * PINS
            i %= slots           # the first of the new slots


cdef void unpin(reclaim_t* q, int slot) noexcept nogil:
    store_i64(era_at(q, slot), 0)


cdef void retire(reclaim_t* q, void* object, free_fn free_object) noexcept nogil:
    """Free `object`, already unpublished, once every reader that entered before now has left."""
    cdef retired_t* r
    if object == NULL:
        return
    r = <retired_t*>malloc(sizeof(retired_t))
    if r == NULL:
        return  # a leak is the only safe answer
    r.object = object
    r.free = free_object
    pthread_mutex_lock(&q.lock)
    r.era = add_i64(&q.era, 1) - 1
    r.next = q.retired
    q.retired = r
    pthread_mutex_unlock(&q.lock)


cdef int collect(reclaim_t* q) noexcept nogil:
    """Free what no reader can hold any more; the number of objects that still wait."""
    cdef int64_t oldest, era
    cdef int i, slots, waiting = 0
    cdef retired_t* r
    cdef retired_t* after
    cdef retired_t* kept = NULL
    cdef retired_t* left = NULL
    pthread_mutex_lock(&q.lock)
    oldest = load_i64(&q.era)
    slots = add_i32(&q.count, 0) * PINS
    for i in range(slots):
        era = add_i64(era_at(q, i), 0)
        if era != 0 and era < oldest:
            oldest = era
    r = q.retired
    while r != NULL:
        after = r.next
        if r.era < oldest:
            r.next = left
            left = r
        else:
            r.next = kept
            kept = r
            waiting += 1
        r = after
    q.retired = kept
    pthread_mutex_unlock(&q.lock)
    while left != NULL:
        after = left.next
        left.free(left.object)
        free(left)
        left = after
    return waiting
