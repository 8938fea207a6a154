"""Damage in a log for Python: the known damaged ranges, and the scan of a segment by scrubbing.

See damage.pyx for what a bad spot is.
"""

from libc.errno cimport ESTALE
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from posix.fcntl cimport O_RDONLY

from pybroker.core.base.atomic cimport load_i64, load_ptr, store_i32
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.reclamation cimport pin, unpin
from pybroker.core.base.status cimport raise_status
from pybroker.core.base.vfs cimport P_SEGMENT_READ, vfs_close, vfs_no_readahead, vfs_open, vfs_size
from pybroker.core.batch.batch cimport batch_t
from pybroker.core.partition_handle cimport Partition
from pybroker.core.storage.log.log cimport log_lock_files, log_t, segments_floor, segments_t
from pybroker.core.storage.recovery.damage cimport damage_mark
from pybroker.core.storage.segment.segment cimport INDEX_BAD, PATH_BYTES, segment_path, segment_t
from pybroker.core.storage.segment.segment_scan cimport (
    scan_accept, scan_batch, scan_behind, scan_file, scan_free, scan_init, scan_leave, scan_t,
)
from pybroker.core.storage.segment.segment_search cimport NOT_FOUND
from pybroker.core.storage.segment.spots cimport spot_t, spots_t

import os

cdef extern from *:
    """
    #include <sys/stat.h>
    // True if a path and a descriptor name the same file.
    static int same_file(const char* path, int fd) {
      struct stat a, b;
      return stat(path, &a) == 0 && fstat(fd, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
    }
    """
    int same_file(const char* path, int fd) nogil


def bad_spots(Partition partition not None) -> list:
    """(base offset of the segment, position, end, first offset, next offset) of each known bad spot, ascending."""
    cdef log_t* l = partition.log
    cdef segments_t* list_
    cdef const spots_t* spots
    cdef int64_t i
    cdef int32_t k
    cdef int slot
    out = []
    with nogil:
        slot = pin(&l.context.reclaim)
    list_ = <segments_t*>load_ptr(<void**>&l.segments)
    for i in range(load_i64(&list_.count)):
        spots = <const spots_t*>load_ptr(<void**>&list_.items[i].segment.spots)
        for k in range(spots.count if spots != NULL else 0):
            spot = spots.items[k]
            out.append((list_.items[i].base_offset, spot.position, spot.end, spot.first, spot.next))
    unpin(&l.context.reclaim, slot)
    return out


cdef int mark_listed(log_t* l, int64_t base, const spot_t* spot, int fd) noexcept nogil:
    """Mark a spot in the segment with this base, if it still is the file that `fd` names (-1: any file)."""
    cdef char path[PATH_BYTES]
    cdef segment_t* s = NULL
    cdef segments_t* list
    cdef int64_t i
    cdef int slot, status = -ESTALE
    log_lock_files(l)            # no segment is swapped, removed or cut meanwhile
    slot = pin(&l.context.reclaim)
    list = <segments_t*>load_ptr(<void**>&l.segments)
    i = segments_floor(list, base)
    if i >= 0 and list.items[i].base_offset == base:
        s = list.items[i].segment
        segment_path(s, ".log", path)
    if s != NULL and spot.end <= load_i64(&s.size) and (fd < 0 or same_file(path, fd)):
        pthread_mutex_lock(&l.append_mutex)
        status = damage_mark(l, s, spot)
        pthread_mutex_unlock(&l.append_mutex)
        store_i32(&s.index_bad, INDEX_BAD)
        store_i32(&l.repair, 1)
    unpin(&l.context.reclaim, slot)
    pthread_mutex_unlock(&l.flush_mutex)
    return status


def mark_damaged(
    Partition partition not None, int64_t base_offset, int64_t position, int64_t end, int64_t first, int64_t next
) -> bool:
    """Make reads skip a bad spot that was found before a restart of the broker; False if the segment is gone. Raises
    OSError."""
    cdef spot_t spot
    cdef int status
    spot.position, spot.end, spot.first, spot.next = position, end, first, next
    with nogil:
        status = mark_listed(partition.log, base_offset, &spot, -1)
    if status == -ESTALE:
        return False
    raise_status(status, partition.directory)
    return True


