"""The check of a segment's file, batch by batch, and the search for good batches after a bad one.

A batch is good if its header is whole, it ends within the file, its CRC is right, and its offset and epoch may come
next. No memory is allocated by a length read from disk.

The file is read through maps: a copy would take as long as the CRC. A gentle scan, which no request waits for, reads it
into a buffer, so that it reads no more of the disk than allowed at a time. A page that the disk cannot read is a disk
error, and no evidence against the batch.

After a bad batch, good ones may follow:

    good | bad ............ | good | good      a bad spot: bits flipped, or a page was never written
    good | bad ................ end of file    a tail that was being written when the power was lost

If the header of the bad batch is plausible, the next batch begins where it says; otherwise each byte is tried. A batch
that reaches beyond the end of the file was torn. A batch found inside it may be a record's value: it is accepted only
if the CRC shows that the torn batch ends there, so that only its length is wrong, or if good batches follow from there
to the end of the file.
"""

from libc.errno cimport EIO, ENOMEM
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint32_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pybroker.core.base.atomic cimport load_i32
from pybroker.core.base.crc32c cimport crc32c
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE
from pybroker.core.base.mapping cimport map_close, map_init, map_open, map_sequential
from pybroker.core.base.page_cache cimport passed_add, passed_end, passed_forget, passed_init, was_cached
from pybroker.core.base.vfs cimport P_SEGMENT_READ, vfs_ask_for, vfs_pass_file, vfs_pread
from pybroker.core.batch.batch cimport AT_ATTRIBUTES, AT_MAGIC, HEADER_BYTES, MAGIC, batch_last_offset, batch_parse
from pybroker.core.batch.marker cimport MARKER_BODY_MAX
from pybroker.core.batch.succession cimport WITNESSES, batch_denies, batch_may_follow
from pybroker.core.storage.segment.segment_search cimport BODY_ELSEWHERE, NOT_FOUND

cdef extern from "<string.h>" nogil:
    void* memchr(const void* at, int byte, size_t n)

cdef enum:
    SEARCH_BYTES = 64 << 20      # a search may read this much more than the file has: each candidate costs a CRC


cdef int scan_init(scan_t* c, vfs_t* fs) noexcept nogil:
    """Initialise a scan, whose files are set by scan_file; gaps in offsets are allowed until `strict` is set."""
    c.fs = fs
    c.expected = 0
    c.epoch = c.epoch_max = -1
    c.check_from = 0
    c.strict = c.gentle = False
    c.scanned_bytes = 0
    c.buffer = NULL
    map_init(&c.map)
    scan_file(c, -1, 0, 0)
    return 0


cdef void scan_free(scan_t* c) noexcept nogil:
    map_close(&c.map)
    free(c.buffer)


cdef void scan_leave(scan_t* c) noexcept nogil:
    let_go(c)
    passed_end(&c.passed, c.fd)
    c.length = 0


cdef void let_go(scan_t* c) noexcept nogil:
    """Release the present piece."""
    map_close(&c.map)
    if c.brought:
        passed_add(&c.passed, c.buffered, <int64_t>c.length)
    c.brought = False


cdef void scan_file(scan_t* c, int fd, int64_t size, int64_t base_offset) noexcept nogil:
    """Continue the scan with this file."""
    c.fd = fd
    c.size = size
    c.base_offset = base_offset
    c.next_base = INT64_MAX
    c.next_epoch = INT32_MAX
    c.buffered = 0
    c.length = 0
    c.brought = False
    c.asked_from = c.asked_to = 0
    passed_init(&c.passed)


cdef void scan_accept(scan_t* c, const batch_t* b) noexcept nogil:
    """Accept a batch: the next one must follow it."""
    c.expected = batch_last_offset(b) + 1
    c.epoch = b.leader_epoch


# -- one batch ---------------------------------------------------------------------------------------------------------

