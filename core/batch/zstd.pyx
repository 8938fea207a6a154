"""Decompression of zstd frames, Kafka's codec 4, straight out of the batch into a block.

The library is the one inside the `zstandard` package, of which one module (`_cffi` or `backend_c`, by version) exports
libzstd's functions, or else the system's libzstd.so.1; it is opened at import, and needs no header to build. Contexts
are kept: creating one costs more than decompressing a small batch. Like Java's reader, this one accepts frames that a
broker refuses (zstd_frame.pyx): several in a row, and large windows.
"""

import os

from libc.errno cimport ENOMEM
from libc.stdint cimport INT64_MAX, int64_t, uint8_t

from pybroker.core.base.libraries import library_paths
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE, MESSAGE_TOO_LARGE
from pybroker.core.base.pthread cimport pthread_mutex_init, pthread_mutex_t, pthread_mutex_trylock, pthread_mutex_unlock
from pybroker.core.batch.block cimport block_room, block_t
from pybroker.core.batch.zstd_frame cimport CONTENT_UNKNOWN

cdef extern from "<dlfcn.h>" nogil:
    void* dlopen(const char* name, int flags)
    void* dlsym(void* library, const char* name)
    int RTLD_NOW, RTLD_LOCAL

cdef enum:
    GUESS_BYTES_MIN = 64 << 10
    GUESS_RATIO = 8              # the assumed ratio of a frame without its content's size; the block grows if needed
    STEP_BYTES = 16 << 10        # the step of Kafka's Java reader
    CONTEXTS = 16                # kept for reuse
    CONTEXT_BYTES_MAX = 1 << 20  # a larger context, which grew with a frame's window, is freed
    SESSION_ONLY = 1             # ZSTD_reset_session_only
    NO_MEMORY = 64               # ZSTD_error_memory_allocation

cdef unsigned long long NO_FRAME = <unsigned long long>-2   # ZSTD_CONTENTSIZE_ERROR

cdef zstd_t zstd
cdef pthread_mutex_t lock
cdef void* contexts[<int>CONTEXTS]
cdef int kept = 0


cdef bint open_library(const char* name) noexcept nogil:
    """Look up the needed functions in a library; False if one is missing."""
    cdef void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)
    if library == NULL:
        return False
    zstd.new = <zstd_new_fn>dlsym(library, "ZSTD_createDCtx")
    zstd.free = <zstd_of_fn>dlsym(library, "ZSTD_freeDCtx")
    zstd.size = <zstd_of_fn>dlsym(library, "ZSTD_sizeof_DCtx")
    zstd.begin = <zstd_of_fn>dlsym(library, "ZSTD_decompressBegin")
    zstd.wanted = <zstd_of_fn>dlsym(library, "ZSTD_nextSrcSizeToDecompress")
    zstd.reset = <zstd_reset_fn>dlsym(library, "ZSTD_DCtx_reset")
    zstd.step = <zstd_step_fn>dlsym(library, "ZSTD_decompressContinue")
    zstd.stream = <zstd_stream_fn>dlsym(library, "ZSTD_decompressStream_simpleArgs")
    zstd.content = <zstd_content_fn>dlsym(library, "ZSTD_getFrameContentSize")
    zstd.failed = <zstd_failed_fn>dlsym(library, "ZSTD_isError")
    zstd.error = <zstd_failed_fn>dlsym(library, "ZSTD_getErrorCode")
    return (
        zstd.new != NULL and zstd.free != NULL and zstd.size != NULL and zstd.begin != NULL and zstd.wanted != NULL
        and zstd.reset != NULL and zstd.step != NULL and zstd.stream != NULL and zstd.content != NULL
        and zstd.failed != NULL and zstd.error != NULL
    )


pthread_mutex_init(&lock, NULL)
cdef bint found = any(open_library(os.fsencode(name)) for name in library_paths("zstandard", "*.so", "libzstd.so.1"))


cdef const zstd_t* zstd_library() noexcept nogil:
    return &zstd if found else NULL


cdef void* take_context() noexcept nogil:
    global kept
    cdef void* context = NULL
    if pthread_mutex_trylock(&lock) == 0:  # else another thread has it, or had it when this process was forked
        if kept > 0:
            kept -= 1
            context = contexts[kept]
        pthread_mutex_unlock(&lock)
    return context if context != NULL else zstd.new()


cdef void give_context(void* context) noexcept nogil:
    global kept
    if zstd.size(context) <= CONTEXT_BYTES_MAX and pthread_mutex_trylock(&lock) == 0:
        if kept < CONTEXTS:
            contexts[kept] = context
            kept += 1
            context = NULL
        pthread_mutex_unlock(&lock)
    if context != NULL:
        zstd.free(context)


cdef int undo(
    void* context, const uint8_t* p, size_t n, int64_t most, int64_t guess, int64_t step, block_t* out) noexcept nogil:
    """Decompress frames, at most `step` bytes of output per call of the library."""
    cdef int64_t start = out.size, room = guess, left
    cdef bint whole = False
    cdef size_t taken = 0, made, before, status
    zstd.reset(context, SESSION_ONLY)
    while True:
        left = most - (out.size - start)
        if block_room(out, min(room, left + 1)) != 0:
            return -ENOMEM
        # Room for one byte more than allowed, to detect too much output.
        left = min(left + 1, out.capacity - out.size, step)
        made, before = 0, taken
        status = zstd.stream(context, out.data + out.size, <size_t>left, &made, p, n, &taken)
        if zstd.failed(status):
            return -ENOMEM if zstd.error(status) == NO_MEMORY else CORRUPT_MESSAGE
        out.size += <int64_t>made
        if out.size - start > most:
            return MESSAGE_TOO_LARGE
        if status == 0 and taken == n:
            return 0
        whole = whole or status == 0
        if whole and taken == n and <int64_t>made < left:
            return 0  # a truncated frame after a whole one: Java's reader takes that for the end
        if made == 0 and taken == before or (taken == n and <int64_t>made < left):
            return CORRUPT_MESSAGE  # the input ends within a frame
        room = max(room, out.size - start)


cdef int zstd_frames(const uint8_t* p, size_t n, int64_t most, block_t* out) noexcept nogil:
    cdef unsigned long long content = zstd.content(p, n)
    cdef int64_t guess = max(<int64_t>GUESS_BYTES_MIN, <int64_t>n * GUESS_RATIO)
    cdef int64_t start = out.size
    cdef void* context
    cdef int status
    if n == 0 or content == NO_FRAME:
        return CORRUPT_MESSAGE
    if content != CONTENT_UNKNOWN:
        if content > <unsigned long long>most:
            return MESSAGE_TOO_LARGE
        guess = max(<int64_t>content, <int64_t>1)
    context = take_context()
    if context == NULL:
        return -ENOMEM
    status = undo(context, p, n, most, guess, INT64_MAX, out)
    if status == CORRUPT_MESSAGE and content != CONTENT_UNKNOWN and content > STEP_BYTES:
        # The cause may be a wrong content size, which libzstd checks only with room for all: Java's reader has less.
        out.size = start
        status = undo(context, p, n, most, guess, STEP_BYTES, out)
    give_context(context)
    return status
