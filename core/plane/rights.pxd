# What a connection's client may do with topics, as Python has judged it: kept with the connection, until rules change.
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum:
    RIGHT_READ = 1
    RIGHT_WRITE = 2

cdef struct right_t:
    uint8_t topic_id[16]
    int32_t bits                 # 0: a free slot

cdef struct rights_t:            # only the reactor of its connection touches it
    const int64_t* rules         # the number of the rules that hold now
    int64_t known                # and of those that the rights follow from
    int32_t count
    int32_t capacity             # a power of two
    right_t* slots

cdef struct given_t:             # rights on their way to a connection
    int64_t rules                # that they follow from
    int32_t count
    right_t* items               # behind the struct

cdef rights_t* rights_new(const int64_t* rules) noexcept nogil
cdef void rights_free(rights_t* r) noexcept nogil

# May the client do this with a topic? False where Python has not said so yet, by the rules that hold now.
cdef bint rights_allow(const rights_t* r, const uint8_t* topic_id, int32_t bit) noexcept nogil

# Keep what is given, unless the rules are others by now.
cdef void rights_take(rights_t* r, const given_t* given) noexcept nogil

# {topic id: bits} of Python, on the heap, for free(). NULL for none.
cdef given_t* rights_given(object told, int64_t rules) except? NULL
