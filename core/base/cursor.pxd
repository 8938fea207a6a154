"""Bounds-checked reading and writing of bytes from peers: the only way core accesses them.

A cursor knows its end, and checks every length in the bytes against it. A read returns OK, SHORT (the bytes end before
the value does) or BAD (invalid for any bytes that follow); after SHORT and BAD cursor and out-parameter are unchanged.
Integers on the wire are big-endian two's complement. Varints are little-endian groups of seven bits: zigzag in records,
unsigned in the flexible versions of the protocol.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define pyb_be16(x) __builtin_bswap16(x)
    #define pyb_be32(x) __builtin_bswap32(x)
    #define pyb_be64(x) __builtin_bswap64(x)
    #else
    #define pyb_be16(x) (x)
    #define pyb_be32(x) (x)
    #define pyb_be64(x) (x)
    #endif
    """
    uint16_t pyb_be16(uint16_t x) noexcept nogil
    uint32_t pyb_be32(uint32_t x) noexcept nogil
    uint64_t pyb_be64(uint64_t x) noexcept nogil

# Statuses in addition to those of status.pxd: below any negated errno, so one int can hold all of them.
cdef enum:
    OK = 0
    SHORT = -10001
    BAD = -10002

cdef enum:
    VARINT_BYTES_MAX = 5
    VARLONG_BYTES_MAX = 10

cdef struct cursor_t:
    const uint8_t* at
    const uint8_t* end

cdef struct writer_t:
    uint8_t* at
    uint8_t* end


# -- loads and stores: the caller has checked that the bytes are there ------------------------------------------------

cdef inline int16_t load_be16(const uint8_t* p) noexcept nogil:
    cdef uint16_t x
    memcpy(&x, p, 2)
    return <int16_t>pyb_be16(x)


cdef inline int32_t load_be32(const uint8_t* p) noexcept nogil:
    cdef uint32_t x
    memcpy(&x, p, 4)
    return <int32_t>pyb_be32(x)


cdef inline int64_t load_be64(const uint8_t* p) noexcept nogil:
    cdef uint64_t x
    memcpy(&x, p, 8)
    return <int64_t>pyb_be64(x)


cdef inline void store_be16(uint8_t* p, int16_t value) noexcept nogil:
    cdef uint16_t x = pyb_be16(<uint16_t>value)
    memcpy(p, &x, 2)


cdef inline void store_be32(uint8_t* p, int32_t value) noexcept nogil:
    cdef uint32_t x = pyb_be32(<uint32_t>value)
    memcpy(p, &x, 4)


cdef inline void store_be64(uint8_t* p, int64_t value) noexcept nogil:
    cdef uint64_t x = pyb_be64(<uint64_t>value)
    memcpy(p, &x, 8)


# -- reader -----------------------------------------------------------------------------------------------------------

cdef inline void cursor_init(cursor_t* r, const uint8_t* p, size_t n) noexcept nogil:
    r.at = p
    r.end = p + n


cdef inline size_t cursor_left(const cursor_t* r) noexcept nogil:
    return <size_t>(r.end - r.at)


cdef inline int read_i8(cursor_t* r, int8_t* out) noexcept nogil:
    if cursor_left(r) < 1:
        return SHORT
    out[0] = <int8_t>r.at[0]
    r.at += 1
    return OK


cdef inline int read_i16(cursor_t* r, int16_t* out) noexcept nogil:
    if cursor_left(r) < 2:
        return SHORT
    out[0] = load_be16(r.at)
    r.at += 2
    return OK


cdef inline int read_i32(cursor_t* r, int32_t* out) noexcept nogil:
    if cursor_left(r) < 4:
        return SHORT
    out[0] = load_be32(r.at)
    r.at += 4
    return OK


cdef inline int read_i64(cursor_t* r, int64_t* out) noexcept nogil:
    if cursor_left(r) < 8:
        return SHORT
    out[0] = load_be64(r.at)
    r.at += 8
    return OK


cdef inline int skip(cursor_t* r, int64_t n) noexcept nogil:
    """Skip n bytes; BAD if n is negative."""
    if n < 0:
        return BAD
    if <uint64_t>n > cursor_left(r):
        return SHORT
    r.at += n
    return OK


cdef inline int read_span(cursor_t* r, int64_t n, const uint8_t** out) noexcept nogil:
    """Borrow the next n bytes and skip them; BAD if n is negative."""
    cdef const uint8_t* p = r.at
    cdef int status = skip(r, n)
    if status == OK:
        out[0] = p
    return status


cdef inline int read_uvarlong(cursor_t* r, uint64_t* out) noexcept nogil:
    """Read at most ten bytes; BAD beyond 64 bits. Overlong forms are accepted, as in Kafka."""
    cdef const uint8_t* p = r.at
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while p < r.end:
        byte = p[0]
        p += 1
        if shift == 63 and byte > 1:
            return BAD
        value |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            r.at = p
            out[0] = value
            return OK
        shift += 7
    return SHORT


