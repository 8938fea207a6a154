"""The log cleaner: one round of compaction of a log (record_filter.pyx filters a batch, replace_segments.pyx replaces
segments).

    |<------- cleaned before -------->|<-- learnt in this round -->|<-- next time -->| active |
    log start                    first_dirty                      end

A round reads the keys of [first_dirty, end) into the offset map. It then rewrites the segments below `end`, in groups
of neighbours that together fit segment.bytes, each group into one segment. Offsets and the order of records do not
change. It works on sealed segments below the recovery point, on the caller's thread, without the GIL except for
compressed batches. It takes the log's mutexes only to look up and to replace segments: appends, reads and rolls go on.
If segments are removed meanwhile (retention, truncation, deletion) the round ends, and the next one starts over.

Memory of a round: the offset map up to its limit, two buffers of BUFFER_BYTES or of the largest batch, and as much
again for records of compressed batches. It reads its input at most twice, and writes retained records once.
"""

from libc.errno cimport EAGAIN, ENOMEM
from libc.stdint cimport INT32_MAX, int64_t
from libc.stdlib cimport free
from libc.string cimport memcpy
from posix.unistd cimport usleep

from pybroker.core.base.atomic cimport cas_i32, load_i32, load_i64, load_ptr, peek_i64, store_i32
from pybroker.core.base.clock cimport monotonic_ms
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE
from pybroker.core.base.page_cache cimport forget, passed_add, passed_end, passed_forget, passed_init, was_cached
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.reclamation cimport pin, unpin
from pybroker.core.base.vfs cimport (
    P_CLEAN_SYNC, P_CLEAN_WRITE, P_NONE, P_SEGMENT_READ, vfs_ask_for, vfs_pread, vfs_pwrite, vfs_replace,
    vfs_set_modified, vfs_sync, vfs_unlink, vfs_write_behind,
)
from pybroker.core.batch.batch cimport HEADER_BYTES, batch_check, batch_last_offset, batch_parse, batch_t
from pybroker.core.compact.offset_map cimport MAP_FULL, offset_map_init
from pybroker.core.compact.record_filter cimport buffer_reserve, filter_batch, filter_free, filter_learn, filtered_t
from pybroker.core.compact.replace_segments cimport CHANGED, replace_segments
from pybroker.core.compact.transaction_trace cimport trace_sort
from pybroker.core.storage.log.log cimport (
    log_note_index, log_offline, log_t, log_trust, log_view, segments_floor, segments_t, view_t,
)
from pybroker.core.storage.producers.producer_state cimport sequence_copy
from pybroker.core.storage.segment.index cimport TIME_ENTRY
from pybroker.core.storage.segment.open_files cimport files_drop, indexes_drop
from pybroker.core.storage.segment.segment cimport (
    PATH_BYTES, segment_create, segment_free, segment_new, segment_note, segment_note_last, segment_path, segment_t,
    segment_unlink, segment_visit, segment_write_indexes,
)
from pybroker.core.storage.segment.segment_aborts cimport segment_aborts, segment_add_abort, segment_has_aborts
from pybroker.core.storage.segment.segment_search cimport BODY_ELSEWHERE, NOT_FOUND
from pybroker.core.storage.segment.transaction_index cimport aborts_collect, aborts_t

cdef enum:
    BUFFER_BYTES = 1 << 20
    GROUP_MAX = 128              # segments in a group: all of them are open while they are replaced

# -- reading -----------------------------------------------------------------------------------------------------------

cdef int account(round_t* c, int64_t bytes) noexcept nogil:
    """Keep to the limit of bytes per second, and check whether to go on."""
    cdef log_t* l = c.log
    c.moved_bytes += bytes
    while True:
        if load_i32(&l.context.no_cleaning):
            return STOPPED
        if load_i32(&l.deleted) or log_offline(l):
            return CHANGED
        if not c.bytes_per_s or c.moved_bytes * 1000 // c.bytes_per_s <= monotonic_ms() - c.started_ms:
            return 0
        usleep(1000)


cdef void leave_source(round_t* c) noexcept nogil:
    if c.source.files != NULL:
        passed_end(&c.passed, c.source.files.fd)
        files_drop(c.source.files)
        c.source.files = NULL
    c.read.length = 0


