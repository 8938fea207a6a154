"""Guards between the question whether a partition is in a transaction, and the append of its batch (KIP-890).

Before the first batch of a transaction is appended, the coordinator is asked. Its answer may be old when it comes: the
transaction may have ended meanwhile, and another one too. So the question leaves a guard here, which the append brings
along; every batch and every marker of the producer drops it. Asking again before that gives the same guard: a client
sends several batches at a time. Their lowest sequence is kept: if the question for the first batch failed, a later one
must not be the first to be appended.

Guards are the memory of one leader. They are dropped when the role changes.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free

cdef enum:
    FIRST_CAPACITY = 16


cdef void verifications_free(verifications_t* v) noexcept nogil:
    """Drop all guards; their numbers are not used again."""
    free(v.table)
    v.table = NULL
    v.capacity = v.count = 0


cdef inline int32_t home(const verifications_t* v, int64_t id) noexcept nogil:
    return <int32_t>((<uint64_t>id * <uint64_t>0x9E3779B97F4A7C15) >> 33) & (v.capacity - 1)


cdef int32_t slot_of(const verifications_t* v, int64_t id) noexcept nogil:
    """The producer's slot, or the free one that it would get."""
    cdef int32_t i = home(v, id)
    while v.table[i].id >= 0 and v.table[i].id != id:
        i = (i + 1) & (v.capacity - 1)
    return i


cdef const verification_t* verifications_find(const verifications_t* v, int64_t id) noexcept nogil:
    cdef int32_t i
    if v.count == 0:
        return NULL
    i = slot_of(v, id)
    return &v.table[i] if v.table[i].id == id else NULL


cdef int grow(verifications_t* v) noexcept nogil:
    cdef verifications_t larger = v[0]
    cdef int32_t i
    larger.capacity = v.capacity * 2 if v.capacity else FIRST_CAPACITY
    larger.table = <verification_t*>calloc(larger.capacity, sizeof(verification_t))
    if larger.table == NULL:
        return -ENOMEM
    for i in range(larger.capacity):
        larger.table[i].id = -1
    for i in range(v.capacity):
        if v.table[i].id >= 0:
            larger.table[slot_of(&larger, v.table[i].id)] = v.table[i]
    free(v.table)
    v[0] = larger
    return 0


cdef void remove(verifications_t* v, int32_t hole) noexcept nogil:
    """Empty a slot and move later entries of its run back, so that probing never meets a false end."""
    cdef int32_t mask = v.capacity - 1, i = hole
    v.count -= 1
    while True:
        i = (i + 1) & mask
        if v.table[i].id < 0:
            break
        if ((i - home(v, v.table[i].id)) & mask) >= ((i - hole) & mask):
            v.table[hole] = v.table[i]
            hole = i
    v.table[hole].id = -1


cdef void remove_next(verifications_t* v, int32_t i) noexcept nogil:
    """Remove the first entry from slot i on; there is one."""
    while v.table[i & (v.capacity - 1)].id < 0:
        i += 1
    remove(v, i & (v.capacity - 1))


cdef int64_t verifications_ask(verifications_t* v, int64_t id, int16_t epoch, int32_t first) noexcept nogil:
    """The guard of a producer that has no open transaction, for a batch with this first sequence; -ENOMEM without
    memory."""
    cdef verification_t* e = <verification_t*>verifications_find(v, id)
    if e == NULL:
        if v.count == VERIFICATIONS_MAX:
            remove_next(v, home(v, v.guards))
        if v.count * 4 >= v.capacity * 3 and grow(v) < 0:
            return -ENOMEM
        e = &v.table[slot_of(v, id)]
        v.count += 1
        v.guards += 1
        e.id, e.guard, e.lowest, e.epoch = id, v.guards, first, epoch
    elif epoch > e.epoch:
        e.lowest, e.epoch = first, epoch
    elif epoch == e.epoch and first < e.lowest:
        e.lowest = first
    return e.guard


cdef void verifications_drop(verifications_t* v, int64_t id) noexcept nogil:
    """Drop the guard of a producer, as a batch or a marker of it was appended."""
    cdef const verification_t* e = verifications_find(v, id)
    if e != NULL:
        remove(v, <int32_t>(e - v.table))
        if v.count == 0:
            verifications_free(v)
