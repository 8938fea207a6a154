"""The copy of a log in another log dir: Kafka's future log (KIP-113).

    <topic>-<partition>.<uuid>-future    the same files as in the log's directory, as far as they are copied

The log goes on: it is appended to, rolled, compacted, truncated, and its head removed. So the copy is made in steps of
a megabyte, without a lock. Each step looks at the list of segments, and copies what the copy lacks. A segment's records
never change, but for a truncation, so each segment is copied from its start to its end, once. A mark in the segment
(`followed`) says that this copy has it from its start: a compacted segment and one that was cut have no mark, and are
copied again; what is no longer listed is removed.

A sealed segment is copied with its indexes, and synced. The active segment is followed to its end, and synced just
before the switch (`future_switch.pyx`), as are leader epochs and producer snapshots.

The thread that copies waits for both disks; no other thread does. The kernel is asked to write every WINDOW_BYTES, and
the copy waits for the window before: so dirty pages never pile up, which the kernel would have everyone wait for, and
the sync at the end finds little. Pages that only the copy has brought into the cache are dropped, on both sides.
"""

from libc.errno cimport EIO, ENOENT, ENOMEM
from libc.stdint cimport int64_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove, strcmp, strdup, strlen
from posix.fcntl cimport O_CREAT, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY

from pybroker.core.base.atomic cimport load_i32, load_i64, load_ptr, store_i64
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.base.files cimport DIR, closedir, dirent, opendir, readdir
from pybroker.core.base.page_cache cimport forget, passed_bring, passed_end, passed_forget, passed_init
from pybroker.core.base.pthread cimport pthread_mutex_unlock
from pybroker.core.base.reclamation cimport pin, unpin
from pybroker.core.base.vfs cimport (
    P_METADATA_WRITE, P_MOVE_COPY, P_MOVE_SYNC, P_NONE, P_SEGMENT_READ, P_SEGMENT_UNLINK, vfs_close, vfs_copy,
    vfs_look, vfs_no_readahead, vfs_open, vfs_pread, vfs_replace, vfs_set_modified, vfs_sync, vfs_sync_dir, vfs_unlink,
    vfs_wait_written, vfs_write_behind,
)
from pybroker.core.storage.background.flusher cimport log_write_epochs
from pybroker.core.storage.log.log cimport (
    log_drop, log_hold, log_lock_files, log_t, log_directory, log_view, segments_t, view_t,
)
from pybroker.core.storage.log.log_dir cimport log_dir_t, log_dir_trust
from pybroker.core.storage.segment.segment cimport PATH_BYTES, segment_path, segment_t

cdef extern from *:
    """
    #include <dirent.h>
    #include <stdint.h>
    #include <string.h>
    #include <sys/stat.h>
    // One number for the name, file, size and time of a file in a directory; 0 if it is gone.
    static uint64_t file_mark(DIR* d, const char* name) {
      struct stat s;
      uint64_t h = 1469598103934665603u;
      if (fstatat(dirfd(d), name, &s, 0) != 0) return 0;
      for (const char* p = name; *p; p++) h = (h ^ (uint8_t)*p) * 1099511628211u;
      h = (h ^ (uint64_t)s.st_ino) * 1099511628211u;
      h = (h ^ (uint64_t)s.st_size) * 1099511628211u;
      h = (h ^ (uint64_t)(s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec)) * 1099511628211u;
      return h;
    }
    """
    uint64_t file_mark(DIR* d, const char* name) nogil

cdef enum:
    WINDOW_BYTES = 4 << 20       # between two requests that the kernel writes

# A file of the copy: it was complete, so that the log may have been switched to it. See disks/unfinished_moves.py.
cdef const char* MARK = "switching"


cdef future_t* future_new(log_t* l, log_dir_t* to, const char* directory) noexcept nogil:
    """Begin a copy in a directory that exists. NULL without memory."""
    cdef future_t* f = <future_t*>calloc(1, sizeof(future_t))
    if f == NULL:
        return NULL
    f.directory = strdup(directory)
    if f.directory == NULL:
        free(f)
        return NULL
    log_hold(l)
    f.log = l
    f.log_dir = to
    f.number = monotonic_ns()
    f.base_offset = f.fd_from = f.fd_to = -1
    passed_init(&f.passed)
    return f


