"""Decompression of records on the thread that received them, if it takes little time.

Gzip, snappy and LZ4 have decoders here (inflate_impl.h, snappy_impl.h, lz4.pyx); zstd is decoded by libzstd (zstd.pyx).
They are stricter than the libraries that Python decompresses with: input refused here may be accepted there, but not
the reverse. (A libzstd before 1.5.6 still accepts some damaged sequences, as zstd_frame.pyx checks only headers.)
libzstd gets a frame block by block: only then does it enforce the maximum size of a block.
No memory is allocated for a batch, and the output is limited: a batch that expands to more than PLAIN_BYTES is left to
Python's threads. So is one with many blocks that expand to little, as building a block's tables takes microseconds.

Measured on 16 KB of text (gzip and zstd half its size, one core of an EPYC): LZ4 8 us, snappy 8 us, zstd 17 us, gzip 34
us. A hand-over to a thread and back costs 40 us and more on one core, a request that goes to Python 200 us. So up to
about 200 us of work are done in place.
"""

from libc.stdint cimport int64_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc

from pybroker.core.base.pthread cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from pybroker.core.batch.batch cimport CODEC_GZIP, CODEC_LZ4, CODEC_SNAPPY, CODEC_ZSTD
from pybroker.core.batch.lz4 cimport lz4_undo
from pybroker.core.batch.zstd cimport zstd_library, zstd_t
from pybroker.core.batch.zstd_frame cimport CONTENT_UNKNOWN, zstd_is_strict

cdef extern from "gzip_crc_impl.h":  # included by inflate_impl.h; listed here so that its changes trigger a rebuild
    pass

cdef extern from "inflate_impl.h" nogil:
    ctypedef struct inflate_t:
        pass
    void gzip_init()
    int64_t gzip_undo(inflate_t* s, const uint8_t* p, size_t n, uint8_t* to, size_t room)

cdef extern from "snappy_impl.h" nogil:
    int64_t snappy_undo(const uint8_t* p, size_t n, uint8_t* to, size_t room)

cdef enum:
    PLAIN_BYTES = 256 << 10
    PLAIN_BYTES_GZIP = 96 << 10
    PLAIN_BYTES_ZSTD = 192 << 10
    SLACK = 64                  # bytes that decoders may write past their output
    ZSTD_STEP_WORTH = 256       # bytes that a step of the library must produce on average; a block takes two steps
    ZSTD_STEPS_FREE = 64

cdef const zstd_t* zstd = zstd_library()  # NULL: libzstd was not found
cdef pthread_mutex_t lock
cdef decompressor_t* unused = NULL  # a list; there are as many decompressors as threads that used one at the same time


gzip_init()
pthread_mutex_init(&lock, NULL)


cdef void decompressor_free(decompressor_t* d) noexcept nogil:
    if d.zstd != NULL:
        zstd.free(d.zstd)
    free(d.inflate)
    free(d.plain)
    free(d)


cdef decompressor_t* decompressor_new() noexcept nogil:
    cdef decompressor_t* d = <decompressor_t*>calloc(1, sizeof(decompressor_t))
    if d == NULL:
        return NULL
    d.plain = <uint8_t*>malloc(PLAIN_BYTES + SLACK)
    d.inflate = malloc(sizeof(inflate_t))
    d.zstd = zstd.new() if zstd != NULL else NULL
    if d.plain == NULL or d.inflate == NULL or (zstd != NULL and d.zstd == NULL):
        decompressor_free(d)
        return NULL
    return d


cdef decompressor_t* decompressor_take() noexcept nogil:
    global unused
    cdef decompressor_t* d
    pthread_mutex_lock(&lock)
    d = unused
    if d != NULL:
        unused = d.next
    pthread_mutex_unlock(&lock)
    return d if d != NULL else decompressor_new()


cdef void decompressor_give(decompressor_t* d) noexcept nogil:
    global unused
    pthread_mutex_lock(&lock)
    d.next = unused
    unused = d
    pthread_mutex_unlock(&lock)


cdef int64_t undo_zstd(decompressor_t* d, const uint8_t* p, size_t n) noexcept nogil:
    """Decompress one frame of the current format; the library also reads older ones, which clients do not."""
    cdef const uint8_t* end = p + n
    cdef size_t wanted, got, made = 0, steps = 0
    cdef uint64_t window = 0, content = 0
    if zstd == NULL or not zstd_is_strict(p, n, &window, &content) or zstd.failed(zstd.begin(d.zstd)):
        return -1
    wanted = zstd.wanted(d.zstd)
    while wanted > 0:
        steps += 1
        if wanted > <size_t>(end - p) or steps > ZSTD_STEPS_FREE + made // ZSTD_STEP_WORTH:
            return -1
        got = zstd.step(d.zstd, d.plain + made, PLAIN_BYTES_ZSTD - made, p, wanted)
        if zstd.failed(got):
            return -1
        made += got
        p += wanted
        wanted = zstd.wanted(d.zstd)
    # With the whole output at hand, libzstd accepts matches beyond the window; streaming readers refuse them.
    if p != end or made > window or (content != CONTENT_UNKNOWN and content != made):
        return -1
    return <int64_t>made


cdef int64_t decompress(decompressor_t* d, int codec, const uint8_t* p, size_t n) noexcept nogil:
    cdef int64_t made = -1
    if codec == CODEC_LZ4:
        made = lz4_undo(p, n, d.plain, PLAIN_BYTES)
    elif codec == CODEC_SNAPPY:
        made = snappy_undo(p, n, d.plain, PLAIN_BYTES)
    elif codec == CODEC_GZIP:
        made = gzip_undo(<inflate_t*>d.inflate, p, n, d.plain, PLAIN_BYTES_GZIP)
    elif codec == CODEC_ZSTD:
        made = undo_zstd(d, p, n)
    return made if made >= 0 else -1
