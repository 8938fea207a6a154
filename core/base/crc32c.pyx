"""CRC-32C (Castagnoli, RFC 3720 B.4), its form chosen at import: wide folding, three lanes, or tables."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t

cdef extern from "crc32c_impl.h" nogil:
    int crc32c_best
    void crc32c_init()
    uint32_t crc32c_now(const uint8_t* p, size_t n, uint32_t initial)
    uint32_t crc32c_joined(uint32_t first, uint32_t second, uint32_t n)
    uint32_t crc32c_by(int form, const uint8_t* p, size_t n, uint32_t initial)

crc32c_init()

FORMS = ("table", "lanes", "wide")[:crc32c_best + 1]
"""The forms that this processor can run, slowest first; the last one is used."""


cdef uint32_t crc32c(const uint8_t* p, size_t n, uint32_t initial) noexcept nogil:
    return crc32c_now(p, n, initial)


cdef uint32_t crc32c_join(uint32_t first, uint32_t second, uint32_t n) noexcept nogil:
    return crc32c_joined(first, second, n)


def checksum(data, uint32_t initial=0):
    """Return the CRC-32C of data (RFC 3720), continuing from `initial`; in hardware if the processor has it."""
    return _checksum(crc32c_best, data, initial)


def checksum_by(str form, data, uint32_t initial=0):
    """Return the same, computed by one of FORMS, so that tests can compare the forms."""
    return _checksum(FORMS.index(form), data, initial)


def joined(uint32_t first, uint32_t second, uint32_t n) -> int:
    """Return the CRC of two stretches from the CRC of each; the second has n bytes."""
    return crc32c_joined(first, second, n)


cdef object _checksum(int form, object data, uint32_t initial):
    cdef Py_buffer view
    cdef uint32_t result
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    with nogil:
        result = crc32c_by(form, <const uint8_t*>view.buf, <size_t>view.len, initial)
    PyBuffer_Release(&view)
    return result
