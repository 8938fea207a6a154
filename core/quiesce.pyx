"""Publish, pin, quiesce, free.

A reader takes a pin, follows published pointers and lets go; it never waits for a writer. A writer first unpublishes an
object and then retires it; `collect` frees what was retired before every reader that is still inside came in. (Epoch based
reclamation, K. Fraser, "Practical lock-freedom", 2004; "epoch" is Kafka's word for something else, so it is a turn here.)
"""

from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free, malloc

from pybroker.core.atomic cimport add_i64, cas_i64, load_i64, store_i64

cdef extern from "<pthread.h>" nogil:
    ctypedef uintptr_t pthread_t
    pthread_t pthread_self()

cdef extern from "<sched.h>" nogil:
    int sched_yield()


cdef void quiesce_init(quiesce_t* q) noexcept nogil:
    cdef int i
    q.turn = 1
    q.retired = NULL
    for i in range(PINS):
        q.pins[i].turn = 0
    pthread_mutex_init(&q.lock, NULL)


cdef void quiesce_destroy(quiesce_t* q) noexcept nogil:
    """Free everything that waits. The caller knows that no reader is left."""
    cdef retired_t* r = q.retired
    cdef retired_t* after
    while r != NULL:
        after = r.next
        r.free(r.object)
        free(r)
        r = after
    q.retired = NULL
    pthread_mutex_destroy(&q.lock)


cdef int pin(quiesce_t* q) noexcept nogil:
    """Enter; the slot to leave by. What is loaded between the two stays allocated."""
    cdef int i = <int>((pthread_self() >> 12) % PINS)
    while True:
        # A stale turn is harmless: it only makes the collector wait. The exchange is a full barrier, so that whoever
        # looked at this slot before it had retired, and therefore unpublished, what we are about to load.
        if load_i64(&q.pins[i].turn) == 0 and cas_i64(&q.pins[i].turn, 0, load_i64(&q.turn)):
            return i
        i = (i + 1) % PINS
        if i == 0:
            sched_yield()


cdef void unpin(quiesce_t* q, int slot) noexcept nogil:
    store_i64(&q.pins[slot].turn, 0)


cdef void retire(quiesce_t* q, void* object, free_fn free_object) noexcept nogil:
    """Free `object`, already unpublished, once every reader of now has left."""
    cdef retired_t* r
    if object == NULL:
        return
    r = <retired_t*>malloc(sizeof(retired_t))
    if r == NULL:
        return  # a leak is the only safe answer
    r.object = object
    r.free = free_object
    pthread_mutex_lock(&q.lock)
    r.turn = add_i64(&q.turn, 1) - 1
    r.next = q.retired
    q.retired = r
    pthread_mutex_unlock(&q.lock)


cdef int collect(quiesce_t* q) noexcept nogil:
    """Free what no reader can hold any more; how many objects still wait."""
    cdef int64_t oldest, turn
    cdef int i, waiting = 0
    cdef retired_t* r
    cdef retired_t* after
    cdef retired_t* kept = NULL
    cdef retired_t* ready = NULL
    pthread_mutex_lock(&q.lock)
    oldest = load_i64(&q.turn)
    for i in range(PINS):
        turn = add_i64(&q.pins[i].turn, 0)
        if turn != 0 and turn < oldest:
            oldest = turn
    r = q.retired
    while r != NULL:
        after = r.next
        if r.turn < oldest:
            r.next = ready
            ready = r
        else:
            r.next = kept
            kept = r
            waiting += 1
        r = after
    q.retired = kept
    pthread_mutex_unlock(&q.lock)
    while ready != NULL:
        after = ready.next
        ready.free(ready.object)
        free(ready)
        ready = after
    return waiting
