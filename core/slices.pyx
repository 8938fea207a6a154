"""Slices: ranges of log files that reads found, which Python sends or copies."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from posix.types cimport off_t

from pybroker.core.atomic cimport add_i64, load_i64
from pybroker.core.kafka cimport KAFKA_STORAGE_ERROR
from pybroker.core.log cimport log_drop, log_lend, log_take_back
from pybroker.core.segment cimport files_drop
from pybroker.core.status cimport raise_status
from pybroker.core.vfs cimport P_SEGMENT_READ, vfs_pread

import os

from pybroker.core.status import LogError

cdef enum:
    WARM_BYTES = 256 << 10

cdef extern from "<sys/sendfile.h>" nogil:
    ssize_t sendfile(int to, int file, off_t* position, size_t n)


@cython.no_gc_clear
cdef class Slice:
    """A range of a log file, pinned: the bytes stay readable until close() even if the segment is deleted."""

    def __dealloc__(self):
        if self.found.files != NULL:
            files_drop(self.found.files)
        if self.log != NULL:
            log_drop(self.log)

    def __len__(self):
        return self.found.length

    cdef int check(self) except -1:
        if self.found.files == NULL:
            raise ValueError("the slice is closed")
        if load_i64(&self.log.generation) != self.generation:
            self.refuse()
        return 0

    cdef int borrow(self) except -1:
        """Begin to use the bytes; log_take_back ends it."""
        self.check()
        return 0 if log_lend(self.log, self.generation) else self.refuse()

    cdef int refuse(self) except -1:
        raise LogError(KAFKA_STORAGE_ERROR, "the log was truncated since this slice was read: its bytes may be others now")

    def send(self, int fd, int64_t start=0) -> int:
        """Send from byte `start` to a non-blocking socket; bytes sent, 0 if it would block."""
        cdef off_t position = self.found.position + start
        cdef ssize_t sent
        self.check()
        if start < 0 or start >= self.found.length:
            return 0
        self.borrow()
        with nogil:
            sent = sendfile(fd, self.found.files.fd, &position, <size_t>(self.found.length - start))
            log_take_back(self.log)
        if sent < 0:
            if errno == EAGAIN or errno == EINTR:
                return 0
            raise OSError(errno, os.strerror(errno))
        if sent == 0:
            raise LogError(KAFKA_STORAGE_ERROR, "the log file ends before the slice does")
        add_i64(&self.log.traffic.bytes_out, sent)
        return sent

    def tobytes(self) -> bytes:
        """A copy of the bytes."""
        cdef bytes out
        cdef char* into
        cdef size_t got = 0
        cdef int status
        self.check()
        out = PyBytes_FromStringAndSize(NULL, self.found.length)
        into = PyBytes_AS_STRING(out)
        self.borrow()
        with nogil:
            status = vfs_pread(
                self.log.context.fs, P_SEGMENT_READ, self.found.files.fd, into, <size_t>self.found.length,
                self.found.position, &got)
            log_take_back(self.log)
        raise_status(status, "reading a log segment")
        if <int64_t>got < self.found.length:
            raise LogError(KAFKA_STORAGE_ERROR, "the log file ends before the slice does")
        return out

    def warm(self) -> None:
        """Bring the bytes into the page cache; what cannot be read is told to whoever sends it."""
        cdef char* scratch = <char*>malloc(WARM_BYTES)
        cdef int64_t at = 0
        cdef size_t got = 1
        self.check()
        with nogil:
            while scratch != NULL and got and at < self.found.length:
                if vfs_pread(
                        self.log.context.fs, P_SEGMENT_READ, self.found.files.fd, scratch,
                        <size_t>min(<int64_t>WARM_BYTES, self.found.length - at), self.found.position + at, &got) < 0:
                    break
                at += got
            free(scratch)

    def close(self) -> None:
        """Let go of the file."""
        if self.found.files != NULL:
            files_drop(self.found.files)
            self.found.files = NULL
            self.found.length = 0
