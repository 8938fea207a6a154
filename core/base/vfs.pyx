"""Every file call of core, with named failpoints, so that a test can make any of them fail.

A call returns 0 (or a count), or a negated errno; EINTR and short writes are handled here. A failpoint is armed with an
action: fail with an errno, write a few bytes and then fail, die by SIGKILL after a few bytes, or sleep. An unarmed one
costs one load.
"""

from libc.errno cimport EINTR, EIO, ENOENT, ENOSYS, EOPNOTSUPP, errno
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdio cimport rename, snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport strcmp, strrchr, strstr
from posix.fcntl cimport O_CLOEXEC, O_CREAT, O_DIRECTORY, O_RDONLY, O_TRUNC, O_WRONLY, open
from posix.types cimport mode_t, off_t
from posix.unistd cimport close, fdatasync, fsync, ftruncate, getpid, lseek, readlink, unlink, usleep

from pybroker.core.base.atomic cimport add_i32, add_i64, load_i32, load_i64, store_i32, store_i64
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.base.counters cimport histogram_share
from pybroker.core.base.files cimport (
    FALLOC_FL_KEEP_SIZE, POSIX_FADV_RANDOM, POSIX_FADV_WILLNEED, SYNC_FILE_RANGE_WAIT_BEFORE, SYNC_FILE_RANGE_WRITE,
    fallocate, iovec, posix_fadvise, pread, pwritev, sync_file_range,
)
from pybroker.core.base.status cimport raise_status
from pybroker.core.base.worker cimport task_t, worker_destroy, worker_init, worker_put, worker_stop

cdef extern from "<unistd.h>" nogil:
    int SEEK_END, SEEK_SET

cdef extern from "<sys/sendfile.h>" nogil:
    ssize_t sendfile(int to, int file, off_t* position, size_t n)

cdef extern from "<signal.h>" nogil:
    int kill(int pid, int signal)
    int SIGKILL

cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <sys/stat.h>
    #include <sys/vfs.h>
    #include <unistd.h>
    // overlayfs has no pages of its own, and sync_file_range does not reach the file system below it
    static int write_out(int fd) {
      struct statfs s;
      int all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
      int overlaid = fstatfs(fd, &s) != 0 || s.f_type == 0x794c7630;
      if (!overlaid && sync_file_range(fd, 0, 0, all) == 0) return 0;
      if (!overlaid && errno != EINVAL && errno != ESPIPE && errno != ENOSYS) return -errno;
      return fdatasync(fd) == 0 ? 0 : -errno;
    }
    static int look(const char* path, int64_t* size, int64_t* modified_ms) {
      struct stat s;
      if (stat(path, &s) != 0) return -errno;
      *size = s.st_size;
      *modified_ms = (int64_t)s.st_mtim.tv_sec * 1000 + s.st_mtim.tv_nsec / 1000000;
      return 0;
    }
    static int set_modified(int fd, int64_t ms) {
      struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {ms / 1000, ms % 1000 * 1000000}};
      return futimens(fd, t);
    }
    // The bytes freed by closing the last descriptor of a file: none while it has a name.
    static int64_t freed_by_close(int fd) {
      struct stat s;
      return fstat(fd, &s) == 0 && s.st_nlink == 0 ? (int64_t)s.st_size : 0;
    }
    """
    int mkdir(const char* path, mode_t mode) nogil
    int64_t freed_by_close(int fd) nogil
    int set_modified(int fd, int64_t ms) nogil
    int write_out(int fd) nogil
    int look(const char* path, int64_t* size, int64_t* modified_ms) nogil

cdef enum:
    WRITE_VECTORS_MAX = 64
    # Records may be secrets: files and directories are the owner's alone, however lax the umask.
    FILE_MODE = 0o600
    DIRECTORY_MODE = 0o700
    CLOSE_BYTES = 1 << 20        # unlinked files of this size and more are not closed by reactors
    ASK_BYTES = 256 << 10

FAILPOINTS = (
    "none", "append.before", "append.after", "segment.create", "segment.reserve", "segment.write", "segment.sync",
    "segment.read", "segment.send", "segment.truncate", "segment.rename", "segment.unlink", "segment.close",
    "clean.write",
    "clean.sync", "roll.before", "roll.after", "index.write", "index.sync", "index.rename", "snapshot.write",
    "snapshot.sync", "snapshot.rename",
    "epoch.write", "epoch.sync", "epoch.rename", "metadata.write", "metadata.sync", "metadata.rename",
    "checkpoint.write", "checkpoint.sync", "checkpoint.rename", "partition.create", "partition.rename",
    "directory.sync", "disk.reserve", "move.copy", "move.sync", "move.rename", "move.leave",
)  # fmt: skip
assert len(FAILPOINTS) == POINTS


cdef vfs_t* vfs_new() noexcept nogil:
    cdef vfs_t* fs = <vfs_t*>calloc(1, sizeof(vfs_t))
    if fs != NULL:
        worker_init(&fs.closer)
    return fs


cdef void vfs_stop(vfs_t* fs) noexcept nogil:
    """Wait for the files being closed; callers close later ones themselves."""
    worker_stop(&fs.closer)


cdef void vfs_free(vfs_t* fs) noexcept nogil:
    worker_stop(&fs.closer)
    worker_destroy(&fs.closer)
    free(fs)


cdef void vfs_arm(
    vfs_t* fs, int point, int action, int64_t value, int64_t after, int32_t times, const char* under) noexcept nogil:
    cdef failpoint_t* f = &fs.points[point]
    if strcmp(f.under, under) != 0:  # another thread may still be reading the old value
        snprintf(f.under, UNDER_BYTES, "%s", under)
    store_i64(&f.value, value)
    store_i64(&f.after, after)
    store_i32(&f.times, times)
    store_i32(&f.action, action)
    add_i32(&fs.armed, 1)


cdef void vfs_disarm(vfs_t* fs) noexcept nogil:
    cdef int i
    store_i32(&fs.armed, 0)
    for i in range(<int>POINTS):
        store_i32(&fs.points[i].action, ACT_NONE)
        store_i64(&fs.points[i].value, 0)


cdef bint is_under(const failpoint_t* f, const char* path, int fd) noexcept nogil:
    """True if the failpoint is meant for this path or, if `path` is NULL, for the file open at `fd`."""
    cdef char name[64]
    cdef char target[4096]
    cdef ssize_t n
    if f.under[0] == 0:
        return True
    if path == NULL:
        snprintf(name, sizeof(name), "/proc/self/fd/%d", fd)
        n = readlink(name, target, sizeof(target) - 1)
        target[max(n, <ssize_t>0)] = 0
        path = target
    return strstr(path, f.under) != NULL


cdef failpoint_t* fire(vfs_t* fs, int point, const char* path, int fd) noexcept nogil:
    """The failpoint, if it catches this call; or NULL."""
    cdef failpoint_t* f
    if fs == NULL or load_i32(&fs.armed) == 0:
        return NULL
    f = &fs.points[point]
    if load_i32(&f.action) == ACT_NONE or not is_under(f, path, fd):
        return NULL
    # Several threads may pass at once: the one that takes the last of a count is the one that is caught.
    if load_i64(&f.after) > 0 and add_i64(&f.after, -1) >= 0:
        return NULL
    if add_i32(&f.times, -1) < 0:
        store_i32(&f.action, ACT_NONE)
        return NULL
    return f


cdef void doze(vfs_t* fs, failpoint_t* f) noexcept nogil:
    """Sleep for the failpoint's milliseconds, or until a test disarms it, to say that the disk is done."""
    cdef int64_t until_ns = monotonic_ns() + load_i64(&f.value) * 1000000
    add_i32(&fs.dozing, 1)
    while load_i64(&f.value) > 0 and monotonic_ns() < until_ns:
        usleep(1000)
    add_i32(&fs.dozing, -1)


cdef int act(vfs_t* fs, failpoint_t* f) noexcept nogil:
    """Do what the failpoint does when no bytes are written; return the -errno to fail with, or 0 to go on."""
    cdef int32_t action
    if f == NULL:
        return 0
    action = load_i32(&f.action)
    if action == ACT_KILL:
        kill(getpid(), SIGKILL)
    if action == ACT_SLEEP:
        doze(fs, f)
        return 0
    return -EIO if action == ACT_SHORT else -<int>load_i64(&f.value)