cdef void future_free(future_t* f) noexcept nogil:
    """End a copy; its files stay."""
    future_close(f)
    log_drop(f.log)
    free(f.pieces)
    free(<void*>f.directory)
    free(f)


cdef void future_close(future_t* f) noexcept nogil:
    if f.fd_from >= 0:
        passed_end(&f.passed, f.fd_from)
    vfs_close(f.fd_from)
    vfs_close(f.fd_to)
    f.base_offset = f.fd_from = f.fd_to = -1


cdef void copy_path(const future_t* f, int64_t base_offset, const char* suffix, char* out) noexcept nogil:
    cdef segment_t named
    named.directory, named.base_offset = f.directory, base_offset
    segment_path(&named, suffix, out)


cdef int unlink_files(future_t* f, int64_t base_offset, bint data) noexcept nogil:
    """Remove the indexes of a piece and, if `data`, all of it."""
    cdef char path[PATH_BYTES]
    cdef const char* kinds[4]
    cdef int k, status = 0
    kinds[0], kinds[1], kinds[2], kinds[3] = ".timeindex", ".txnindex", ".index", ".log"
    for k in range(4 if data else 3):
        if status == 0:
            copy_path(f, base_offset, kinds[k], path)
            status = log_dir_trust(f.log_dir, vfs_unlink(f.log.context.fs, P_SEGMENT_UNLINK, path))
    return status


# -- what is to be copied next -----------------------------------------------------------------------------------------

cdef int insert(future_t* f, int64_t at, int64_t base_offset) noexcept nogil:
    cdef piece_t* larger
    if f.count == f.capacity:
        larger = <piece_t*>realloc(f.pieces, sizeof(piece_t) * (f.capacity * 2 + 16))
        if larger == NULL:
            return -ENOMEM
        f.pieces = larger
        f.capacity = f.capacity * 2 + 16
    memmove(&f.pieces[at + 1], &f.pieces[at], sizeof(piece_t) * (f.count - at))
    f.pieces[at].base_offset = base_offset
    f.pieces[at].copied = -1
    f.pieces[at].done = 0
    f.count += 1
    return 0


cdef void begin_again(future_t* f, piece_t* p, segment_t* s) noexcept nogil:
    """Copy a segment from its start: it is new, or was compacted or cut since."""
    store_i64(&s.followed, f.number)
    p.copied = -1
    p.done = 0
    f.synced_end = 0
    if f.base_offset == p.base_offset:
        future_close(f)


cdef int choose(future_t* f, int64_t* at, segment_t** out) noexcept nogil:
    """Find the first piece with something to do, and its segment: NULL if the segment is no longer listed. NOTHING_LEFT
    if there is none. The caller is pinned."""
    cdef log_t* l = f.log
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef segment_t* s
    cdef piece_t* p
    cdef int64_t i = 0, j = 0, n = load_i64(&list.count)
    if n == 0 or load_i64(&l.generation) & 1:
        return LATER             # it is being truncated
    while i < n or j < f.count:
        at[0] = j
        out[0] = s = list.items[i].segment if i < n else NULL
        if s == NULL or (j < f.count and f.pieces[j].base_offset < s.base_offset):
            out[0] = NULL
            return 0
        if j == f.count or f.pieces[j].base_offset > s.base_offset:
            if insert(f, j, s.base_offset) != 0:
                return -ENOMEM
        p = &f.pieces[j]
        if load_i64(&s.followed) != f.number:
            begin_again(f, p, s)
        if not p.done and (p.copied < load_i64(&s.size) or load_i32(&s.sealed)):
            return 0
        i += 1
        j += 1
    return NOTHING_LEFT


cdef int open_piece(future_t* f, piece_t* p, const segment_t* s) noexcept nogil:
    """Open the files of a piece. The caller is pinned."""
    cdef char path[PATH_BYTES]
    future_close(f)
    segment_path(s, ".log", path)
    f.fd_from = vfs_open(f.log.context.fs, P_SEGMENT_READ, path, O_RDONLY)
    if f.fd_from == -ENOENT:
        return LATER             # it was removed just now
    if f.fd_from < 0:
        return f.fd_from
    vfs_no_readahead(f.fd_from)
    passed_init(&f.passed)
    return open_copy(f, p)


