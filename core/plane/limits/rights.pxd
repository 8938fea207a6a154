# The rights of a connection's client on topics, as decided by Python: kept with the connection until the rules change.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.partition.partition cimport TOPIC_ID_BYTES

cdef enum:
    RIGHT_READ = 1
    RIGHT_WRITE = 2

cdef struct right_t:
    uint8_t topic_id[<int>TOPIC_ID_BYTES]
    int32_t bits                 # 0: a free slot

cdef struct rights_t:            # only the reactor of its connection touches it
    const int64_t* rules         # the number of the rules in force
    int64_t known                # the number of the rules that the rights follow from
    int32_t count
    int32_t capacity             # a power of two
    right_t* slots

cdef struct given_t:             # rights on their way to a connection
    int64_t rules                # of the rules that they follow from
    int32_t count
    right_t* items               # after the struct

cdef rights_t* rights_new(const int64_t* rules) noexcept nogil
cdef void rights_free(rights_t* r) noexcept nogil

# True if Python has granted this right on the topic, under the rules in force.
cdef bint rights_allow(const rights_t* r, const uint8_t* topic_id, int32_t bit) noexcept nogil

# Add granted rights, unless the rules have changed.
cdef void rights_take(rights_t* r, const given_t* given) noexcept nogil

# {topic id: bits} of Python, on the heap, for free(). None or empty: NULL.
cdef given_t* rights_given(object told, int64_t rules) except? NULL
