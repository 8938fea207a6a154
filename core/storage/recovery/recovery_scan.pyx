"""The scan at a start after a crash: every batch above the recovery point is checked (segment_scan.pyx).

If a batch is bad and sound ones follow, in this or a later segment, it is a bad spot (damage.pyx), and the log goes on
after it: the later batches were acknowledged. If no sound batch follows, the log is cut. The indexes of scanned
segments are rebuilt, as their files lagged behind.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t

from pybroker.core.base.atomic cimport peek_i64
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR
from pybroker.core.batch.batch cimport CONTROL, batch_last_offset, batch_t, batch_timestamp
from pybroker.core.batch.marker cimport MARKER_BODY_MAX
from pybroker.core.storage.log.leader_epochs cimport epochs_assign, epochs_cut_tail
from pybroker.core.storage.log.log cimport log_active, log_add_segment, log_t
from pybroker.core.storage.log.log_transactions cimport change_t, log_note_changes, producers_see
from pybroker.core.storage.recovery.damage cimport damage_keep_aside, damage_mark
from pybroker.core.storage.recovery.producer_replay cimport replay_log
from pybroker.core.storage.recovery.producer_snapshots cimport (
    producers_adopt, producers_find_waiting, producers_load,
)
from pybroker.core.storage.recovery.recovery_state cimport FAULT_GAP, FAULT_ORDER, recovery_fault, recovery_t
from pybroker.core.storage.recovery.reindex cimport forget_indexes
from pybroker.core.storage.segment.segment cimport (
    segment_cut, segment_free, segment_new, segment_note, segment_open, segment_seal, segment_t, segment_unlink,
)
from pybroker.core.storage.segment.segment_aborts cimport segment_forget_aborts
from pybroker.core.storage.segment.segment_scan cimport (
    scan_accept, scan_batch, scan_behind, scan_body, scan_file, scan_free, scan_init, scan_leave, scan_t, scan_tail,
)
from pybroker.core.storage.segment.segment_search cimport NOT_FOUND
from pybroker.core.storage.segment.spots cimport spot_t


cdef int unlink_from(log_t* l, const int64_t* bases, int64_t i, int64_t n) noexcept nogil:
    """Remove segments i .. n - 1, last first, so that a crash in between leaves no hole."""
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
    """Find the base offset of the first non-empty segment among i .. n - 1, and the epoch of its first batch, if that
    is sound; else INT64_MAX and INT32_MAX, which limit nothing. This changes the scan's file."""
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
            status = NOT_FOUND   # created by a roll or retention: appends may have gone on past its name
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


cdef int see(log_t* l, scan_t* c, segment_t* s, int64_t position, const batch_t* b) noexcept nogil:
    """Update the producers and transactions with a sound batch."""
    cdef uint8_t body[MARKER_BODY_MAX]
    cdef change_t change
    cdef size_t n = 0
    cdef int status = 0
    if b.attributes & CONTROL:
        status = scan_body(c, position, b, body, &n)
    if status == 0:
        status = producers_see(&l.producers, b, body, n, &change)
    return status if status != 0 else log_note_changes(l, s, &change, 1)


cdef int scan_segment(
    log_t* l, scan_t* c, segment_t* s, int64_t next_base, int32_t next_epoch, int64_t* position) noexcept nogil:
    """Check a segment and build its indexes, up to where no sound batch follows; bad spots before that are marked."""
    cdef batch_t b
    cdef spot_t spot
    cdef int status = segment_forget_aborts(s)
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
        if status == 0 and b.producer_id >= 0:
            status = see(l, c, s, position[0], &b)
        position[0] += b.size
        scan_accept(c, &b)
    return 0 if status == NOT_FOUND else status


cdef int look_for_sound(scan_t* c) noexcept nogil:
    cdef batch_t b
    cdef spot_t spot
    cdef int status = scan_batch(c, 0, &b)
    return scan_behind(c, 0, &spot) if status == CORRUPT_MESSAGE else status


cdef int find_sound(log_t* l, scan_t* c, int64_t base) noexcept nogil:
    """Check whether a segment holds a sound batch that may follow the batches scanned so far: 0, NOT_FOUND or -errno.
    KAFKA_STORAGE_ERROR if it has a sound batch that may not follow them: then an earlier offset or epoch is wrong."""
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
    """Find the first of segments i .. n - 1 that holds a sound batch, n if none does. This changes the scan's file."""
    cdef int status = NOT_FOUND
    while status == NOT_FOUND and i < n:
        status = find_sound(l, c, bases[i])
        i += status == NOT_FOUND
    found[0] = i
    return 0 if status == NOT_FOUND else status


cdef int cut(log_t* l, scan_t* c, segment_t* s, int64_t end, recovery_t* r) noexcept nogil:
    """Cut a segment where no sound batch follows. If that is more than one unfinished batch, keep a copy."""
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
    """Scan segment i and list it. `last`: it was cut, as no sound batch follows in the log; the rest was removed."""
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
        # If not even the first batch is sound, the cause may be a wrong offset or epoch before the segment.
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
        scan_leave(c)  # not for the last segment, which is read next
    if status == 0:
        s.end_offset = c.expected
        s.behind = 0
        # Only empty files may follow this segment, so it is sealed only when the next one is listed.
        if l.segments != NULL and l.segments.count > 0:
            segment_seal(log_active(l), &l.context.reclaim)  # on a full disk the flusher does it later
        status = log_add_segment(l, s)
    if status != 0:
        segment_free(s)
    return status


cdef int find_bytes(log_t* l, const int64_t* bases, int64_t i, int64_t n) noexcept nogil:
    """Return 0 if one of the files of segments i .. n - 1 is not empty; NOT_FOUND if all are empty, or -errno."""
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
    """Scan and list segments i .. n - 1, up to the last that holds a sound batch."""
    cdef bint last = False
    cdef int status = 0
    while status == 0 and i < n and not last:
        if bases[i] < c.expected:
            status = find_bytes(l, bases, i, i + 1)
            if status == NOT_FOUND:
                status = unlink_from(l, bases, i, i + 1)  # retention created it, and appends went on past its name
                i += 1
                continue
        if status == 0 and (
                bases[i] < c.expected or (c.strict and bases[i] != c.expected and bases[i] > r.log_start)):
            status = find_bytes(l, bases, i, n)
            if status == NOT_FOUND:
                return unlink_from(l, bases, i, n)  # a roll created them just before a loss of power
            if status == 0:
                status = recovery_fault(r, FAULT_GAP if bases[i] > c.expected else FAULT_ORDER, c.expected, bases[i])
        if status == 0:
            c.expected = bases[i]
            status = open_scanned(l, c, bases, i, n, r, &last)
        i += 1
    return status


cdef int scan_from(log_t* l, const int64_t* bases, int64_t n, int64_t i, recovery_t* r, int64_t* end) noexcept nogil:
    """Scan from segment i on, with the producer state and epochs as of its base offset."""
    cdef scan_t c
    cdef bint torn = False
    cdef int64_t loaded = -1
    cdef int status = producers_load(l, bases[0], bases[i], &loaded, &torn)
    if status == 0:
        status = producers_find_waiting(l, bases[0], loaded)
    if status == 0 and i > 0 and loaded < bases[i]:
        status = replay_log(l, max(loaded, bases[0]), bases[i])
    if status != 0:
        return status
    epochs_cut_tail(&l.epochs, bases[i])  # taken from the batches: the file may be from before a truncation
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
