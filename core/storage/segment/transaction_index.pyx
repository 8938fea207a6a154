"""The transaction index of a segment (KIP-98): the records that a consumer leaves out which reads committed ones only.

    <base>.txnindex   {version i16 = 0, producer id i64, first offset i64, last offset i64, last stable offset i64}: 34
                      bytes, big-endian, one for each ABORT marker in the segment that ended a transaction. The last
                      offset is the marker's, and rises. The data may lie in earlier segments. No file: no such marker.

A reader of [offset, end) is given the entries whose last offset is not below `offset`, and whose first is below `end`.
Both last offsets and last stable offsets rise, so binary searches find where to begin, and where all transactions that
began below `end` have ended; of the entries between, 64 are passed at once if all of them began later.

The index of an active segment is on the heap, and its file lags behind: recovery builds it again. That of a sealed one
is read by the first reader that needs it. A file that is torn, does not rise, or leaves its segment is not trusted.
"""

from libc.errno cimport EIO, ENOENT, ENOMEM
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from posix.fcntl cimport O_CREAT, O_RDONLY, O_RDWR

from pybroker.core.base.atomic cimport load_i64, peek_i64, poke_i64, store_i64
from pybroker.core.base.cursor cimport load_be16, load_be64, store_be16, store_be64
from pybroker.core.base.vfs cimport (
    P_INDEX_SYNC, P_INDEX_WRITE, P_NONE, P_SEGMENT_READ, vfs_close, vfs_open, vfs_pread, vfs_pwrite, vfs_replace,
    vfs_size, vfs_sync, vfs_t, vfs_truncate, vfs_unlink,
)

cdef enum:
    BLOCK = 64                   # entries with one lowest first offset; the first chunk has as many
    RAW_ENTRIES = 256            # entries that one call reads or writes, on the stack
    FIRST_CAPACITY = 64

cdef extern from *:
    """
    static inline int aborts_chunk_of(int64_t i) { return 63 - __builtin_clzll((unsigned long long)((i >> 6) + 1)); }
    """
    int chunk_of "aborts_chunk_of" (int64_t i) nogil


cdef aborts_t* aborts_new() noexcept nogil:
    return <aborts_t*>calloc(1, sizeof(aborts_t))


cdef void aborts_free(void* aborts) noexcept nogil:
    cdef aborts_t* x = <aborts_t*>aborts
    cdef int k
    if x == NULL:
        return
    for k in range(ABORTED_CHUNKS):
        free(x.chunks[k])
        free(x.lowest[k])
    free(x)


cdef inline aborted_t* place(const aborts_t* x, int64_t i) noexcept nogil:
    cdef int k = chunk_of(i)
    return &x.chunks[k][i - BLOCK * ((<int64_t>1 << k) - 1)]


cdef inline int64_t* lowest_of(const aborts_t* x, int64_t i) noexcept nogil:
    """The lowest first offset of the block of entry i."""
    cdef int k = chunk_of(i)
    return &x.lowest[k][(i - BLOCK * ((<int64_t>1 << k) - 1)) // BLOCK]


cdef int aborts_reserve(aborts_t* x, int64_t n) noexcept nogil:
    """Reserve memory for n more entries; -ENOMEM without."""
    cdef int k, last = chunk_of(x.count + n - 1)
    if last >= ABORTED_CHUNKS:
        return -ENOMEM
    for k in range(chunk_of(x.count), last + 1):
        if x.chunks[k] == NULL:
            x.chunks[k] = <aborted_t*>malloc(sizeof(aborted_t) * (<size_t>BLOCK << k))
        if x.lowest[k] == NULL:
            x.lowest[k] = <int64_t*>malloc(sizeof(int64_t) << k)
        if x.chunks[k] == NULL or x.lowest[k] == NULL:
            return -ENOMEM
    return 0


cdef int aborts_add(aborts_t* x, const aborted_t* entry) noexcept nogil:
    """Append an entry; -ENOMEM without memory. One thread adds; readers see it once the count is released."""
    cdef int64_t i = x.count
    cdef int64_t* lowest
    cdef int status = aborts_reserve(x, 1)
    if status < 0:
        return status
    place(x, i)[0] = entry[0]
    lowest = lowest_of(x, i)
    if i % BLOCK == 0 or entry.first < lowest[0]:
        poke_i64(lowest, entry.first)
    store_i64(&x.count, i + 1)
    return 0


cdef int aborts_add_all(aborts_t* x, const aborts_t* other) noexcept nogil:
    """Append the entries of another index, which are later ones."""
    cdef int64_t i
    cdef int status = 0
    for i in range(load_i64(&other.count)):
        if status == 0:
            status = aborts_add(x, place(other, i))
    return status


cdef int64_t first_to_reach(const aborts_t* x, int64_t count, int64_t offset, bint stable) noexcept nogil:
    """The number of the first entry whose last offset, or last stable offset, is not below `offset`."""
    cdef int64_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) >> 1
        if (place(x, middle).last_stable if stable else place(x, middle).last) < offset:
            low = middle + 1
        else:
            high = middle
    return low