cdef int vfs_pass_file(vfs_t* fs, int point, int fd) noexcept nogil:
    """Pass the failpoint of a call on an open file."""
    return act(fs, fire(fs, point, NULL, fd))


cdef int vfs_pass(vfs_t* fs, int point, const char* path) noexcept nogil:
    """Pass the failpoint of a call on a path, or on something in it."""
    return act(fs, fire(fs, point, path, -1))


cdef int vfs_open(vfs_t* fs, int point, const char* path, int flags) noexcept nogil:
    cdef int fd, status = vfs_pass(fs, point, path)
    if status < 0:
        return status
    while True:
        fd = open(path, flags | O_CLOEXEC, <mode_t>FILE_MODE)
        if fd >= 0:
            return fd
        if errno != EINTR:
            return -errno


cdef void vfs_close(int fd) noexcept nogil:
    if fd >= 0:
        close(fd)


cdef bint vfs_close_elsewhere(vfs_t* fs, int fd, task_t* t) noexcept nogil:
    """Have the closer thread run `t`, which closes a file, if that may take the disk long: the last close of a large
    unlinked file frees all its blocks. False: the caller has to close it now."""
    return freed_by_close(fd) >= CLOSE_BYTES and worker_put(&fs.closer, t)


cdef int write_all(int fd, iovec* v, int n, int64_t position) noexcept nogil:
    """Write every vector; a short write is continued. The vectors are used up."""
    cdef ssize_t k
    cdef int chunk
    while n > 0:
        chunk = n if n < WRITE_VECTORS_MAX else WRITE_VECTORS_MAX
        k = pwritev(fd, v, chunk, position)
        if k < 0:
            if errno == EINTR:
                continue
            return -errno
        if k == 0 and v.iov_len > 0:
            return -EIO
        position += k
        while n > 0 and <size_t>k >= v.iov_len:
            k -= v.iov_len
            v += 1
            n -= 1
        if n > 0 and k > 0:
            v.iov_base = <uint8_t*>v.iov_base + k
            v.iov_len -= k
    return 0


cdef int write_part(int fd, iovec* v, int n, int64_t position, int64_t most) noexcept nogil:
    """Write only the first `most` bytes, as a crash or a failing disk would."""
    cdef int i
    cdef int status
    cdef iovec part
    for i in range(n):
        if most <= 0:
            return 0
        part.iov_base = v[i].iov_base
        part.iov_len = v[i].iov_len if <int64_t>v[i].iov_len < most else <size_t>most
        most -= part.iov_len
        status = write_all(fd, &part, 1, position)
        if status < 0:
            return status
        position += v[i].iov_len
    return 0


cdef int vfs_pwritev(vfs_t* fs, int point, int fd, iovec* v, int n, int64_t position) noexcept nogil:
    cdef failpoint_t* f = fire(fs, point, NULL, fd)
    cdef int status
    if f != NULL:
        if load_i32(&f.action) == ACT_KILL or load_i32(&f.action) == ACT_SHORT:
            write_part(fd, v, n, position, load_i64(&f.value))
        status = act(fs, f)
        if status < 0:
            return status
    return write_all(fd, v, n, position)


cdef int vfs_pwrite(vfs_t* fs, int point, int fd, const void* data, size_t n, int64_t position) noexcept nogil:
    cdef iovec v
    v.iov_base = <void*>data
    v.iov_len = n
    return vfs_pwritev(fs, point, fd, &v, 1, position)


cdef int vfs_pread(vfs_t* fs, int point, int fd, void* into, size_t n, int64_t position, size_t* got) noexcept nogil:
    """Read up to n bytes; `got` is less only at the end of the file."""
    cdef ssize_t k
    cdef int status = vfs_pass_file(fs, point, fd)
    got[0] = 0
    if status < 0:
        return status
    while got[0] < n:
        k = pread(fd, <uint8_t*>into + got[0], n - got[0], position + <int64_t>got[0])
        if k < 0:
            if errno == EINTR:
                continue
            return -errno
        if k == 0:
            break
        got[0] += k
    return 0


