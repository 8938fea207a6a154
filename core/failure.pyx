"""A log dir whose disk failed is offline, with everything in it, until the broker is started again.

What comes of each call that changes files passes `log_trust`. An error that says that the disk failed, or that the files
are not where they were, takes the log dir offline. A lack of space, memory, descriptors or rights does not: it passes.
Neither does an error of a read, which fails alone, and is told.

A file that was removed, with its directory or without, can still be written to: nobody would ever read it again. So the
active segment's file is asked for its names: before each acknowledgement that waits for the disk, and of all partitions
that grew, at intervals.
"""

from libc.errno cimport (
    EBADMSG, EILSEQ, EINVAL, EIO, ENODATA, ENODEV, ENOENT, ENOTCONN, ENOTDIR, ENXIO, EROFS, ESHUTDOWN, ESTALE,
)
from libc.stdint cimport int64_t

from pybroker.core.atomic cimport add_i64, cas_i32, load_i32, load_i64, load_ptr, store_i64
from pybroker.core.log cimport log_offline, segments_t
from pybroker.core.quiesce cimport pin, unpin
from pybroker.core.segment cimport files_t

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
    int EUCLEAN, EREMOTEIO


cdef bint failed(int error) noexcept nogil:
    """Does an errno say that the disk failed, or is not there any more?"""
    return error in (EIO, EROFS, ENODEV, ENXIO, ENOENT, ENOTDIR, ESTALE, EUCLEAN, EREMOTEIO, ENOTCONN, ESHUTDOWN)


cdef bint unreadable(int error) noexcept nogil:
    """Does an errno of a read, or of sending what is read, say that the disk failed? None of a socket's does."""
    return error in (EIO, EBADMSG, EILSEQ, EINVAL, ENODATA, ENODEV, ENOENT, ENOTDIR, ENXIO, EREMOTEIO, ESTALE, EUCLEAN)


cdef int log_dir_trust(syncer_t* log_dir, int status) noexcept nogil:
    """Pass on what became of a call that changes files of a log dir; it is offline where the disk failed."""
    if status < 0 and failed(-status):
        cas_i32(&log_dir.failed, 0, -status)
    return status


cdef int log_trust(log_t* l, int status) noexcept nogil:
    """Pass on what became of a call that changes files of a log. Those of a deleted one have other names: its directory's
    is no failure to whoever was at work in it."""
    if (status == -ENOENT or status == -ENOTDIR) and load_i32(&l.deleted):
        return status
    return log_dir_trust(l.syncer, status)


cdef int log_note_unread(log_t* l, int status) noexcept nogil:
    """Pass on what became of a read of a log. Where the disk failed it is told, and the plane leaves the log's fetches to
    Python, which reads what it answers before it does: a client is told of a bad place then, instead of being cut off in
    the middle of an answer."""
    if status < 0 and unreadable(-status):
        cas_i32(&l.unread, 0, -status)
        add_i64(&l.syncer.unread, 1)
    return status


cdef bint log_lost_file(log_t* l) noexcept nogil:
    """Has the active segment's file lost its name? Its log dir is offline then. The caller is pinned."""
    cdef int64_t generation = load_i64(&l.generation)
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef int64_t last = load_i64(&list.count) - 1
    cdef files_t* f
    if last < 0:  # a truncation lists none for a moment
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
    """Which of these logs, that grew since they were last looked at, lost its active file; -1: none. All are held."""
    cdef int64_t i, end, found = -1
    cdef int slot
    for i in range(n):
        end = load_i64(&logs[i].view.log_end)
        if end == load_i64(&logs[i].looked_at) or log_offline(logs[i]):
            continue
        slot = pin(&logs[i].context.quiesce)
        if log_lost_file(logs[i]):
            found = i
        unpin(&logs[i].context.quiesce, slot)
        if found >= 0:
            break
        store_i64(&logs[i].looked_at, end)
    return found
