"""Encoding and decoding of the protocol: headers, strings, arrays, tags, flexible or not.

In flexible versions of an API lengths are unsigned varints of n + 1, and every struct ends with a section of tags.
Reads return OK, SHORT or BAD as the cursor does. Nothing is allocated here, and counts are not checked: the caller
reads the elements.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from pybroker.core.base.cursor cimport (
    BAD, OK, cursor_left, cursor_t, read_i16, read_i32, read_span, read_uvarint, skip, write_i16, write_i32, write_i8,
    write_span, write_uvarlong, writer_t,
)
from pybroker.core.partition.partition cimport TOPIC_ID_BYTES

cdef struct text_t:
    const uint8_t* at            # NULL: null
    int32_t length


cdef inline int read_length(cursor_t* r, bint flexible, int32_t* out) noexcept nogil:
    """Read the length of bytes or an array; -1 null."""
    cdef uint32_t n = 0
    cdef int status
    if not flexible:
        return read_i32(r, out)
    status = read_uvarint(r, &n)
    if status == OK:
        if n > <uint32_t>0x7FFFFFFF:
            return BAD
        out[0] = <int32_t>n - 1
    return status


cdef inline int read_text(cursor_t* r, bint flexible, text_t* out) noexcept nogil:
    """Read a nullable string."""
    cdef int32_t n = 0
    cdef int16_t short_length = 0
    cdef int status
    if flexible:
        status = read_length(r, True, &n)
    else:
        status = read_i16(r, &short_length)
        n = short_length
    if status != OK:
        return status
    out.at = NULL
    out.length = n
    if n < 0:
        return OK if n == -1 else BAD
    return read_span(r, n, &out.at)


cdef inline int read_topic(cursor_t* r, bint by_id, bint flexible, text_t* topic, int32_t* partitions) noexcept nogil:
    """Read a topic's name or id, which is not null, and the number of its partitions."""
    cdef int status
    topic.at = NULL
    topic.length = 0
    if by_id:
        topic.length = TOPIC_ID_BYTES
        status = read_span(r, TOPIC_ID_BYTES, &topic.at)
    else:
        status = read_text(r, flexible, topic)
    if status == OK and topic.at == NULL:
        return BAD
    return status if status != OK else read_length(r, flexible, partitions)


cdef inline int read_tags(cursor_t* r, uint32_t* count) noexcept nogil:
    """Skip a section of tags; their number."""
    cdef uint32_t _i, tag = 0, size = 0
    cdef int status = read_uvarint(r, count)
    for _i in range(count[0] if status == OK else 0):
        status = read_uvarint(r, &tag)
        if status == OK:
            status = read_uvarint(r, &size)
        if status == OK:
            status = skip(r, size)
        if status != OK:
            return status
    return status


cdef inline int skip_tags(cursor_t* r, bint flexible) noexcept nogil:
    cdef uint32_t count = 0
    return read_tags(r, &count) if flexible else OK


cdef inline int read_header(cursor_t* r, bint flexible, int32_t* correlation) noexcept nogil:
    """Read the request header after api key and version. `flexible` follows from these, so the caller has read them."""
    cdef int16_t n = 0
    cdef int status = read_i32(r, correlation)
    if status == OK:
        status = read_i16(r, &n)  # the client id is never compact
    if status == OK and n > 0:
        status = skip(r, n)
    if status == OK and n < -1:
        return BAD
    return status if status != OK else skip_tags(r, flexible)


cdef inline void write_length(writer_t* w, bint flexible, int32_t n) noexcept nogil:
    if flexible:
        write_uvarlong(w, <uint32_t>(n + 1))
    else:
        write_i32(w, n)


cdef inline void write_text(writer_t* w, bint flexible, const text_t* s) noexcept nogil:
    """Write a string, or null."""
    if flexible:
        write_uvarlong(w, <uint32_t>(s.length + 1 if s.at != NULL else 0))
    else:
        write_i16(w, <int16_t>(s.length if s.at != NULL else -1))
    if s.at != NULL:
        write_span(w, s.at, s.length)


cdef inline void write_no_tags(writer_t* w, bint flexible) noexcept nogil:
    if flexible:
        write_i8(w, 0)
