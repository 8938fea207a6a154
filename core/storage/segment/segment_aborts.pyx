"""The transaction index of a segment (transaction_index.pyx) through the segment's life.

It is empty, or on the heap, or only in its file: `aborts` NULL, set, or NULL with `aborts_unread` set. An index that is
not to be trusted is marked with `aborts_bad`; readers of committed records then wait until it is built again.
"""

from libc.errno cimport EIO, ENOENT, ENOMEM
from libc.stdint cimport int64_t

from pybroker.core.base.atomic cimport cas_ptr, load_i32, load_i64, load_ptr, store_i32, store_ptr
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE
from pybroker.core.base.vfs cimport P_NONE, vfs_look, vfs_unlink
from pybroker.core.storage.segment.segment cimport PATH_BYTES, segment_path
from pybroker.core.storage.segment.transaction_index cimport (
    aborts_add, aborts_add_all, aborts_free, aborts_load, aborts_new, aborts_reserve,
)


cdef int segment_aborts(segment_t* s, aborts_t** out) noexcept nogil:
    """Return the transaction index of a segment, NULL if it is empty; it is read if needed. CORRUPT_MESSAGE if it has
    to be built again first. The caller is pinned, or holds the append mutex."""
    cdef char path[PATH_BYTES]
    cdef aborts_t* x = NULL
    cdef int status
    out[0] = NULL
    if load_i32(&s.aborts_bad):
        return CORRUPT_MESSAGE
    out[0] = <aborts_t*>load_ptr(<void**>&s.aborts)
    if out[0] != NULL or not load_i32(&s.aborts_unread):
        return 0
    segment_path(s, ".txnindex", path)
    status = aborts_load(s.fs, path, s.base_offset, s.end_offset, &x)
    if status == -EIO:
        store_i32(&s.aborts_bad, 1)
        return CORRUPT_MESSAGE
    if status < 0:
        return status
    if not cas_ptr(<void**>&s.aborts, NULL, x):
        aborts_free(x)           # another thread was faster
    store_i32(&s.aborts_unread, 0)
    out[0] = <aborts_t*>load_ptr(<void**>&s.aborts)
    return 0


cdef int segment_add_abort(segment_t* s, const aborted_t* entry) noexcept nogil:
    """Add an aborted transaction to an active segment's index; it cannot fail after segment_reserve_aborts. Under the
    append mutex, or alone."""
    cdef int status = segment_reserve_aborts(s, 1)
    return status if status < 0 else aborts_add(s.aborts, entry)


cdef int segment_reserve_aborts(segment_t* s, int64_t n) noexcept nogil:
    """Reserve memory for so many entries; -ENOMEM without. Under the append mutex, or alone."""
    if s.aborts == NULL:
        store_ptr(<void**>&s.aborts, aborts_new())
    return aborts_reserve(s.aborts, n) if s.aborts != NULL else -ENOMEM


cdef int segment_look_for_aborts(segment_t* s) noexcept nogil:
    """Note whether a segment that is opened has an index file."""
    cdef char path[PATH_BYTES]
    cdef int64_t size, modified_ms
    cdef int status
    segment_path(s, ".txnindex", path)
    status = vfs_look(s.fs, P_NONE, path, &size, &modified_ms)
    if status == -ENOENT:
        return 0
    s.aborts_unread = status == 0
    return status


cdef int segment_forget_aborts(segment_t* s) noexcept nogil:
    """Remove the index of a segment that is about to be scanned. The caller is alone."""
    cdef char path[PATH_BYTES]
    aborts_free(s.aborts)
    s.aborts = NULL
    s.aborts_unread = s.aborts_bad = 0
    segment_path(s, ".txnindex", path)
    return vfs_unlink(s.fs, P_NONE, path)


cdef int segment_copy_aborts(segment_t* s, segment_t* to) noexcept nogil:
    """Append the index to that of another object of the segment, or of one that replaces it; `to` is marked if it is
    bad. Pinned, or under the append mutex."""
    cdef aborts_t* x = NULL
    cdef int status = segment_aborts(s, &x)
    if status == CORRUPT_MESSAGE:
        to.aborts_bad = 1
        return 0
    if status != 0 or x == NULL:
        return status
    if to.aborts == NULL:
        to.aborts = aborts_new()
    return aborts_add_all(to.aborts, x) if to.aborts != NULL else -ENOMEM


cdef bint segment_has_aborts(const segment_t* s) noexcept nogil:
    """True unless the index is empty."""
    cdef const aborts_t* x = <const aborts_t*>load_ptr(<void**>&s.aborts)
    if load_i32(&s.aborts_unread) or load_i32(&s.aborts_bad):
        return True
    return x != NULL and load_i64(&x.count) > 0
