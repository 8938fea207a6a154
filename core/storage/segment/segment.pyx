"""One data file of a log and its indexes.

    <base offset, 20 digits>.log   record batches back to back, nothing else (see index.pyx for .index and .timeindex,
                                   transaction_index.pyx for .txnindex)

Appends go through pwritev into space reserved ahead with FALLOC_FL_KEEP_SIZE: the file's size is always the written
end, Kafka's tools may read a live file, and a full disk is noticed before a byte is written. A sealed segment has no
open file until it is read, and then its data file. An active one may be closed as well if descriptors are scarce
(idle_files.pyx); its indexes stay on the heap. A crash leaves at most a torn last batch, which recovery cuts.
"""

from libc.errno cimport EIO, EMFILE, ENFILE, ENOENT, ENOMEM
from libc.stdint cimport INT32_MAX, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from posix.fcntl cimport O_CREAT, O_EXCL, O_RDONLY, O_RDWR

from pybroker.core.base.atomic cimport (
    add_i32, cas_ptr, load_i32, load_i64, load_ptr, poke_i64, store_i32, store_i64, swap_ptr,
)
from pybroker.core.base.budget cimport budget_ask, budget_give, budget_take
from pybroker.core.base.files cimport iovec
from pybroker.core.base.reclamation cimport reclaim_t, retire
from pybroker.core.base.vfs cimport (
    P_INDEX_SYNC, P_NONE, P_SEGMENT_CREATE, P_SEGMENT_READ, P_SEGMENT_RENAME, P_SEGMENT_RESERVE, P_SEGMENT_SYNC,
    P_SEGMENT_TRUNCATE, P_SEGMENT_UNLINK, P_SEGMENT_WRITE, vfs_close, vfs_look, vfs_no_readahead, vfs_open, vfs_pwritev,
    vfs_rename, vfs_reserve, vfs_size, vfs_sync, vfs_t, vfs_truncate, vfs_unlink,
)
from pybroker.core.storage.segment.index cimport (
    OFFSET_ENTRY, TIME_ENTRY, entry_t, index_add, index_get, index_init, index_read, index_t, index_write,
)
from pybroker.core.storage.segment.open_files cimport (
    close_counted, files_drop, files_hold, files_new, files_t, indexes_drop, indexes_t,
)
from pybroker.core.storage.segment.transaction_index cimport aborts_free, aborts_t, aborts_write

cdef extern from *:
    """
    #include <sys/stat.h>
    static int64_t modified_ms(int fd) {
      struct stat s;
      return fstat(fd, &s) ? 0 : (int64_t)s.st_mtim.tv_sec * 1000 + s.st_mtim.tv_nsec / 1000000;
    }
    static int64_t disk_bytes(int fd) {
      struct stat s;
      return fstat(fd, &s) ? 0 : (int64_t)s.st_blocks * 512;
    }
    """
    int64_t modified_ms(int fd) nogil
    int64_t disk_bytes(int fd) nogil


cdef void segment_path(const segment_t* s, const char* suffix, char* out) noexcept nogil:
    snprintf(out, PATH_BYTES, "%s/%020lld%s", s.directory, <long long>s.base_offset, suffix)


cdef segment_t* segment_new(vfs_t* fs, const char* directory, int64_t base_offset) noexcept nogil:
    cdef segment_t* s = <segment_t*>calloc(1, sizeof(segment_t))
    if s == NULL:
        return NULL
    s.fs = fs
    s.directory = directory
    s.base_offset = base_offset
    s.end_offset = base_offset
    s.largest_timestamp = -1
    s.largest_offset = base_offset
    s.first_timestamp = UNKNOWN
    return s


cdef void segment_free(void* segment) noexcept nogil:
    cdef segment_t* s = <segment_t*>segment
    if s.files != NULL:
        files_drop(s.files)
    indexes_drop(s.indexes)
    aborts_free(s.aborts)
    free(s.spots)
    free(s)


cdef int open_counted(segment_t* s, int point, const char* path, int flags, bint must) noexcept nogil:
    """Open a file, with a descriptor from the budget; -EMFILE if the budget is used up, unless it `must` be opened."""
    cdef int fd
    if not budget_take(&s.fs.budget, must):
        return -EMFILE
    fd = vfs_open(s.fs, point, path, flags)
    if fd < 0:
        budget_give(&s.fs.budget)
    if fd == -EMFILE or fd == -ENFILE:
        budget_ask(&s.fs.budget)
    if fd >= 0:
        vfs_no_readahead(fd)  # else the first touch of a page makes the kernel read megabytes, for milliseconds
    return fd