cdef int open_source(round_t* c, int64_t i) noexcept nogil:
    """Open segment i for reading; CHANGED if the list of segments changed, or it may not be cleaned."""
    cdef log_t* l = c.log
    cdef segments_t* list
    cdef segment_t* s
    cdef int slot, status = CHANGED
    leave_source(c)
    slot = pin(&l.context.reclaim)
    list = <segments_t*>load_ptr(<void**>&l.segments)
    if load_i64(&l.segments_generation) == c.generation and i + 1 < load_i64(&list.count):
        s = list.items[i].segment
        c.source.base_offset = s.base_offset
        c.source.next_base = list.items[i + 1].base_offset
        c.source.size = load_i64(&s.size)
        c.source.modified_ms = s.modified_ms
        c.indexed |= segment_has_aborts(s)
        if load_i32(&s.sealed):
            status = segment_visit(s, &c.source.files)
    unpin(&l.context.reclaim, slot)
    return CHANGED if load_i64(&l.segments_generation) != c.generation else status


cdef int fill(round_t* c, int64_t position, int64_t n) noexcept nogil:
    """Read n bytes at `position` of the source into the buffer; CORRUPT_MESSAGE if there are fewer."""
    cdef size_t got = 0
    cdef int64_t wanted = min(max(n, <int64_t>BUFFER_BYTES), c.source.size - position)
    cdef int status
    if position >= c.read_from and position + n <= c.read_from + c.read.length:
        return 0
    c.read.length = 0
    if n > c.source.size - position:
        return CORRUPT_MESSAGE
    c.cold |= not was_cached(c.source.files.fd, position, wanted)
    status = buffer_reserve(&c.read, wanted)
    if status == 0:
        status = vfs_pread(c.log.context.fs, P_SEGMENT_READ, c.source.files.fd, c.read.at, wanted, position, &got)
    if status < 0:
        return status
    c.read_from = position
    c.read.length = got
    if c.cold and c.fresh != NULL:  # not in the first pass, as the segments are read again
        passed_add(&c.passed, position, <int64_t>got)
        passed_forget(&c.passed, c.source.files.fd, position, NULL)
    position += <int64_t>got
    vfs_ask_for(c.source.files.fd, position, min(<int64_t>BUFFER_BYTES, c.source.size - position))
    status = account(c, got)
    return status if status != 0 or <int64_t>got >= n else CORRUPT_MESSAGE


cdef int read_batch(round_t* c, int64_t position, batch_t* out) noexcept nogil:
    """Read the batch at `position` of the source, with its CRC checked, and its offsets, which the CRC does not cover,
    between those of its neighbours; NOT_FOUND at the end."""
    cdef int status
    if position == 0:
        c.source.expected = c.source.base_offset
    if position >= c.source.size:
        return NOT_FOUND
    status = fill(c, position, HEADER_BYTES)
    if status == 0:
        status = batch_parse(c.read.at + (position - c.read_from), BODY_ELSEWHERE, out)
    if status == 0:
        status = fill(c, position, out.size)
    if status == 0:
        status = batch_check(c.read.at + (position - c.read_from), <size_t>out.size, 0, False, out)
    if status == 0 and (out.base_offset < c.source.expected or batch_last_offset(out) >= c.source.next_base):
        status = CORRUPT_MESSAGE
    if status == 0:
        c.source.expected = batch_last_offset(out) + 1
    return status if status <= 0 else CORRUPT_MESSAGE


# -- learning ----------------------------------------------------------------------------------------------------------

cdef int learn_source(round_t* c) noexcept nogil:
    cdef batch_t b
    cdef int64_t position = 0
    cdef int status = read_batch(c, 0, &b)
    while status == 0:
        if batch_last_offset(&b) >= c.filter.keys_from:
            status = filter_learn(&c.filter, &b)
        position += b.size
        if status == 0:
            status = read_batch(c, position, &b)
    if status == NOT_FOUND:
        c.filter.keys_end = c.source.next_base
        return 0
    return status


cdef int learn(round_t* c, int64_t bound) noexcept nogil:
    """Read the keys from first_dirty on, of whole segments below `bound`, or until the offset map is full."""
    cdef log_t* l = c.log
    cdef int slot = pin(&l.context.reclaim)
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef int64_t i = max(<int64_t>0, segments_floor(list, c.filter.keys_from))
    cdef int64_t n = load_i64(&list.count)
    cdef int status = 0
    while n > 0 and list.items[n - 1].base_offset >= bound:
        n -= 1
    if n < load_i64(&list.count) and list.items[n].base_offset > bound:
        n -= 1  # the bound lies in this segment
    unpin(&l.context.reclaim, slot)
    while status == 0 and i < n:
        status = open_source(c, i)
        if status == 0:
            status = learn_source(c)
        i += 1
    return 0 if status == MAP_FULL else status


# -- writing -----------------------------------------------------------------------------------------------------------

