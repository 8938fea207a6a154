"""The move of a partition to another log dir, for Python: it is copied in steps, settled, and switched."""

from libc.stdint cimport int64_t

from pybroker.core.base.atomic cimport load_i64
from pybroker.core.log_dirs cimport LogDirs
from pybroker.core.opening cimport claim
from pybroker.core.partition_handle cimport Partition
from pybroker.core.storage.log.log cimport PATH_BYTES_MAX
from pybroker.core.storage.move.future_log cimport (
    LATER, NOTHING_LEFT, future_copy, future_free, future_new, future_note, future_settle, future_t,
)
from pybroker.core.storage.move.future_switch cimport future_switch

import os

cdef enum:
    STEP_BYTES = 1 << 20         # of a step, after which the kernel may be asked to write


cdef class FutureLog:
    """The copy of a partition in another log dir, which is to take its place. See moving.pyi."""

    cdef future_t* state
    cdef Partition partition
    cdef readonly str directory
    cdef readonly bint switched

    def __init__(self, Partition partition not None, str directory) -> None:
        cdef LogDirs broker = partition.owner
        cdef bytes path = os.fsencode(directory)
        if len(path) >= PATH_BYTES_MAX:
            raise ValueError(f"the directory name has {len(path)} bytes, less than {PATH_BYTES_MAX} are supported")
        claim(broker.context, directory, partition.topic_id)
        self.directory = directory
        self.partition = partition
        self.state = future_new(partition.log, broker.log_dir(os.path.dirname(directory)), path)
        if self.state == NULL:
            raise MemoryError()
        future_note(self.state)

    def __dealloc__(self):
        if self.state != NULL:
            future_free(self.state)

    def copy(self, int64_t most) -> int:
        """Copy up to `most` bytes; see moving.pyi."""
        cdef int64_t copied = 0, step = 1
        cdef int status = 0
        with nogil:
            while status == 0 and copied < most and step > 0:
                status = future_copy(self.state, min(most - copied, <int64_t>STEP_BYTES), &step)
                copied += step
            future_note(self.state)
        if status == NOTHING_LEFT:
            return -1 - copied
        if status != LATER:
            self.partition.check(status, f"copy to {self.directory}:")
        return copied

    def settle(self) -> bool:
        """Make the copy durable; see moving.pyi."""
        cdef int status
        with nogil:
            status = future_settle(self.state)
        if status == LATER:
            return False
        self.partition.check(status, f"copy to {self.directory}:")
        return True

    def switch(self, int64_t log_start_offset, str left) -> bool:
        """Have the copy take the log's place; see moving.pyi."""
        cdef Partition p = self.partition
        cdef bytes name = os.fsencode(os.path.basename(p.directory))
        cdef bytes path = os.fsencode(left)
        cdef const char* c_name = name
        cdef const char* c_left = path
        cdef int status
        with nogil:
            status = future_switch(self.state, log_start_offset, c_name, c_left)
        if status == LATER:
            return False
        p.check(status, f"move to {self.directory}:")
        p.directory = os.path.join(os.path.dirname(self.directory), os.path.basename(p.directory))
        self.switched = True
        return True

    @property
    def progress(self) -> tuple:
        """(bytes copied, offsets that the copy lacks)."""
        return load_i64(&self.state.size), load_i64(&self.state.lag)

    @property
    def held_us(self) -> int:
        """Microseconds that appends waited for the last call of switch."""
        return self.state.held_us
