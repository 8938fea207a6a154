"""Start-up of a log: after a clean stop segments are only opened, after a crash they are scanned.

Below the recovery point all data was flushed and is trusted (recovery_trust.pyx); above it every batch is checked
(recovery_scan.pyx). This module runs these steps, checks that the log begins and ends where it did, and sets its
watermarks.
"""

from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t

from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE
from pybroker.core.storage.log.leader_epochs cimport epochs_cut_head, epochs_cut_tail
from pybroker.core.storage.log.log cimport log_active, log_change, log_publish, log_t, segments_free, view_t
from pybroker.core.storage.log.log_transactions cimport log_end_restore
from pybroker.core.storage.log.roll cimport log_roll
from pybroker.core.storage.recovery.producer_replay cimport replay_log
from pybroker.core.storage.recovery.producer_snapshots cimport (
    producers_find_waiting, producers_load, producers_tail,
)
from pybroker.core.storage.recovery.rebuild_aborts cimport rebuild_aborts
from pybroker.core.storage.recovery.recovery_scan cimport find_bytes, scan_from
from pybroker.core.storage.recovery.recovery_state cimport (
    FAULT_HEAD, FAULT_ORDER, FAULT_TAIL, recovery_fault, recovery_t,
)
from pybroker.core.storage.recovery.recovery_trust cimport open_last, open_sealed
from pybroker.core.storage.segment.segment cimport segment_free, segment_unlink
from pybroker.core.storage.segment.segment_search cimport NOT_FOUND


cdef int open_segments(log_t* l, const int64_t* bases, int64_t n, recovery_t* r, int64_t* end) noexcept nogil:
    """Open all segments in order: those below the recovery point are trusted, the others scanned."""
    cdef int64_t i = 0, loaded = -1
    cdef bint torn = False
    cdef int status = 0
    while status == 0 and i + 1 < n and (r.clean or bases[i + 1] <= r.recovery_point):
        status = open_sealed(l, bases[i], bases[i + 1], r)
        if status != 0 and r.fault == FAULT_ORDER and find_bytes(l, bases, i + 1, i + 2) == NOT_FOUND:
            # A roll created an empty file, and appends to the segment before went on past its name: a scan removes it.
            r.fault = 0
            r.recovery_point = min(r.recovery_point, bases[i])
            return scan_from(l, bases, n, i, r, end)
        i += 1
    if status != 0:
        return status
    if r.clean:
        status = open_last(l, bases[i], r, end)
        if status != CORRUPT_MESSAGE:
            if status == 0:
                status = producers_load(l, bases[0], end[0], &loaded, &torn)
            if status == 0:
                status = producers_find_waiting(l, bases[0], loaded)
            if status == 0 and loaded < end[0] and (torn or l.producers.count):
                status = replay_log(l, max(loaded, bases[0]), end[0])
            elif status == 0 and loaded < end[0]:
                # No snapshot of the stop: an older version wrote none without producers. Replaying the tail is cheap.
                status = replay_log(l, max(loaded, producers_tail(l, end[0])), end[0])
            return status
        r.recovery_point = min(r.recovery_point, bases[i])  # the clean-stop marker was wrong: scan this segment
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
    """Check that no first segment is missing: the first leader epoch begins at the log start, and is on disk before
    retention removes a file. A log without files begins there again."""
    cdef int64_t began
    if l.epochs.count == 0:
        return 0                 # the earlier start is unknown
    began = max(r.log_start, l.epochs.items[0].start)
    if n == 0:
        r.log_start = began
    elif bases[0] > began and not r.given_up:
        return recovery_fault(r, FAULT_HEAD, began, bases[0])
    return 0


cdef int check_tail(recovery_t* r, int64_t* end, int64_t n) noexcept nogil:
    """Check that the log ends where it did, or was cut by the scan, which is reported elsewhere."""
    if end[0] >= r.written or r.cut_bytes:
        return 0
    if not r.given_up:
        return recovery_fault(r, FAULT_TAIL, end[0], r.written)
    if n == 0:
        r.log_start = end[0] = r.written  # so that no offset is used twice
    r.log_start = min(r.log_start, end[0])
    return 0


cdef int log_recover(log_t* l, const int64_t* bases, int64_t n, recovery_t* r) noexcept nogil:
    """Open the segments with these base offsets (ascending) and publish the watermarks. The caller is alone.

    KAFKA_STORAGE_ERROR with r.fault if a segment is missing."""
    cdef view_t v
    cdef int64_t end
    cdef int status = check_head(l, bases, n, r)
    end = r.log_start
    l.view.high_watermark = r.high_watermark if r.high_watermark >= 0 else INT64_MAX  # for the transactions
    if n > 0 and status == 0:
        status = open_segments(l, bases, n, r, &end)
    if status == 0:
        status = check_tail(r, &end, n)
    if status != 0:
        return status
    if n > 0:
        r.log_start = max(r.log_start, bases[0])
    if end < r.log_start:
        # Records were deleted up to log_start, and later the tail was lost: begin a new log at log_start.
        status = forget_segments(l)
        if status != 0:
            return status
        end = r.log_start
        n = 0
    log_end_restore(l)
    log_change(l, &v)
    v.log_start = r.log_start
    v.log_end = end
    v.high_watermark = end if r.high_watermark < 0 else min(max(r.high_watermark, v.log_start), end)
    v.active_base = log_active(l).base_offset if n > 0 else end
    v.active_size = log_active(l).size if n > 0 else 0
    log_publish(l, &v)
    epochs_cut_tail(&l.epochs, end)
    epochs_cut_head(&l.epochs, v.log_start)
    l.recovery_point = min(max(r.recovery_point, v.log_start), end) if not r.clean else end
    if n > 0 and log_active(l).aborts_bad:
        status = rebuild_aborts(l, l.segments.count - 1, end)
    if status == 0 and (n == 0 or log_active(l).base_offset + INT32_MAX < end):
        status = log_roll(l)
    return status