cdef int write_out(round_t* c) noexcept nogil:
    cdef segment_t* s = c.fresh
    cdef int64_t n = c.written.length, position = s.size - n
    cdef int status = 0
    if n:
        status = log_trust(c.log, vfs_pwrite(s.fs, P_CLEAN_WRITE, s.files.fd, c.written.at, n, position))
        vfs_write_behind(s.files.fd, position, n)
        c.written.length = 0
    return status if status != 0 else account(c, n)


cdef int add_batch(round_t* c, const batch_t* b, const filtered_t* made) noexcept nogil:
    cdef segment_t* s = c.fresh
    cdef int status = 0
    if c.written.length + made.size > BUFFER_BYTES:
        status = write_out(c)
    if status == 0:
        status = buffer_reserve(&c.written, made.size)
    if status != 0:
        return status
    memcpy(c.written.at + c.written.length, made.at, <size_t>made.size)
    c.written.length += made.size
    segment_note(
        s, s.size, made.size, batch_last_offset(b), made.timestamp,
        peek_i64(&c.log.settings.index_interval_bytes))
    s.size += made.size
    return 0


cdef int copy_source(round_t* c, bint last) noexcept nogil:
    """Write the retained records of a segment; of the last batch of the last one, at least its header."""
    cdef batch_t b
    cdef filtered_t made
    cdef int64_t position = 0
    cdef int status = read_batch(c, 0, &b)
    while status == 0:
        status = filter_batch(&c.filter, &b, last and position + b.size == c.source.size, &made)
        position += b.size
        if status == 0 and made.size:
            c.differs |= made.at != b.at
            status = add_batch(c, &b, &made)
            if status == 0 and made.aborted != NULL:
                status = segment_add_abort(c.fresh, made.aborted)
        elif status == 0:
            c.differs = True
        if status == 0:
            status = read_batch(c, position, &b)
    return 0 if status == NOT_FOUND else status


cdef int finish_fresh(round_t* c) noexcept nogil:
    """Make the written segment durable, with its indexes, as .cleaned files, which a start would remove."""
    cdef segment_t* s = c.fresh
    cdef char path[PATH_BYTES]
    cdef int status = write_out(c)
    if status == 0:
        status = segment_note_last(s)
    if status == 0 and c.indexed and s.aborts == NULL:  # an empty index, so that none of the sources' stays
        segment_path(s, ".txnindex.cleaned", path)
        status = log_trust(c.log, vfs_replace(s.fs, P_CLEAN_WRITE, path, "", 0, True))
    if status == 0:
        status = segment_write_indexes(s, ".cleaned", True)
        if status == 0:
            status = vfs_sync(s.fs, P_CLEAN_SYNC, s.files.fd)
        log_trust(c.log, status)
    if status == 0 and c.cold:
        forget(s.files.fd, 0, s.size)
    if status == 0:
        vfs_set_modified(s.files.fd, c.source.modified_ms)  # used by retention where records have no timestamp
        s.modified_ms = c.source.modified_ms
        s.reserved = s.behind = s.flushed = s.size
        s.end_offset = c.source.next_base
        s.sealed = 1
    return status


cdef int write_group(round_t* c, int64_t first, int64_t count, int64_t last_filled) noexcept nogil:
    cdef int64_t i
    cdef int status = open_source(c, first)
    c.differs = count > 1
    c.indexed = False
    c.written.length = 0
    if status != 0:
        return status
    c.fresh = segment_new(c.log.context.fs, c.log.directory, c.source.base_offset)
    if c.fresh == NULL:
        return -ENOMEM
    status = segment_create(c.fresh, ".cleaned")
    for i in range(first, first + count):
        if status == 0:
            status = open_source(c, i)
        if status == 0:
            c.before_bytes += c.source.size
            status = copy_source(c, i == last_filled)
    if status == 0 and c.differs:
        status = finish_fresh(c)
    if c.fresh.files != NULL:
        files_drop(c.fresh.files)
        c.fresh.files = NULL
    indexes_drop(c.fresh.indexes)
    c.fresh.indexes = NULL
    return status


cdef int clean_group(round_t* c, int64_t first, int64_t count, int64_t last_filled) noexcept nogil:
    """Rewrite `count` segments as one; a single one whose records are all retained is left unchanged."""
    cdef char path[PATH_BYTES]
    cdef int status = write_group(c, first, count, last_filled)
    cdef bint empty
    if c.fresh == NULL:
        return status
    empty = c.fresh.aborts == NULL
    segment_path(c.fresh, ".txnindex", path)  # now, as the log may free what it owns
    c.after_bytes += c.fresh.size
    if status == 0 and c.differs:
        status = replace_segments(c.log, c.generation, first, count, c.fresh)
        if status == 0:
            c.generation += 1
            if c.indexed and empty:
                vfs_unlink(c.log.context.fs, P_NONE, path)
            c.fresh = NULL  # owned by the log now
            return 0
    else:
        segment_unlink(c.fresh, ".cleaned")
    segment_free(c.fresh)
    c.fresh = NULL
    return status


