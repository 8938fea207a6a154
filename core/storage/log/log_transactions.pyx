"""Producers and transactions as a function of the log. A batch changes them in the same way on a leader, on a follower,
in recovery and after a truncation, whatever its epochs are. A leader checks a batch before it comes here.

The producer's state changes before the batch is written, as that can be undone; the transactions of the log change
after it, and before the log's new end is published.
"""

from libc.stdint cimport int64_t, uint8_t

from pybroker.core.base.atomic cimport store_i32
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.batch.batch cimport CONTROL, TRANSACTIONAL, batch_last_offset, batch_t
from pybroker.core.batch.marker cimport ABORT, NO_MARKER, marker_read, marker_t
from pybroker.core.storage.log.log cimport log_active, log_t
from pybroker.core.storage.producers.producer_state cimport (
    producer_t, sequence_find, sequence_marker, sequence_t, sequence_update,
)
from pybroker.core.storage.producers.transactions cimport (
    transactions_begin, transactions_cut, transactions_end, transactions_first_beside, transactions_reserve,
    transactions_t, transactions_take,
)
from pybroker.core.storage.segment.segment cimport segment_t
from pybroker.core.storage.segment.segment_aborts cimport segment_add_abort, segment_reserve_aborts
from pybroker.core.storage.segment.transaction_index cimport aborted_t


cdef int producers_see(
    sequence_t* s, const batch_t* b, const uint8_t* body, size_t n, change_t* out) noexcept nogil:
    cdef const producer_t* known
    cdef int64_t open_since
    cdef marker_t marker
    out.first = out.marker = -1
    if b.producer_id < 0:
        return 0
    known = sequence_find(s, b.producer_id)
    open_since = known.txn_first_offset if known != NULL else -1
    out.producer_id = b.producer_id
    if b.attributes & CONTROL:
        marker_read(b, body, n, &marker)
        if marker.type == NO_MARKER:
            return 0
        out.first = open_since
        out.marker = b.base_offset
        out.aborted = marker.type == ABORT
        return sequence_marker(s, b.producer_id, b.producer_epoch, b.max_timestamp, marker.coordinator_epoch)
    if b.attributes & TRANSACTIONAL and open_since < 0:
        out.first = b.base_offset
    return sequence_update(
        s, b.producer_id, b.producer_epoch, b.base_sequence, b.last_offset_delta, batch_last_offset(b), b.max_timestamp,
        (b.attributes & TRANSACTIONAL) != 0)


cdef int log_reserve_changes(log_t* l, bint ends) noexcept nogil:
    """Reserve memory, so that log_note_changes cannot fail for CHANGES_MAX batches of the active segment; one of them
    `ends` a transaction. Under the append mutex."""
    cdef int status
    pthread_mutex_lock(&l.view_mutex)
    status = transactions_reserve(&l.transactions, CHANGES_MAX)
    pthread_mutex_unlock(&l.view_mutex)
    if status == 0 and ends:
        status = segment_reserve_aborts(log_active(l), CHANGES_MAX)
    return status


cdef int change_apply(
    transactions_t* t, segment_t* s, const change_t* change, int64_t high_watermark) noexcept nogil:
    """Apply a change to transactions and, if the batch is in segment `s`, to its transaction index."""
    cdef aborted_t entry
    cdef int status = 0
    if change.first < 0:
        return 0
    if change.marker < 0:
        return transactions_begin(t, change.first)
    if change.aborted and s != NULL:
        entry.producer_id = change.producer_id
        entry.first = change.first
        entry.last = change.marker
        entry.last_stable = min(transactions_first_beside(t, change.first), change.marker + 1)
        status = segment_add_abort(s, &entry)
    return status if status != 0 else transactions_end(t, change.first, change.marker, high_watermark)


cdef int log_note_changes(log_t* l, segment_t* s, const change_t* changes, int64_t n) noexcept nogil:
    """Note the transactions that written batches began or ended, in order. `s`: their segment, whose index lacks them;
    or NULL. Under the append mutex, or alone; the end of these batches is not published yet, so that readers see no
    change."""
    cdef int64_t i
    cdef int status = 0
    pthread_mutex_lock(&l.view_mutex)
    for i in range(n):
        if status == 0:
            status = change_apply(&l.transactions, s, &changes[i], l.view.high_watermark)
        if s != NULL and changes[i].first >= 0 and changes[i].marker >= 0 and changes[i].aborted:
            store_i32(&l.has_aborts, 1)
    pthread_mutex_unlock(&l.view_mutex)
    return status


# -- after a start or a truncation -------------------------------------------------------------------------------------

cdef void log_begin_restore(log_t* l, int64_t end) noexcept nogil:
    """Forget the open transactions, which are about to be restored from the log, and what ended at `end` or later. The
    last stable offset does not advance meanwhile."""
    pthread_mutex_lock(&l.view_mutex)
    l.restoring = True
    transactions_cut(&l.transactions, end)
    pthread_mutex_unlock(&l.view_mutex)


cdef int log_take_open(log_t* l) noexcept nogil:
    """Take the open transactions from the producers."""
    cdef int status
    pthread_mutex_lock(&l.view_mutex)
    status = transactions_take(&l.transactions, &l.producers)
    pthread_mutex_unlock(&l.view_mutex)
    return status


cdef void log_end_restore(log_t* l) noexcept nogil:
    """Let the next publish compute the last stable offset from the restored transactions."""
    pthread_mutex_lock(&l.view_mutex)
    l.restoring = False
    pthread_mutex_unlock(&l.view_mutex)
