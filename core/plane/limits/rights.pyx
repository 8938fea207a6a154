"""The rights of a connection's client on topics, so that the network thread can check them without Python.

    no right ──Python executes the request, and allows it──> its reply brings the right ──> executed here from now on
      ^──────────────────────────── the rules change: all rights are dropped ────────────────────────────┘

Nothing is denied here: a request without a known right goes to Python, which decides and answers. A right carries the
number of the rules that it follows from; one that arrives after a change of the rules is dropped.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from pybroker.core.base.atomic cimport load_i64
from pybroker.core.partition.partition cimport TOPIC_ID_BYTES

cdef enum:
    SLOTS_MIN = 16
    RIGHTS_MAX = 8192            # of one connection; when there are more, all are dropped


cdef rights_t* rights_new(const int64_t* rules) noexcept nogil:
    """Rights of a new connection, none yet; NULL without memory."""
    cdef rights_t* r = <rights_t*>calloc(1, sizeof(rights_t))
    if r != NULL:
        r.rules = rules
        r.known = -1
    return r


cdef void rights_free(rights_t* r) noexcept nogil:
    if r != NULL:
        free(r.slots)
        free(r)


cdef inline right_t* find(right_t* slots, int32_t capacity, const uint8_t* topic_id) noexcept nogil:
    """The slot of a topic, or the free slot for it. Ids are random: their bytes are the hash."""
    cdef int32_t start = 0, i
    memcpy(&start, topic_id + 4, sizeof(start))
    i = start & (capacity - 1)
    while slots[i].bits != 0 and memcmp(slots[i].topic_id, topic_id, TOPIC_ID_BYTES) != 0:
        i = (i + 1) & (capacity - 1)
    return &slots[i]


cdef bint rights_allow(const rights_t* r, const uint8_t* topic_id, int32_t bit) noexcept nogil:
    if r.count == 0 or r.known != load_i64(r.rules):
        return False
    return find(r.slots, r.capacity, topic_id).bits & bit != 0


cdef bint grow(rights_t* r) noexcept nogil:
    """Make room for one more; False without memory."""
    cdef int32_t capacity = max(<int32_t>SLOTS_MIN, 2 * r.capacity), i
    cdef right_t* slots
    if 2 * (r.count + 1) <= r.capacity:
        return True
    slots = <right_t*>calloc(capacity, sizeof(right_t))
    if slots == NULL:
        return False
    for i in range(r.capacity):
        if r.slots[i].bits != 0:
            find(slots, capacity, r.slots[i].topic_id)[0] = r.slots[i]
    free(r.slots)
    r.slots = slots
    r.capacity = capacity
    return True


cdef void rights_take(rights_t* r, const given_t* given) noexcept nogil:
    cdef int32_t i
    cdef right_t* slot
    if given.rules != load_i64(r.rules):
        return
    if r.known != given.rules or r.count + given.count > RIGHTS_MAX:
        if r.slots != NULL:
            memset(r.slots, 0, r.capacity * sizeof(right_t))
        r.count = 0
        r.known = given.rules
    for i in range(min(given.count, <int32_t>RIGHTS_MAX)):
        if not grow(r):
            return
        slot = find(r.slots, r.capacity, given.items[i].topic_id)
        if slot.bits == 0:
            memcpy(slot.topic_id, given.items[i].topic_id, TOPIC_ID_BYTES)
            r.count += 1
        slot.bits |= given.items[i].bits


cdef given_t* rights_given(object told, int64_t rules) except? NULL:
    cdef given_t* given
    cdef int32_t i = 0
    cdef bytes topic_id
    if not told:
        return NULL
    for topic_id in told:
        if len(topic_id) != TOPIC_ID_BYTES:
            raise ValueError(f"a topic id has {TOPIC_ID_BYTES} bytes, and not {len(topic_id)}")
    given = <given_t*>calloc(1, sizeof(given_t) + len(told) * sizeof(right_t))
    if given == NULL:
        raise MemoryError()
    given.rules = rules
    given.count = <int32_t>len(told)
    given.items = <right_t*>(given + 1)
    for topic_id, bits in told.items():
        memcpy(given.items[i].topic_id, <const char*>topic_id, TOPIC_ID_BYTES)
        given.items[i].bits = bits
        i += 1
    return given