cdef int fill(scan_t* c, int64_t position, int64_t n) noexcept nogil:
    """Ensure that n bytes at `position` are at hand; CORRUPT_MESSAGE if the file has fewer."""
    if position >= c.buffered and position + n <= c.buffered + <int64_t>c.length:
        return 0
    if lost_page(c):
        return -EIO
    let_go(c)
    c.length = 0
    c.buffered = position
    return map_piece(c, position, n) if not c.gentle and position < c.size else copy_piece(c, position, n)


cdef int map_piece(scan_t* c, int64_t position, int64_t n) noexcept nogil:
    """Map a piece of the file, or copy it if it cannot be mapped: not all file systems support maps."""
    cdef int64_t size = min(<int64_t>SCAN_MAP_BYTES, c.size - position)
    cdef int status = map_open(&c.map, c.fd, position, size)
    if status < 0:
        return copy_piece(c, position, n)
    if position < c.asked_from or position + size > c.asked_to:
        ask_from(c, position)
    c.brought = c.asked
    map_sequential(&c.map)
    c.data = c.map.data
    c.length = <size_t>c.map.size
    status = vfs_pass_file(c.fs, P_SEGMENT_READ, c.fd)
    if status < 0:
        c.length = 0
        return status
    return 0 if <int64_t>c.length >= n else CORRUPT_MESSAGE


cdef void ask_from(scan_t* c, int64_t position) noexcept nogil:
    """Have the kernel read a large uncached range at once, and drop the pages that it read for the scan before."""
    passed_forget(&c.passed, c.fd, position, NULL)
    c.asked_from = position
    c.asked_to = min(position + SCAN_ASK_BYTES, c.size)
    c.asked = not was_cached(c.fd, position, c.asked_to - position)
    if c.asked:
        vfs_ask_for(c.fd, position, c.asked_to - position)


cdef bint lost_page(const scan_t* c) noexcept nogil:
    return load_i32(&c.map.lost) != 0


cdef int copy_piece(scan_t* c, int64_t position, int64_t n) noexcept nogil:
    cdef int status
    if c.buffer == NULL:
        c.buffer = <uint8_t*>malloc(SCAN_BYTES)
        if c.buffer == NULL:
            return -ENOMEM
    passed_forget(&c.passed, c.fd, position, NULL)
    c.brought = not was_cached(c.fd, position, min(<int64_t>SCAN_BYTES, c.size - position))
    c.data = c.buffer
    status = vfs_pread(c.fs, P_SEGMENT_READ, c.fd, c.buffer, SCAN_BYTES, position, &c.length)
    if status < 0:
        return status
    return 0 if <int64_t>c.length >= n else CORRUPT_MESSAGE


cdef int add_crc(scan_t* c, int64_t* at, int64_t end, uint32_t* crc) noexcept nogil:
    """Continue a CRC from `at` to `end`, buffer by buffer; `at` moves to `end`."""
    cdef int64_t n
    cdef int status
    while at[0] < end:
        status = fill(c, at[0], 1)
        if status != 0:
            return status
        n = min(end - at[0], c.buffered + <int64_t>c.length - at[0])
        crc[0] = crc32c(c.data + (at[0] - c.buffered), n, crc[0])
        at[0] += n
    return -EIO if lost_page(c) else 0


cdef int check_crc(scan_t* c, int64_t position, const batch_t* b) noexcept nogil:
    """Check the CRC over the body of a batch."""
    cdef int64_t at = position + AT_ATTRIBUTES
    cdef uint32_t crc = 0
    cdef int status = add_crc(c, &at, position + b.size, &crc)
    c.scanned_bytes += b.size
    if status != 0:
        return status
    return 0 if crc == b.crc else CORRUPT_MESSAGE


cdef inline int64_t bound_for(const scan_t* c, const batch_t* b) noexcept nogil:
    """The limit for the offsets of a batch after a gap: the next segment's base offset. No limit if the segment has
    reached that, or the batch has a later epoch: then the next file may be the wrong one, as a loss of power can bring
    back a file that a truncation removed."""
    return c.next_base if c.expected < c.next_base and b.leader_epoch <= c.next_epoch else INT64_MAX


