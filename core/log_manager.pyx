"""The broker's context for Python: opens and deletes partitions, and keeps the table of open ones."""

from libc.stdint cimport int32_t, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc

from pybroker.core.base.atomic cimport load_i32, load_i64, peek_i64, poke_i64, store_i32, store_i64
from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR, UNKNOWN_TOPIC_OR_PARTITION
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.status cimport raise_status
from pybroker.core.base.vfs cimport P_PARTITION_RENAME, vfs_rename
from pybroker.core.log_dirs cimport LogDirs
from pybroker.core.opening cimport open_partition
from pybroker.core.partition.partition cimport partition_tell_all
from pybroker.core.partition_handle cimport Partition
from pybroker.core.storage.background.flusher cimport log_close
from pybroker.core.storage.background.idle_files cimport IDLE_SEALED, log_close_idle
from pybroker.core.storage.log.backlog cimport backlog_discard
from pybroker.core.storage.log.context cimport lease_is_lost, lease_lapsed
from pybroker.core.storage.log.log cimport PATH_BYTES_MAX, log_dir_of, log_lock_files, log_t, log_trust
from pybroker.core.storage.log.log_dir cimport log_dir_t
from pybroker.core.storage.log.lost_files cimport logs_lost
from pybroker.core.storage.recovery.recovery_state cimport recovery_t

import os
import uuid
from concurrent.futures import ThreadPoolExecutor

from pybroker.core.base.status import LogError

CLOSING_THREADS = 16


