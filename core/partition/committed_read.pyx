"""Reads up to the last stable offset, with the aborted transactions among what was read (KIP-98).

A reader of [offset, end) needs the transactions that began below `end`, and whose marker is not below `offset`. The
markers may be in later segments. The search ends at an entry that says that all transactions which began below `end`
had ended, or at a segment after which none of them was open.

As in Kafka `end` is the next offset in the segment's index, not that of the last batch read: the list may name
transactions that begin after the records.
"""

from libc.stdint cimport int64_t

from pybroker.core.base.atomic cimport load_i32, load_i64, load_ptr, peek_i64
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR
from pybroker.core.base.reclamation cimport pin, unpin
from pybroker.core.partition.partition cimport BOUND_LAST_STABLE, partition_read
from pybroker.core.storage.log.log cimport log_note_index, log_t, segments_floor, segments_t
from pybroker.core.storage.segment.index cimport entry_t, index_floor_value, index_get
from pybroker.core.storage.segment.open_files cimport files_drop, files_t
from pybroker.core.storage.segment.segment cimport segment_t
from pybroker.core.storage.segment.segment_aborts cimport segment_aborts
from pybroker.core.storage.segment.transaction_index cimport aborts_collect, aborts_t


cdef int64_t end_of(const segments_t* list, int64_t i, const read_t* r) noexcept nogil:
    """An offset after the records that were read in segment i or a later one, and not far after them."""
    cdef const files_t* f = r.found.files
    cdef entry_t entry
    cdef int64_t k
    while i < load_i64(&list.count) and <const files_t*>load_ptr(<void**>&list.items[i].segment.files) != f:
        i += 1
    if i == load_i64(&list.count):
        return r.view.last_stable  # its files were closed meanwhile
    k = index_floor_value(&f.indexes.offsets, r.found.position + r.found.length - 1, &entry)
    if -1 <= k < load_i64(&f.indexes.offsets.count) - 1 and index_get(&f.indexes.offsets, k + 1, &entry) == 0:
        return min(list.items[i].base_offset + entry.key, r.view.last_stable)
    if i + 1 < load_i64(&list.count):
        return min(list.items[i + 1].base_offset, r.view.last_stable)
    return r.view.last_stable


cdef int collect(
    log_t* l, const segments_t* list, int64_t offset, bint may_wait, const read_t* r,
    abort_list_t* into) noexcept nogil:
    cdef int64_t i = max(<int64_t>0, segments_floor(list, offset))
    cdef int64_t end = end_of(list, i, r)
    cdef segment_t* s
    cdef aborts_t* x
    cdef bint complete = False
    cdef int status = 0
    while status == 0 and not complete and i < load_i64(&list.count):
        s = list.items[i].segment
        if not may_wait and load_i32(&s.aborts_unread):
            return UNREAD_INDEX
        status = segment_aborts(s, &x)
        if status == CORRUPT_MESSAGE:
            log_note_index(l, s)
            return KAFKA_STORAGE_ERROR  # until it is built again
        if status == 0 and x != NULL:
            status = aborts_collect(x, offset, end, into, &complete)
        complete |= peek_i64(&s.open_after) >= end
        i += 1
    return status


cdef int partition_read_committed(
    partition_t* p, int64_t offset, int64_t most, bint minimum_one, bint may_wait, read_t* out,
    abort_list_t* aborts) noexcept nogil:
    """Find the batches for a reader at `offset`, as partition_read does, and add to `aborts` which transactions among
    them were aborted. UNREAD_INDEX if that would have to wait for the disk, which `may_wait` allows."""
    cdef log_t* l = p.log
    cdef int64_t before = aborts.count, generation
    cdef segments_t* list
    cdef int slot, status
    while True:
        slot = pin(&l.context.reclaim)
        list = <segments_t*>load_ptr(<void**>&l.segments)
        generation = load_i64(&l.generation)
        status = partition_read(p, offset, most, BOUND_LAST_STABLE, minimum_one, out)
        if status != 0 or out.found.files == NULL or not load_i32(&l.has_aborts):
            break
        status = collect(l, list, offset, may_wait, out, aborts)
        if status == 0 and load_ptr(<void**>&l.segments) == list and load_i64(&l.generation) == generation:
            break                # else a compaction may have removed entries of the records that were read
        files_drop(out.found.files)
        out.found.files = NULL
        out.found.length = 0
        aborts.count = before
        if status != 0:
            break
        unpin(&l.context.reclaim, slot)
    unpin(&l.context.reclaim, slot)
    return status
