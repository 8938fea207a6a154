# Columns of bytes given by the caller: in Arrow's layout, as fields of one width, or as Python bytes; nullable.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from pybroker.core.base.cursor cimport BAD, OK

cdef enum source_kind:
    SOURCE_NULL     # every row is null
    SOURCE_SMALL    # int32 offsets into data
    SOURCE_LARGE    # int64 offsets into data
    SOURCE_FIXED    # `width` bytes a row
    SOURCE_SPANS    # a pointer and a length a row

cdef struct field_t:
    const uint8_t* at
    int64_t size  # -1: null

cdef struct source_t:
    source_kind kind
    bint strip               # fixed: strip zeros at the end, as NumPy does for type S
    int64_t length           # rows
    int64_t first            # the first row, in offsets, fields and validity
    int64_t width
    const uint8_t* data
    int64_t data_size
    const uint8_t* offsets
    const uint8_t* validity  # NULL: no nulls
    const field_t* spans


cdef inline bint bit_at(const uint8_t* bits, int64_t i) noexcept nogil:
    return bits[i >> 3] >> (i & 7) & 1


cdef inline int source_get(const source_t* s, int64_t row, field_t* out) noexcept nogil:
    """The field of an existing row; BAD if its offsets are outside the data."""
    cdef int64_t i = s.first + row, start, end
    cdef int32_t[2] small
    cdef int64_t[2] large
    out.at = NULL
    out.size = -1
    if s.kind == SOURCE_NULL or (s.validity != NULL and not bit_at(s.validity, i)):
        return OK
    if s.kind == SOURCE_SPANS:
        out[0] = s.spans[i]
        return OK
    if s.kind == SOURCE_FIXED:
        out.at = s.data + i * s.width
        out.size = s.width
        while s.strip and out.size and out.at[out.size - 1] == 0:
            out.size -= 1
        return OK
    if s.kind == SOURCE_SMALL:
        memcpy(small, s.offsets + i * 4, 8)
        start, end = small[0], small[1]
    else:
        memcpy(large, s.offsets + i * 8, 16)
        start, end = large[0], large[1]
    if start < 0 or end < start or end > s.data_size:
        return BAD
    out.at = s.data + start
    out.size = end - start
    return OK


cdef inline int64_t source_bytes(const source_t* s, int64_t row, int64_t stop) noexcept nogil:
    """Estimate the bytes of the fields of some rows; 0 if unknown. Offsets are not checked."""
    cdef int32_t small_start, small_end
    cdef int64_t start, end
    if s.kind == SOURCE_FIXED:
        return (stop - row) * s.width
    if s.kind == SOURCE_SMALL:
        memcpy(&small_start, s.offsets + (s.first + row) * 4, 4)
        memcpy(&small_end, s.offsets + (s.first + stop) * 4, 4)
        start, end = small_start, small_end
    elif s.kind == SOURCE_LARGE:
        memcpy(&start, s.offsets + (s.first + row) * 8, 8)
        memcpy(&end, s.offsets + (s.first + stop) * 8, 8)
    else:
        return 0
    return end - start if 0 <= start <= end <= s.data_size else 0


cdef class ByteColumn:
    cdef source_t s
    cdef Py_buffer data
    cdef Py_buffer offsets
    cdef Py_buffer validity
    cdef field_t* spans
    cdef tuple held  # the objects that the spans point into

cdef class HeaderColumn:
    cdef source_t lists  # the sizes of its fields are numbers of headers, not bytes
    cdef Py_buffer offsets
    cdef Py_buffer validity
    cdef readonly ByteColumn keys
    cdef readonly ByteColumn values