cdef int open_copy(future_t* f, piece_t* p) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef int flags = O_RDWR | O_CREAT
    cdef int status = 0
    if p.copied < 0:
        flags |= O_TRUNC
        status = unlink_files(f, p.base_offset, False)
    copy_path(f, p.base_offset, ".log", path)
    if status == 0:
        status = f.fd_to = vfs_open(f.log.context.fs, P_MOVE_COPY, path, flags)
    if status < 0:
        return log_dir_trust(f.log_dir, status)
    vfs_no_readahead(f.fd_to)
    p.copied = max(p.copied, <int64_t>0)
    f.base_offset = p.base_offset
    f.begun = f.written = p.copied
    return 0


# -- copying -----------------------------------------------------------------------------------------------------------

cdef int blame(future_t* f, int fd, int64_t position, int status) noexcept nogil:
    """The status of a failed copy. If the range can be read, the disk of the copy has failed."""
    cdef char byte
    cdef size_t got = 0
    if vfs_pread(f.log.context.fs, P_NONE, fd, &byte, 1, position, &got) == 0 and got == 1:
        return log_dir_trust(f.log_dir, status)
    return status


cdef int future_copy_range(future_t* f, piece_t* p, int64_t end) noexcept nogil:
    """Copy the open piece up to `end`."""
    cdef ssize_t n
    while p.copied < end:
        n = vfs_copy(f.log.context.fs, P_MOVE_COPY, f.fd_to, f.fd_from, p.copied, end - p.copied)
        if n == 0:
            return -EIO          # the source is shorter than it was
        if n < 0:
            return blame(f, f.fd_from, p.copied, <int>n)
        p.copied += n
    return 0


cdef void write_behind(future_t* f, const piece_t* p, bint keep) noexcept nogil:
    """Have the kernel write the last window, and wait for the one before; its pages are dropped unless `keep`."""
    if p.copied - f.begun < WINDOW_BYTES:
        return
    vfs_write_behind(f.fd_to, f.begun, p.copied - f.begun)
    if f.begun > f.written:
        vfs_wait_written(f.fd_to, f.written, f.begun - f.written)
        if not keep:
            forget(f.fd_to, f.written, f.begun - f.written)
        f.written = f.begun
    f.begun = p.copied


cdef int copy_file(future_t* f, const char* name, bint durable) noexcept nogil:
    """Copy a file beside the segments, or an index; one that is missing is missing in the copy."""
    cdef char path[PATH_BYTES]
    cdef int64_t position = 0
    cdef ssize_t n = 1
    cdef int fd, to, status = 0
    snprintf(path, PATH_BYTES, "%s/%s", log_directory(f.log), name)
    fd = vfs_open(f.log.context.fs, P_SEGMENT_READ, path, O_RDONLY)
    snprintf(path, PATH_BYTES, "%s/%s", f.directory, name)
    if fd == -ENOENT:
        return log_dir_trust(f.log_dir, vfs_unlink(f.log.context.fs, P_SEGMENT_UNLINK, path))
    if fd < 0:
        return fd
    to = vfs_open(f.log.context.fs, P_MOVE_COPY, path, O_WRONLY | O_CREAT | O_TRUNC)
    status = log_dir_trust(f.log_dir, min(to, 0))
    while status == 0 and n > 0:
        n = vfs_copy(f.log.context.fs, P_MOVE_COPY, to, fd, position, WINDOW_BYTES)
        position += n
        if n < 0:
            status = blame(f, fd, position, <int>n)
    if status == 0 and durable:
        status = sync_copy(f, to)
    vfs_close(fd)
    vfs_close(to)
    return status


cdef int sync_copy(future_t* f, int fd) noexcept nogil:
    """Sync a file of the copy. A failed sync takes its log dir offline: see flusher.pyx."""
    return log_dir_trust(f.log_dir, -EIO if vfs_sync(f.log.context.fs, P_MOVE_SYNC, fd) < 0 else 0)


