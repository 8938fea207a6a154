"""The sparse indexes of a segment.

    <base>.index      {relative offset i32, position i32}   ascending; the position is the start of a batch, the offset
                      is the batch's last one (as Kafka's dump tool expects)
    <base>.timeindex  {timestamp i64, relative offset i32}  ascending; the largest timestamp so far and the last offset
                      of the batch that first reached it

All integers are big-endian. One entry is added per `index.interval.bytes`; relative offsets count from the segment's
base. Kafka preallocates the files with zeros and trims them on a clean close; we never preallocate. The active
segment's index lives on the heap and its file lags behind: a crash leaves it short or missing, never ahead of the log
that it points into, and recovery rebuilds it. A small offset index of a sealed segment is read into memory; a broker
with many segments mostly has small ones. A larger one is mapped, which takes no descriptor, or searched by pread if
there are too many maps. The time index of a sealed segment is opened by the first look-up by time.
"""

import os

from libc.errno cimport EIO, ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from posix.fcntl cimport O_CREAT, O_RDONLY, O_RDWR

from pybroker.core.base.atomic cimport load_i32, load_i64, store_i64
from pybroker.core.base.cursor cimport load_be32, load_be64, store_be32, store_be64
from pybroker.core.base.mapping cimport map_free, map_new
from pybroker.core.base.vfs cimport (
    P_INDEX_SYNC, P_INDEX_WRITE, P_NONE, P_SEGMENT_READ, vfs_close, vfs_open, vfs_pread, vfs_pwrite, vfs_replace,
    vfs_size, vfs_sync, vfs_t, vfs_truncate,
)

cdef enum:
    FIRST_CHUNK = 64
    BLOCK_ENTRIES = 512  # entries that one call reads or writes, on the stack; an index of at most these is small

cdef extern from *:
    """
    static inline int chunk_of(int64_t i) { return 63 - __builtin_clzll((unsigned long long)((i >> 6) + 1)); }
    """
    int chunk_of(int64_t i) nogil


cdef void index_init(index_t* ix, int width) noexcept nogil:
    cdef int k
    ix.width = width
    ix.fd = -1
    ix.map = NULL
    ix.count = 0
    ix.written = 0
    for k in range(INDEX_CHUNKS):
        ix.chunks[k] = NULL


cdef void index_free(index_t* ix) noexcept nogil:
    cdef int k
    for k in range(INDEX_CHUNKS):
        free(ix.chunks[k])
        ix.chunks[k] = NULL
    vfs_close(ix.fd)
    ix.fd = -1
    map_free(ix.map)
    ix.map = NULL


cdef inline entry_t* place(const index_t* ix, int64_t i) noexcept nogil:
    """The address of entry i on the heap; its chunk exists."""
    cdef int k = chunk_of(i)
    return &ix.chunks[k][i - FIRST_CHUNK * ((<int64_t>1 << k) - 1)]


cdef int index_add(index_t* ix, int64_t key, int64_t value) noexcept nogil:
    """Append an entry to a heap index. One thread adds; readers see it once the count is released."""
    cdef int64_t i = ix.count
    cdef int k = chunk_of(i)
    cdef entry_t* e
    if k >= INDEX_CHUNKS:
        return -ENOMEM
    if ix.chunks[k] == NULL:
        ix.chunks[k] = <entry_t*>malloc(sizeof(entry_t) * (<size_t>FIRST_CHUNK << k))
        if ix.chunks[k] == NULL:
            return -ENOMEM
    e = place(ix, i)
    e.key = key
    e.value = value
    store_i64(&ix.count, i + 1)
    return 0


cdef void decode(int width, const uint8_t* p, entry_t* out) noexcept nogil:
    if width == OFFSET_ENTRY:
        out.key = load_be32(p)
        out.value = load_be32(p + 4)
    else:
        out.key = load_be64(p)
        out.value = load_be32(p + 8)


cdef void encode(int width, const entry_t* e, uint8_t* p) noexcept nogil:
    if width == OFFSET_ENTRY:
        store_be32(p, <int32_t>e.key)
        store_be32(p + 4, <int32_t>e.value)
    else:
        store_be64(p, e.key)
        store_be32(p + 8, <int32_t>e.value)


cdef int read_block(const index_t* ix, vfs_t* fs, int point, int64_t i, int64_t n, uint8_t* raw) noexcept nogil:
    """Read entries i .. i + n - 1 of a file, undecoded. -EIO if it is shorter."""
    cdef size_t got = 0
    cdef int status = vfs_pread(fs, point, ix.fd, raw, n * ix.width, i * ix.width, &got)
    return -EIO if status == 0 and got < <size_t>(n * ix.width) else status


