"""Leader epochs of a partition, each with its start offset (KIP-101, KIP-279).

    leader-epoch-checkpoint   text: a line "0" (version), a line with the count, then a line "epoch start" for each

The file is replaced as a whole. It may lag behind the log: batches carry their epoch, so recovery finds the epochs past
the recovery point again, and the file is made durable before the recovery point moves past entries that it lacks.

Entries have a lock of their own, which is not held during file calls, so that a look-up does not wait for an append's
write. A thread that changes entries holds the append mutex, too, and may read them without the lock.
"""

from libc.errno cimport ENOENT, ENOMEM
from libc.stdint cimport int32_t, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc, realloc, strtoll
from libc.string cimport memcpy, memmove
from posix.fcntl cimport O_RDONLY

from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE
from pybroker.core.base.pthread cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)
from pybroker.core.base.vfs cimport P_SEGMENT_READ, vfs_close, vfs_open, vfs_pread, vfs_size, vfs_t

cdef enum:
    LINE_MAX = 40            # two numbers, a space, a line feed
    FILE_MAX = 1 << 26


cdef void epochs_init(epochs_t* e) noexcept nogil:
    e.items = NULL
    e.count = 0
    e.capacity = 0
    e.dirty = False
    pthread_mutex_init(&e.lock, NULL)


cdef void epochs_free(epochs_t* e) noexcept nogil:
    free(e.items)
    pthread_mutex_destroy(&e.lock)


cdef int add(epochs_t* e, int32_t epoch, int64_t start) noexcept nogil:
    cdef epoch_t* items
    while e.count and e.items[e.count - 1].start >= start:
        e.count -= 1
    if e.count == e.capacity:
        items = <epoch_t*>realloc(e.items, sizeof(epoch_t) * (e.capacity * 2 + 4))
        if items == NULL:
            return -ENOMEM
        e.items = items
        e.capacity = e.capacity * 2 + 4
    e.items[e.count].epoch = epoch
    e.items[e.count].start = start
    e.count += 1
    e.dirty = True
    return 0


cdef int epochs_assign(epochs_t* e, int32_t epoch, int64_t start) noexcept nogil:
    """Add `epoch`, which begins at `start`; ignored if it is not newer than the last entry."""
    cdef int status
    if epoch < 0 or (e.count and e.items[e.count - 1].epoch >= epoch):
        return 0
    pthread_mutex_lock(&e.lock)
    status = add(e, epoch, start)
    pthread_mutex_unlock(&e.lock)
    return status


cdef void epochs_cut_tail(epochs_t* e, int64_t end) noexcept nogil:
    """Remove the entries at and after `end`, where the log now ends."""
    pthread_mutex_lock(&e.lock)
    while e.count and e.items[e.count - 1].start >= end:
        e.count -= 1
        e.dirty = True
    pthread_mutex_unlock(&e.lock)


cdef void epochs_cut_head(epochs_t* e, int64_t start) noexcept nogil:
    """Remove the entries before `start`, where the log now starts; the epoch at `start` begins there."""
    cdef int32_t gone = 0
    pthread_mutex_lock(&e.lock)
    while gone + 1 < e.count and e.items[gone + 1].start <= start:
        gone += 1
    if gone:
        e.count -= gone
        memmove(e.items, e.items + gone, sizeof(epoch_t) * e.count)
        e.dirty = True
    if e.count and e.items[0].start < start:
        e.items[0].start = start
        e.dirty = True
    pthread_mutex_unlock(&e.lock)


cdef int32_t epochs_end(epochs_t* e, int32_t epoch, int64_t log_end, int64_t* end) noexcept nogil:
    """The largest known epoch <= `epoch` and its end offset; -1 and -1 if unknown."""
    cdef int32_t found
    pthread_mutex_lock(&e.lock)
    found = find_end(e, epoch, log_end, end)
    pthread_mutex_unlock(&e.lock)
    return found


cdef int32_t find_end(const epochs_t* e, int32_t epoch, int64_t log_end, int64_t* end) noexcept nogil:
    cdef int32_t i = e.count
    end[0] = -1
    if epoch < 0 or e.count == 0 or epoch > e.items[e.count - 1].epoch:
        return -1
    if epoch == e.items[e.count - 1].epoch:
        end[0] = log_end
        return epoch
    while i > 0 and e.items[i - 1].epoch > epoch:
        i -= 1
    # i is now the first entry of a later epoch; before the first entry, return the requested epoch itself
    end[0] = e.items[i].start
    return e.items[i - 1].epoch if i > 0 else epoch


