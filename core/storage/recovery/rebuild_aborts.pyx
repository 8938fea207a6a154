"""A transaction index that is not to be trusted, built again from the log: its file is torn, or does not fit.

The transactions whose markers are in the segment may have begun in earlier ones, so the replay starts at the newest
snapshot that is not after the segment's base, or at the log's first segment.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport int64_t
from libc.string cimport memset

from pybroker.core.base.atomic cimport load_ptr, store_i32, swap_ptr
from pybroker.core.base.reclamation cimport retire
from pybroker.core.storage.log.log cimport log_t, log_trust, segments_t
from pybroker.core.storage.producers.producer_state cimport sequence_free, sequence_init, sequence_t
from pybroker.core.storage.producers.transactions cimport (
    NOTHING_OPEN, transactions_free, transactions_t, transactions_take,
)
from pybroker.core.storage.recovery.producer_replay cimport replay, replay_t
from pybroker.core.storage.recovery.producer_snapshots cimport producers_read
from pybroker.core.storage.segment.segment cimport PATH_BYTES, segment_free, segment_new, segment_path, segment_t
from pybroker.core.storage.segment.segment_aborts cimport segment_reserve_aborts
from pybroker.core.storage.segment.transaction_index cimport aborts_free, aborts_replace


cdef int replay_into(log_t* l, segment_t* fresh, int64_t first, int64_t end) noexcept nogil:
    """Fill the transaction index of `fresh` from the batches of [its base, end); the log begins at `first`."""
    cdef sequence_t producers
    cdef transactions_t transactions
    cdef replay_t r
    cdef bint torn = False
    cdef int64_t loaded
    cdef int status
    sequence_init(&producers)
    memset(&transactions, 0, sizeof(transactions))
    loaded = producers_read(l, first, fresh.base_offset, &producers, &torn)
    status = <int>(loaded + 1) if loaded < -1 else transactions_take(&transactions, &producers)
    if status == 0:
        r.log, r.producers, r.transactions, r.indexed = l, &producers, &transactions, fresh
        r.high_watermark = NOTHING_OPEN  # none waits
        status = replay(&r, max(loaded, first), end)
    sequence_free(&producers)
    transactions_free(&transactions)
    return status


cdef int rebuild_aborts(log_t* l, int64_t i, int64_t end) noexcept nogil:
    """Build the transaction index of segment i again, which ends at offset `end`, in memory and in its file. No other
    thread changes the segment: it is sealed, with the caller under the flush mutex and pinned, or the caller is
    alone."""
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef segment_t* s = list.items[i].segment
    cdef segment_t* fresh = segment_new(s.fs, s.directory, s.base_offset)
    cdef char path[PATH_BYTES]
    cdef void* old
    cdef int status = segment_reserve_aborts(fresh, 1) if fresh != NULL else -ENOMEM
    if status == 0:
        status = replay_into(l, fresh, list.items[0].base_offset, end)
    if status == 0:
        segment_path(s, ".txnindex", path)
        status = log_trust(l, aborts_replace(fresh.aborts, s.fs, path))
    if status == 0:
        fresh.aborts.written = fresh.aborts.count
        old = swap_ptr(<void**>&s.aborts, fresh.aborts)
        fresh.aborts = NULL
        retire(&l.context.reclaim, old, aborts_free)
        store_i32(&s.aborts_unread, 0)
        store_i32(&s.aborts_bad, 0)
    if fresh != NULL:
        segment_free(fresh)
    return status