cdef class LogManager(LogDirs):
    """One broker's context: its partitions, and the background flusher of each log dir."""

    def __cinit__(self):
        self.table = {}

    def open(self, str log_dir, str topic, int partition, *, bytes topic_id, config, int64_t recovery_point=0,
             int64_t log_start_offset=0, int64_t high_watermark=-1, bint clean=False, int32_t epoch_max=-1,
             bint compacted=False, int64_t written=0, bint given_up=False) -> Partition:
        """Open or create log_dir/topic-partition; records past the recovery point are checked unless clean."""
        cdef Partition p
        cdef recovery_t r
        directory = os.path.join(log_dir, f"{topic}-{partition}")
        with self.lock:
            if (topic, partition) in self.table:
                raise LogError(KAFKA_STORAGE_ERROR, f"{topic}-{partition} is open already")
            self.table[topic, partition] = None  # reserved until it is open or failed
        r.recovery_point = recovery_point
        r.log_start = log_start_offset
        r.high_watermark = high_watermark
        r.written = written
        r.given_up = given_up
        r.epoch_max = epoch_max
        r.clean = clean
        r.gaps = compacted
        try:
            p = open_partition(self, directory, topic, partition, topic_id, config, &r)
            self.table[topic, partition] = p
        except BaseException:
            del self.table[topic, partition]
            raise
        return p

    def delete(self, Partition partition not None) -> None:
        """Unpublish, rename the directory to -delete, remove it in the background. After an OSError the partition is
        gone, too.

        The partition can be created again once this returns. LogError(UNKNOWN_TOPIC_OR_PARTITION) if it was deleted
        before."""
        cdef Partition p = partition
        cdef log_t* l = p.log
        cdef const char* c_name
        cdef char to[PATH_BYTES_MAX + 512]
        cdef int64_t delay = peek_i64(&l.settings.file_delete_delay_ms)
        cdef int status
        key = (p.topic, p.partition)
        with self.lock:
            if self.table.get(key) is not p:
                raise LogError(UNKNOWN_TOPIC_OR_PARTITION, f"{p.topic}-{p.partition} was deleted already")
            self.table[key] = None  # reserved until the directory is renamed
        suffix = f"-{p.partition}.{uuid.uuid4().hex}-delete"
        name = os.fsencode(p.topic[: 255 - len(suffix)] + suffix)
        c_name = name
        with nogil:
            log_lock_files(l)
            pthread_mutex_lock(&l.append_mutex)
            store_i32(&l.deleted, 1)  # no new append begins, so none will wait for the disk
            pthread_mutex_unlock(&l.append_mutex)
            snprintf(to, sizeof(to), "%s/%s", l.log_dir.path, c_name)  # a move has ended, or ends in vain
            status = log_trust(l, vfs_rename(self.context.fs, P_PARTITION_RENAME, l.directory, to))
            pthread_mutex_unlock(&l.flush_mutex)
            partition_tell_all(p.state)
            if status == 0:
                backlog_discard(&l.log_dir.backlog, to, True, delay)
        del self.table[key]
        raise_status(status, p.directory)

    def partitions(self) -> list:
        """A handle to every partition."""
        return [p for p in list(self.table.values()) if p is not None]

    def get(self, str topic, int partition):
        """The handle of a partition, or None."""
        return self.table.get((topic, partition))

    def close(self, *, bint clean=True) -> None:
        """Stop the flushers; clean: first flush every partition and write its snapshot and indexes. OSError,
        LogError."""
        cdef Partition p
        cdef int status
        failed = None
        if self.closed or self.pid != os.getpid():
            return               # a forked child has none of the threads, and the files are the parent's
        if clean:
            # In parallel: each waits for its own syncs, and the file system combines them.
            with ThreadPoolExecutor(CLOSING_THREADS, "pybroker-close") as threads:
                for p, status in threads.map(self._close_log, [p for p in self.partitions() if not p.offline]):
                    if status != 0 and failed is None:
                        failed = (status, p)
        self.stop()
        self.table.clear()
        if failed is not None:
            (<Partition>failed[1]).check(failed[0], "close")

    def _close_log(self, Partition p) -> tuple:
        cdef int status
        with nogil:
            status = log_close(p.log)
        return p, status

    def close_idle_files(self) -> int:
        """Close the files of sealed segments that were not read since the last call; the number of files closed."""
        cdef Partition p
        cdef int closed = 0
        for p in self.partitions():
            with nogil:
                closed += log_close_idle(p.log, IDLE_SEALED)
        return closed

    def unread(self, str log_dir) -> list:
        """(partition, errno) of each partition whose reads began to fail since the last call."""
        cdef Partition p
        cdef log_dir_t* where = self.log_dir(log_dir)
        cdef list found = []
        for p in self.partitions():
            if log_dir_of(p.log) == where and load_i32(&p.log.unread) and not p.log.unread_told:
                p.log.unread_told = 1
                found.append((p, load_i32(&p.log.unread)))
        return found

    def lost_file(self, str log_dir):
        """A partition of a log dir whose active file was deleted, which takes the log dir offline; or None."""
        cdef Partition p
        cdef log_dir_t* where = self.log_dir(log_dir)
        cdef list held = self.partitions()
        cdef log_t** logs = <log_t**>malloc(sizeof(log_t*) * (len(held) + 1))
        cdef int64_t n = 0, found
        if logs == NULL:
            raise MemoryError()
        for p in held:
            if log_dir_of(p.log) == where:
                held[n] = p
                logs[n] = p.log
                n += 1
        with nogil:
            found = logs_lost(logs, n)
        free(logs)
        return held[found] if found >= 0 else None

    def set_lease(self, int64_t until_ms) -> None:
        """Set until when this broker may act as leader alone; see log_manager.pyi."""
        poke_i64(&self.context.lease_ms, until_ms)

    @property
    def lease_lapsed(self) -> bool:
        """True if other brokers may lead the partitions that this broker leads."""
        return lease_lapsed(self.context)

    @property
    def lease_lost(self) -> bool:
        """True from the loss of the registration until the controller has contacted the broker under the next one."""
        return lease_is_lost(self.context)

    def take_suspects(self) -> list:
        """(partition, base offset of the segment) where reads met an invalid batch since the last call."""
        cdef Partition p
        cdef int64_t base
        found = []
        if load_i32(&self.context.suspects):
            store_i32(&self.context.suspects, 0)
            for p in self.partitions():
                base = load_i64(&p.log.suspect) - 1
                if base >= 0:
                    store_i64(&p.log.suspect, 0)
                    found.append((p, base))
        return found
