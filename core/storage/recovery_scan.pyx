"""A start scans what a crash may have left: every batch above the recovery point is checked (segment_scan.pyx).

Where one fails and sound ones follow, here or in a later segment, it is a bad spot (damage.pyx), and the log goes on
behind it: what follows was acknowledged. Where nothing sound follows the log is cut. Indexes of what was scanned are
built anew, because they ran behind.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t

from pybroker.core.base.atomic cimport peek_i64
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR
from pybroker.core.batch.batch cimport batch_last_offset, batch_t, batch_timestamp
from pybroker.core.storage.damage cimport damage_keep_aside, damage_mark
from pybroker.core.storage.leader_epochs cimport epochs_assign, epochs_cut_tail
from pybroker.core.storage.log cimport log_active, log_add_segment, log_t
from pybroker.core.storage.producer_snapshots cimport (
    producers_adopt, producers_load, producers_replay, producers_see,
)
from pybroker.core.storage.recovery_state cimport FAULT_GAP, FAULT_ORDER, recovery_fault, recovery_t
from pybroker.core.storage.reindex cimport forget_indexes
from pybroker.core.storage.segment cimport (
    segment_cut, segment_free, segment_new, segment_note, segment_open, segment_seal, segment_t, segment_unlink,
)
from pybroker.core.storage.segment_scan cimport (
    scan_accept, scan_batch, scan_behind, scan_file, scan_free, scan_init, scan_leave, scan_t, scan_tail,
)
from pybroker.core.storage.segment_search cimport NOT_FOUND
from pybroker.core.storage.spots cimport spot_t


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


cdef int look_behind(
    log_t* l, scan_t* c, const int64_t* bases, int64_t i, int64_t n, int64_t* base,
    int32_t* first_epoch) noexcept nogil:
    """The base offset of the first of segments i .. n - 1 that holds something, and the epoch of its first batch, if
    that is sound; else the largest of each, which bound nothing. The scan has another file then."""
    cdef segment_t* s
    cdef batch_t first
    cdef int64_t expected = c.expected
    cdef int32_t epoch = c.epoch
    cdef int status = NOT_FOUND
    while status == NOT_FOUND and i < n:
        s = segment_new(l.context.fs, l.directory, bases[i])
        if s == NULL:
            return -ENOMEM
        status = segment_open(s, "", True)
        if status == 0 and s.size == 0:
            status = NOT_FOUND   # a roll or retention made it: appends may have gone on past its name
        elif status == 0:
            scan_file(c, s.files.fd, s.size, bases[i])
            c.expected = bases[i]
            c.epoch = -1
            status = scan_batch(c, 0, &first)
            c.expected = expected
            c.epoch = epoch
            base[0] = bases[i]
            first_epoch[0] = first.leader_epoch
            scan_leave(c)
        segment_free(s)
        i += 1
    if status == NOT_FOUND or status == CORRUPT_MESSAGE:
        base[0] = INT64_MAX
        first_epoch[0] = INT32_MAX
        return 0
    return status


cdef int scan_segment(
    log_t* l, scan_t* c, segment_t* s, int64_t next_base, int32_t next_epoch, int64_t* position) noexcept nogil:
    """Check a segment, building its indexes, up to where no sound batch follows; bad spots before that are marked."""
    cdef batch_t b
    cdef spot_t spot
    cdef int status = 0
    scan_file(c, s.files.fd, s.size, s.base_offset)
    c.next_base = next_base
    c.next_epoch = next_epoch
    forget_indexes(s)
    while status == 0 and position[0] < s.size:
        status = scan_batch(c, position[0], &b)
        if status == CORRUPT_MESSAGE:
            status = scan_behind(c, position[0], &spot)
            if status == 0:
                status = damage_mark(l, s, &spot)
                position[0] = spot.end
                c.expected = spot.next
            continue
        if status == 0:
            segment_note(
                s, position[0], b.size, batch_last_offset(&b), batch_timestamp(&b),
                peek_i64(&l.settings.index_interval_bytes))
        if status == 0 and b.leader_epoch >= 0:
            status = epochs_assign(&l.epochs, b.leader_epoch, b.base_offset)
        if status == 0:
            status = producers_see(&l.producers, &b)
        position[0] += b.size
        scan_accept(c, &b)
    return 0 if status == NOT_FOUND else status


cdef int look_for_sound(scan_t* c) noexcept nogil:
    cdef batch_t b
    cdef spot_t spot
    cdef int status = scan_batch(c, 0, &b)
    return scan_behind(c, 0, &spot) if status == CORRUPT_MESSAGE else status


cdef int find_sound(log_t* l, scan_t* c, int64_t base) noexcept nogil:
    """Does a segment hold a batch that may come behind what is scanned so far? NOT_FOUND if not, or -errno;
    KAFKA_STORAGE_ERROR if it holds one that may come, but not behind that: then the lie is in front of it."""
    cdef segment_t* s = segment_new(l.context.fs, l.directory, base)
    cdef int64_t expected = c.expected
    cdef int32_t epoch = c.epoch
    cdef int status
    if s == NULL:
        return -ENOMEM
    status = segment_open(s, "", True)
    if status == 0 and s.size == 0:
        status = NOT_FOUND
    if status == 0:
        scan_file(c, s.files.fd, s.size, base)
        c.expected = max(expected, base)
        status = look_for_sound(c)
        if status == NOT_FOUND and (c.expected > base or epoch >= 0):
            c.expected = base
            c.epoch = -1
            status = look_for_sound(c)
            if status == 0:
                status = KAFKA_STORAGE_ERROR
        c.expected = expected
        c.epoch = epoch
        scan_leave(c)
    segment_free(s)
    return status


cdef int find_sound_segment(
    log_t* l, scan_t* c, const int64_t* bases, int64_t i, int64_t n, int64_t* found) noexcept nogil:
    """The first of segments i .. n - 1 that holds a sound batch, n if none does. The scan has another file then."""
    cdef int status = NOT_FOUND
    while status == NOT_FOUND and i < n:
        status = find_sound(l, c, bases[i])
        i += status == NOT_FOUND
    found[0] = i
    return 0 if status == NOT_FOUND else status


cdef int cut(log_t* l, scan_t* c, segment_t* s, int64_t end, recovery_t* r) noexcept nogil:
    """Cut a segment where no sound batch follows. What may be more than a batch that was being written is kept."""
    cdef bint torn = False
    cdef int status = scan_tail(c, end, &torn)
    if status != 0:
        return status
    if not torn:
        r.aside = 1 if damage_keep_aside(s, end) == 0 and r.aside >= 0 else -1
    r.cut_bytes += s.size - end
    r.cut_base = s.base_offset
    r.cut_position = end
    return segment_cut(s, end)


cdef int open_scanned(
    log_t* l, scan_t* c, const int64_t* bases, int64_t i, int64_t n, recovery_t* r, bint* last) noexcept nogil:
    """List segment i after a scan. `last`: it was cut, and nothing sound follows in the log; the rest was removed."""
    cdef segment_t* s = segment_new(l.context.fs, l.directory, bases[i])
    cdef spot_t spot
    cdef int64_t end = 0, k = n, next_base = INT64_MAX
    cdef int32_t next_epoch = INT32_MAX
    cdef int status
    if s == NULL:
        return -ENOMEM
    status = segment_open(s, "", True)
    if status == 0 and not c.strict:
        status = look_behind(l, c, bases, i + 1, n, &next_base, &next_epoch)
    if status == 0:
        status = scan_segment(l, c, s, next_base, next_epoch, &end)
    if status == 0 and end < s.size:
        # Where not even the first batch is sound: is that because of a lie in front of the segment?
        status = find_sound_segment(l, c, bases, i + 1 if end > 0 else i, n, &k)
        if status == KAFKA_STORAGE_ERROR:
            status = recovery_fault(r, FAULT_ORDER, c.expected, bases[k])
        scan_file(c, s.files.fd, s.size, s.base_offset)
    if status == 0 and end < s.size:
        last[0] = k == n
        if k < n and bases[i + 1] > c.expected:
            spot.position, spot.end, spot.first, spot.next = end, s.size, c.expected, bases[i + 1]
            status = damage_mark(l, s, &spot)
            c.expected = spot.next
        else:
            if last[0]:
                status = unlink_from(l, bases, i + 1, n)
            if status == 0:
                status = cut(l, c, s, end, r)
    if i + 1 < n:
        scan_leave(c)  # what is read next is at the log's end
    if status == 0:
        s.end_offset = c.expected
        s.behind = 0
        # What comes behind this one may be nothing but empty files: it is sealed once another is listed.
        if l.segments != NULL and l.segments.count > 0:
            segment_seal(log_active(l), &l.context.reclaim)  # on a full disk the flusher does it later
        status = log_add_segment(l, s)
    if status != 0:
        segment_free(s)
    return status


cdef int find_bytes(log_t* l, const int64_t* bases, int64_t i, int64_t n) noexcept nogil:
    """Has one of the files of segments i .. n - 1 a byte? NOT_FOUND if not, or -errno."""
    cdef segment_t* s
    cdef int status = NOT_FOUND
    while status == NOT_FOUND and i < n:
        s = segment_new(l.context.fs, l.directory, bases[i])
        if s == NULL:
            return -ENOMEM
        status = segment_open(s, "", False)
        if status == 0 and s.size == 0:
            status = NOT_FOUND
        segment_free(s)
        i += 1
    return status


cdef int scan_listed(log_t* l, scan_t* c, const int64_t* bases, int64_t n, int64_t i, recovery_t* r) noexcept nogil:
    """Scan segments i .. n - 1, up to the last that holds a sound batch."""
    cdef bint last = False
    cdef int status = 0
    while status == 0 and i < n and not last:
        if bases[i] < c.expected:
            status = find_bytes(l, bases, i, i + 1)
            if status == NOT_FOUND:
                status = unlink_from(l, bases, i, i + 1)  # retention made it, and appends went on past its name
                i += 1
                continue
        if status == 0 and (
                bases[i] < c.expected or (c.strict and bases[i] != c.expected and bases[i] > r.log_start)):
            status = find_bytes(l, bases, i, n)
            if status == NOT_FOUND:
                return unlink_from(l, bases, i, n)  # a roll made them just before the power went
            if status == 0:
                status = recovery_fault(r, FAULT_GAP if bases[i] > c.expected else FAULT_ORDER, c.expected, bases[i])
        if status == 0:
            c.expected = bases[i]
            status = open_scanned(l, c, bases, i, n, r, &last)
        i += 1
    return status


cdef int scan_from(log_t* l, const int64_t* bases, int64_t n, int64_t i, recovery_t* r, int64_t* end) noexcept nogil:
    """Scan from segment i on, with the producers and epochs as they were there."""
    cdef scan_t c
    cdef bint torn = False
    cdef int64_t loaded = -1
    cdef int status = producers_load(l, bases[0], bases[i], &loaded, &torn)
    if status == 0 and i > 0 and loaded < bases[i]:
        status = producers_replay(l, max(loaded, bases[0]), bases[i])
    if status != 0:
        return status
    epochs_cut_tail(&l.epochs, bases[i])  # the batches tell; the file may be of before a truncation
    status = scan_init(&c, l.context.fs)
    if status == 0:
        c.expected = bases[i]
        c.epoch_max = r.epoch_max
        c.check_from = r.recovery_point
        c.strict = not r.gaps
        status = scan_listed(l, &c, bases, n, i, r)
        r.scanned_bytes += c.scanned_bytes
        end[0] = c.expected
        scan_free(&c)
    if status == 0 and loaded < 0 and bases[0] > 0:
        status = producers_adopt(l, end[0])
    return status