cdef int files_begin(segment_t* s, int fd) noexcept nogil:
    """Set up the open file of an active segment, with indexes on the heap. The descriptor is taken over, or closed."""
    s.files = files_new(s.fs, fd, NULL)
    if s.files == NULL:
        close_counted(s.fs, fd)
        return -ENOMEM
    s.indexes = s.files.indexes
    add_i32(&s.indexes.refs, 1)
    return 0


cdef void suffixed_path(const segment_t* s, const char* kind, const char* suffix, char* out) noexcept nogil:
    cdef char name[32]
    snprintf(name, sizeof(name), "%s%s", kind, suffix)
    segment_path(s, name, out)


cdef int segment_create(segment_t* s, const char* suffix) noexcept nogil:
    """Create the data file of a new segment, with this suffix; a leftover of the same name is emptied."""
    cdef char path[PATH_BYTES]
    cdef int fd, status
    suffixed_path(s, ".log", suffix, path)
    fd = open_counted(s, P_SEGMENT_CREATE, path, O_RDWR | O_CREAT, True)
    if fd < 0:
        return fd
    status = vfs_truncate(s.fs, P_SEGMENT_TRUNCATE, fd, 0)
    if status < 0:
        close_counted(s.fs, fd)
        return status
    s.modified_ms = modified_ms(fd)
    return files_begin(s, fd)


cdef int segment_claim(segment_t* s) noexcept nogil:
    """Create the data file of a new segment; -EEXIST if it exists."""
    cdef char path[PATH_BYTES]
    cdef int fd
    segment_path(s, ".log", path)
    fd = open_counted(s, P_SEGMENT_CREATE, path, O_RDWR | O_CREAT | O_EXCL, True)
    if fd < 0:
        return fd
    s.modified_ms = modified_ms(fd)
    return files_begin(s, fd)


cdef int segment_open(segment_t* s, const char* suffix, bint active) noexcept nogil:
    """Read the size of an existing data file; that of an active segment stays open. The caller loads its indexes."""
    cdef char path[PATH_BYTES]
    cdef int fd = -1, status
    suffixed_path(s, ".log", suffix, path)
    status = vfs_look(s.fs, P_SEGMENT_READ, path, &s.size, &s.modified_ms)
    if status < 0:
        return status
    s.reserved = s.size
    s.behind = s.size
    if not active:
        return 0
    fd = open_counted(s, P_NONE, path, O_RDWR, True)
    if fd >= 0 and disk_bytes(fd) > s.size + RESERVE_MIN:
        vfs_truncate(s.fs, P_NONE, fd, s.size)  # free space reserved before a crash; a failure only wastes disk space
    return fd if fd < 0 else files_begin(s, fd)


cdef int open_indexes(segment_t* s, files_t* f) noexcept nogil:
    """Read the offset index of a sealed segment. A bad one is left empty, and will be rebuilt."""
    cdef char path[PATH_BYTES]
    cdef int status
    segment_path(s, ".index", path)
    status = index_read(&f.indexes.offsets, s.fs, path, OFFSET_ENTRY, load_i64(&s.size) - 1)
    if f.indexes.offsets.fd >= 0:
        budget_take(&s.fs.budget, True)
    if status == -EMFILE or status == -ENFILE or status == -ENOMEM:
        return status
    if status < 0:
        store_i32(&s.index_bad, INDEX_BAD)  # reads walk from the start of the segment until it is rebuilt
    return 0


cdef int open_files(segment_t* s, files_t** out) noexcept nogil:
    """Open the data file and the indexes of a closed segment. -EMFILE if descriptors are scarce, -EIO if the file has
    become shorter. The caller is pinned, or holds the append mutex."""
    cdef char path[PATH_BYTES]
    cdef indexes_t* x = <indexes_t*>load_ptr(<void**>&s.indexes)
    cdef int64_t size = load_i64(&s.size)
    cdef int fd, status = 0
    segment_path(s, ".log", path)
    fd = open_counted(s, P_SEGMENT_READ, path, O_RDWR, False)
    if fd < 0:
        return fd
    if x != NULL:
        add_i32(&x.refs, 1)
        status = -EIO if vfs_size(fd) < size else 0
    if status == 0:
        out[0] = files_new(s.fs, fd, x)
        status = 0 if out[0] != NULL else -ENOMEM
    if status < 0:
        indexes_drop(x)
        close_counted(s.fs, fd)
        return status
    if x == NULL:
        status = open_indexes(s, out[0])
        if status < 0:
            files_drop(out[0])
    return status