cdef ssize_t vfs_sendfile(vfs_t* fs, int point, int to, int fd, int64_t position, int64_t n) noexcept nogil:
    """Send a range of a file to a socket, as much as it takes; 0 only if the file ends before the range begins."""
    cdef off_t at = position
    cdef ssize_t sent
    cdef int status = vfs_pass_file(fs, point, fd)
    if status < 0:
        return status
    sent = sendfile(to, fd, &at, <size_t>n)
    return sent if sent >= 0 else -errno


cdef ssize_t vfs_copy(vfs_t* fs, int point, int to, int fd, int64_t position, int64_t n) noexcept nogil:
    """Copy a range of a file to the same position of another file, in the kernel. Return how much; 0 only if the file
    ends before the range begins."""
    cdef failpoint_t* f = fire(fs, point, NULL, to)
    cdef off_t at = position
    cdef ssize_t sent
    cdef int status
    if lseek(to, position, SEEK_SET) != position:
        return -errno
    if f != NULL:
        if load_i32(&f.action) == ACT_KILL or load_i32(&f.action) == ACT_SHORT:
            sendfile(to, fd, &at, <size_t>min(n, load_i64(&f.value)))
        status = act(fs, f)
        if status < 0:
            return status
    while True:
        sent = sendfile(to, fd, &at, <size_t>n)
        if sent >= 0 or errno != EINTR:
            return sent if sent >= 0 else -errno


cdef int vfs_reserve(vfs_t* fs, int point, int fd, int64_t position, int64_t n) noexcept nogil:
    """Reserve disk space past the end without moving the end. No error if the file system cannot."""
    cdef int status = vfs_pass_file(fs, point, fd)
    if status < 0:
        return status
    while fallocate(fd, FALLOC_FL_KEEP_SIZE, position, n) != 0:
        if errno == EINTR:
            continue
        if errno == EOPNOTSUPP or errno == ENOSYS:
            return 0
        return -errno
    return 0


cdef int vfs_truncate(vfs_t* fs, int point, int fd, int64_t size) noexcept nogil:
    """Truncate a file or, at its present size, free the space reserved past the end."""
    cdef int status = vfs_pass_file(fs, point, fd)
    if status < 0:
        return status
    while ftruncate(fd, size) != 0:
        if errno != EINTR:
            return -errno
    return 0


cdef int vfs_sync(vfs_t* fs, int point, int fd) noexcept nogil:
    cdef int64_t began = monotonic_ns()
    cdef int status = vfs_pass_file(fs, point, fd)
    if status == 0 and fdatasync(fd) != 0:
        status = -errno
    if fs != NULL:
        histogram_share(&fs.syncs, (monotonic_ns() - began) // 1000)
    return status


cdef int vfs_write_out(vfs_t* fs, int point, int fd) noexcept nogil:
    """Have the kernel write a file's dirty pages, and wait for it; -errno if it could not. Cheaper than fdatasync, and
    less durable."""
    cdef int status = vfs_pass_file(fs, point, fd)
    return status if status < 0 else write_out(fd)


cdef int vfs_look(vfs_t* fs, int point, const char* path, int64_t* size, int64_t* modified_ms) noexcept nogil:
    """Get the size of a file, and when it was last modified, without opening it."""
    cdef int status = vfs_pass(fs, point, path)
    return status if status < 0 else look(path, size, modified_ms)


cdef int vfs_write_behind(int fd, int64_t position, int64_t n) noexcept nogil:
    """Ask the kernel to start writing a range. A hint: a failure says nothing about the data."""
    return 0 if sync_file_range(fd, position, n, SYNC_FILE_RANGE_WRITE) == 0 else -errno


cdef int vfs_wait_written(int fd, int64_t position, int64_t n) noexcept nogil:
    """Wait until the kernel has written a range. A hint, as above: a later sync has the error."""
    return 0 if sync_file_range(fd, position, n, SYNC_FILE_RANGE_WAIT_BEFORE) == 0 else -errno


cdef void vfs_no_readahead(int fd) noexcept nogil:
    """Turn off read-ahead for this descriptor. A hint."""
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM)