cdef int finish_piece(future_t* f, piece_t* p, int64_t modified_ms) noexcept nogil:
    """Complete the copy of a sealed segment, with its indexes, and make it durable."""
    cdef char name[64]
    cdef const char* kinds[3]
    cdef int k, status = sync_copy(f, f.fd_to)
    if status == 0:
        forget(f.fd_to, f.written, p.copied - f.written)
        vfs_set_modified(f.fd_to, modified_ms)  # for retention of records without a timestamp
    future_close(f)
    kinds[0], kinds[1], kinds[2] = ".index", ".timeindex", ".txnindex"
    for k in range(3):
        if status == 0:
            snprintf(name, sizeof(name), "%020lld%s", <long long>p.base_offset, kinds[k])
            status = copy_file(f, name, True)
    if status == 0:
        p.done = 1
    return status


cdef int remove_piece(future_t* f, int64_t at) noexcept nogil:
    cdef int64_t base_offset = f.pieces[at].base_offset
    if f.base_offset == base_offset:
        future_close(f)
    f.count -= 1
    memmove(&f.pieces[at], &f.pieces[at + 1], sizeof(piece_t) * (f.count - at))
    return unlink_files(f, base_offset, True)


cdef int future_copy(future_t* f, int64_t most, int64_t* copied) noexcept nogil:
    """Do one step of at most so many bytes: 0, NOTHING_LEFT, LATER, or -errno."""
    cdef log_t* l = f.log
    cdef segment_t* s = NULL
    cdef piece_t* p
    cdef int64_t at = 0, from_, end, modified_ms
    cdef bint sealed
    cdef int slot = pin(&l.context.reclaim)
    cdef int status = choose(f, &at, &s)
    copied[0] = 0
    if status == 0 and s != NULL:
        p = &f.pieces[at]
        if f.base_offset != p.base_offset:
            status = open_piece(f, p, s)
        sealed = load_i32(&s.sealed)  # before its size, which does not change any more then
        end = load_i64(&s.size)
        modified_ms = s.modified_ms
    unpin(&l.context.reclaim, slot)
    if status != 0:
        if status != NOTHING_LEFT:
            future_close(f)
        return status
    if s == NULL:
        return remove_piece(f, at)
    from_ = p.copied
    if from_ < end:
        passed_bring(&f.passed, f.fd_from, from_, min(end, from_ + most))
        status = future_copy_range(f, p, min(end, from_ + most))
        copied[0] = p.copied - from_
        passed_forget(&f.passed, f.fd_from, p.copied, NULL)
        write_behind(f, p, not sealed)
    if status == 0 and sealed and p.copied == end:
        status = finish_piece(f, p, modified_ms)
    return status


# -- before the switch -------------------------------------------------------------------------------------------------

cdef inline bint is_beside(const char* name) noexcept nogil:
    """True for a file that goes with the log without being a segment's."""
    cdef size_t n = strlen(name)
    if strcmp(name, "leader-epoch-checkpoint") == 0 or strcmp(name, "partition.metadata") == 0:
        return True
    return n > 9 and strcmp(name + n - 9, ".snapshot") == 0


cdef uint64_t files_beside(const char* directory) noexcept nogil:
    """One number for the leader epochs and producer snapshots in a directory: another one if they change."""
    cdef uint64_t sum = 1
    cdef dirent* e
    cdef DIR* d = opendir(directory)
    if d == NULL:
        return 0
    e = readdir(d)
    while e != NULL:
        if is_beside(e.d_name):
            sum += file_mark(d, e.d_name)
        e = readdir(d)
    closedir(d)
    return sum


cdef int remove_extra(future_t* f, const char* name) noexcept nogil:
    """Remove a file of the copy that the log no longer has."""
    cdef char path[PATH_BYTES]
    cdef int64_t size, modified_ms
    snprintf(path, PATH_BYTES, "%s/%s", log_directory(f.log), name)
    if vfs_look(f.log.context.fs, P_NONE, path, &size, &modified_ms) != -ENOENT:
        return 0
    snprintf(path, PATH_BYTES, "%s/%s", f.directory, name)
    return log_dir_trust(f.log_dir, vfs_unlink(f.log.context.fs, P_SEGMENT_UNLINK, path))


