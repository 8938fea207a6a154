"""Damage in a log: the known bad spots, and the scan of a segment for them.

A bad spot is a range of a segment's file that holds no sound batch, and the offsets that were in it. It stays in the
file: the batches before and after it are served, a read of an offset in it gets CORRUPT_MESSAGE. Spots are found by the
scan after a crash, by reads that meet an invalid batch, and by scrubbing. Python records them (damage-checkpoint), as
the scan that found them is not repeated.
"""

from libc.errno cimport EIO, ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from posix.fcntl cimport O_CREAT, O_RDONLY, O_TRUNC, O_WRONLY

from pybroker.core.base.atomic cimport load_ptr, store_i32, store_ptr
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE
from pybroker.core.base.reclamation cimport retire
from pybroker.core.base.vfs cimport (
    P_CHECKPOINT_WRITE, P_SEGMENT_READ, vfs_close, vfs_open, vfs_pread, vfs_pwrite, vfs_sync, vfs_unlink,
)
from pybroker.core.batch.batch cimport batch_t
from pybroker.core.storage.log.log cimport log_t
from pybroker.core.storage.segment.segment cimport INDEX_BAD, PATH_BYTES, segment_path, segment_t
from pybroker.core.storage.segment.segment_scan cimport (
    SCAN_BYTES, scan_accept, scan_batch, scan_behind, scan_file, scan_free, scan_init, scan_leave, scan_t,
)
from pybroker.core.storage.segment.segment_search cimport NOT_FOUND
from pybroker.core.storage.segment.spots cimport spot_t, spots_t


cdef enum:
    NEXT_UNKNOWN = -1            # no segment follows: a spot at the end of the file has no known end


# -- known spots -------------------------------------------------------------------------------------------------------

cdef spots_t* spots_new(int32_t most) noexcept nogil:
    cdef spots_t* list = <spots_t*>malloc(sizeof(spots_t) + sizeof(spot_t) * most)
    if list != NULL:
        list.count = 0
        list.items = <spot_t*>(list + 1)
    return list


cdef void publish(log_t* l, segment_t* s, spots_t* list) noexcept nogil:
    cdef spots_t* old = s.spots
    store_ptr(<void**>&s.spots, list)
    if old != NULL:
        retire(&l.context.reclaim, old, free)


cdef int damage_mark(log_t* l, segment_t* s, const spot_t* spot) noexcept nogil:
    """Add a bad spot, which readers then skip; overlapping spots are merged. Under the append mutex, or alone."""
    cdef spots_t* list = spots_new((s.spots.count if s.spots != NULL else 0) + 1)
    cdef spot_t whole = spot[0]
    cdef const spot_t* old
    cdef int32_t i, n = s.spots.count if s.spots != NULL else 0, at = 0
    if list == NULL:
        return -ENOMEM
    for i in range(n):
        old = &s.spots.items[i]
        if old.position < whole.end and whole.position < old.end:
            whole.position = min(whole.position, old.position)
            whole.first = min(whole.first, old.first)
            whole.end = max(whole.end, old.end)
            whole.next = max(whole.next, old.next)
    for i in range(n):
        old = &s.spots.items[i]
        if old.end <= whole.position:
            list.items[list.count] = old[0]
            list.count += 1
            at = list.count
        elif old.position >= whole.end:
            list.items[list.count + 1] = old[0]
            list.count += 1
    list.items[at] = whole
    list.count += 1
    publish(l, s, list)
    return 0


cdef int damage_copy(const segment_t* s, segment_t* to) noexcept nogil:
    """Copy the known spots of a segment to another object of the same file. Pinned, or under the append mutex."""
    cdef const spots_t* spots = <const spots_t*>load_ptr(<void**>&s.spots)
    cdef spots_t* list
    cdef int32_t i
    if spots == NULL:
        return 0
    list = spots_new(spots.count)
    if list == NULL:
        return -ENOMEM
    for i in range(spots.count):
        list.items[i] = spots.items[i]
    list.count = spots.count
    to.spots = list
    return 0


