# The brokers that a refusal names, so that clients find the leader without asking (KIP-951).
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.cursor cimport writer_t

cdef enum:
    LEADERS_MAX = 32             # brokers that one answer names; more are found by metadata
    NODE_TEXT_MAX = 255          # bytes of a host's name, and of a rack's
    CURRENT_LEADER_BYTES = 12

cdef struct node_t:             # as the clients of one listener reach it
    int32_t listener
    int32_t id
    int32_t port
    int32_t host_length
    int32_t rack_length          # -1: it has none
    uint8_t host[<int>NODE_TEXT_MAX]
    uint8_t rack[<int>NODE_TEXT_MAX]

cdef struct nodes_t:             # never changed; another one takes its place
    int32_t count
    node_t* items                # behind the struct

cdef struct leaders_t:           # whom one answer names
    nodes_t** known              # those of the plane; NULL: nobody is named
    int32_t count
    const node_t* items[<int>LEADERS_MAX]

cdef nodes_t* nodes_new(int32_t count) noexcept nogil
cdef void leaders_add(leaders_t* l, int32_t listener, int32_t id) noexcept nogil
cdef int64_t leaders_bytes(const leaders_t* l) noexcept nogil
cdef void write_leaders(writer_t* w, const leaders_t* l) noexcept nogil
cdef void write_current_leader(writer_t* w, int tag, int32_t leader, int32_t leader_epoch) noexcept nogil

# Python's text there, where is room for NODE_TEXT_MAX bytes.
cdef int32_t put_text(uint8_t* at, str text) except -1
