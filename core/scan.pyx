"""The check of a segment after a crash: batch by batch, each against the CRC and against the one before it.

A batch is good if its header is whole, its length lies in the file, its CRC is right, and its offset and epoch may come
next. Nothing is allocated by a length read from disk: the CRC runs over a fixed buffer.
"""

from libc.stdint cimport INT32_MAX, int64_t, uint32_t

from pybroker.core.batch cimport AT_ATTRIBUTES, HEADER_BYTES, batch_last_offset, batch_parse, batch_t, batch_timestamp
from pybroker.core.crc32c cimport crc32c
from pybroker.core.epochs cimport epochs_assign
from pybroker.core.kafka cimport CORRUPT_MESSAGE
from pybroker.core.producers cimport producers_see
from pybroker.core.reindex cimport forget_indexes
from pybroker.core.segment cimport segment_note
from pybroker.core.vfs cimport P_SEGMENT_READ, vfs_pread
from pybroker.core.walk cimport BODY_ELSEWHERE, NOT_FOUND


cdef int fill(scan_t* c, int64_t position, int64_t n) noexcept nogil:
    """See that n bytes at `position` are in the buffer; CORRUPT_MESSAGE if the file has fewer."""
    cdef int status
    if position >= c.buffered and position + n <= c.buffered + <int64_t>c.length:
        return 0
    c.buffered = position
    c.length = 0
    status = vfs_pread(
        c.log.context.fs, P_SEGMENT_READ, c.segment.files.fd, c.buffer, SCAN_BYTES, position, &c.length)
    if status < 0:
        return status
    return 0 if <int64_t>c.length >= n else CORRUPT_MESSAGE


cdef int check_crc(scan_t* c, int64_t position, const batch_t* b) noexcept nogil:
    """CRC over the body of a batch, buffer by buffer."""
    cdef int64_t at = position + AT_ATTRIBUTES, end = position + b.size, n
    cdef uint32_t crc = 0
    cdef int status
    c.recovery.scanned_bytes += b.size
    while at < end:
        status = fill(c, at, 1)
        if status != 0:
            return status
        n = min(end - at, c.buffered + <int64_t>c.length - at)
        crc = crc32c(c.buffer + (at - c.buffered), n, crc)
        at += n
    return 0 if crc == b.crc else CORRUPT_MESSAGE


cdef int scan_batch(scan_t* c, int64_t position, batch_t* b) noexcept nogil:
    """Is the next whole batch of this log at `position`? 0 if so; CORRUPT_MESSAGE ends the log here."""
    cdef int64_t last
    cdef int status = fill(c, position, HEADER_BYTES)
    if status == 0:
        status = batch_parse(c.buffer + (position - c.buffered), BODY_ELSEWHERE, b)
    if status != 0:
        return status if status < 0 and status != NOT_FOUND else CORRUPT_MESSAGE
    last = batch_last_offset(b)
    if b.size > c.segment.size - position or last - c.segment.base_offset > INT32_MAX:
        return CORRUPT_MESSAGE
    if b.base_offset < c.expected or (c.strict and b.base_offset != c.expected):
        return CORRUPT_MESSAGE
    if b.leader_epoch < c.epoch or (c.recovery.epoch_max >= 0 and b.leader_epoch > c.recovery.epoch_max):
        return CORRUPT_MESSAGE
    if b.base_offset >= c.recovery.recovery_point:
        return check_crc(c, position, b)
    return 0


cdef int scan_segment(scan_t* c, int64_t* end) noexcept nogil:
    """Check a segment from its first batch, building its indexes; `end` is where the last good batch ends."""
    cdef batch_t b
    cdef int64_t position = 0
    cdef int status = 0
    c.length = 0
    c.buffered = 0
    forget_indexes(c.segment)
    while status == 0 and position < c.segment.size:
        status = scan_batch(c, position, &b)
        if status != 0:
            break
        segment_note(
            c.segment, c.segment.files, position, b.size, batch_last_offset(&b), batch_timestamp(&b),
            c.log.settings.index_interval_bytes)
        if b.leader_epoch >= 0:
            status = epochs_assign(&c.log.epochs, b.leader_epoch, b.base_offset)
        if status == 0:
            status = producers_see(&c.log.producers, &b)
        position += b.size
        c.expected = batch_last_offset(&b) + 1
        c.epoch = b.leader_epoch
    end[0] = position
    return 0 if status == CORRUPT_MESSAGE else status