cdef void vfs_ask_for(int fd, int64_t position, int64_t n) noexcept nogil:
    """Have the kernel start to read a range into the page cache. A hint. In pieces, as the kernel does not yield the
    processor while it allocates the pages of one."""
    cdef int64_t end = position + n
    while position < end:
        posix_fadvise(fd, position, min(<int64_t>ASK_BYTES, end - position), POSIX_FADV_WILLNEED)
        position += ASK_BYTES


cdef int vfs_set_modified(int fd, int64_t ms) noexcept nogil:
    """Set when a file was last modified, in ms since the epoch."""
    return 0 if set_modified(fd, ms) == 0 else -errno


cdef int vfs_rename(vfs_t* fs, int point, const char* path, const char* to) noexcept nogil:
    cdef int status = vfs_pass(fs, point, path)
    if status < 0:
        return status
    return 0 if rename(path, to) == 0 else -errno


cdef int vfs_unlink(vfs_t* fs, int point, const char* path) noexcept nogil:
    """Remove a file; a missing file is no error."""
    cdef int status = vfs_pass(fs, point, path)
    if status < 0:
        return status
    return 0 if unlink(path) == 0 or errno == ENOENT else -errno


cdef int vfs_mkdir(vfs_t* fs, int point, const char* path) noexcept nogil:
    cdef int status = vfs_pass(fs, point, path)
    if status < 0:
        return status
    return 0 if mkdir(path, <mode_t>DIRECTORY_MODE) == 0 else -errno


cdef int vfs_sync_dir(vfs_t* fs, const char* path) noexcept nogil:
    """Make the names in a directory durable. -EIO if the sync itself fails, for any reason: a retry that succeeds
    proves nothing."""
    cdef int status
    cdef int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    if fd < 0:
        return -errno
    status = vfs_pass(fs, P_DIRECTORY_SYNC, path)
    if status == 0:
        status = fsync(fd)
    close(fd)
    return -EIO if status != 0 else 0


cdef int64_t vfs_size(int fd) noexcept nogil:
    cdef int64_t size = lseek(fd, 0, SEEK_END)
    return size if size >= 0 else -errno


cdef int vfs_replace(
    vfs_t* fs, int write_point, const char* path, const void* data, size_t n, bint durable) noexcept nogil:
    """Replace the whole file `path`, or leave it as it was: temporary file, sync, rename, sync of the directory.

    A file that can be rebuilt after a power cut need not be durable; it is still whole if only the process dies.

    The sync and the rename pass the points that follow `write_point` in the table."""
    cdef char temporary[4096]
    cdef char directory[4096]
    cdef char* slash
    cdef int fd, status
    if snprintf(temporary, sizeof(temporary), "%s.tmp", path) >= <int>sizeof(temporary):
        return -ENOENT
    fd = vfs_open(fs, P_NONE, temporary, O_WRONLY | O_CREAT | O_TRUNC)
    if fd < 0:
        return fd
    status = vfs_pwrite(fs, write_point, fd, data, n, 0)
    if status == 0 and durable:
        status = vfs_sync(fs, write_point + 1, fd)
    close(fd)
    if status == 0:
        status = vfs_rename(fs, write_point + 2, temporary, path)
    if status < 0:
        unlink(temporary)
        return status
    if not durable:
        return 0
    snprintf(directory, sizeof(directory), "%s", path)
    slash = strrchr(directory, c"/")
    if slash != NULL:
        slash[0] = 0
        return vfs_sync_dir(fs, directory)
    return 0


def write_atomic(str path, bytes data) -> None:
    """Write path.tmp, fsync, rename over path, fsync the directory; on failure OSError, and path is as it was."""
    cdef bytes name = path.encode()
    cdef const char* c_path = name
    cdef const char* c_data = data
    cdef size_t n = len(data)
    cdef int status
    with nogil:
        status = vfs_replace(NULL, P_CHECKPOINT_WRITE, c_path, c_data, n, True)
    raise_status(status, path)