cdef int32_t epochs_at(epochs_t* e, int64_t offset) noexcept nogil:
    """The epoch that wrote `offset`; -1 if unknown."""
    cdef int32_t i, found
    pthread_mutex_lock(&e.lock)
    i = e.count
    while i > 0 and e.items[i - 1].start > offset:
        i -= 1
    found = e.items[i - 1].epoch if i > 0 else -1
    pthread_mutex_unlock(&e.lock)
    return found


cdef int epochs_copy(epochs_t* e, epoch_t** items, int32_t* count) noexcept nogil:
    """Copy all entries into memory that the caller frees."""
    pthread_mutex_lock(&e.lock)
    count[0] = e.count
    items[0] = <epoch_t*>malloc(sizeof(epoch_t) * (e.count + 1))
    if items[0] != NULL and e.count > 0:  # there is no array before the first entry
        memcpy(items[0], e.items, sizeof(epoch_t) * e.count)
    pthread_mutex_unlock(&e.lock)
    return 0 if items[0] != NULL else -ENOMEM


cdef int parse(epochs_t* e, char* at, const char* end) noexcept nogil:
    cdef char* after = NULL
    cdef int64_t numbers[2]
    cdef int64_t count, _i
    cdef int k, status
    for k in range(2):
        numbers[k] = strtoll(at, &after, 10)
        if after == at:
            return CORRUPT_MESSAGE
        at = after
    count = numbers[1]
    if numbers[0] != 0 or count < 0 or count > end - at:
        return CORRUPT_MESSAGE
    for _i in range(count):
        for k in range(2):
            numbers[k] = strtoll(at, &after, 10)
            if after == at:
                return CORRUPT_MESSAGE
            at = after
        if numbers[0] < 0 or numbers[0] > 2147483647 or numbers[1] < 0:
            return CORRUPT_MESSAGE
        if e.count and (e.items[e.count - 1].epoch >= numbers[0] or e.items[e.count - 1].start > numbers[1]):
            return CORRUPT_MESSAGE
        status = epochs_assign(e, <int32_t>numbers[0], numbers[1])
        if status < 0:
            return status
    return 0


cdef int epochs_load(epochs_t* e, vfs_t* fs, const char* path) noexcept nogil:
    """Read the file; a missing one counts as empty. CORRUPT_MESSAGE, and no epochs, if it is malformed; -errno if it
    cannot be read."""
    cdef int64_t size
    cdef size_t got = 0
    cdef char* text
    cdef int status
    cdef int fd = vfs_open(fs, P_SEGMENT_READ, path, O_RDONLY)
    if fd == -ENOENT:
        return 0
    if fd < 0:
        return fd
    size = vfs_size(fd)
    if size < 0 or size > FILE_MAX:
        vfs_close(fd)
        return <int>size if size < 0 else CORRUPT_MESSAGE
    text = <char*>malloc(size + 1)
    if text == NULL:
        vfs_close(fd)
        return -ENOMEM
    status = vfs_pread(fs, P_SEGMENT_READ, fd, text, size, 0, &got)
    vfs_close(fd)
    text[got] = 0
    if status == 0:
        status = parse(e, text, text + got)
    if status != 0:
        e.count = 0
    e.dirty = False
    free(text)
    return status


cdef int epochs_take(epochs_t* e, char** text, size_t* n) noexcept nogil:
    """The new text of the file, in memory that the caller frees; NULL if the file is up to date.

    A caller that fails to write it calls epochs_retry."""
    cdef int32_t i
    cdef size_t room
    text[0] = NULL
    pthread_mutex_lock(&e.lock)
    if not e.dirty:
        pthread_mutex_unlock(&e.lock)
        return 0
    room = <size_t>(e.count + 2) * LINE_MAX
    text[0] = <char*>malloc(room)
    if text[0] != NULL:
        n[0] = snprintf(text[0], room, "0\n%d\n", e.count)
        for i in range(e.count):
            n[0] += snprintf(text[0] + n[0], room - n[0], "%d %lld\n", e.items[i].epoch, <long long>e.items[i].start)
        e.dirty = False
    pthread_mutex_unlock(&e.lock)
    return 0 if text[0] != NULL else -ENOMEM


cdef void epochs_retry(epochs_t* e) noexcept nogil:
    """Note that the file still lacks the last change."""
    pthread_mutex_lock(&e.lock)
    e.dirty = True
    pthread_mutex_unlock(&e.lock)
