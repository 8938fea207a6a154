"""The measured loops: core's own calls again and again, and the least possible work to compare with.

Each runs without the GIL and checks its result. Raises OSError where the kernel refuses, and
AssertionError where core does, since the caller prepared what is appended and read.
"""

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

from pybroker.core.base.crc32c cimport crc32c
from pybroker.core.base.files cimport (
    FALLOC_FL_KEEP_SIZE, SYNC_FILE_RANGE_WRITE, fallocate, iovec, pread, pwritev, sync_file_range,
)
from pybroker.core.partition.append cimport FROM_CLIENT, appended_t, partition_append
from pybroker.core.partition.partition cimport BOUND_HIGH_WATERMARK, partition_read, read_t
from pybroker.core.partition_handle cimport Partition
from pybroker.core.storage.segment.open_files cimport files_drop
from pybroker.core.storage.segment.segment cimport BEHIND_MAX, RESERVE_MAX, RESERVE_MIN

import os

cdef enum:
    CRC_FROM = 21  # the attributes of a batch; the CRC covers everything from here on


cdef int fail() except -1:
    raise OSError(errno, os.strerror(errno))


# -- core --------------------------------------------------------------------------------------------------------------

def append(Partition partition, const uint8_t[::1] batch, int64_t times, int64_t now_ms):
    """Append one client's batch `times` times."""
    cdef appended_t done
    cdef int status = 0
    cdef int64_t _
    with nogil:
        for _ in range(times):
            status = partition_append(partition.state, &batch[0], batch.shape[0], -1, FROM_CLIENT, 1, now_ms, &done)
            if status != 0:
                break
    assert status == 0, f"append refused with {status}"


def read(Partition partition, const int64_t[::1] offsets, int64_t most):
    """Find the batch at each offset, pin its file and unpin it."""
    cdef read_t found
    cdef int status = 0
    cdef int64_t i, n = offsets.shape[0]
    with nogil:
        for i in range(n):
            status = partition_read(partition.state, offsets[i], most, BOUND_HIGH_WATERMARK, True, &found)
            if status != 0 or found.found.files == NULL:
                break
            files_drop(found.found.files)
        else:
            i = n
    assert i == n, f"read at {offsets[i]} refused with {status}"


# -- the least possible work -------------------------------------------------------------------------------------------

cdef int64_t reserve(int fd, int64_t reserved, int64_t end) noexcept nogil:
    """Reserve space ahead in a segment's steps, doubling the written size; return the bytes reserved now, or -1."""
    cdef int64_t step = min(max(reserved, <int64_t>RESERVE_MIN), <int64_t>RESERVE_MAX)
    if end <= reserved:
        return reserved
    return end + step if fallocate(fd, FALLOC_FL_KEEP_SIZE, reserved, end + step - reserved) == 0 else -1


def crc_and_write(int fd, const uint8_t[::1] batch, int64_t times, bint ahead=False, int64_t behind_least=0):
    """CRC and pwritev of one batch, `times` times from the file's start; `ahead` reserves space first.

    With behind_least, write-behind too: from that many bytes on, the kernel writes in a segment's steps."""
    cdef iovec v
    cdef int64_t at = 0, reserved = 0, behind = 0, _
    cdef uint32_t crc = 0
    cdef size_t n = batch.shape[0]
    cdef bint failed = False
    with nogil:
        for _ in range(times):
            crc ^= crc32c(&batch[CRC_FROM], n - CRC_FROM, 0)
            if ahead:
                reserved = reserve(fd, reserved, at + n)
            v.iov_base = <void*>&batch[0]
            v.iov_len = n
            if reserved < 0 or pwritev(fd, &v, 1, at) != <ssize_t>n:
                failed = True
                break
            at += n
            if behind_least and at - behind >= max(behind_least, min(behind, <int64_t>BEHIND_MAX)):
                sync_file_range(fd, behind, at - behind, SYNC_FILE_RANGE_WRITE)
                behind = at
    if failed:
        fail()
    assert crc in (0, crc32c(&batch[CRC_FROM], n - CRC_FROM, 0))


def read_and_crc(int fd, int64_t size, int64_t chunk):
    """pread and CRC of a file's first `size` bytes, `chunk` at a time."""
    cdef uint8_t* buffer = <uint8_t*>malloc(chunk)
    cdef int64_t at = 0
    cdef ssize_t got = 1
    cdef uint32_t crc = 0
    if buffer == NULL:
        raise MemoryError()
    with nogil:
        while at < size and got > 0:
            got = pread(fd, buffer, min(chunk, size - at), at)
            if got > 0:
                crc = crc32c(buffer, got, crc)
                at += got
    free(buffer)
    if at < size:
        fail()


def read_headers(int fd, const int64_t[::1] positions, int64_t n):
    """pread of `n` bytes (at most 4096) at each position: the cost left for a reader that knows the position."""
    cdef uint8_t[4096] buffer
    cdef int64_t i, total = 0
    assert n <= 4096
    with nogil:
        for i in range(positions.shape[0]):
            total += pread(fd, &buffer[0], n, positions[i])
    assert total == n * positions.shape[0]