cdef int segment_visit(segment_t* s, files_t** out) noexcept nogil:
    """Return the files of a segment, held for the caller: the open ones, or newly opened ones for the caller alone."""
    out[0] = <files_t*>load_ptr(<void**>&s.files)
    if out[0] == NULL:
        return open_files(s, out)
    files_hold(out[0])
    return 0


cdef int segment_files(segment_t* s, files_t** out) noexcept nogil:
    """Return the open files of a segment; open them if needed. The caller is pinned, or holds the append mutex."""
    cdef files_t* f = <files_t*>load_ptr(<void**>&s.files)
    cdef int status
    while f == NULL:
        status = open_files(s, &f)
        if status < 0:
            return status
        if not cas_ptr(<void**>&s.files, NULL, f):
            files_drop(f)
            f = <files_t*>load_ptr(<void**>&s.files)  # another thread's, unless it was closed as idle just now
    if not load_i32(&f.used):
        store_i32(&f.used, 1)
    out[0] = f
    return 0


cdef const index_t* segment_times(segment_t* s, files_t* f, index_t* own) noexcept nogil:
    """Return the time index: the active segment's, or a sealed one's, which is kept with its open files. If it cannot
    be kept, return `own`, which the caller frees in any case.

    An index that cannot be read is empty. The caller is pinned."""
    cdef char path[PATH_BYTES]
    cdef index_t* kept = NULL
    cdef int status
    index_init(own, TIME_ENTRY)
    if not load_i32(&s.sealed):
        return &f.indexes.times
    if f != NULL:
        kept = <index_t*>load_ptr(<void**>&f.times)
    if kept != NULL:
        return kept
    segment_path(s, ".timeindex", path)
    status = index_read(own, s.fs, path, TIME_ENTRY, INT32_MAX)
    if status < 0 and status != -EMFILE and status != -ENFILE:
        store_i32(&s.index_bad, INDEX_BAD)
    if f != NULL and status == 0 and own.fd < 0:
        kept = <index_t*>malloc(sizeof(index_t))
    if kept == NULL:
        return own
    kept[0] = own[0]
    if not cas_ptr(<void**>&f.times, NULL, kept):
        free(kept)  # another thread was faster; the caller uses this one, and frees it
        return own
    index_init(own, TIME_ENTRY)
    return kept


cdef int reserve(segment_t* s, files_t* f, int64_t end) noexcept nogil:
    """Reserve disk space up to `end`: as much again as is written, or on a full disk only what is needed. The part that
    ext4 allocated before it failed stays with the file: it is given back first, for other files."""
    cdef int64_t step = s.size, ahead
    cdef int status
    if end <= s.reserved:
        return 0
    step = RESERVE_MIN if step < RESERVE_MIN else RESERVE_MAX if step > RESERVE_MAX else step
    ahead = end + step
    if ahead > RESERVE_UNIT:
        ahead = (ahead + RESERVE_UNIT - 1) // RESERVE_UNIT * RESERVE_UNIT
    status = vfs_reserve(s.fs, P_SEGMENT_RESERVE, f.fd, s.reserved, ahead - s.reserved)
    if status == 0:
        s.reserved = ahead
        return 0
    if vfs_truncate(s.fs, P_NONE, f.fd, s.size) == 0:
        s.reserved = s.size
    status = vfs_reserve(s.fs, P_SEGMENT_RESERVE, f.fd, s.reserved, end - s.reserved)
    if status == 0:
        s.reserved = end
    return status