cdef int64_t listed_size(log_t* l, int64_t base) noexcept nogil:
    """The bytes that readers see of the segment with this base: without an append in progress, and with what was cut
    off its file. -1 if there is no such segment."""
    cdef int64_t size = -1
    cdef int slot = pin(&l.context.reclaim)
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef int64_t i = segments_floor(list, base)
    if i >= 0 and list.items[i].base_offset == base:
        size = load_i64(&list.items[i].segment.size)
    unpin(&l.context.reclaim, slot)
    return size


cdef class SegmentScan:
    """A check of a segment's file, step by step: every batch's header, CRC and offset. See core/__init__.pyi."""

    cdef scan_t c
    cdef Partition partition         # the segment's partition; None: a file alone
    cdef readonly str path
    cdef readonly int64_t base_offset
    cdef readonly int64_t position   # everything before is checked
    cdef int64_t end                 # the next offset after damage up to the end of the file

    def __init__(
        self, str path, *, Partition partition=None, bint strict=False, int64_t next_base=-1, int64_t log_end=-1,
        int64_t position=0, int64_t reached=-1,
    ) -> None:
        cdef bytes name = os.fsencode(path)
        cdef const char* c_name = name
        cdef int64_t size = -1
        cdef int fd, status
        stem = os.path.basename(path).partition(".")[0]
        if not stem.isdigit():
            raise ValueError(f"{path}: the name of a segment's file begins with its base offset")
        self.path, self.base_offset, self.end = path, int(stem), max(next_base, log_end)
        self.partition = partition
        raise_status(scan_init(&self.c, partition.log.context.fs if partition is not None else NULL), path)
        with nogil:
            fd = vfs_open(self.c.fs, P_SEGMENT_READ, c_name, O_RDONLY)
            status = min(fd, 0)
            if status == 0 and self.partition is not None:
                size = listed_size(self.partition.log, self.base_offset)
            if status == 0 and size < 0:
                size = vfs_size(fd)
            if status == 0:
                vfs_no_readahead(fd)
        raise_status(status, path)
        scan_file(&self.c, fd, size, self.base_offset)
        self.c.expected = max(self.base_offset, reached)
        if next_base >= 0:
            self.c.next_base = next_base
        self.position = position
        self.c.strict = strict
        self.c.gentle = True

    def __cinit__(self):
        self.c.fd = -1

    def __dealloc__(self):
        scan_leave(&self.c)
        scan_free(&self.c)
        vfs_close(self.c.fd)

    @property
    def size(self) -> int:
        return self.c.size

    @property
    def end_offset(self) -> int:
        return self.c.expected

    @property
    def done(self) -> bool:
        return self.position >= self.c.size

    cdef int find(self, int64_t until, spot_t* spot) noexcept nogil:
        """Go on to position `until`, or to the first bad spot: then CORRUPT_MESSAGE, and the spot."""
        cdef batch_t b
        cdef int status
        while self.position < min(until, self.c.size):
            status = scan_batch(&self.c, self.position, &b)
            if status == 0:
                scan_accept(&self.c, &b)
                self.position += b.size
                continue
            if status == CORRUPT_MESSAGE:
                status = scan_behind(&self.c, self.position, spot)
            if status == NOT_FOUND:
                spot.position, spot.end = self.position, self.c.size
                spot.first = self.c.expected
                spot.next = max(self.c.expected, self.end)
                status = 0
            if status < 0:
                return status
            self.position = spot.end
            self.c.expected = spot.next
            return CORRUPT_MESSAGE
        return 0

    def step(self, int64_t most=INT64_MAX) -> list:
        """Check about `most` bytes more; (position, end, first offset, next offset) of each bad spot in them. Reads of
        the partition, if there is one, skip them from now on; a segment that was replaced meanwhile has none. Raises
        OSError."""
        cdef int64_t until = self.position + min(most, self.c.size - self.position)
        cdef spot_t spot
        cdef int status = CORRUPT_MESSAGE
        out = []
        while status == CORRUPT_MESSAGE:
            with nogil:
                status = self.find(until, &spot)
            if status == CORRUPT_MESSAGE and self.admit(&spot):
                out.append((spot.position, spot.end, spot.first, spot.next))
        raise_status(status, self.path)
        return out

    cdef bint admit(self, const spot_t* spot) except -1:
        cdef int status = 0
        if self.partition is not None:
            with nogil:
                status = mark_listed(self.partition.log, self.base_offset, spot, self.c.fd)
        if status == -ESTALE:
            return False
        raise_status(status, self.path)
        return True
