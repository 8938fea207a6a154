"""Start-up of a log: what a clean stop left is opened, what a crash left is scanned.

Below the recovery point everything was flushed and is believed; above it every batch is checked: a whole header, a length
that the file holds, the CRC, the offset that must come next, an epoch that can be. The log is cut before the first batch
that fails, and later segments go with it. Indexes of what was scanned are built anew, because they ran behind; of the
rest a bad one alone is built anew. Nothing is allocated by a length read from disk: the CRC runs over a fixed buffer.
"""

from libc.errno cimport EIO, ENOMEM
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

from pybroker.core.atomic cimport poke_i64, store_i64
from pybroker.core.batch cimport AT_ATTRIBUTES, HEADER_BYTES, batch_last_offset, batch_parse, batch_t, batch_timestamp
from pybroker.core.crc32c cimport crc32c
from pybroker.core.epochs cimport epochs_assign, epochs_cut_head, epochs_cut_tail
from pybroker.core.index cimport (
    OFFSET_ENTRY, TIME_ENTRY, entry_t, index_free, index_get, index_init, index_load, index_replace,
    index_t,
)
from pybroker.core.kafka cimport CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR
from pybroker.core.log cimport log_active, log_add_segment, log_publish, log_roll, log_t, segments_free, view_t
from pybroker.core.producers cimport producers_adopt, producers_load, producers_replay, producers_see, producers_tail
from pybroker.core.segment cimport (
    PATH_BYTES, UNKNOWN, files_drop, files_t, segment_cut, segment_files, segment_free, segment_new, segment_note,
    segment_open, segment_path, segment_seal, segment_t, segment_times, segment_unlink,
)
from pybroker.core.sequence cimport sequence_first_open
from pybroker.core.vfs cimport P_SEGMENT_READ, vfs_pread
from pybroker.core.walk cimport (
    BODY_ELSEWHERE, NOT_FOUND, walk_header, walk_init, walk_t, walk_to_last,
)

cdef enum:
    SCAN_BYTES = 256 << 10       # in the second-level cache, so that the CRC reads what pread just wrote


# -- indexes -----------------------------------------------------------------------------------------------------------

cdef int segment_retime(segment_t* s) noexcept nogil:
    """Learn of an active segment what its indexes do not say: first and largest timestamp, bytes since the last entry.

    -EIO if an index names a batch that does not stand at its position, or an offset past the last batch."""
    cdef walk_t w
    cdef batch_t b
    cdef entry_t entry
    cdef files_t* f = s.files
    cdef int64_t position = 0
    cdef int status
    s.first_timestamp = UNKNOWN
    poke_i64(&s.largest_offset, s.base_offset)
    store_i64(&s.largest_timestamp, -1)
    s.since_entry = 0
    walk_init(&w, s, f, s.size)
    status = walk_header(&w, 0, &b)
    if status == NOT_FOUND:
        return 0
    if status != 0:
        return status
    s.first_timestamp = b.max_timestamp
    if f.offsets.count > 0:
        index_get(&f.offsets, f.offsets.count - 1, &entry)
        position = entry.value
        status = walk_header(&w, position, &b)
        if status != 0 or b.base_offset > s.base_offset + entry.key:
            return -EIO
    if f.times.count > 0:
        index_get(&f.times, f.times.count - 1, &entry)
        poke_i64(&s.largest_offset, s.base_offset + entry.value)
        store_i64(&s.largest_timestamp, entry.key)
    while status == 0:
        if batch_timestamp(&b) > s.largest_timestamp:
            poke_i64(&s.largest_offset, batch_last_offset(&b))
            store_i64(&s.largest_timestamp, b.max_timestamp)
        s.since_entry += b.size
        position += b.size
        status = walk_header(&w, position, &b)
    if status == NOT_FOUND:
        return 0 if s.largest_offset <= batch_last_offset(&b) else -EIO
    return status


cdef void forget_indexes(segment_t* s) noexcept nogil:
    index_free(&s.files.offsets)
    index_free(&s.files.times)
    index_init(&s.files.offsets, OFFSET_ENTRY)
    index_init(&s.files.times, TIME_ENTRY)
    s.first_timestamp = UNKNOWN
    poke_i64(&s.largest_offset, s.base_offset)
    store_i64(&s.largest_timestamp, -1)
    s.since_entry = 0


