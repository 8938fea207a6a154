"""Finds log files that were removed while in use. Writes to them still succeed, but the records would be lost.

The link count of the active segment's file is checked: before each acknowledgement that waits for the disk, and at
intervals for all partitions that grew.
"""

from libc.errno cimport ENOENT
from libc.stdint cimport int64_t

from pybroker.core.base.atomic cimport load_i32, load_i64, load_ptr, store_i64
from pybroker.core.base.reclamation cimport pin, unpin
from pybroker.core.storage.log.log cimport log_offline, log_trust, segments_t
from pybroker.core.storage.segment.open_files cimport files_t

cdef extern from *:
    """
    #include <errno.h>
    #include <sys/stat.h>
    static int names_of(int fd) {
      struct stat s;
      return fstat(fd, &s) == 0 ? (int)s.st_nlink : -1;
    }
    """
    int names_of(int fd) nogil


cdef bint log_lost_file(log_t* l) noexcept nogil:
    """True if the active segment's file was removed; its log dir is offline then. The caller is pinned."""
    cdef int64_t generation = load_i64(&l.generation)
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef int64_t last = load_i64(&list.count) - 1
    cdef files_t* f
    if last < 0:  # during a truncation the list may be empty
        return False
    f = <files_t*>load_ptr(<void**>&list.items[last].segment.files)
    if f == NULL or names_of(f.fd) != 0:
        return False
    # Unless we removed it ourselves: with the partition, in a truncation, or as a segment that was rolled meanwhile.
    if load_i32(&l.deleted) or generation & 1 or generation != load_i64(&l.generation):
        return False
    if list != <segments_t*>load_ptr(<void**>&l.segments) or last != load_i64(&list.count) - 1:
        return False
    log_trust(l, -ENOENT)
    return True


cdef int64_t logs_lost(log_t** logs, int64_t n) noexcept nogil:
    """The index of the first log that grew since the last check and lost its active file; -1: none. All are held."""
    cdef int64_t i, end, found = -1
    cdef int slot
    for i in range(n):
        end = load_i64(&logs[i].view.log_end)
        if end == load_i64(&logs[i].looked_at) or log_offline(logs[i]):
            continue
        slot = pin(&logs[i].context.reclaim)
        if log_lost_file(logs[i]):
            found = i
        unpin(&logs[i].context.reclaim, slot)
        if found >= 0:
            break
        store_i64(&logs[i].looked_at, end)
    return found
