"""Start-up of a log: what a clean stop left is opened, what a crash left is scanned.

Below the recovery point everything was flushed and is believed; above it every batch is checked (segment_scan.pyx).
Where one fails and sound ones follow, here or in a later segment, it is a bad spot (damage.pyx), and the log goes on
behind it: what follows was acknowledged. Where nothing sound follows the log is cut. Indexes of what was scanned are
built anew, because they ran behind; of the rest a bad one alone is built anew (reindex.pyx).
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT32_MAX, int64_t

from pybroker.core.base.atomic cimport peek_i64
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR
from pybroker.core.batch.batch cimport batch_last_offset, batch_t, batch_timestamp
from pybroker.core.storage.damage cimport damage_keep_aside, damage_mark, damage_search
from pybroker.core.storage.index cimport index_free, index_t
from pybroker.core.storage.leader_epochs cimport epochs_assign, epochs_cut_head, epochs_cut_tail
from pybroker.core.storage.log cimport log_active, log_add_segment, log_publish, log_t, segments_free, view_t
from pybroker.core.storage.open_files cimport files_drop, files_t
from pybroker.core.storage.producer_snapshots cimport (
    producers_adopt, producers_load, producers_replay, producers_see, producers_tail,
)
from pybroker.core.storage.producer_state cimport sequence_first_open
from pybroker.core.storage.reindex cimport forget_indexes, load_indexes
from pybroker.core.storage.roll cimport log_roll
from pybroker.core.storage.segment cimport (
    UNKNOWN, segment_cut, segment_files, segment_free, segment_new, segment_note, segment_open, segment_seal, segment_t,
    segment_times, segment_unlink,
)
from pybroker.core.storage.segment_scan cimport (
    scan_accept, scan_batch, scan_behind, scan_file, scan_free, scan_init, scan_t, scan_tail,
)
from pybroker.core.storage.segment_search cimport NOT_FOUND, search_init, search_t, search_to_last
from pybroker.core.storage.spots cimport spot_t


cdef int fault(recovery_t* r, int what, int64_t end, int64_t base) noexcept nogil:
    """Note what is amiss; nothing of the log is used then."""
    r.fault = what
    r.fault_end = end
    r.fault_base = base
    return KAFKA_STORAGE_ERROR


cdef int end_of(segment_t* s, int64_t* end) noexcept nogil:
    """The offset after a segment's last batch, and that its last batch ends where the file does."""
    cdef search_t w
    cdef batch_t b
    cdef files_t* f
    cdef int64_t position = 0
    cdef int status = segment_files(s, &f)
    if status < 0:
        return status
    end[0] = s.base_offset
    search_init(&w, s, f, s.size)
    status = search_to_last(&w, &position, &b)
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
    if status > 0:
        status = damage_search(l, s, next_base, not r.gaps)
        end = next_base
    elif status == 0 and end != next_base and not r.gaps and next_base > r.log_start:
        # An offset is not under its batch's CRC: is it the one that is wrong?
        status = damage_search(l, s, next_base, True)
        if s.spots != NULL:
            end = next_base
    if status == 0 and (end > next_base or (end < next_base and not r.gaps and next_base > r.log_start)):
        status = fault(r, FAULT_GAP if end < next_base else FAULT_ORDER, end, next_base)
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
        status = load_indexes(s, peek_i64(&l.settings.index_interval_bytes), &r.rebuilt)
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


cdef int scan_segment(log_t* l, scan_t* c, segment_t* s, int64_t* position) noexcept nogil:
    """Check a segment, building its indexes, up to where no sound batch follows; bad spots before that are marked."""
    cdef batch_t b
    cdef spot_t spot
    cdef int status = 0
    scan_file(c, s.files.fd, s.size, s.base_offset)
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


cdef bint is_sound(log_t* l, const scan_t* known, int64_t base) noexcept nogil:
    """Does a segment hold a batch that may come behind what is scanned so far?"""
    cdef segment_t* s = segment_new(l.context.fs, l.directory, base)
    cdef scan_t c = known[0]
    cdef batch_t b
    cdef spot_t spot
    cdef bint sound = False
    if s != NULL and segment_open(s, "", True) == 0 and s.size > 0:
        scan_file(&c, s.files.fd, s.size, base)
        c.expected = max(c.expected, base)
        sound = scan_batch(&c, 0, &b) == 0 or scan_behind(&c, 0, &spot) == 0
    if s != NULL:
        segment_free(s)
    return sound


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
    cdef int64_t end = 0, k = i + 1
    cdef int status
    if s == NULL:
        return -ENOMEM
    status = segment_open(s, "", True)
    if status == 0:
        status = scan_segment(l, c, s, &end)
    if status == 0 and end < s.size:
        while k < n and not is_sound(l, c, bases[k]):
            k += 1
        c.length = 0             # the buffer held other files meanwhile
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
    if status == 0:
        s.end_offset = c.expected
        s.behind = 0
        if i + 1 < n and not last[0]:
            segment_seal(s, &l.context.reclaim)  # on a full disk the flusher does it later
    if status == 0:
        status = log_add_segment(l, s)
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


cdef int scan_listed(log_t* l, scan_t* c, const int64_t* bases, int64_t n, int64_t i, recovery_t* r) noexcept nogil:
    """Scan segments i .. n - 1, up to the last that holds a sound batch."""
    cdef bint last = False
    cdef int status = 0
    while status == 0 and i < n and not last:
        if bases[i] < c.expected and all_empty(l, bases, i, i + 1):
            status = unlink_from(l, bases, i, i + 1)  # retention made it, and appends went on past its name
            i += 1
            continue
        if bases[i] < c.expected or (c.strict and bases[i] != c.expected and bases[i] > r.log_start):
            if all_empty(l, bases, i, n):
                return unlink_from(l, bases, i, n)  # a roll made them just before the power went
            return fault(r, FAULT_GAP if bases[i] > c.expected else FAULT_ORDER, c.expected, bases[i])
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


cdef int check_head(log_t* l, const int64_t* bases, int64_t n, recovery_t* r) noexcept nogil:
    """Does the log begin where it did? The first leader epoch begins at the log start, and is on disk before retention
    removes a file. A log without files begins there again."""
    cdef int64_t began
    if l.epochs.count == 0:
        return 0                 # nothing tells
    began = max(r.log_start, l.epochs.items[0].start)
    if n == 0:
        r.log_start = began
    elif bases[0] > began and not r.given_up:
        return fault(r, FAULT_HEAD, began, bases[0])
    return 0


cdef int check_tail(recovery_t* r, int64_t* end, int64_t n) noexcept nogil:
    """Does the log end where it did, or was it cut, which is told elsewhere?"""
    if end[0] >= r.written or r.cut_bytes:
        return 0
    if not r.given_up:
        return fault(r, FAULT_TAIL, end[0], r.written)
    if n == 0:
        r.log_start = end[0] = r.written  # none of the offsets is used twice
    r.log_start = min(r.log_start, end[0])
    return 0


cdef int log_recover(log_t* l, const int64_t* bases, int64_t n, recovery_t* r) noexcept nogil:
    """Open the segments with these base offsets (ascending) and publish the watermarks. The caller is alone.

    KAFKA_STORAGE_ERROR with r.fault if a segment is missing."""
    cdef view_t v
    cdef int64_t end, first
    cdef int status = check_head(l, bases, n, r)
    end = r.log_start
    if n > 0 and status == 0:
        status = open_segments(l, bases, n, r, &end)
    if status == 0:
        status = check_tail(r, &end, n)
    if status != 0:
        return status
    if n > 0:
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
