# The leaders that a response names, so that clients need no metadata request to find them (KIP-951).
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.cursor cimport writer_t
from pybroker.core.base.protocol cimport FETCH_BYTES_CURRENT_LEADER

cdef enum:
    LEADERS_MAX = 32             # brokers in one response; clients find others by metadata
    NODE_TEXT_MAX = 255          # bytes of a host's name, and of a rack's
    CURRENT_LEADER_BYTES = 1 + 1 + FETCH_BYTES_CURRENT_LEADER  # a tag, its size, the struct (as in Produce)

cdef struct node_t:             # the address of a broker for the clients of one listener
    int32_t listener
    int32_t id
    int32_t port
    int32_t host_length
    int32_t rack_length          # -1: no rack
    uint8_t host[<int>NODE_TEXT_MAX]
    uint8_t rack[<int>NODE_TEXT_MAX]

cdef struct nodes_t:             # never changed; replaced as a whole
    int32_t count
    node_t* items                # after the struct

cdef struct leaders_t:           # the brokers that one response names
    nodes_t** known              # the plane's table; NULL: name none
    int32_t count
    const node_t* items[<int>LEADERS_MAX]

cdef nodes_t* nodes_new(int32_t count) noexcept nogil
cdef void leaders_add(leaders_t* l, int32_t listener, int32_t id) noexcept nogil
cdef int64_t leaders_bytes(const leaders_t* l) noexcept nogil
cdef void write_leaders(writer_t* w, const leaders_t* l) noexcept nogil
cdef void write_current_leader(writer_t* w, int tag, int32_t leader, int32_t leader_epoch) noexcept nogil

# Encode a text into room for NODE_TEXT_MAX bytes; its length.
cdef int32_t put_text(uint8_t* at, str text) except -1
