"""The field aborted_transactions of a Fetch response, v4-18: {producer_id i64, first_offset i64}."""

from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.cursor cimport write_i64, writer_t
from pybroker.core.plane.requests.wire cimport write_length, write_no_tags


cdef void write_aborts(writer_t* w, const aborted_t* items, int64_t n, bint flexible) noexcept nogil:
    """Write n aborted transactions; with n -1 null, as the client did not ask for them."""
    cdef int64_t i
    write_length(w, flexible, <int32_t>n)
    for i in range(n):
        write_i64(w, items[i].producer_id)
        write_i64(w, items[i].first)
        write_no_tags(w, flexible)