cdef void damage_cut(log_t* l, segment_t* s, int64_t position) noexcept nogil:
    """Remove the spots after a truncation point: other batches will be written there. Under the append mutex."""
    cdef spots_t* list
    cdef int32_t i
    if s.spots == NULL:
        return
    list = spots_new(s.spots.count)
    for i in range(s.spots.count if list != NULL else 0):
        if s.spots.items[i].position < position:
            list.items[list.count] = s.spots.items[i]
            list.count += 1
    publish(l, s, list)


# -- the search at start -----------------------------------------------------------------------------------------------

cdef int search_open(log_t* l, segment_t* s, scan_t* c, int64_t next_base) noexcept nogil:
    cdef batch_t b
    cdef spot_t spot
    cdef int64_t position = 0
    cdef int status = 0
    while position < s.size:
        status = scan_batch(c, position, &b)
        if status == 0:
            scan_accept(c, &b)
            position += b.size
            continue
        if status == CORRUPT_MESSAGE:
            status = scan_behind(c, position, &spot)
        if status == NOT_FOUND:
            spot.position, spot.first, spot.end, spot.next = position, c.expected, s.size, max(c.expected, next_base)
            status = 0
        if status == 0:
            status = damage_mark(l, s, &spot)
        if status != 0:
            return status
        position = spot.end
        c.expected = spot.next
    return 0


cdef int damage_search(
    log_t* l, segment_t* s, int64_t next_base, int64_t bound, bint strict, int64_t* end) noexcept nogil:
    """Find the bad spots of a segment whose headers do not lead to its end, and its end offset: `next_base`, or more if
    sound batches go further. A batch that reaches `bound`, the base offset of the next segment with batches, is
    invalid; INT64_MAX if there is no such segment. The caller is alone."""
    cdef char path[PATH_BYTES]
    cdef scan_t c
    cdef int fd, status = scan_init(&c, s.fs)
    if status < 0:
        return status
    segment_path(s, ".log", path)
    fd = vfs_open(s.fs, P_SEGMENT_READ, path, O_RDONLY)
    status = min(fd, 0)
    if status == 0:
        scan_file(&c, fd, s.size, s.base_offset)
        c.expected = s.base_offset
        c.next_base = bound
        c.strict = strict
        status = search_open(l, s, &c, next_base)
        end[0] = max(next_base, c.expected)
        scan_leave(&c)
        vfs_close(fd)
    scan_free(&c)
    store_i32(&s.index_bad, INDEX_BAD)
    return status


cdef int damage_keep_aside(segment_t* s, int64_t position) noexcept nogil:
    """Copy the part of a segment that will be cut off to <base>.log.<position>.damaged. An incomplete copy is
    removed."""
    cdef char path[PATH_BYTES]
    cdef char suffix[64]
    cdef uint8_t* buffer = <uint8_t*>malloc(SCAN_BYTES)
    cdef int64_t at = position
    cdef size_t got = 0
    cdef int fd, status = 0
    snprintf(suffix, sizeof(suffix), ".log.%lld.damaged", <long long>position)
    segment_path(s, suffix, path)
    fd = vfs_open(s.fs, P_CHECKPOINT_WRITE, path, O_WRONLY | O_CREAT | O_TRUNC)
    if fd < 0 or buffer == NULL:
        free(buffer)
        vfs_close(fd)
        return min(fd, -ENOMEM)
    while status == 0 and at < s.size:
        status = vfs_pread(s.fs, P_SEGMENT_READ, s.files.fd, buffer, SCAN_BYTES, at, &got)
        if status == 0:
            status = vfs_pwrite(s.fs, P_CHECKPOINT_WRITE, fd, buffer, got, at - position) if got else -EIO
        at += got
    if status == 0:
        status = vfs_sync(s.fs, P_CHECKPOINT_WRITE + 1, fd)
    vfs_close(fd)
    free(buffer)
    if status < 0:
        vfs_unlink(s.fs, P_CHECKPOINT_WRITE, path)
    return status