cdef int read_header(scan_t* c, int64_t position, bint strict, batch_t* b) noexcept nogil:
    """Read the header at `position`: 0 if it may come next, else CORRUPT_MESSAGE. The batch's end is not checked."""
    cdef int status = fill(c, position, HEADER_BYTES)
    if status == 0:
        status = batch_parse(c.data + (position - c.buffered), BODY_ELSEWHERE, b)
    if lost_page(c):
        return -EIO
    if status != 0:
        return status if status < 0 and status != NOT_FOUND else CORRUPT_MESSAGE
    if b.base_offset != c.expected and (strict or not batch_may_follow(b, c.expected, bound_for(c, b))):
        return CORRUPT_MESSAGE
    if batch_last_offset(b) - c.base_offset > INT32_MAX:
        return CORRUPT_MESSAGE
    if b.leader_epoch < c.epoch or (c.epoch_max >= 0 and b.leader_epoch > c.epoch_max):
        return CORRUPT_MESSAGE
    return 0


cdef int is_a_lie(scan_t* c, int64_t position, const batch_t* b, bint* lies) noexcept nogil:
    """Set `lies` if the offset or epoch of a batch after a gap is wrong (no CRC covers them): if the two batches after
    it contradict them, as they could follow the batches before it."""
    cdef batch_t witness
    cdef int _, status
    lies[0] = False
    if b.leader_epoch <= c.epoch and b.base_offset <= c.expected:
        return 0
    position += b.size
    for _ in range(WITNESSES):
        status = read_header(c, position, False, &witness)
        if status != 0:
            return min(status, 0)
        if witness.leader_epoch >= b.leader_epoch and not batch_denies(&witness, b):
            return 0
        position += witness.size
    lies[0] = True
    return 0


cdef int scan_batch(scan_t* c, int64_t position, batch_t* b) noexcept nogil:
    """Check the batch at `position`: 0 if it is good and may come next, else CORRUPT_MESSAGE."""
    cdef bint lies
    cdef int status = read_header(c, position, c.strict, b)
    if status == 0 and b.size > c.size - position:
        status = CORRUPT_MESSAGE
    if status == 0 and b.base_offset >= c.check_from:
        status = check_crc(c, position, b)
    if status == 0:
        status = is_a_lie(c, position, b, &lies)
        if status == 0 and lies:
            status = CORRUPT_MESSAGE
    return status


cdef int scan_body(scan_t* c, int64_t position, const batch_t* b, uint8_t* body, size_t* n) noexcept nogil:
    """Copy the bytes after the header of a batch that was checked, at most MARKER_BODY_MAX."""
    cdef int64_t wanted = min(b.size - <int64_t>HEADER_BYTES, <int64_t>MARKER_BODY_MAX)
    cdef int status = fill(c, position + <int64_t>HEADER_BYTES, wanted)
    n[0] = <size_t>wanted
    if status == 0:
        memcpy(body, c.data + (position + <int64_t>HEADER_BYTES - c.buffered), <size_t>wanted)
    return -EIO if lost_page(c) else status


# -- after a bad batch -------------------------------------------------------------------------------------------------

cdef int try_at(scan_t* c, int64_t position, batch_t* b) noexcept nogil:
    """Check whether a sound batch with a later offset begins at `position`; CORRUPT_MESSAGE if not."""
    cdef int status = read_header(c, position, False, b)
    if status == 0 and b.size > c.size - position:
        status = CORRUPT_MESSAGE
    return status if status != 0 else check_crc(c, position, b)


