"""Producer snapshots: writes, loads and removes them, and refills the windows from batch headers.

A snapshot is written at every roll (named by the new segment's base offset) and at a clean stop (named by the log's
end). It holds one batch per producer. A clean stop writes one even without producers: if it is missing, it was lost. A
start loads the newest snapshot at or below the point where its scan begins, refills the windows of five from the
headers of the TAIL_BYTES before it, and replays the headers after it. Instead of a torn snapshot it takes an older one,
but none from before the log's first segment. Without any, the replay begins at that segment, and producers that wrote
nothing since are taken from the newest older snapshot.
"""

from libc.errno cimport EMFILE, ENFILE, ENOMEM, errno
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc, strtoll
from libc.string cimport strcmp
from posix.fcntl cimport O_RDONLY

from pybroker.core.base.atomic cimport load_i64
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE
from pybroker.core.base.files cimport DIR, closedir, dirent, opendir, readdir
from pybroker.core.base.vfs cimport (
    P_NONE, P_SEGMENT_READ, P_SNAPSHOT_WRITE, vfs_close, vfs_open, vfs_pread, vfs_replace, vfs_size, vfs_unlink,
)
from pybroker.core.batch.batch cimport batch_t
from pybroker.core.storage.log.log cimport SNAPSHOTS_KEPT, log_t, segments_floor, segments_t, snapshot_t
from pybroker.core.storage.log.log_transactions cimport log_begin_restore, log_take_open
from pybroker.core.storage.producers.producer_state cimport (
    PRODUCERS_MAX, SNAPSHOT_ENTRY, SNAPSHOT_HEADER, sequence_adopt, sequence_free, sequence_init, sequence_load,
    sequence_merge, sequence_t,
)
from pybroker.core.storage.recovery.producer_replay cimport (
    replay_has_marker, replay_log, replay_producers, replay_waiting,
)
from pybroker.core.storage.segment.index cimport entry_t, index_floor_value
from pybroker.core.storage.segment.open_files cimport files_t
from pybroker.core.storage.segment.segment cimport PATH_BYTES, segment_files, segment_t
from pybroker.core.storage.segment.segment_search cimport search_header, search_init, search_t, search_to_offset

cdef enum:
    SNAPSHOT_BYTES_MAX = SNAPSHOT_HEADER + SNAPSHOT_ENTRY * 16 * PRODUCERS_MAX
    NAME_DIGITS = 20


cdef void snapshot_path(const log_t* l, int64_t offset, char* out) noexcept nogil:
    snprintf(out, PATH_BYTES, "%s/%020lld.snapshot", l.directory, <long long>offset)


cdef int64_t snapshot_offset(const char* name) noexcept nogil:
    """The offset in a snapshot's file name; -1 if the file is not a snapshot."""
    cdef char* end = NULL
    cdef int64_t offset = strtoll(name, &end, 10)
    return offset if end == name + NAME_DIGITS and strcmp(end, ".snapshot") == 0 else -1


cdef int64_t newest_snapshot(const log_t* l, int64_t at_most) noexcept nogil:
    """The largest offset <= at_most of a snapshot; -1 if there is none; -1 - errno on error."""
    cdef int64_t offset, best = -1
    cdef dirent* e
    cdef DIR* d = opendir(l.directory)
    if d == NULL:
        return -1 - errno
    e = readdir(d)
    while e != NULL:
        offset = snapshot_offset(e.d_name)
        if best < offset <= at_most:
            best = offset
        e = readdir(d)
    closedir(d)
    return best


cdef int read_whole(const log_t* l, int64_t offset, uint8_t** data, size_t* n) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef int64_t size
    cdef int fd, status
    snapshot_path(l, offset, path)
    fd = vfs_open(l.context.fs, P_SEGMENT_READ, path, O_RDONLY)
    if fd < 0:
        return fd
    size = vfs_size(fd)
    if size < 0 or size > SNAPSHOT_BYTES_MAX:
        vfs_close(fd)
        return <int>size if size < 0 else CORRUPT_MESSAGE
    data[0] = <uint8_t*>malloc(size + 1)
    status = -ENOMEM
    if data[0] != NULL:
        status = vfs_pread(l.context.fs, P_SEGMENT_READ, fd, data[0], size, 0, n)
    vfs_close(fd)
    return status


