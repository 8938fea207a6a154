"""A broker's log dirs for Python: the thread that flushes each, disk errors, open files, and failpoints.

Brokers share no state: ten of them may live in one process.
"""

from libc.errno cimport EIO
from libc.stdint cimport int32_t, int64_t
from posix.fcntl cimport O_CREAT, O_WRONLY

from pybroker.core.base.atomic cimport cas_i32, load_i32, load_i64, peek_i64, store_i32
from pybroker.core.base.counters cimport histogram_dict
from pybroker.core.base.status cimport raise_status
from pybroker.core.base.vfs cimport (
    ACT_ERRNO, ACT_KILL, ACT_SHORT, ACT_SLEEP, P_CHECKPOINT_WRITE, P_DISK_RESERVE, P_NONE, vfs_arm, vfs_close,
    vfs_disarm, vfs_open, vfs_replace, vfs_reserve, vfs_t, vfs_unlink,
)
from pybroker.core.storage.background.flusher cimport flusher_run
from pybroker.core.storage.background.idle_files cimport log_dir_close_idle
from pybroker.core.storage.log.context cimport context_free, context_log_dir, context_new, context_stop
from pybroker.core.storage.log.log_dir cimport log_dir_t, log_dir_trust

import os
import threading

from pybroker.core.base.vfs import FAILPOINTS

ACTIONS = {"errno": ACT_ERRNO, "short": ACT_SHORT, "kill": ACT_KILL, "sleep": ACT_SLEEP}


cdef class LogDirs:
    """The log dirs of one broker; `LogManager` opens partitions in them."""

    def __cinit__(self, *, int64_t write_behind_bytes=8 << 20, int64_t flush_idle_ms=200, int32_t open_files_max=0):
        self.context = context_new(write_behind_bytes, flush_idle_ms, log_dir_close_idle)
        if self.context == NULL:
            raise MemoryError()
        self.context.fs.budget.most = open_files_max
        self.lock = threading.Lock()
        self.flushers = {}
        self.pid = os.getpid()

    def _run_flusher(self, bytes log_dir) -> None:
        cdef log_dir_t* found = context_log_dir(self.context, log_dir)
        with nogil:
            flusher_run(self.context, found)

    cdef log_dir_t* log_dir(self, str path) except NULL:
        """The state of a log dir. The first call starts its flusher."""
        cdef bytes name = os.fsencode(path)
        cdef log_dir_t* found = context_log_dir(self.context, name)
        if found == NULL:
            raise MemoryError()
        if name not in self.flushers:
            with self.lock:
                if name not in self.flushers and not self.closed:
                    thread = threading.Thread(
                        target=self._run_flusher, args=(name,), name="pybroker-flusher", daemon=True)
                    thread.start()
                    self.flushers[name] = thread
        return found

    cdef void stop(self) except *:
        """Stop the flushers; no new one starts."""
        with nogil:
            context_stop(self.context)
        with self.lock:
            self.closed = True
        for thread in self.flushers.values():
            thread.join()

    def __dealloc__(self):
        # Every handle holds the broker, so the context outlives the last log.
        if self.context != NULL and self.closed:
            with nogil:
                context_free(self.context)

    def log_dir_error(self, str log_dir) -> int:
        """The errno that took a log dir offline; 0 while it is in use."""
        return load_i32(&self.log_dir(log_dir).failed)

    def fail_log_dir(self, str log_dir) -> None:
        """Take a log dir offline."""
        log_dir_trust(self.log_dir(log_dir), -EIO)

    def take_lack(self, str log_dir) -> int:
        """Return and clear the errno of the last lack of space or permission."""
        cdef log_dir_t* found = self.log_dir(log_dir)
        cdef int32_t lack = load_i32(&found.lack)
        cas_i32(&found.lack, lack, 0)
        return lack

    def refuse_appends(self, str log_dir, int error) -> None:
        """Refuse appends with an errno; 0 accepts them."""
        store_i32(&self.log_dir(log_dir).refusing, error)

    def set_aside(self, str path, int64_t n) -> None:
        """Reserve `n` bytes of disk space in a file of a log dir; passes the failpoint disk.reserve."""
        cdef bytes name = os.fsencode(path)
        cdef const char* c_path = name
        cdef vfs_t* fs = self.context.fs
        cdef int fd, status
        with nogil:
            status = fd = vfs_open(fs, P_DISK_RESERVE, c_path, O_WRONLY | O_CREAT)
            if fd >= 0:
                status = vfs_reserve(fs, P_DISK_RESERVE, fd, 0, n)
                vfs_close(fd)
                if status < 0:
                    vfs_unlink(fs, P_NONE, c_path)
        raise_status(min(status, 0), path)

    def read_errors(self, str log_dir) -> int:
        """The number of reads and sends from a log dir that the disk failed."""
        return load_i64(&self.log_dir(log_dir).unread)

    def write_atomic(self, str path, bytes data) -> None:
        """Replace a checkpoint file of a log dir; passes the failpoints checkpoint.write, .sync and .rename."""
        cdef log_dir_t* log_dir = self.log_dir(os.path.dirname(path))
        cdef bytes name = os.fsencode(path)
        cdef const char* c_path = name
        cdef const char* c_data = data
        cdef size_t n = len(data)
        cdef int status
        with nogil:
            status = log_dir_trust(log_dir, vfs_replace(self.context.fs, P_CHECKPOINT_WRITE, c_path, c_data, n, True))
        raise_status(status, path)

    @property
    def open_files(self) -> int:
        return load_i32(&self.context.fs.budget.open)

    @property
    def open_files_max(self) -> int:
        return self.context.fs.budget.most

    def sync_times(self) -> dict:
        """The durations of fsyncs."""
        return histogram_dict(&self.context.fs.syncs)

    def append_times(self) -> dict:
        """The durations of appends to a log, with their checks under its append mutex."""
        return histogram_dict(&self.context.fs.appends)

    def cold_reads(self) -> tuple:
        """The durations of reads of records that were not in the page cache, and the bytes that these covered."""
        return histogram_dict(&self.context.fs.cold_reads), peek_i64(&self.context.fs.cold_bytes)

    def stop_cleaning(self) -> None:
        """Abort running rounds of compaction, and start no new one."""
        store_i32(&self.context.no_cleaning, 1)

    def arm(self, str point, str action, int64_t value=0, *, int64_t after=0, int32_t times=1, str under="") -> None:
        """Arm a failpoint of FAILPOINTS: errno, short, kill or sleep; see log_dirs.pyi."""
        if point not in FAILPOINTS or action not in ACTIONS:
            raise ValueError(f"no failpoint {point!r} with action {action!r}: points are {', '.join(FAILPOINTS[1:])}")
        vfs_arm(self.context.fs, FAILPOINTS.index(point), ACTIONS[action], value, after, times, under.encode())

    def disarm(self) -> None:
        """Disarm all failpoints, and wake calls that sleep in one."""
        vfs_disarm(self.context.fs)

    @property
    def sleeping(self) -> int:
        return load_i32(&self.context.fs.dozing)
