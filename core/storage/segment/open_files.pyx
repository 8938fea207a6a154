"""The open files of a segment, reference counted: they may outlive the segment.

A descriptor is taken from the budget before a file is opened, and given back when it is closed.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

from pybroker.core.base.atomic cimport add_i32, cas_i32, load_i32, load_ptr, store_ptr
from pybroker.core.base.budget cimport budget_give
from pybroker.core.base.mapping cimport map_free, map_is_cheap, map_new, map_random, map_t
from pybroker.core.base.page_cache cimport passed_end, passed_init
from pybroker.core.base.vfs cimport P_SEGMENT_CLOSE, vfs_close, vfs_close_elsewhere, vfs_pass_file, vfs_t
from pybroker.core.base.worker cimport task_t
from pybroker.core.storage.segment.index cimport OFFSET_ENTRY, TIME_ENTRY, index_free, index_init

cdef enum:
    LOOK_UPS = 8                 # look-ups by pread before the file is mapped


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
    """Take over a descriptor and a hold on indexes, NULL for new ones. Without memory return NULL, and take over
    neither."""
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


cdef const map_t* files_map(files_t* f, int64_t size) noexcept nogil:
    """Return the map, created after LOOK_UPS look-ups: a map costs as much as several reads."""
    cdef map_t* m = <map_t*>load_ptr(<void**>&f.map)
    cdef int32_t look_ups
    if m != NULL:
        return m if not load_i32(&m.lost) and m.size >= size else NULL
    look_ups = load_i32(&f.look_ups)
    if look_ups < 0 or not cas_i32(&f.look_ups, look_ups, look_ups + 1 if look_ups < LOOK_UPS else -1):
        return NULL
    if look_ups == LOOK_UPS and map_is_cheap():
        m = map_new(f.fd, 0, size)
        if m != NULL:
            map_random(m)
            store_ptr(<void**>&f.map, m)
    return m


cdef void close_files(files_t* f) noexcept nogil:
    if f.indexes.offsets.fd >= 0:
        budget_give(&f.fs.budget)
    indexes_drop(f.indexes)
    if f.times != NULL:
        index_free(f.times)
        free(f.times)
    map_free(f.map)
    passed_end(&f.passed, f.fd)
    close_counted(f.fs, f.fd)
    free(f)


cdef void close_without_name(task_t* task) noexcept nogil:
    cdef files_t* f = <files_t*>task
    vfs_pass_file(f.fs, P_SEGMENT_CLOSE, f.fd)
    close_files(f)


cdef void files_drop(void* files) noexcept nogil:
    """Release the files; the last release closes them, on another thread if closing takes long."""
    cdef files_t* f = <files_t*>files
    if add_i32(&f.refs, -1) > 0:
        return
    if not vfs_close_elsewhere(f.fs, f.fd, &f.closing):
        close_files(f)
