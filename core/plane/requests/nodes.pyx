"""The leaders that a response names, so that clients need no metadata request to find them (KIP-951).

Python gives the plane a table of broker addresses for the clients of each listener; reactors are pinned while they read
it. For a partition that is not led here, the response has its leader in the tag CurrentLeader; the response ends with
NodeEndpoints, which has each leader once, in order of appearance.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc
from libc.string cimport memcpy

from pybroker.core.base.atomic cimport load_ptr
from pybroker.core.base.cursor cimport uvarlong_size, write_i32, write_i8, write_uvarlong, writer_t
from pybroker.core.base.protocol cimport FETCH_BYTES_CURRENT_LEADER, FETCH_TAG_NODE_ENDPOINTS
from pybroker.core.plane.requests.wire cimport text_t, write_length, write_no_tags, write_text


cdef nodes_t* nodes_new(int32_t count) noexcept nogil:
    """A table to fill in; NULL without memory."""
    cdef nodes_t* n = <nodes_t*>calloc(1, sizeof(nodes_t) + count * sizeof(node_t))
    if n != NULL:
        n.count = count
        n.items = <node_t*>(n + 1)
    return n


cdef void leaders_add(leaders_t* l, int32_t listener, int32_t id) noexcept nogil:
    """Add a broker to the response once, if its address for clients of the listener is known. The caller is pinned
    until the response is written."""
    cdef const nodes_t* known = <nodes_t*>load_ptr(<void**>l.known) if l.known != NULL else NULL
    cdef int32_t i
    if known == NULL or l.count == LEADERS_MAX:
        return
    for i in range(l.count):
        if l.items[i].id == id:
            return
    for i in range(known.count):
        if known.items[i].id == id and known.items[i].listener == listener:
            l.items[l.count] = &known.items[i]
            l.count += 1
            return


cdef int64_t body_bytes(const leaders_t* l) noexcept nogil:
    """The bytes of the array NodeEndpoints."""
    cdef int64_t n = uvarlong_size(l.count + 1)
    cdef const node_t* node
    cdef int32_t i
    for i in range(l.count):
        node = l.items[i]
        n += 4 + uvarlong_size(node.host_length + 1) + node.host_length + 4
        n += uvarlong_size(node.rack_length + 1) + max(0, node.rack_length) + 1
    return n


cdef int64_t leaders_bytes(const leaders_t* l) noexcept nogil:
    """The bytes that write_leaders writes."""
    cdef int64_t body = body_bytes(l)
    return 1 + (1 + uvarlong_size(body) + body if l.count else 0)


cdef void write_leaders(writer_t* w, const leaders_t* l) noexcept nogil:
    """Write the tags at the end of a response."""
    cdef text_t text
    cdef int32_t i
    if l.count == 0:
        write_no_tags(w, True)
        return
    write_uvarlong(w, 1)
    write_uvarlong(w, FETCH_TAG_NODE_ENDPOINTS)  # the same tag as in Produce
    write_uvarlong(w, body_bytes(l))
    write_length(w, True, l.count)
    for i in range(l.count):
        write_i32(w, l.items[i].id)
        text.at = <const uint8_t*>l.items[i].host
        text.length = l.items[i].host_length
        write_text(w, True, &text)
        write_i32(w, l.items[i].port)
        text.at = <const uint8_t*>l.items[i].rack if l.items[i].rack_length >= 0 else NULL
        text.length = l.items[i].rack_length
        write_text(w, True, &text)
        write_no_tags(w, True)


cdef void write_current_leader(writer_t* w, int tag, int32_t leader, int32_t leader_epoch) noexcept nogil:
    """Write the tags of a partition that is not led here."""
    if leader < 0 and leader_epoch < 0:
        write_no_tags(w, True)   # the leader is not known
        return
    write_uvarlong(w, 1)
    write_uvarlong(w, tag)
    write_uvarlong(w, FETCH_BYTES_CURRENT_LEADER)
    write_i32(w, leader)
    write_i32(w, leader_epoch)
    write_i8(w, 0)


cdef int32_t put_text(uint8_t* at, str text) except -1:
    """Encode a text into room for NODE_TEXT_MAX bytes; its length in bytes. ValueError if it is longer."""
    cdef bytes data = text.encode()
    if len(data) > NODE_TEXT_MAX:
        raise ValueError(f"{text!r} has more than {NODE_TEXT_MAX} bytes")
    memcpy(at, <const char*>data, len(data))
    return <int32_t>len(data)