cdef int each_beside(future_t* f, const char* directory, bint copies) noexcept nogil:
    """Copy each file of this kind in the log's directory, or remove what is too much in the copy's."""
    cdef dirent* e
    cdef DIR* d = opendir(directory)
    cdef int status = 0
    if d == NULL:
        return -ENOENT
    e = readdir(d)
    while e != NULL and status == 0:
        if is_beside(e.d_name):
            status = copy_file(f, e.d_name, True) if copies else remove_extra(f, e.d_name)
        e = readdir(d)
    closedir(d)
    return status


cdef int future_open_active(future_t* f) noexcept nogil:
    """Open the files of the last piece, if they are not open."""
    cdef log_t* l = f.log
    cdef piece_t* p = &f.pieces[f.count - 1]
    cdef segments_t* list
    cdef segment_t* s
    cdef int slot, status = 0
    if f.base_offset == p.base_offset:
        return 0
    slot = pin(&l.context.reclaim)
    list = <segments_t*>load_ptr(<void**>&l.segments)
    s = list.items[load_i64(&list.count) - 1].segment if load_i64(&list.count) > 0 else NULL
    status = open_piece(f, p, s) if s != NULL and s.base_offset == p.base_offset else LATER
    unpin(&l.context.reclaim, slot)
    return status


cdef int future_settle(future_t* f) noexcept nogil:
    """Make all of a copy durable that has nothing left to do, with what lies beside the segments and with the mark that
    says so. 0, LATER or -errno."""
    cdef char path[PATH_BYTES]
    cdef log_t* l = f.log
    cdef const char* old
    cdef view_t v
    cdef int status
    log_view(l, &v)
    if f.count == 0 or f.pieces[f.count - 1].base_offset != v.active_base:
        return LATER
    if f.pieces[f.count - 1].copied < v.active_size:
        return LATER
    log_lock_files(l)
    status = log_write_epochs(l)
    f.beside = files_beside(l.directory)
    pthread_mutex_unlock(&l.flush_mutex)
    if status == 0:
        status = future_open_active(f)
    if status == 0:
        status = sync_copy(f, f.fd_to)
    if status == 0:
        f.synced_end = v.log_end
        status = each_beside(f, log_directory(l), True)
    if status == 0:
        status = each_beside(f, f.directory, False)
    if status == 0:
        snprintf(path, PATH_BYTES, "%s/%s", f.directory, MARK)
        old = log_directory(l)
        status = vfs_replace(l.context.fs, P_METADATA_WRITE, path, old, strlen(old), True)
        log_dir_trust(f.log_dir, status)
    if status == 0:
        status = log_dir_trust(f.log_dir, vfs_sync_dir(l.context.fs, f.log_dir.path))
    return status


cdef void future_note(future_t* f) noexcept nogil:
    """Note the bytes of the copy, and the number of offsets that it lacks, as if offsets were evenly spread in a
    segment."""
    cdef log_t* l = f.log
    cdef segments_t* list
    cdef segment_t* s
    cdef view_t v
    cdef int64_t i, j = 0, n, end, bytes, lag = 0, size = 0
    cdef int slot = pin(&l.context.reclaim)
    list = <segments_t*>load_ptr(<void**>&l.segments)
    n = load_i64(&list.count)
    log_view(l, &v)
    for i in range(n):
        s = list.items[i].segment
        end = list.items[i + 1].base_offset if i + 1 < n else v.log_end
        while j < f.count and f.pieces[j].base_offset < s.base_offset:
            j += 1
        if j < f.count and f.pieces[j].base_offset == s.base_offset and f.pieces[j].copied > 0:
            size += f.pieces[j].copied
            bytes = max(load_i64(&s.size), <int64_t>1)
            lag += <int64_t>((end - s.base_offset) * (1.0 - min(f.pieces[j].copied, bytes) / <double>bytes))
        else:
            lag += end - max(s.base_offset, min(v.log_start, end))
    unpin(&l.context.reclaim, slot)
    store_i64(&f.size, size)
    store_i64(&f.lag, lag)