cdef int segment_write(segment_t* s, iovec* v, int n, int64_t bytes) noexcept nogil:
    """Write at the end, not visible to readers yet. After a failure the file is cut to its old end; if that fails,
    -EIO.

    The caller holds the append mutex, notes the batches, and sets the new size."""
    cdef files_t* f
    cdef int status = segment_files(s, &f)
    if status == 0:
        status = reserve(s, f, s.size + bytes)
    if status < 0:
        return status
    status = vfs_pwritev(s.fs, P_SEGMENT_WRITE, f.fd, v, n, s.size)
    if status < 0:
        s.reserved = s.size  # the truncation frees the rest
        if vfs_truncate(s.fs, P_SEGMENT_TRUNCATE, f.fd, s.size) < 0:
            return -EIO
    return status


cdef void segment_note(
    segment_t* s, int64_t position, int64_t bytes, int64_t last_offset, int64_t max_timestamp,
    int64_t interval) noexcept nogil:
    """Account for a batch at `position`: largest timestamp, and an entry in each index when it is due.

    Without memory for an entry, it is due with the next batch."""
    if s.first_timestamp == UNKNOWN:
        s.first_timestamp = max_timestamp
    if max_timestamp > s.largest_timestamp:
        poke_i64(&s.largest_offset, last_offset)
        store_i64(&s.largest_timestamp, max_timestamp)
    if s.since_entry > interval and index_add(&s.indexes.offsets, last_offset - s.base_offset, position) == 0:
        segment_note_last(s)
        s.since_entry = 0
    s.since_entry += bytes


cdef int segment_note_last(segment_t* s) noexcept nogil:
    """Add (largest timestamp, its offset) to the time index, if that is new: with each offset entry, and at the
    seal."""
    cdef entry_t last
    if s.largest_timestamp < 0:
        return 0
    if s.indexes.times.count > 0:
        index_get(&s.indexes.times, s.indexes.times.count - 1, &last)
        if last.key >= s.largest_timestamp:
            return 0
    return index_add(&s.indexes.times, s.largest_timestamp, s.largest_offset - s.base_offset)


cdef int segment_write_indexes(segment_t* s, const char* suffix, bint durable) noexcept nogil:
    """Bring the index files up to date. Under the flush mutex, which guards the files."""
    cdef char path[PATH_BYTES]
    cdef aborts_t* aborts = <aborts_t*>load_ptr(<void**>&s.aborts)
    cdef int status
    suffixed_path(s, ".index", suffix, path)
    status = index_write(&s.indexes.offsets, s.fs, path, durable)
    if status == 0:
        suffixed_path(s, ".timeindex", suffix, path)
        status = index_write(&s.indexes.times, s.fs, path, durable)
    if status == 0 and aborts != NULL:
        suffixed_path(s, ".txnindex", suffix, path)
        status = aborts_write(aborts, s.fs, path, durable)
    return status


cdef int segment_give_back(segment_t* s) noexcept nogil:
    """Free the reserved space of a segment that gets no more appends. Under the flush mutex."""
    cdef char path[PATH_BYTES]
    cdef files_t* f = <files_t*>load_ptr(<void**>&s.files)
    cdef int status, fd = -1
    if s.reserved <= s.size:
        return 0
    if f == NULL:
        segment_path(s, ".log", path)
        fd = vfs_open(s.fs, P_NONE, path, O_RDWR)
        if fd < 0:
            return fd
    status = vfs_truncate(s.fs, P_SEGMENT_TRUNCATE, f.fd if f != NULL else fd, s.size)
    s.reserved = s.size
    vfs_close(fd)
    return status


cdef int segment_seal(segment_t* s, reclaim_t* q) noexcept nogil:
    """Seal a segment that gets no more appends: write the indexes, free reserved space and the heap indexes. The data
    is not flushed here."""
    cdef int status
    if s.sealed:
        return 0
    status = segment_note_last(s)
    if status == 0:
        status = segment_write_indexes(s, "", False)
    if status == 0:
        status = segment_give_back(s)
    if status < 0:
        return status
    store_i32(&s.sealed, 1)
    retire(q, swap_ptr(<void**>&s.files, NULL), files_drop)
    retire(q, swap_ptr(<void**>&s.indexes, NULL), indexes_drop)
    return 0


cdef bint segment_is_behind(const segment_t* s, int64_t size, int64_t least) noexcept nogil:
    """True if write-behind is due: the unwritten part of `size` bytes is as large as the written part, within bounds.

    Each round of write-behind costs a wake-up and disk requests, so a long segment is written in long steps."""
    cdef int64_t behind = load_i64(&s.behind)
    return size - behind >= max(least, min(behind, <int64_t>BEHIND_MAX))