cdef int reaches_end(scan_t* c, int64_t position) noexcept nogil:
    """Check whether sound batches follow from `position` to the end of the file; CORRUPT_MESSAGE if not."""
    cdef int64_t expected = c.expected, check_from = c.check_from
    cdef int32_t epoch = c.epoch
    cdef bint strict = c.strict
    cdef batch_t b
    cdef int status = 0
    c.check_from = 0
    c.strict = False
    while status == 0 and position < c.size:
        status = scan_batch(c, position, &b)
        if status == 0:
            scan_accept(c, &b)
            c.strict = strict
            position += b.size
    c.expected, c.check_from, c.epoch, c.strict = expected, check_from, epoch, strict
    return status


cdef int candidate(scan_t* c, int64_t* position) noexcept nogil:
    """Move to the next position where a header's magic byte fits; NOT_FOUND if there is none."""
    cdef const uint8_t* from_
    cdef uint8_t* found
    cdef int status
    while position[0] + HEADER_BYTES <= c.size:
        status = fill(c, position[0], HEADER_BYTES)
        if status != 0:
            return status if status < 0 else NOT_FOUND
        from_ = c.data + (position[0] - c.buffered) + AT_MAGIC
        found = <uint8_t*>memchr(from_, MAGIC, c.length - (from_ - c.data))
        if lost_page(c):
            return -EIO
        if found != NULL:
            position[0] = c.buffered + (found - c.data) - AT_MAGIC
            return 0
        position[0] = c.buffered + <int64_t>c.length - AT_MAGIC
    return NOT_FOUND


cdef int search(scan_t* c, int64_t position, const batch_t* torn, batch_t* b, int64_t* at) noexcept nogil:
    """Find the first sound batch with a later offset after `position`; NOT_FOUND if none is acceptable. `torn`: the
    batch at `position`, if by its header it reaches beyond the end of the file, else NULL."""
    cdef int64_t most = c.scanned_bytes + c.size - position + SEARCH_BYTES, counted = position + AT_ATTRIBUTES
    cdef uint32_t crc = 0
    cdef int status
    at[0] = position + 1
    while c.scanned_bytes < most:
        status = candidate(c, at)
        if status == 0:
            status = try_at(c, at[0], b)
            if status == 0 and torn != NULL:
                status = add_crc(c, &counted, at[0], &crc)
                if status == 0 and (crc != torn.crc or counted != at[0]):
                    status = reaches_end(c, at[0])
        if status != CORRUPT_MESSAGE:
            return status
        at[0] += 1
    return NOT_FOUND


cdef int scan_behind(scan_t* c, int64_t position, spot_t* out) noexcept nogil:
    """Find the bad spot at `position`, up to the next sound batch; NOT_FOUND if none follows in this file."""
    cdef batch_t b, next_
    cdef const batch_t* torn = NULL
    cdef int status = read_header(c, position, c.strict, &b)
    out.position = position
    out.first = c.expected
    if status == 0:
        if b.size == c.size - position:
            return NOT_FOUND
        if b.size > c.size - position:
            torn = &b
        else:
            out.end = position + b.size
            status = try_at(c, out.end, &next_)
    if status == CORRUPT_MESSAGE or torn != NULL:
        status = search(c, position, torn, &next_, &out.end)
    if status == 0:
        out.next = next_.base_offset
    return status


cdef int scan_tail(scan_t* c, int64_t position, bint* torn) noexcept nogil:
    """Set `torn` if the bytes from `position` to the end of the file are one unfinished batch, or zeros."""
    cdef batch_t b
    cdef int64_t i
    cdef int status = read_header(c, position, c.strict, &b)
    torn[0] = (status == 0 and b.size > c.size - position) or c.size - position < HEADER_BYTES
    if status < 0 or torn[0]:
        return status if status < 0 else 0
    while position < c.size:
        status = fill(c, position, 1)
        if status != 0:
            return status
        for i in range(position - c.buffered, <int64_t>c.length):
            if c.data[i] != 0:
                return 0
        if lost_page(c):
            return -EIO
        position = c.buffered + <int64_t>c.length
    torn[0] = True
    return 0
