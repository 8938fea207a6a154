"""Batches that a log refused for a temporary reason: no space, too few replicas in sync, a lapsed lease.

A client sends up to five batches before the first is answered. If that one is refused, the next ones have a gap before
them. librdkafka reacts to OUT_OF_ORDER_SEQUENCE_NUMBER with a new epoch for all partitions, under which it sends again
batches that were appended but not yet acknowledged. And a producer that is not known yet would begin with its second
batch. So batches that follow a refused one are refused with the same error, until the client sends that one again.

An entry counts only while its batch would be accepted: not once another leader accepted it, nor in a newer epoch. It
expires REFUSED_MS after its batch was last refused: a client that gave the batch up, and goes on in the same epoch,
then gets Kafka's answer. The table is small, as few honest producers have batches in flight at a time; a producer that
loses its entry gets Kafka's answer as well.

A new leader does not know what other leaders refused, or what it refused itself before it led. It takes a gap for the
sign of such a refusal once per batch: the client then sends again all that was refused, the earliest first. A batch
that comes again without its predecessor has none.
"""

from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport free, realloc

from pybroker.core.storage.producers.producer_state cimport seen_t, sequence_check

cdef enum:
    FIRST_CAPACITY = 8
    SEQUENCE_MASK = 0x7FFFFFFF
    AHEAD_MAX = 1 << 30          # sequences wrap around: half of their range counts as ahead


cdef void refusals_free(refusals_t* r) noexcept nogil:
    free(r.items)
    r.items = NULL
    r.count = r.capacity = 0


cdef refused_t* find(const refusals_t* r, int64_t id) noexcept nogil:
    cdef int32_t i
    for i in range(r.count):
        if r.items[i].id == id:
            return &r.items[i]
    return NULL


cdef bint counts(const refused_t* e, const sequence_t* s, int64_t now_ms) noexcept nogil:
    """True while the refused batch is the one that the producer has to send next."""
    cdef seen_t seen
    if e.held_in >= 0 or now_ms - e.at_ms >= REFUSED_MS:
        return False
    return sequence_check(s, e.id, e.epoch, e.sequence, 0, &seen) == 0


cdef inline bint is_ahead(int32_t sequence, int32_t than) noexcept nogil:
    return 0 < ((<int64_t>sequence - than) & SEQUENCE_MASK) <= AHEAD_MAX


cdef int refusals_find(
    const refusals_t* r, const sequence_t* s, int64_t id, int16_t epoch, int32_t first, int64_t now_ms) noexcept nogil:
    """The status of the refused batch that a batch with this first sequence follows; 0 if there is none."""
    cdef const refused_t* e = find(r, id)
    if e == NULL or e.epoch != epoch or not is_ahead(first, e.sequence) or not counts(e, s, now_ms):
        return 0
    return e.status


cdef refused_t* oldest(const refusals_t* r) noexcept nogil:
    cdef refused_t* e = r.items
    cdef int32_t i
    for i in range(1, r.count):
        if r.items[i].at_ms < e.at_ms:
            e = &r.items[i]
    return e


cdef refused_t* add(refusals_t* r) noexcept nogil:
    """A free entry; NULL without memory, and the refusal is not remembered."""
    cdef int32_t capacity = min(r.capacity * 2 if r.capacity else FIRST_CAPACITY, REFUSED_MAX)
    cdef refused_t* larger
    if r.count == REFUSED_MAX:
        return oldest(r)
    if r.count == r.capacity:
        larger = <refused_t*>realloc(r.items, sizeof(refused_t) * capacity)
        if larger == NULL:
            return NULL
        r.items = larger
        r.capacity = capacity
    r.count += 1
    return &r.items[r.count - 1]


cdef void refusals_note(
    refusals_t* r, const sequence_t* s, int64_t id, int16_t epoch, int32_t first, int status,
    int64_t now_ms) noexcept nogil:
    """Remember a refused batch whose sequence would have been accepted. A batch that follows a refused one of its
    epoch, or that has an earlier epoch, changes nothing."""
    cdef refused_t* e = find(r, id)
    if e != NULL and counts(e, s, now_ms):
        if e.epoch > epoch or (e.epoch == epoch and is_ahead(first, e.sequence)):
            return
    if e == NULL:
        e = add(r)
    if e != NULL:
        e.id = id
        e.at_ms = now_ms
        e.sequence = first
        e.status = status
        e.epoch = epoch
        e.held_in = -1


cdef bint refusals_hold(
    refusals_t* r, int64_t id, int16_t epoch, int32_t first, int32_t leader_epoch, int64_t now_ms) noexcept nogil:
    """Remember the first batch after a gap; False if it was refused for that in this leader epoch, or for want of
    memory. True for the batches that follow it."""
    cdef refused_t* e = find(r, id)
    if e != NULL and e.held_in == leader_epoch and e.epoch == epoch:
        if e.sequence == first:
            return False
        if is_ahead(first, e.sequence):
            return True
    if e == NULL:
        e = add(r)
    if e == NULL:
        return False
    e.id = id
    e.at_ms = now_ms
    e.sequence = first
    e.status = 0
    e.epoch = epoch
    e.held_in = leader_epoch
    return True


cdef void refusals_forget(refusals_t* r, int64_t id) noexcept nogil:
    """Forget a producer's refused batch, because a batch of it was accepted."""
    cdef refused_t* e = find(r, id)
    if e == NULL:
        return
    r.count -= 1
    e[0] = r.items[r.count]
    if r.count == 0:
        refusals_free(r)