cdef int sync_file(segment_t* s, int point, const char* suffix) noexcept nogil:
    """Make a file of a sealed segment durable, through a descriptor of its own; the readers' files are not touched."""
    cdef char path[PATH_BYTES]
    cdef int fd, status
    segment_path(s, suffix, path)
    fd = vfs_open(s.fs, P_NONE, path, O_RDONLY)
    if fd == -ENOENT and point == P_SEGMENT_SYNC:
        return -EIO  # the data file is missing
    if fd < 0:
        return fd
    status = vfs_sync(s.fs, point, fd)
    vfs_close(fd)
    return -EIO if status < 0 and point == P_SEGMENT_SYNC else status


cdef int segment_flush(segment_t* s, int64_t size) noexcept nogil:
    """Make the first `size` bytes and the indexes durable. The caller is pinned, and the only one that flushes the log.

    -EIO if the data could not be synced, for any reason."""
    cdef const aborts_t* aborts = <const aborts_t*>load_ptr(<void**>&s.aborts)
    cdef files_t* f
    cdef int status
    if load_i64(&s.flushed) >= size and size > 0:
        return 0
    if not load_i32(&s.sealed):
        f = <files_t*>load_ptr(<void**>&s.files)
        status = sync_file(s, P_SEGMENT_SYNC, ".log") if f == NULL else vfs_sync(s.fs, P_SEGMENT_SYNC, f.fd)
        if status < 0:
            return -EIO if f != NULL else status
        status = segment_write_indexes(s, "", True)
    else:
        status = sync_file(s, P_SEGMENT_SYNC, ".log")
        if status == 0 and not load_i32(&s.index_bad):  # a bad one will be rebuilt
            status = sync_file(s, P_INDEX_SYNC, ".index")
            if status == 0:
                status = sync_file(s, P_INDEX_SYNC, ".timeindex")
        if status == 0 and aborts != NULL and load_i64(&aborts.count) > 0 and not load_i32(&s.aborts_bad):
            status = sync_file(s, P_INDEX_SYNC, ".txnindex")
    if status == 0:
        store_i64(&s.flushed, size)
    return status


cdef int segment_cut(segment_t* s, int64_t position) noexcept nogil:
    """Cut an active segment at `position` (a batch boundary). The caller holds the append mutex and the flush mutex."""
    cdef files_t* f
    cdef int status = segment_files(s, &f)
    if status == 0:
        status = vfs_truncate(s.fs, P_SEGMENT_TRUNCATE, f.fd, position)
    if status < 0:
        return status
    store_i64(&s.size, position)
    s.reserved = position
    s.behind = min(s.behind, position)
    s.flushed = min(s.flushed, position)
    s.written = min(s.written, position)
    store_i64(&s.followed, 0)    # last: a copy that begins from here on has nothing of what was cut
    return 0


cdef int segment_rename(segment_t* s, const char* suffix_from, const char* suffix_to) noexcept nogil:
    """Give the data file and its indexes another suffix; the indexes may be missing. The data file is renamed last."""
    cdef char path[PATH_BYTES]
    cdef char to[PATH_BYTES]
    cdef const char* kinds[4]
    cdef int k, status = 0
    kinds[0], kinds[1], kinds[2], kinds[3] = ".timeindex", ".index", ".txnindex", ".log"
    for k in range(4):
        suffixed_path(s, kinds[k], suffix_from, path)
        suffixed_path(s, kinds[k], suffix_to, to)
        status = vfs_rename(s.fs, P_SEGMENT_RENAME, path, to)
    return status


cdef int segment_unlink(segment_t* s, const char* suffix) noexcept nogil:
    """Remove the data file and its indexes. The data file is removed last: after a crash it is still there, or all are
    gone."""
    cdef char path[PATH_BYTES]
    cdef const char* kinds[4]
    cdef int k, status
    kinds[0], kinds[1], kinds[2], kinds[3] = ".timeindex", ".index", ".txnindex", ".log"
    for k in range(4):
        suffixed_path(s, kinds[k], suffix, path)
        status = vfs_unlink(s.fs, P_SEGMENT_UNLINK, path)
        if status < 0:
            return status
    return 0
