"""What is open of a segment, counted by those who use it: it outlives the segment for as long as one of them does.

A descriptor is taken from the budget before a file is opened, and given back as it is closed.
"""

from libc.stdint cimport INT64_MAX
from libc.stdlib cimport calloc, free

from pybroker.core.base.atomic cimport add_i32
from pybroker.core.base.budget cimport budget_give
from pybroker.core.base.page_cache cimport passed_add, passed_end, passed_init
from pybroker.core.base.vfs cimport P_SEGMENT_CLOSE, vfs_close, vfs_close_elsewhere, vfs_pass_file, vfs_t
from pybroker.core.base.worker cimport task_t
from pybroker.core.storage.index cimport OFFSET_ENTRY, TIME_ENTRY, index_free, index_init


cdef indexes_t* indexes_new() noexcept nogil:
    cdef indexes_t* x = <indexes_t*>calloc(1, sizeof(indexes_t))
    if x != NULL:
        x.refs = 1
        index_init(&x.offsets, OFFSET_ENTRY)
        index_init(&x.times, TIME_ENTRY)
    return x


cdef void indexes_drop(void* indexes) noexcept nogil:
    cdef indexes_t* x = <indexes_t*>indexes
    if x == NULL or add_i32(&x.refs, -1) > 0:
        return
    index_free(&x.offsets)
    index_free(&x.times)
    free(x)


cdef files_t* files_new(vfs_t* fs, int fd, indexes_t* indexes) noexcept nogil:
    """Take over a descriptor and a hold on indexes, NULL for new ones; NULL without memory, and nothing is taken
    over."""
    cdef files_t* f = <files_t*>calloc(1, sizeof(files_t))
    if f == NULL:
        return NULL
    f.indexes = indexes if indexes != NULL else indexes_new()
    if f.indexes == NULL:
        free(f)
        return NULL
    f.refs = 1
    f.closing.run = close_without_name
    passed_init(&f.passed)
    f.fs = fs
    f.fd = fd
    return f


cdef void close_counted(vfs_t* fs, int fd) noexcept nogil:
    vfs_close(fd)
    budget_give(&fs.budget)


cdef void files_hold(files_t* f) noexcept nogil:
    add_i32(&f.refs, 1)


cdef void close_files(files_t* f) noexcept nogil:
    if f.indexes.offsets.fd >= 0:
        budget_give(&f.fs.budget)
    indexes_drop(f.indexes)
    if f.times != NULL:
        index_free(f.times)
        free(f.times)
    passed_add(&f.passed, f.passed.end, INT64_MAX - f.passed.end, False)  # the kernel read ahead to the end
    passed_end(&f.passed, f.fd)
    close_counted(f.fs, f.fd)
    free(f)


cdef void close_without_name(task_t* task) noexcept nogil:
    cdef files_t* f = <files_t*>task
    vfs_pass_file(f.fs, P_SEGMENT_CLOSE, f.fd)
    close_files(f)


cdef void files_drop(void* files) noexcept nogil:
    """Let go; with the last hold the files are closed, by another thread where that takes the disk its time."""
    cdef files_t* f = <files_t*>files
    if add_i32(&f.refs, -1) > 0:
        return
    if not vfs_close_elsewhere(f.fs, f.fd, &f.closing):
        close_files(f)
