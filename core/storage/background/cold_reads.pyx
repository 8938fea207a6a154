"""Cold reads: a page that is not in the cache is read by a thread of its log dir, never by a reactor.

Before a fetch reads a log, it asks the kernel whether the pages that it may send, from the index entry on, are in the
cache (page_cache.pyx). If not, the fetch is parked, the thread reads the pages, and the fetch is executed again. The
thread then reads on by as much, for a reader that goes on. It drops the pages that it brought in once they are some way
behind the reader: other readers close behind still find them, and pages that were in the cache before stay.
The tail of the active segment was just written, so the kernel is not asked about it. A range that was found in the
cache is remembered for the connection.
"""

from libc.errno cimport ENODATA
from libc.errno cimport EMFILE
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc

from pybroker.core.base.atomic cimport add_i64, load_i64, load_ptr, store_i64
from pybroker.core.base.budget cimport budget_wait
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.base.counters cimport histogram_share
from pybroker.core.base.mapping cimport map_t
from pybroker.core.base.page_cache cimport is_cached, passed_bring, passed_forget
from pybroker.core.base.reclamation cimport pin, unpin
from pybroker.core.base.vfs cimport P_SEGMENT_READ, vfs_ask_for, vfs_pass_file, vfs_pread
from pybroker.core.base.worker cimport task_t, worker_put
from pybroker.core.storage.log.log cimport (
    log_dir_of, log_drop, log_hold, log_note_unread, log_t, log_view, segment_limit, segments_floor, segments_t,
    view_t,
)
from pybroker.core.storage.segment.index cimport entry_t, index_floor
from pybroker.core.storage.segment.open_files cimport files_drop, files_hold, files_t
from pybroker.core.storage.segment.segment cimport segment_files, segment_t

cdef enum:
    TAIL_BYTES = 16 << 20        # the end of the active segment, which was just written
    SLACK_BYTES = 64 << 10       # from an index entry to the batch that is looked up
    SEEN_BYTES = 1 << 20         # checked for being in the cache by one call
    CHUNK_BYTES = 64 << 10
    AHEAD_BYTES = 2 << 20        # read ahead, while the reader processes its answer
    KEPT_BYTES = 16 << 20        # kept in the cache behind a reader

cdef struct place_t:             # the file and the position where reading an offset begins
    files_t* files
    int64_t position
    int64_t limit                # the file's bytes that readers may see
    int64_t generation           # of the log when the place was found
    bint is_own                  # it is in this thread's log dir; only that thread notes which pages it brought in


cdef segment_t* find_segment(log_t* l, int64_t offset, const view_t* v, int64_t* limit) noexcept nogil:
    """The segment that a reader at `offset` begins in; NULL if there is nothing to read, or only the open, new tail.
    The caller is pinned."""
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef int64_t i
    cdef segment_t* s
    if offset < v.log_start or offset >= v.log_end:
        return NULL
    i = max(<int64_t>0, segments_floor(list, offset))
    s = list.items[i].segment
    limit[0] = segment_limit(s, v)
    if limit[0] <= 0:
        return NULL
    if s.base_offset == v.active_base and limit[0] <= TAIL_BYTES and load_ptr(<void**>&s.files) != NULL:
        return NULL
    return s


cdef int64_t position_of(const segment_t* s, const files_t* f, int64_t offset) noexcept nogil:
    """The position where a look-up of `offset` begins to read."""
    cdef entry_t entry
    return entry.value if index_floor(&f.indexes.offsets, offset - s.base_offset, &entry) >= 0 else 0


cdef bint reader_is_open(log_t* l, int64_t offset) noexcept nogil:
    """True if a reader at `offset` can begin without opening a file. The caller is pinned."""
    cdef view_t v
    cdef segment_t* s
    cdef int64_t limit = 0
    log_view(l, &v)
    s = find_segment(l, offset, &v, &limit)
    return s == NULL or load_ptr(<void**>&s.files) != NULL


cdef bint follows(files_t* f, int64_t position, int64_t* brought_to) noexcept nogil:
    """True if a reader at `position` reads pages that the thread has just brought in."""
    brought_to[0] = load_i64(&f.brought_to)
    return brought_to[0] - KEPT_BYTES <= position <= brought_to[0] and brought_to[0] > 0


cdef bint reader_is_cold(log_t* l, int64_t offset, int64_t most, warm_t* warm) noexcept nogil:
    """True if a reader of `most` bytes from `offset` on would wait for the disk. The caller is pinned."""
    cdef view_t v
    cdef segment_t* s
    cdef files_t* f
    cdef int64_t limit = 0, position, n, look, brought_to
    cdef bint was_read
    log_view(l, &v)
    s = find_segment(l, offset, &v, &limit)
    if s == NULL:
        return False
    f = <files_t*>load_ptr(<void**>&s.files)
    if f == NULL:
        return True              # the file must be opened first
    position = position_of(s, f, offset)
    if position >= limit or (s.base_offset == v.active_base and position >= limit - TAIL_BYTES):
        return False
    n = min(most + SLACK_BYTES, limit - position)
    if warm.files == f and position >= warm.start and position + n <= warm.end:
        return False
    look = max(n, <int64_t>SEEN_BYTES)
    was_read = follows(f, position, &brought_to)
    if was_read:
        if position + n > brought_to:
            return True          # a check beyond would make the kernel read ahead
        look = min(look, brought_to - position)
    if is_cached(f.fd, position, min(look, limit - position), was_read):
        warm.files = f
        warm.start = position
        warm.end = position + look
        return False
    return not is_cached(f.fd, position, n, was_read)


# -- the thread --------------------------------------------------------------------------------------------------------