cdef int build_indexes(segment_t* s, int64_t interval) noexcept nogil:
    """Build the heap indexes of a segment from its headers."""
    cdef walk_t w
    cdef batch_t b
    cdef int64_t position = 0
    cdef int status
    forget_indexes(s)
    walk_init(&w, s, s.files, s.size)
    status = walk_header(&w, 0, &b)
    while status == 0:
        status = segment_note(s, s.files, position, b.size, batch_last_offset(&b), batch_timestamp(&b), interval)
        if status < 0:
            return status
        position += b.size
        status = walk_header(&w, position, &b)
    return 0 if status == NOT_FOUND else status


cdef int load_indexes(segment_t* s, int64_t interval, int32_t* rebuilt) noexcept nogil:
    """The indexes of an active segment onto the heap: from their files, or from the log where a file is no good."""
    cdef char path[PATH_BYTES]
    cdef int status
    segment_path(s, ".index", path)
    status = index_load(&s.files.offsets, s.fs, path, s.size - 1)
    if status == 0:
        segment_path(s, ".timeindex", path)
        status = index_load(&s.files.times, s.fs, path, INT32_MAX)
    if status == 0:
        status = segment_retime(s)
    if status == 0:
        return 0
    if s.size > 0:
        rebuilt[0] += 1
    return build_indexes(s, interval)


cdef int segment_reopen(log_t* l, int64_t base_offset, segment_t** out) noexcept nogil:
    """A segment as an active one, with its indexes on the heap."""
    cdef int32_t rebuilt = 0
    cdef segment_t* s = segment_new(l.context.fs, l.directory, base_offset)
    cdef int status
    if s == NULL:
        return -ENOMEM
    status = segment_open(s, "", True)
    if status == 0:
        status = load_indexes(s, l.settings.index_interval_bytes, &rebuilt)
    if status != 0:
        segment_free(s)
        return status
    out[0] = s
    return 0


cdef int segment_rebuild(segment_t* s, int64_t interval) noexcept nogil:
    """Write the index files of a sealed segment anew; the flusher calls it where a look-up found nonsense."""
    cdef char path[PATH_BYTES]
    cdef segment_t* copy = segment_new(s.fs, s.directory, s.base_offset)
    cdef int status
    if copy == NULL:
        return -ENOMEM
    status = segment_open(copy, "", True)
    if status == 0:
        status = build_indexes(copy, interval)
    if status == 0:
        segment_path(s, ".index", path)
        status = index_replace(&copy.files.offsets, s.fs, path)
    if status == 0:
        segment_path(s, ".timeindex", path)
        status = index_replace(&copy.files.times, s.fs, path)
    segment_free(copy)
    return status


# -- the scan ----------------------------------------------------------------------------------------------------------

cdef struct scan_t:
    log_t* log
    segment_t* segment
    recovery_t* recovery
    uint8_t* buffer
    int64_t buffered         # position of the buffer in the file
    size_t length
    int64_t expected         # the offset that comes next
    int32_t epoch            # of the batch before
    bint strict              # offsets have no gaps: nothing was compacted away


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
        status = segment_note(
            c.segment, c.segment.files, position, b.size, batch_last_offset(&b), batch_timestamp(&b),
            c.log.settings.index_interval_bytes)
        if status == 0 and b.leader_epoch >= 0:
            status = epochs_assign(&c.log.epochs, b.leader_epoch, b.base_offset)
        if status == 0:
            status = producers_see(&c.log.producers, &b)
        position += b.size
        c.expected = batch_last_offset(&b) + 1
        c.epoch = b.leader_epoch
    end[0] = position
    return 0 if status == CORRUPT_MESSAGE else status


# -- opening -----------------------------------------------------------------------------------------------------------

cdef int end_of(segment_t* s, int64_t* end) noexcept nogil:
    """The offset after a segment's last batch, and that its last batch ends where the file does."""
    cdef walk_t w
    cdef batch_t b
    cdef files_t* f
    cdef int64_t position = 0
    cdef int status = segment_files(s, &f)
    if status < 0:
        return status
    end[0] = s.base_offset
    walk_init(&w, s, f, s.size)
    status = walk_to_last(&w, &position, &b)
    if status == 0:
        end[0] = batch_last_offset(&b) + 1
    return 0 if status == NOT_FOUND else status