cdef int index_get(const index_t* ix, int64_t i, entry_t* out) noexcept nogil:
    cdef uint8_t raw[TIME_ENTRY]
    cdef int status = 0
    if ix.map != NULL:
        decode(ix.width, ix.map.data + i * ix.width, out)
        return -EIO if load_i32(&ix.map.lost) else 0
    if ix.fd < 0:
        out[0] = place(ix, i)[0]
        return 0
    status = read_block(ix, NULL, P_NONE, i, 1, raw)
    if status == 0:
        decode(ix.width, raw, out)
    return status


cdef int64_t index_floor(const index_t* ix, int64_t key, entry_t* out) noexcept nogil:
    """Find the last entry with a key <= `key`. Return its number, -1 if there is none, -1 - errno on error."""
    return search(ix, key, False, out)


cdef int64_t index_floor_value(const index_t* ix, int64_t value, entry_t* out) noexcept nogil:
    """Find the last entry with a value <= `value`, as index_floor; values ascend as keys do."""
    return search(ix, value, True, out)


cdef int64_t search(const index_t* ix, int64_t wanted, bint by_value, entry_t* out) noexcept nogil:
    cdef uint8_t raw[BLOCK_ENTRIES * TIME_ENTRY]
    cdef int64_t low = 0, high = load_i64(&ix.count), middle, block = -1  # raw holds the entries from `block` on
    cdef int status = 0
    cdef entry_t e
    while low < high:
        if ix.fd >= 0 and block < 0 and high - low <= BLOCK_ENTRIES:
            block = low
            status = read_block(ix, NULL, P_NONE, low, high - low, raw)
        middle = (low + high) >> 1
        if block >= 0:
            decode(ix.width, raw + (middle - block) * ix.width, &e)
        else:
            status = index_get(ix, middle, &e)
        if status < 0:
            return -1 + status
        if (e.value if by_value else e.key) <= wanted:
            low = middle + 1
            out[0] = e
        else:
            high = middle
    return low - 1


cdef int index_open(index_t* ix, vfs_t* fs, const char* path, int width) noexcept nogil:
    """Open a sealed segment's index for reads by pread. -errno if it is missing, -EIO if its size is not a multiple of
    the entry size."""
    cdef int64_t size
    index_init(ix, width)
    ix.fd = vfs_open(fs, P_SEGMENT_READ, path, O_RDONLY)
    if ix.fd < 0:
        return ix.fd
    size = vfs_size(ix.fd)
    if size < 0 or size % width:
        vfs_close(ix.fd)
        ix.fd = -1
        return <int>size if size < 0 else -EIO
    ix.count = size // width
    return 0


cdef bint follows(const entry_t* last, const entry_t* e, int64_t value_max) noexcept nogil:
    """True if an entry may come after `last` (key -1: none) in an index with values up to value_max."""
    if e.key < 0 or e.value < 0 or e.value > value_max:
        return False
    return last.key < 0 or (e.key > last.key and e.value >= last.value)


cdef int load_block(
    index_t* ix, const index_t* file, vfs_t* fs, int64_t first, entry_t* last, int64_t value_max) noexcept nogil:
    """Add up to BLOCK_ENTRIES entries of a file to a heap index; stops with -EIO at an entry that does not ascend."""
    cdef uint8_t raw[BLOCK_ENTRIES * TIME_ENTRY]
    cdef entry_t e
    cdef int64_t i, n = min(<int64_t>BLOCK_ENTRIES, file.count - first)
    cdef int status = read_block(file, fs, P_SEGMENT_READ, first, n, raw)
    for i in range(n):
        if status < 0:
            break
        decode(file.width, raw + i * file.width, &e)
        status = index_add(ix, e.key, e.value) if follows(last, &e, value_max) else -EIO
        last[0] = e
    return status


cdef int check_ends(const index_t* ix, int64_t value_max) noexcept nogil:
    cdef entry_t none, first, last
    cdef int status = index_get(ix, 0, &first)
    none.key = -1
    if status == 0:
        status = index_get(ix, ix.count - 1, &last)
    if status == 0 and not (follows(&none, &first, value_max) and follows(&first, &last, value_max)):
        status = -EIO
    return status


cdef void map_index(index_t* ix) noexcept nogil:
    """Map the index file, if possible, and close its descriptor."""
    ix.map = map_new(ix.fd, 0, ix.count * ix.width)
    if ix.map != NULL:
        vfs_close(ix.fd)
        ix.fd = -1


cdef int index_read(index_t* ix, vfs_t* fs, const char* path, int width, int64_t value_max) noexcept nogil:
    """Open a sealed segment's index for look-ups: a small one is read onto the heap, so that no file stays open.

    -EIO, and an empty index, if it does not ascend or exceeds value_max. Of a large one only the ends are checked; a
    look-up checks the entry that it finds."""
    cdef index_t file
    cdef entry_t last
    cdef int status = index_open(&file, fs, path, width)
    last.key = -1
    index_init(ix, width)
    if status == 0 and file.count > BLOCK_ENTRIES:
        status = check_ends(&file, value_max)
        if status == 0:
            map_index(&file)
            ix[0] = file
            return 0
    elif status == 0:
        status = load_block(ix, &file, fs, 0, &last, value_max)
        if status < 0:
            ix.count = 0
        ix.written = ix.count
    index_free(&file)
    return status