cdef void aborts_cut(aborts_t* x, int64_t offset) noexcept nogil:
    """Drop the entries of markers at or after `offset` (truncation); the next write cuts the file."""
    store_i64(&x.count, first_to_reach(x, x.count, offset, False))
    x.written = min(x.written, x.count)


# -- files -------------------------------------------------------------------------------------------------------------

cdef bint follows(const aborted_t* before, const aborted_t* e, int64_t base_offset, int64_t end_offset) noexcept nogil:
    """True if an entry may come after `before` (NULL: none), with its marker in [base_offset, end_offset)."""
    if e.producer_id < 0 or e.first < 0 or e.first >= e.last or e.last < base_offset or e.last >= end_offset:
        return False
    if e.last_stable < 0:
        return False
    return before == NULL or (e.last > before.last and e.last_stable >= before.last_stable)


cdef int read_entries(aborts_t* x, vfs_t* fs, int fd, int64_t base_offset, int64_t end_offset) noexcept nogil:
    cdef uint8_t raw[RAW_ENTRIES * ABORTED_ENTRY]
    cdef aborted_t e
    cdef int64_t i, n, size = vfs_size(fd)
    cdef size_t got = 0
    cdef int status = <int>min(size, <int64_t>0)
    if status == 0 and size % ABORTED_ENTRY:
        return -EIO
    while status == 0 and x.count < size // ABORTED_ENTRY:
        n = min(<int64_t>RAW_ENTRIES, size // ABORTED_ENTRY - x.count)
        status = vfs_pread(fs, P_SEGMENT_READ, fd, raw, n * ABORTED_ENTRY, x.count * ABORTED_ENTRY, &got)
        if status == 0 and got < <size_t>(n * ABORTED_ENTRY):
            status = -EIO
        for i in range(n):
            if status != 0:
                break
            e.producer_id = load_be64(raw + i * ABORTED_ENTRY + 2)
            e.first = load_be64(raw + i * ABORTED_ENTRY + 10)
            e.last = load_be64(raw + i * ABORTED_ENTRY + 18)
            e.last_stable = load_be64(raw + i * ABORTED_ENTRY + 26)
            if load_be16(raw + i * ABORTED_ENTRY) != 0:
                status = -EIO
            elif not follows(place(x, x.count - 1) if x.count else NULL, &e, base_offset, end_offset):
                status = -EIO
            else:
                status = aborts_add(x, &e)
    x.written = x.count
    return status


cdef int aborts_load(
    vfs_t* fs, const char* path, int64_t base_offset, int64_t end_offset, aborts_t** out) noexcept nogil:
    """Read the index of a segment with these offsets; an empty one if there is no file. -EIO if it is not to be
    trusted."""
    cdef aborts_t* x = aborts_new()
    cdef int fd, status = 0
    if x == NULL:
        return -ENOMEM
    fd = vfs_open(fs, P_SEGMENT_READ, path, O_RDONLY)
    if fd >= 0:
        status = read_entries(x, fs, fd, base_offset, end_offset)
    elif fd != -ENOENT:
        status = fd
    vfs_close(fd)
    if status < 0:
        aborts_free(x)
        return status
    out[0] = x
    return 0


cdef void encode(const aborted_t* e, uint8_t* p) noexcept nogil:
    store_be16(p, 0)
    store_be64(p + 2, e.producer_id)
    store_be64(p + 10, e.first)
    store_be64(p + 18, e.last)
    store_be64(p + 26, e.last_stable)


cdef int aborts_replace(const aborts_t* x, vfs_t* fs, const char* path) noexcept nogil:
    """Replace the file by these entries, durably."""
    cdef int64_t i
    cdef uint8_t* data = <uint8_t*>malloc(<size_t>(x.count * ABORTED_ENTRY + 1))
    cdef int status
    if data == NULL:
        return -ENOMEM
    for i in range(x.count):
        encode(place(x, i), data + i * ABORTED_ENTRY)
    if x.count > 0:
        status = vfs_replace(fs, P_INDEX_WRITE, path, data, <size_t>(x.count * ABORTED_ENTRY), True)
    else:
        status = vfs_unlink(fs, P_NONE, path)
    free(data)
    return status


cdef int aborts_write(aborts_t* x, vfs_t* fs, const char* path, bint durable) noexcept nogil:
    """Write the entries that the file lacks; extra bytes are cut off first, and a file without entries is removed."""
    cdef uint8_t raw[RAW_ENTRIES * ABORTED_ENTRY]
    cdef int64_t count = load_i64(&x.count), i, n
    cdef int status = 0, fd
    if count == 0:
        return vfs_unlink(fs, P_NONE, path)
    fd = vfs_open(fs, P_INDEX_WRITE, path, O_RDWR | O_CREAT)
    if fd < 0:
        return fd
    if vfs_size(fd) != x.written * ABORTED_ENTRY:
        status = vfs_truncate(fs, P_INDEX_WRITE, fd, x.written * ABORTED_ENTRY)
    while status == 0 and x.written < count:
        n = min(<int64_t>RAW_ENTRIES, count - x.written)
        for i in range(n):
            encode(place(x, x.written + i), raw + i * ABORTED_ENTRY)
        status = vfs_pwrite(fs, P_INDEX_WRITE, fd, raw, n * ABORTED_ENTRY, x.written * ABORTED_ENTRY)
        if status == 0:
            x.written += n
    if status == 0 and durable:
        status = vfs_sync(fs, P_INDEX_SYNC, fd)
    vfs_close(fd)
    return status


# -- look-ups ----------------------------------------------------------------------------------------------------------

cdef int list_add(abort_list_t* into, const aborted_t* e) noexcept nogil:
    cdef int64_t capacity = into.capacity * 2 if into.capacity else FIRST_CAPACITY
    cdef aborted_t* larger
    if into.count == into.capacity:
        larger = <aborted_t*>realloc(into.items, sizeof(aborted_t) * capacity)
        if larger == NULL:
            return -ENOMEM
        into.items = larger
        into.capacity = capacity
    into.items[into.count] = e[0]
    into.count += 1
    return 0


cdef int aborts_collect(
    const aborts_t* x, int64_t offset, int64_t end, abort_list_t* into, bint* complete) noexcept nogil:
    """Add the aborted transactions that a reader of [offset, end) needs, in the order of their markers. `complete`: no
    later segment has one of them. 0 or -ENOMEM."""
    cdef int64_t count = load_i64(&x.count)
    cdef int64_t i = first_to_reach(x, count, offset, False), stop = first_to_reach(x, count, end, True)
    cdef int status = 0
    complete[0] = stop < count
    stop = min(stop + 1, count)
    while i < stop and status == 0:
        if i % BLOCK == 0 and peek_i64(lowest_of(x, i)) >= end:
            i += BLOCK
            continue
        if place(x, i).first < end:
            status = list_add(into, place(x, i))
        i += 1
    return status