cdef int open_sealed(log_t* l, int64_t base, int64_t next_base, recovery_t* r) noexcept nogil:
    """List a segment that is believed: below the recovery point, or after a clean stop, and not the last."""
    cdef segment_t* s = segment_new(l.context.fs, l.directory, base)
    cdef index_t times
    cdef int64_t end = base
    cdef int status
    if s == NULL:
        return -ENOMEM
    s.sealed = 1
    status = segment_open(s, "", False)
    if status == 0:
        status = end_of(s, &end)
    if status == 0 and (end > next_base or (end < next_base and not r.gaps and next_base > r.log_start)):
        r.fault = FAULT_GAP if end < next_base else FAULT_ORDER
        r.fault_base = next_base
        r.fault_end = end
        status = KAFKA_STORAGE_ERROR
    if status == 0:
        segment_times(s, s.files, &times)  # is there one?
        index_free(&times)
        l.repair |= s.index_bad
        s.flushed = s.size
        s.end_offset = next_base
        s.largest_timestamp = UNKNOWN
        if s.files != NULL and not s.index_bad:
            files_drop(s.files)
            s.files = NULL
        status = log_add_segment(l, s)
    if status != 0:
        segment_free(s)
    return status


cdef int open_last(log_t* l, int64_t base, recovery_t* r, int64_t* end) noexcept nogil:
    """List the active segment after a clean stop. CORRUPT_MESSAGE if it does not end with a whole batch after all."""
    cdef segment_t* s = segment_new(l.context.fs, l.directory, base)
    cdef int status
    if s == NULL:
        return -ENOMEM
    status = segment_open(s, "", True)
    if status == 0:
        status = load_indexes(s, l.settings.index_interval_bytes, &r.rebuilt)
    if status == 0:
        status = end_of(s, end)
    if status == 0:
        s.flushed = s.size
        status = log_add_segment(l, s)
    if status != 0:
        segment_free(s)
    return status


cdef int unlink_from(log_t* l, const int64_t* bases, int64_t i, int64_t n) noexcept nogil:
    """Remove segments i .. n - 1, last first: a crash in between leaves no hole."""
    cdef segment_t gone
    cdef int status = 0
    gone.fs = l.context.fs
    gone.directory = l.directory
    while status == 0 and n > i:
        n -= 1
        gone.base_offset = bases[n]
        status = segment_unlink(&gone, "")
    return status


cdef int open_scanned(scan_t* c, const int64_t* bases, int64_t i, int64_t n, bint* torn) noexcept nogil:
    """List segment i after a scan; `torn` if it was cut. What followed the cut is removed first: it follows on nothing."""
    cdef segment_t* s = segment_new(c.log.context.fs, c.log.directory, bases[i])
    cdef int64_t end = 0
    cdef int status
    if s == NULL:
        return -ENOMEM
    status = segment_open(s, "", True)
    if status == 0:
        c.segment = s
        status = scan_segment(c, &end)
    torn[0] = status == 0 and end < s.size
    if torn[0]:
        c.recovery.cut_bytes += s.size - end
        status = unlink_from(c.log, bases, i + 1, n)
        if status == 0:
            status = segment_cut(s, end)
    if status == 0:
        s.end_offset = c.expected
        s.behind = 0
        if i + 1 < n and not torn[0]:
            segment_seal(s, &c.log.context.quiesce)  # on a full disk the flusher does it later
    if status == 0:
        status = log_add_segment(c.log, s)
    if status != 0:
        segment_free(s)
    return status


cdef bint all_empty(log_t* l, const int64_t* bases, int64_t i, int64_t n) noexcept nogil:
    cdef segment_t* s
    cdef bint empty = True
    while empty and i < n:
        s = segment_new(l.context.fs, l.directory, bases[i])
        empty = s != NULL and segment_open(s, "", False) == 0 and s.size == 0
        if s != NULL:
            segment_free(s)
        i += 1
    return empty


