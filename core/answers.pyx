"""Responses from Python in the form a reactor sends: bytes are copied, ranges of log files are held open."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcpy

from pybroker.core.base.cursor cimport store_be32
from pybroker.core.plane.connection.conn cimport chunk_drop, chunk_new, chunk_t, note_t
from pybroker.core.slices cimport Slice
from pybroker.core.storage.log.log cimport log_hold
from pybroker.core.storage.segment.open_files cimport files_hold


cdef int add_part(note_t* n, object part) except -1:
    """Append one part of a response: bytes are copied, a slice is held open."""
    cdef Py_buffer view
    cdef chunk_t* k
    cdef Slice piece
    if isinstance(part, Slice):
        piece = part
        piece.check()
        k = chunk_new(0)
        if k == NULL:
            raise MemoryError()
        k.log = piece.log
        k.found = piece.found
        k.generation = piece.generation
        files_hold(k.found.files)
        log_hold(k.log)
        n.bytes += k.found.length
    else:
        PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
        k = chunk_new(view.len)
        if k != NULL:
            memcpy(k.data, view.buf, view.len)
            k.used = <int32_t>view.len
            n.bytes += view.len
        PyBuffer_Release(&view)
        if k == NULL:
            raise MemoryError()
    if n.last != NULL:
        n.last.next = k
    else:
        n.first = k
    n.last = k
    return 0


cdef int add_answer(note_t* n, object parts) except -1:
    """Append the parts of a response after its size. On failure nothing is sent, and the connection is closed."""
    cdef uint8_t size[4]
    try:
        store_be32(size, <int32_t>sum(map(len, parts)))  # OverflowError: too long for a frame
        add_part(n, PyBytes_FromStringAndSize(<char*>size, 4))
        for part in parts:
            add_part(n, part)
    except Exception:
        while n.first != NULL:
            n.first = chunk_drop(n.first)
        n.last = NULL
        n.bytes = 0
        n.close = 1
    return 0