cdef int64_t producers_tail(log_t* l, int64_t offset) noexcept nogil:
    """The offset of a batch about TAIL_BYTES before `offset`, by whole index entries or segments."""
    cdef segments_t* list = l.segments
    cdef int64_t i = segments_floor(list, offset - 1), bytes = 0
    cdef segment_t* s
    cdef files_t* f
    cdef search_t w
    cdef batch_t b
    cdef int64_t position = 0, from_
    while i >= 0:
        s = list.items[i].segment
        if segment_files(s, &f) < 0:
            break
        search_init(&w, s, f, load_i64(&s.size))
        position = load_i64(&s.size)
        if i == segments_floor(list, offset - 1) and search_to_offset(&w, offset, &from_, &b) == 0:
            position = from_
        if bytes + position >= TAIL_BYTES:
            return tail_entry(&w, position - (TAIL_BYTES - bytes))
        bytes += position
        i -= 1
    return list.items[0].base_offset if list.count else offset


cdef int64_t tail_entry(search_t* w, int64_t position) noexcept nogil:
    """The base offset of a batch at or shortly before a position."""
    cdef batch_t b
    cdef entry_t entry
    if index_floor_value(&w.files.indexes.offsets, position, &entry) >= 0 and search_header(w, &entry.value, &b) == 0:
        return b.base_offset
    return w.segment.base_offset


cdef int64_t producers_read(
    const log_t* l, int64_t first, int64_t at_most, sequence_t* into, bint* torn) noexcept nogil:
    """Load the newest sound snapshot in [first, at_most]. Return its offset, less than `first` if there is none; -1 -
    errno on error. `torn`: a newer one is malformed or unreadable."""
    cdef int64_t offset = newest_snapshot(l, at_most)
    cdef uint8_t* data = NULL
    cdef size_t n = 0
    cdef int status
    torn[0] = False
    while offset >= first:
        data = NULL
        status = read_whole(l, offset, &data, &n)
        if status == 0:
            status = sequence_load(into, data, n)
        free(data)
        if status == 0:
            break
        if status == -EMFILE or status == -ENFILE or status == -ENOMEM:
            return -1 + status   # temporary, and not the file's fault
        torn[0] = True
        offset = newest_snapshot(l, offset - 1)
    return offset


cdef int producers_find_waiting(log_t* l, int64_t first, int64_t end) noexcept nogil:
    """Find the transactions whose markers are in [high watermark, end): a snapshot at `end`, which a start has loaded,
    knows nothing of them. They are few, and mostly none: only if there are, an older snapshot is read, and the log
    replayed."""
    cdef sequence_t older
    cdef bint torn = False
    cdef int64_t loaded
    cdef int status
    if l.segments == NULL or not replay_has_marker(l, l.view.high_watermark, end):
        return 0
    sequence_init(&older)
    loaded = producers_read(l, first, l.view.high_watermark, &older, &torn)
    status = <int>(loaded + 1) if loaded < -1 else replay_waiting(l, max(loaded, first), end, &older)
    sequence_free(&older)
    return status


cdef int producers_load(log_t* l, int64_t first, int64_t offset, int64_t* loaded, bint* torn) noexcept nogil:
    """Replace all producers by the newest sound snapshot in [first, offset]; `loaded`: its offset, -1 if there is none.
    The open transactions come with them.

    A snapshot from before the log's first segment would lack batches in between. `torn`: a newer one is malformed."""
    cdef int64_t highest = l.producers.highest_id
    cdef sequence_t tail
    cdef int status
    log_begin_restore(l, offset)
    sequence_free(&l.producers)
    l.producers.highest_id = highest
    loaded[0] = producers_read(l, first, offset, &l.producers, torn)
    if loaded[0] < -1:
        return <int>(loaded[0] + 1)
    if loaded[0] < first:
        loaded[0] = -1
    status = log_take_open(l)
    if status < 0:
        return status
    if loaded[0] < 0 or l.producers.count == 0 or l.segments == NULL:
        return 0
    sequence_init(&tail)
    status = replay_producers(l, producers_tail(l, loaded[0]), loaded[0], &tail)
    if status == 0:
        sequence_merge(&l.producers, &tail)
    sequence_free(&tail)
    return status


