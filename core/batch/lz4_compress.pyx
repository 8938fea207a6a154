"""Compression of LZ4 frames, Kafka's codec 3, straight into a batch: independent blocks of 64 KiB, as Kafka's own, and
no checksums except the header's.

The library is the one inside the `lz4` package, of which one module exports liblz4's functions, or else the system's
liblz4.so.1; it is opened at the first use, and needs no header to build.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport ENOMEM
from libc.string cimport memset

from pybroker.core.base.libraries import library_paths
from pybroker.core.batch.block cimport block_free, block_init, block_room

cdef extern from "<dlfcn.h>" nogil:
    void* dlopen(const char* name, int flags)
    void* dlsym(void* library, const char* name)
    int RTLD_NOW, RTLD_LOCAL

cdef enum:
    BLOCK_64_KIB = 4
    INDEPENDENT = 1

ctypedef size_t (*bound_fn)(size_t n, const preferences_t* preferences) noexcept nogil
ctypedef size_t (*frame_fn)(
    void* to, size_t room, const void* p, size_t n, const preferences_t* preferences) noexcept nogil
ctypedef unsigned (*failed_fn)(size_t made) noexcept nogil

cdef bint looked = False
cdef bint found = False
cdef bound_fn frame_bound = NULL
cdef frame_fn compress_frame = NULL
cdef failed_fn is_error = NULL


cdef bint open_library(const char* name) noexcept nogil:
    """Look up the needed functions in a library; False if one is missing."""
    global frame_bound, compress_frame, is_error
    cdef void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)
    if library == NULL:
        return False
    frame_bound = <bound_fn>dlsym(library, "LZ4F_compressFrameBound")
    compress_frame = <frame_fn>dlsym(library, "LZ4F_compressFrame")
    is_error = <failed_fn>dlsym(library, "LZ4F_isError")
    return frame_bound != NULL and compress_frame != NULL and is_error != NULL


cdef bint there_is_one() except -1:
    global looked, found
    if not looked:
        paths = library_paths("lz4", "frame/*.so", "liblz4.so.1")
        found = any(open_library(os.fsencode(path)) for path in paths)
        looked = True
    return found


cdef class Lz4Compressor:
    """A callable that compresses bytes to a frame. Raises ValueError if there is no liblz4."""

    def __cinit__(self, int level=0):
        if not there_is_one():
            raise ValueError("there is no liblz4")
        memset(&self.how, 0, sizeof(self.how))
        self.how.block_size, self.how.block_mode, self.how.level = BLOCK_64_KIB, INDEPENDENT, level

    cdef int64_t frame_bytes_max(self, int64_t n) noexcept nogil:
        return <int64_t>frame_bound(<size_t>n, &self.how)

    cdef int add_frame(self, const uint8_t* p, int64_t n, block_t* out) noexcept nogil:
        cdef size_t room = <size_t>(out.capacity - out.size)
        cdef size_t made = compress_frame(out.data + out.size, room, p, <size_t>n, &self.how)
        if is_error(made):
            return -ENOMEM    # no other error is possible here
        out.size += <int64_t>made
        return 0

    def __call__(self, plain) -> bytes:
        cdef Py_buffer view
        cdef block_t out
        cdef int status
        block_init(&out, 0)
        PyObject_GetBuffer(plain, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                status = block_room(&out, self.frame_bytes_max(view.len))
                if status == 0:
                    status = self.add_frame(<const uint8_t*>view.buf, view.len, &out)
            if status != 0:
                raise MemoryError
            return PyBytes_FromStringAndSize(<char*>out.data, out.size)
        finally:
            PyBuffer_Release(&view)
            block_free(&out)