cdef inline int read_uvarint(cursor_t* r, uint32_t* out) noexcept nogil:
    """Read at most five bytes; BAD beyond 32 bits."""
    cdef const uint8_t* p = r.at
    cdef uint32_t value
    cdef int shift = 7
    cdef uint8_t byte
    if p >= r.end:
        return SHORT
    value = p[0]
    p += 1
    if value >= 0x80:
        value &= 0x7F
        while True:
            if p >= r.end:
                return SHORT
            byte = p[0]
            p += 1
            if shift == 28 and byte > 0x0F:
                return BAD
            value |= <uint32_t>(byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
    r.at = p
    out[0] = value
    return OK


cdef inline int read_varint(cursor_t* r, int32_t* out) noexcept nogil:
    """Read a zigzag varint of 32 bits."""
    cdef uint32_t raw = 0
    cdef int status = read_uvarint(r, &raw)
    if status == OK:
        out[0] = <int32_t>((raw >> 1) ^ (0 - (raw & 1)))
    return status


cdef inline int read_varlong(cursor_t* r, int64_t* out) noexcept nogil:
    """Read a zigzag varint of 64 bits."""
    cdef uint64_t raw = 0
    cdef int status = read_uvarlong(r, &raw)
    if status == OK:
        out[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    return status


cdef extern from *:
    """
    /* A zigzag varint of at most four bytes, all of which are there; NULL for a longer one. */
    static inline const uint8_t *pyb_short_varint(const uint8_t *p, int32_t *out) {
        uint32_t v = p[0];
        if (v < 0x80) { p += 1; }
        else {
            v = (v & 0x7F) | (uint32_t)p[1] << 7;
            if (p[1] < 0x80) { p += 2; }
            else {
                v = (v & 0x3FFF) | (uint32_t)p[2] << 14;
                if (p[2] < 0x80) { p += 3; }
                else {
                    if (p[3] >= 0x80) return NULL;
                    v = (v & 0x1FFFFF) | (uint32_t)p[3] << 21;
                    p += 4;
                }
            }
        }
        *out = (int32_t)(v >> 1) ^ -(int32_t)(v & 1);
        return p;
    }
    """
    const uint8_t* short_varint "pyb_short_varint" (const uint8_t* p, int32_t* out) noexcept nogil


# -- writer -----------------------------------------------------------------------------------------------------------

cdef inline void writer_init(writer_t* w, uint8_t* p, size_t n) noexcept nogil:
    w.at = p
    w.end = p + n


cdef inline size_t writer_left(const writer_t* w) noexcept nogil:
    return <size_t>(w.end - w.at)


cdef inline int write_i8(writer_t* w, int8_t value) noexcept nogil:
    if writer_left(w) < 1:
        return SHORT
    w.at[0] = <uint8_t>value
    w.at += 1
    return OK


cdef inline int write_i16(writer_t* w, int16_t value) noexcept nogil:
    if writer_left(w) < 2:
        return SHORT
    store_be16(w.at, value)
    w.at += 2
    return OK


cdef inline int write_i32(writer_t* w, int32_t value) noexcept nogil:
    if writer_left(w) < 4:
        return SHORT
    store_be32(w.at, value)
    w.at += 4
    return OK


cdef inline int write_i64(writer_t* w, int64_t value) noexcept nogil:
    if writer_left(w) < 8:
        return SHORT
    store_be64(w.at, value)
    w.at += 8
    return OK


cdef inline int write_span(writer_t* w, const uint8_t* p, size_t n) noexcept nogil:
    if n > writer_left(w):
        return SHORT
    if n:
        memcpy(w.at, p, n)
    w.at += n
    return OK


cdef inline int write_uvarlong(writer_t* w, uint64_t value) noexcept nogil:
    cdef uint8_t* p = w.at
    while value >= 0x80:
        if p >= w.end:
            return SHORT
        p[0] = <uint8_t>(value | 0x80)
        p += 1
        value >>= 7
    if p >= w.end:
        return SHORT
    p[0] = <uint8_t>value
    w.at = p + 1
    return OK


cdef inline int write_varlong(writer_t* w, int64_t value) noexcept nogil:
    """Write a zigzag varint; a 32-bit value takes the same bytes as a 32-bit varint."""
    return write_uvarlong(w, (<uint64_t>value << 1) ^ <uint64_t>(value >> 63))


cdef inline int uvarlong_size(uint64_t value) noexcept nogil:
    cdef int n = 1
    while value >= 0x80:
        value >>= 7
        n += 1
    return n


cdef inline int varlong_size(int64_t value) noexcept nogil:
    return uvarlong_size((<uint64_t>value << 1) ^ <uint64_t>(value >> 63))