cdef int index_load(index_t* ix, vfs_t* fs, const char* path, int64_t value_max) noexcept nogil:
    """Read a whole index file onto the heap, and check that it ascends and that no value exceeds value_max.

    -EIO if not: the caller then rebuilds this index from the log."""
    cdef index_t file
    cdef entry_t last
    cdef int64_t i = 0
    cdef int status = index_open(&file, fs, path, ix.width)
    last.key = -1
    while status == 0 and i < file.count:
        status = load_block(ix, &file, fs, i, &last, value_max)
        i += BLOCK_ENTRIES
    ix.written = ix.count
    index_free(&file)
    return status


cdef int index_write(index_t* ix, vfs_t* fs, const char* path, bint durable) noexcept nogil:
    """Write the heap entries that the file lacks; extra bytes in the file are cut off first.

    An index that is read from its file needs no write; it is only synced, if `durable`."""
    cdef uint8_t raw[BLOCK_ENTRIES * TIME_ENTRY]
    cdef int64_t count = load_i64(&ix.count), i, n
    cdef int status = 0, fd
    if ix.fd >= 0:
        return vfs_sync(fs, P_INDEX_SYNC, ix.fd) if durable else 0
    if ix.map != NULL and not durable:
        return 0
    if ix.map != NULL:
        fd = vfs_open(fs, P_NONE, path, O_RDONLY)
        status = fd if fd < 0 else vfs_sync(fs, P_INDEX_SYNC, fd)
        vfs_close(fd)
        return status
    fd = vfs_open(fs, P_INDEX_WRITE, path, O_RDWR | O_CREAT)
    if fd < 0:
        return fd
    if vfs_size(fd) != ix.written * ix.width:
        status = vfs_truncate(fs, P_INDEX_WRITE, fd, ix.written * ix.width)
    while status == 0 and ix.written < count:
        n = min(<int64_t>BLOCK_ENTRIES, count - ix.written)
        for i in range(n):
            encode(ix.width, place(ix, ix.written + i), raw + i * ix.width)
        status = vfs_pwrite(fs, P_INDEX_WRITE, fd, raw, n * ix.width, ix.written * ix.width)
        if status == 0:
            ix.written += n
    if status == 0 and durable:
        status = vfs_sync(fs, P_INDEX_SYNC, fd)
    vfs_close(fd)
    return status


cdef int index_replace(const index_t* ix, vfs_t* fs, const char* path) noexcept nogil:
    """Replace the index file by the heap entries; readers of the old file go on reading it."""
    cdef int64_t i
    cdef size_t n = <size_t>(ix.count * ix.width)
    cdef uint8_t* data = <uint8_t*>malloc(n + 1)
    cdef int status
    if data == NULL:
        return -ENOMEM
    for i in range(ix.count):
        encode(ix.width, place(ix, i), data + i * ix.width)
    status = vfs_replace(fs, P_INDEX_WRITE, path, data, n, True)
    free(data)
    return status


cdef void index_cut(index_t* ix, int64_t value_below, int64_t key_below) noexcept nogil:
    """Drop the entries of a heap index from the first one whose value or key reaches its limit (truncation)."""
    cdef int64_t i = ix.count
    cdef entry_t* e
    while i > 0:
        e = place(ix, i - 1)
        if e.value < value_below and e.key < key_below:
            break
        i -= 1
    store_i64(&ix.count, i)
    if ix.written > i:
        ix.written = i


def read_index(str path) -> list:
    """Return (absolute offset, position) of each entry of an .index file; the base offset comes from its name."""
    return _read(path, OFFSET_ENTRY)


def read_timeindex(str path) -> list:
    """Return (timestamp_ms, absolute offset) of each entry of a .timeindex file; its name has the base offset."""
    return _read(path, TIME_ENTRY)


def _read(str path, int width) -> list:
    """Decode an index file; trailing zeros, in a file that Kafka has open, are left out. Raises ValueError for an
    invalid size or name."""
    cdef bytes data
    cdef const uint8_t* p
    cdef entry_t e
    cdef Py_ssize_t i
    name = os.path.basename(path).partition(".")[0]
    if not name.isdigit():
        raise ValueError(f"{path}: the name of an index file begins with its base offset")
    base = int(name)
    with open(path, "rb") as f:
        data = f.read()
    if len(data) % width:
        raise ValueError(f"{path}: {len(data)} bytes are no multiple of {width}, the size of an entry")
    p = data
    out = []
    for i in range(len(data) // width):
        decode(width, p + i * width, &e)
        if i and e.key == 0 and e.value == 0:
            break
        out.append((base + e.key, e.value) if width == OFFSET_ENTRY else (e.key, base + e.value))
    return out