cdef int scan_from(log_t* l, const int64_t* bases, int64_t n, int64_t i, recovery_t* r, int64_t* end) noexcept nogil:
    """Scan segments i .. n - 1, up to one that has to be cut."""
    cdef scan_t c
    cdef bint torn = False
    cdef int64_t loaded = -1
    cdef int status = producers_load(l, bases[0], bases[i], &loaded, &torn)
    torn = False
    if status == 0 and i > 0 and loaded < bases[i]:
        status = producers_replay(l, max(loaded, bases[0]), bases[i])
    if status != 0:
        return status
    epochs_cut_tail(&l.epochs, bases[i])  # the batches tell; the file may be of before a truncation
    c.log = l
    c.recovery = r
    c.expected = bases[i]
    c.epoch = -1
    c.strict = not r.gaps
    c.buffer = <uint8_t*>malloc(SCAN_BYTES)
    if c.buffer == NULL:
        return -ENOMEM
    while status == 0 and i < n and not torn:
        if bases[i] < c.expected or (c.strict and bases[i] != c.expected and bases[i] > r.log_start):
            if not all_empty(l, bases, i, n):
                r.fault = FAULT_GAP if bases[i] > c.expected else FAULT_ORDER
                r.fault_base = bases[i]
                r.fault_end = c.expected
                status = KAFKA_STORAGE_ERROR
            else:
                status = unlink_from(l, bases, i, n)  # a roll made them just before the power went
            break
        c.expected = bases[i]
        status = open_scanned(&c, bases, i, n, &torn)
        i += 1
    free(c.buffer)
    end[0] = c.expected
    if status == 0 and loaded < 0 and bases[0] > 0:
        status = producers_adopt(l, c.expected)
    return status


cdef int open_segments(log_t* l, const int64_t* bases, int64_t n, recovery_t* r, int64_t* end) noexcept nogil:
    """Open all segments in order: believed while they lie below the recovery point, then scanned."""
    cdef int64_t i = 0, loaded = -1
    cdef bint torn = False
    cdef int status = 0
    while status == 0 and i + 1 < n and (r.clean or bases[i + 1] <= r.recovery_point):
        status = open_sealed(l, bases[i], bases[i + 1], r)
        i += 1
    if status != 0:
        return status
    if r.clean:
        status = open_last(l, bases[i], r, end)
        if status != CORRUPT_MESSAGE:
            if status == 0:
                status = producers_load(l, bases[0], end[0], &loaded, &torn)
            if status == 0 and loaded < end[0] and (torn or l.producers.count):
                status = producers_replay(l, max(loaded, bases[0]), end[0])
            elif status == 0 and loaded < end[0]:
                # The stop left one, or knew no producer (before ours wrote one all the same): the tail is cheap to ask.
                status = producers_replay(l, max(loaded, producers_tail(l, end[0])), end[0])
            return status
        r.recovery_point = min(r.recovery_point, bases[i])  # the marker lied: believe nothing of this segment
    return scan_from(l, bases, n, i, r, end)


cdef int forget_segments(log_t* l) noexcept nogil:
    """Remove every segment. The caller is alone."""
    cdef int64_t i
    cdef int status = 0
    if l.segments == NULL:
        return 0
    for i in range(l.segments.count):
        status = segment_unlink(l.segments.items[i].segment, "")
        if status < 0:
            return status
        segment_free(l.segments.items[i].segment)
    segments_free(l.segments)
    l.segments = NULL
    return 0


cdef int log_recover(log_t* l, const int64_t* bases, int64_t n, recovery_t* r) noexcept nogil:
    """Open the segments with these base offsets (ascending) and publish the watermarks. The caller is alone.

    KAFKA_STORAGE_ERROR with r.fault if a segment is missing in the middle."""
    cdef view_t v
    cdef int64_t end = r.log_start, first
    cdef int status = 0
    if n > 0:
        status = open_segments(l, bases, n, r, &end)
        if status != 0:
            return status
        r.log_start = max(r.log_start, bases[0])
    if end < r.log_start:
        # Records were deleted up to here, and then the tail that held them was lost: begin anew where readers expect.
        status = forget_segments(l)
        if status != 0:
            return status
        end = r.log_start
        n = 0
    v.log_start = r.log_start
    v.log_end = end
    v.high_watermark = end if r.high_watermark < 0 else min(max(r.high_watermark, v.log_start), end)
    first = sequence_first_open(&l.producers)
    v.last_stable = v.high_watermark if first < 0 or first > v.high_watermark else max(first, v.log_start)
    v.active_base = log_active(l).base_offset if n > 0 else end
    v.active_size = log_active(l).size if n > 0 else 0
    log_publish(l, &v)
    epochs_cut_tail(&l.epochs, end)
    epochs_cut_head(&l.epochs, v.log_start)
    l.recovery_point = min(max(r.recovery_point, v.log_start), end) if not r.clean else end
    if n == 0 or log_active(l).base_offset + INT32_MAX < end:
        status = log_roll(l)
    return status