cdef int producers_adopt(log_t* l, int64_t end) noexcept nogil:
    """Add what the newest snapshot knows after a log was replayed from its first segment, whose predecessors are gone:
    producers without a batch in the log, and what happened before it to others. Snapshots past the log's end, which was
    lost, are removed first."""
    cdef sequence_t older
    cdef bint torn
    cdef int64_t loaded
    cdef int status = 0
    producers_prune(l, end)
    sequence_init(&older)
    loaded = producers_read(l, 0, end, &older, &torn)
    if loaded < -1:
        status = <int>(loaded + 1)
    elif loaded >= 0:
        status = sequence_adopt(&l.producers, &older, loaded)
    if status == 0:
        status = log_take_open(l)
    sequence_free(&older)
    return status


cdef int producers_restore(log_t* l, int64_t end) noexcept nogil:
    """Restore the producer state as of `end`. Under the append mutex. The caller ends the restore."""
    cdef int64_t first = l.segments.items[0].base_offset, loaded = -1
    cdef bint torn
    cdef int status = producers_load(l, first, end, &loaded, &torn)
    return status if status != 0 else replay_log(l, max(loaded, first), end)


cdef int producers_write(log_t* l, snapshot_t* p, bint durable) noexcept nogil:
    cdef char path[PATH_BYTES]
    snapshot_path(l, p.offset, path)
    return vfs_replace(l.context.fs, P_SNAPSHOT_WRITE, path, p.data, p.length, durable)


cdef void note_kept(log_t* l, int64_t offset) noexcept nogil:
    """Add an offset to the list of the largest few, in descending order."""
    cdef int32_t i = l.snapshots.count
    if i < SNAPSHOTS_KEPT:
        l.snapshots.count += 1
    elif offset < l.snapshots.offsets[i - 1]:
        return
    else:
        i -= 1
    while i > 0 and l.snapshots.offsets[i - 1] < offset:
        l.snapshots.offsets[i] = l.snapshots.offsets[i - 1]
        i -= 1
    l.snapshots.offsets[i] = offset


cdef void unlink_snapshot(const log_t* l, int64_t offset) noexcept nogil:
    cdef char path[PATH_BYTES]
    snapshot_path(l, offset, path)
    vfs_unlink(l.context.fs, P_NONE, path)


cdef void look_through(log_t* l, int64_t newest_first, bint remove) noexcept nogil:
    """Note the snapshots in the directory that are kept; or remove the others."""
    cdef int64_t offset
    cdef dirent* e
    cdef DIR* d = opendir(l.directory)
    if d == NULL:
        return
    e = readdir(d)
    while e != NULL:
        offset = snapshot_offset(e.d_name)
        if remove and (offset > newest_first or 0 <= offset < l.snapshots.offsets[max(l.snapshots.count, 1) - 1]):
            unlink_snapshot(l, offset)
        elif not remove and 0 <= offset <= newest_first:
            note_kept(l, offset)
        e = readdir(d)
    closedir(d)


cdef void producers_prune(log_t* l, int64_t newest_first) noexcept nogil:
    """Remove snapshots that no start would choose: those above newest_first, and all but the newest few below."""
    l.snapshots.count = 0
    l.snapshots.offsets[0] = 0
    look_through(l, newest_first, False)
    look_through(l, newest_first, True)
    l.snapshots.known = 1


cdef snapshot_t* producers_take(log_t* l) noexcept nogil:
    """Take the queue of snapshots to write. Under the append mutex."""
    cdef snapshot_t* p = l.unwritten
    l.unwritten = NULL
    return p


cdef void producers_settle(log_t* l, snapshot_t* p, int64_t end) noexcept nogil:
    """Write queued snapshots, except those past `end`. Under the flush mutex.

    A failure is ignored: the snapshot matters only if the batches before it are lost as well."""
    cdef snapshot_t* after
    while p != NULL:
        after = p.next
        if p.offset <= end:
            producers_write(l, p, True)
        free(p.data)
        free(p)
        p = after


cdef void producers_keep(log_t* l, int64_t offset) noexcept nogil:
    """Note a new snapshot, the newest, and remove the oldest if there are too many. The directory is read only once, so
    that the cost of a roll does not depend on the number of segments. Under the flush mutex."""
    cdef int64_t oldest = l.snapshots.offsets[SNAPSHOTS_KEPT - 1]
    if not l.snapshots.known:
        producers_prune(l, offset)
        return
    if l.snapshots.count == SNAPSHOTS_KEPT and oldest < offset and l.snapshots.offsets[0] != offset:
        unlink_snapshot(l, oldest)
    if l.snapshots.count == 0 or l.snapshots.offsets[0] != offset:
        note_kept(l, offset)