cdef int look_for_place(const wish_t* w, place_t* out) noexcept nogil:
    cdef int status = 0, slot = pin(&w.log.context.reclaim)
    cdef view_t v
    cdef segment_t* s
    out.generation = load_i64(&w.log.generation)
    log_view(w.log, &v)
    s = find_segment(w.log, w.offset, &v, &out.limit)
    out.files = NULL
    if s != NULL:
        status = segment_files(s, &out.files)
    if out.files != NULL:
        files_hold(out.files)
        out.position = position_of(s, out.files, w.offset)
    unpin(&w.log.context.reclaim, slot)
    return status


cdef bint find_place(const wish_t* w, place_t* out) noexcept nogil:
    """Find the place to read for a wish, with its files held; False if there is nothing to read."""
    cdef int status = look_for_place(w, out)
    while status == -EMFILE and budget_wait(&w.log.context.fs.budget):
        status = look_for_place(w, out)
    return out.files != NULL


cdef bint bring(const place_t* p, int64_t position, int64_t end) noexcept nogil:
    """Bring a range into the cache, and note which pages were not there. False if some may still be missing."""
    cdef files_t* f = p.files
    cdef int64_t brought_to = 0
    cdef bint done = p.is_own and passed_bring(&f.passed, f.fd, position, end)
    if done and f.passed.start <= position <= f.passed.end:
        brought_to = max(end, brought_to) if follows(f, position, &brought_to) else end
    store_i64(&f.brought_to, brought_to)
    if p.is_own and not done:
        vfs_ask_for(f.fd, position, end - position)
    return done


cdef int read_range(log_t* l, const place_t* p, int64_t position, int64_t end, void* scratch) noexcept nogil:
    """Wait until a range is in the cache."""
    cdef size_t got = 0
    cdef int64_t n
    cdef int status = vfs_pass_file(l.context.fs, P_SEGMENT_READ, p.files.fd)
    if status < 0 or position >= end or bring(p, position, end):
        return status
    while status == 0 and position < end:
        n = min(<int64_t>CHUNK_BYTES, end - position)
        status = vfs_pread(l.context.fs, P_SEGMENT_READ, p.files.fd, scratch, n, position, &got)
        if status == 0 and got == 0:
            return -ENODATA
        position += got
    return status


cdef bint is_uncut(const log_t* l, const place_t* p) noexcept nogil:
    """True if no truncation began or ended since the place was found."""
    return p.generation & 1 == 0 and load_i64(&l.generation) == p.generation


cdef void ask_ahead(const place_t* p, int64_t position) noexcept nogil:
    """Read ahead from `position`, where the reader will go on."""
    cdef int64_t end = min(position + AHEAD_BYTES, p.limit)
    if position < end:
        bring(p, position, end)


cdef void forget_behind(const place_t* p) noexcept nogil:
    cdef const map_t* m
    if p.is_own and p.position <= p.files.passed.end:  # else it is another reader's place
        m = <const map_t*>load_ptr(<void**>&p.files.map)
        passed_forget(&p.files.passed, p.files.fd, p.position - KEPT_BYTES, m)


cdef void work(task_t* task) noexcept nogil:
    """Read all wishes, call `done`, then read ahead."""
    cdef cold_t* c = <cold_t*>task
    cdef place_t places[COLD_MAX]
    cdef void* scratch = malloc(CHUNK_BYTES)
    cdef int64_t end, began_ns = monotonic_ns(), bytes = 0
    cdef int i, status
    for i in range(c.count):
        places[i].files = NULL
        places[i].is_own = log_dir_of(c.wishes[i].log) == log_dir_of(c.wishes[0].log)
        if scratch != NULL and find_place(&c.wishes[i], &places[i]):
            end = min(places[i].position + c.wishes[i].most + SLACK_BYTES, places[i].limit)
            bytes += max(<int64_t>0, end - places[i].position)
            status = read_range(c.wishes[i].log, &places[i], places[i].position, end, scratch)
            if status < 0 and is_uncut(c.wishes[i].log, &places[i]):
                log_note_unread(c.wishes[i].log, status)
            forget_behind(&places[i])
    histogram_share(&c.wishes[0].log.context.fs.cold_reads, (monotonic_ns() - began_ns) // 1000)
    add_i64(&c.wishes[0].log.context.fs.cold_bytes, bytes)
    c.done(c.owner)
    for i in range(c.count):
        if places[i].files != NULL:
            ask_ahead(&places[i], places[i].position + c.wishes[i].most + SLACK_BYTES)
            files_drop(places[i].files)
        log_drop(c.wishes[i].log)
    free(scratch)
    free(c)


cdef cold_t* cold_new(warmed_fn done, void* owner) noexcept nogil:
    cdef cold_t* c = <cold_t*>calloc(1, sizeof(cold_t))
    if c != NULL:
        c.task.run = work
        c.done = done
        c.owner = owner
    return c


cdef void cold_wish(cold_t* c, log_t* l, int64_t offset, int64_t most) noexcept nogil:
    """Add a range to read; ranges beyond COLD_MAX are ignored."""
    if c.count < COLD_MAX:
        log_hold(l)
        c.wishes[c.count].log = l
        c.wishes[c.count].offset = offset
        c.wishes[c.count].most = most
        c.count += 1


cdef bint cold_put(cold_t* c) noexcept nogil:
    """Pass it to the thread of the first wish's log dir; if there is no thread, free it and return False."""
    cdef int i
    if worker_put(&log_dir_of(c.wishes[0].log).reader, &c.task):
        return True
    for i in range(c.count):
        log_drop(c.wishes[i].log)
    free(c)
    return False
