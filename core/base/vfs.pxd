# Every file call that core makes, each with the failpoint that can make it fail.
from libc.stdint cimport int32_t, int64_t, uint8_t
from posix.types cimport mode_t, off_t

from pybroker.core.base.budget cimport budget_t
from pybroker.core.base.counters cimport histogram_t
from pybroker.core.base.files cimport iovec
from pybroker.core.base.worker cimport task_t, worker_t

# The names of the points are in vfs.pyx, in this order.
cdef enum point_t:
    P_NONE
    P_APPEND_BEFORE       # a batch is checked, nothing is written yet
    P_APPEND_AFTER        # a batch is written, not acknowledged yet
    P_SEGMENT_CREATE
    P_SEGMENT_RESERVE
    P_SEGMENT_WRITE
    P_SEGMENT_SYNC
    P_SEGMENT_READ
    P_SEGMENT_SEND        # a range of a segment is sent to a client
    P_SEGMENT_TRUNCATE
    P_SEGMENT_RENAME
    P_SEGMENT_UNLINK
    P_SEGMENT_CLOSE       # the last descriptor of a large unlinked file is closed
    P_CLEAN_WRITE         # compaction writes retained records
    P_CLEAN_SYNC
    P_ROLL_BEFORE         # the old segment is full, the new one does not exist
    P_ROLL_AFTER          # the new segment exists, the log does not list it
    P_INDEX_WRITE
    P_INDEX_SYNC
    P_INDEX_RENAME
    P_SNAPSHOT_WRITE
    P_SNAPSHOT_SYNC
    P_SNAPSHOT_RENAME
    P_EPOCH_WRITE
    P_EPOCH_SYNC
    P_EPOCH_RENAME
    P_METADATA_WRITE
    P_METADATA_SYNC
    P_METADATA_RENAME
    P_CHECKPOINT_WRITE
    P_CHECKPOINT_SYNC
    P_CHECKPOINT_RENAME
    P_PARTITION_CREATE
    P_PARTITION_RENAME
    P_DIRECTORY_SYNC
    P_DISK_RESERVE        # writing the reserve file of a log dir (replication/disk_space.py)
    P_MOVE_COPY           # a log moves to another log dir: a range of a file is copied
    P_MOVE_SYNC           # copied files are synced
    P_MOVE_RENAME         # the copy gets the name of the log
    P_MOVE_LEAVE          # the log's old directory is renamed to -delete
    POINTS

cdef enum action_t:
    ACT_NONE, ACT_ERRNO, ACT_SHORT, ACT_KILL, ACT_SLEEP

cdef enum:
    UNDER_BYTES = 256

cdef struct failpoint_t:
    int32_t action
    int32_t times        # calls still to fail after `after` is used up
    int64_t after        # calls still to let through
    int64_t value
    char under[<int>UNDER_BYTES]  # only calls on a path that contains this; empty: all calls

cdef struct vfs_t:
    int32_t armed        # points that may still fire; 0 costs one load per call
    failpoint_t points[<int>POINTS]
    int32_t dozing       # calls now sleeping in a failpoint
    histogram_t syncs    # durations of fsyncs,
    histogram_t appends  # of appends to a log, with their checks under its append mutex,
    histogram_t cold_reads  # and of reads by a log dir's reader of records that were not in the page cache
    int64_t cold_bytes   # that these reads covered
    budget_t budget      # of segment descriptors
    worker_t closer      # closes large unlinked files

cdef vfs_t* vfs_new() noexcept nogil
cdef void vfs_stop(vfs_t* fs) noexcept nogil
cdef void vfs_free(vfs_t* fs) noexcept nogil
cdef void vfs_arm(
    vfs_t* fs, int point, int action, int64_t value, int64_t after, int32_t times, const char* under) noexcept nogil
cdef void vfs_disarm(vfs_t* fs) noexcept nogil
cdef int vfs_pass(vfs_t* fs, int point, const char* path) noexcept nogil   # 0, or the -errno to fail with
cdef int vfs_pass_file(vfs_t* fs, int point, int fd) noexcept nogil            # the same for an open file
cdef int vfs_open(vfs_t* fs, int point, const char* path, int flags) noexcept nogil       # fd or -errno
cdef void vfs_close(int fd) noexcept nogil
cdef bint vfs_close_elsewhere(vfs_t* fs, int fd, task_t* t) noexcept nogil
cdef int vfs_pwritev(vfs_t* fs, int point, int fd, iovec* v, int n, int64_t position) noexcept nogil
cdef int vfs_pwrite(vfs_t* fs, int point, int fd, const void* data, size_t n, int64_t position) noexcept nogil
cdef int vfs_pread(vfs_t* fs, int point, int fd, void* into, size_t n, int64_t position, size_t* got) noexcept nogil
# The number of bytes sent, or -errno.
cdef ssize_t vfs_sendfile(vfs_t* fs, int point, int to, int fd, int64_t position, int64_t n) noexcept nogil
cdef ssize_t vfs_copy(vfs_t* fs, int point, int to, int fd, int64_t position, int64_t n) noexcept nogil
cdef int vfs_reserve(vfs_t* fs, int point, int fd, int64_t position, int64_t n) noexcept nogil
cdef int vfs_truncate(vfs_t* fs, int point, int fd, int64_t size) noexcept nogil
cdef int vfs_sync(vfs_t* fs, int point, int fd) noexcept nogil
cdef int vfs_write_out(vfs_t* fs, int point, int fd) noexcept nogil
cdef int vfs_look(vfs_t* fs, int point, const char* path, int64_t* size, int64_t* modified_ms) noexcept nogil
cdef int vfs_wait_written(int fd, int64_t position, int64_t n) noexcept nogil
cdef int vfs_write_behind(int fd, int64_t position, int64_t n) noexcept nogil
cdef void vfs_no_readahead(int fd) noexcept nogil
cdef void vfs_ask_for(int fd, int64_t position, int64_t n) noexcept nogil
cdef int vfs_set_modified(int fd, int64_t ms) noexcept nogil
cdef int vfs_rename(vfs_t* fs, int point, const char* path, const char* to) noexcept nogil
cdef int vfs_unlink(vfs_t* fs, int point, const char* path) noexcept nogil
cdef int vfs_mkdir(vfs_t* fs, int point, const char* path) noexcept nogil
cdef int vfs_sync_dir(vfs_t* fs, const char* path) noexcept nogil          # -EIO: the sync itself failed
cdef int64_t vfs_size(int fd) noexcept nogil                               # bytes or -errno
cdef int vfs_replace(
    vfs_t* fs, int write_point, const char* path, const void* data, size_t n, bint durable) noexcept nogil
