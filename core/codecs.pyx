"""Decompression for Python."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport ENOMEM
from libc.stdint cimport int64_t, uint8_t

from pybroker.core.base.status cimport raise_status
from pybroker.core.batch.batch cimport CODEC_LZ4, CODEC_ZSTD
from pybroker.core.batch.block cimport Block, block_init
from pybroker.core.batch.lz4 cimport lz4_frame
from pybroker.core.batch.zstd cimport zstd_frames, zstd_library

cdef enum:
    UNDONE_BYTES_MAX = 0x7FFFFFFF
    GUESS_RATIO = 3  # a block that is too small has to grow, which copies it


def undo(int codec, data, int64_t bytes_max, bint strict=True) -> Block:
    """Decompress lz4 (3) or zstd (4); see core/__init__.pyi."""
    cdef Py_buffer view
    cdef Block made = Block.__new__(Block)
    cdef int status
    if codec not in (CODEC_LZ4, CODEC_ZSTD):
        raise ValueError(f"codec {codec} is not lz4 (3) or zstd (4)")
    if not 0 <= bytes_max <= UNDONE_BYTES_MAX:
        raise ValueError(f"bytes_max is {bytes_max}")
    if codec == CODEC_ZSTD and zstd_library() == NULL:
        raise ValueError("there is no libzstd")
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    block_init(&made.b, min(bytes_max, GUESS_RATIO * view.len))
    try:
        with nogil:
            if codec == CODEC_LZ4:
                status = lz4_frame(<const uint8_t*>view.buf, <size_t>view.len, bytes_max, strict, &made.b)
            else:
                status = zstd_frames(<const uint8_t*>view.buf, <size_t>view.len, bytes_max, &made.b)
        if status == -ENOMEM:
            raise MemoryError
        raise_status(status, "the compressed data is truncated, damaged, or followed by other bytes")
        return made
    finally:
        PyBuffer_Release(&view)
