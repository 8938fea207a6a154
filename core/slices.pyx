"""Slices: ranges of log files that Python sends or copies."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, ENODATA
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from pybroker.core.base.atomic cimport add_i64, load_i64
from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR
from pybroker.core.base.status cimport raise_status
from pybroker.core.base.vfs cimport P_SEGMENT_READ, P_SEGMENT_SEND, vfs_pread, vfs_sendfile
from pybroker.core.storage.log.log cimport log_drop, log_lend, log_note_unread, log_take_back
from pybroker.core.storage.segment.open_files cimport files_drop

from pybroker.core.base.status import LogError

cdef enum:
    WARM_BYTES = 256 << 10


@cython.no_gc_clear
cdef class Slice:
    """A range of a log file, held open: the bytes stay readable until close() even if the segment is deleted."""

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
        """Start using the bytes, until log_take_back."""
        self.check()
        return 0 if log_lend(self.log, self.generation) else self.refuse()

    cdef int refuse(self) except -1:
        raise LogError(
            KAFKA_STORAGE_ERROR, "the log was truncated since this slice was read: its bytes may have changed")

    cdef int check_read(self, int status, bint short) except -1:
        """Record and raise the error of a read; `short`: the file ended before the slice."""
        log_note_unread(self.log, -ENODATA if status == 0 and short else status)
        raise_status(status, "reading a log segment")
        if short:
            raise LogError(KAFKA_STORAGE_ERROR, "the log file ends before the slice does")
        return 0

    def send(self, int fd, int64_t start=0) -> int:
        """Send from byte `start` to a non-blocking socket; the bytes sent, 0 if it would block."""
        cdef ssize_t sent
        self.check()
        if start < 0 or start >= self.found.length:
            return 0
        self.borrow()
        with nogil:
            sent = vfs_sendfile(
                self.log.context.fs, P_SEGMENT_SEND, fd, self.found.files.fd, self.found.position + start,
                self.found.length - start)
            log_take_back(self.log)
        if sent == -EAGAIN or sent == -EINTR:
            return 0
        self.check_read(<int>min(sent, <ssize_t>0), sent == 0)
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
        self.check_read(status, <int64_t>got < self.found.length)
        return out

    def warm(self) -> None:
        """Bring the bytes into the page cache; OSError or LogError if they cannot be read."""
        cdef char* scratch
        cdef int64_t at = 0
        cdef size_t got = 1
        cdef int status = 0
        self.check()
        scratch = <char*>malloc(WARM_BYTES)
        if scratch == NULL:
            raise MemoryError()
        with nogil:
            while status == 0 and got and at < self.found.length:
                status = vfs_pread(
                    self.log.context.fs, P_SEGMENT_READ, self.found.files.fd, scratch,
                    <size_t>min(<int64_t>WARM_BYTES, self.found.length - at), self.found.position + at, &got)
                at += got
            free(scratch)
        self.check_read(status, at < self.found.length)

    def close(self) -> None:
        """Release the file."""
        if self.found.files != NULL:
            files_drop(self.found.files)
            self.found.files = NULL
            self.found.length = 0