cdef struct group_t:
    int64_t count
    int64_t last_filled          # the index of its last non-empty segment


cdef int choose_group(round_t* c, int64_t first, group_t* out) noexcept nogil:
    """Choose as many neighbours from `first` on as fit one segment, by their present sizes; 0 if none is left."""
    cdef log_t* l = c.log
    cdef int slot = pin(&l.context.reclaim)
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef int64_t i = first, n = load_i64(&list.count), bytes = 0, size
    cdef int64_t limit = peek_i64(&l.settings.segment_bytes)
    cdef int64_t interval = peek_i64(&l.settings.index_interval_bytes)
    cdef int64_t most_entries = peek_i64(&l.settings.segment_index_bytes) // TIME_ENTRY
    out.count = 0
    out.last_filled = first
    while i + 1 < n and i - first < GROUP_MAX and list.items[i].base_offset < c.filter.keys_end:
        size = load_i64(&list.items[i].segment.size)
        if i > first and (
                bytes + size > limit or list.items[i + 1].base_offset - list.items[first].base_offset > INT32_MAX
                or (bytes + size) // (interval + 1) >= most_entries):
            break
        bytes += size
        if size:
            out.last_filled = i
        i += 1
    out.count = i - first
    unpin(&l.context.reclaim, slot)
    return CHANGED if load_i64(&l.segments_generation) != c.generation else 0


# -- the round ---------------------------------------------------------------------------------------------------------

cdef int begin(round_t* c, int64_t* bound) noexcept nogil:
    """Record the state of the log: its generation, its producers, and the bound for cleaning."""
    cdef log_t* l = c.log
    cdef view_t v
    pthread_mutex_lock(&l.append_mutex)
    c.generation = load_i64(&l.segments_generation)
    log_view(l, &v)
    bound[0] = min(bound[0], min(min(v.last_stable, v.active_base), load_i64(&l.recovery_point)))
    c.filter.keys_from = min(max(c.filter.keys_from, v.log_start), bound[0])
    c.filter.keys_end = c.filter.keys_from
    pthread_mutex_unlock(&l.append_mutex)
    c.started_ms = monotonic_ms()
    # After the bound: later batches of a producer lie past it, so an earlier batch is then not its last.
    return sequence_copy(&l.producers, &l.append_mutex, &c.filter.producers)


cdef int collect_aborted(round_t* c, int64_t bound) noexcept nogil:
    """Find the aborted transactions that began below the bound; their markers may lie past it. CHANGED if an index has
    to be built again first."""
    cdef log_t* l = c.log
    cdef segments_t* list
    cdef aborts_t* x = NULL
    cdef int64_t i = 0
    cdef bint complete = not load_i32(&l.has_aborts)
    cdef int slot = pin(&l.context.reclaim), status = 0
    list = <segments_t*>load_ptr(<void**>&l.segments)
    while status == 0 and not complete and i < load_i64(&list.count):
        status = segment_aborts(list.items[i].segment, &x)
        if status == CORRUPT_MESSAGE:
            log_note_index(l, list.items[i].segment)
            status = CHANGED
        elif status == 0 and x != NULL:
            status = aborts_collect(x, 0, bound, &c.filter.trace.aborted, &complete)
        i += 1
    unpin(&l.context.reclaim, slot)
    return status if status != 0 else trace_sort(&c.filter.trace)


cdef int run(round_t* c, int64_t bound) noexcept nogil:
    cdef group_t group
    cdef int64_t first = 0
    cdef int status = begin(c, &bound)
    if status == 0:
        status = collect_aborted(c, bound)
    if status == 0:
        status = learn(c, bound)
    while status == 0:
        status = choose_group(c, first, &group)
        if status != 0 or group.count == 0:
            break
        status = clean_group(c, first, group.count, group.last_filled)
        first += 1
    return status


cdef int log_clean(round_t* c, int64_t bound, int64_t map_bytes) noexcept nogil:
    cdef int status
    if not cas_i32(&c.log.cleaning, 0, 1):
        return -EAGAIN
    status = offset_map_init(&c.filter.keys, map_bytes)
    passed_init(&c.passed)
    if status == 0:
        status = run(c, bound)
    leave_source(c)
    filter_free(&c.filter)
    free(c.read.at)
    free(c.written.at)
    store_i32(&c.log.cleaning, 0)
    return status
