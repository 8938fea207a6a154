"""The broker's context as Python sees it: opens and deletes partitions, owns the flushers' threads.

    partition.metadata   text: "version: 0", "topic_id: <22 characters>"; written before the first record is

No state is shared between two brokers: ten of them live in one process.
"""

from libc.errno cimport EIO
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strcpy

from pybroker.core.base.atomic cimport load_i32, load_i64, peek_i64, store_i32, store_i64
from pybroker.core.base.budget cimport budget_is_scarce
from pybroker.core.base.counters cimport histogram_dict
from pybroker.core.base.error_codes cimport INCONSISTENT_TOPIC_ID, KAFKA_STORAGE_ERROR, UNKNOWN_TOPIC_OR_PARTITION
from pybroker.core.base.reclamation cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.status cimport raise_status
from pybroker.core.base.vfs cimport (
    ACT_ERRNO, ACT_KILL, ACT_SHORT, ACT_SLEEP, P_CHECKPOINT_WRITE, P_METADATA_WRITE, P_PARTITION_CREATE,
    P_PARTITION_RENAME, vfs_arm, vfs_disarm, vfs_mkdir, vfs_rename, vfs_replace,
)
from pybroker.core.compact.replace_segments cimport replace_finish
from pybroker.core.handles cimport Partition
from pybroker.core.partition.partition cimport TOPIC_BYTES_MAX, partition_new, partition_t, partition_tell
from pybroker.core.settings cimport read_settings
from pybroker.core.storage.backlog cimport backlog_discard
from pybroker.core.storage.context cimport context_free, context_log_dir, context_new, context_stop, context_t
from pybroker.core.storage.flusher cimport flusher_run, log_close
from pybroker.core.storage.idle_files cimport IDLE_NOW, IDLE_SEALED, idle_add, log_close_idle, log_dir_close_idle
from pybroker.core.storage.leader_epochs cimport epochs_init, epochs_load
from pybroker.core.storage.log cimport CLEANUP_COMPACT, log_drop, log_lock_files, log_t, log_trust, log_wake_flusher
from pybroker.core.storage.log_dir cimport log_dir_t, log_dir_trust
from pybroker.core.storage.lost_files cimport logs_lost
from pybroker.core.storage.producer_state cimport sequence_init
from pybroker.core.storage.recovery cimport FAULT_GAP, FAULT_HEAD, FAULT_TAIL, log_recover, recovery_t

import array
import base64
import contextlib
import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

from pybroker.core.base.status import LogError, MissingFiles
from pybroker.core.base.vfs import FAILPOINTS

cdef enum:
    DIRECTORY_BYTES_MAX = 2000   # what log_t.directory holds, with room for the names of files

CLOSING_THREADS = 16
OFFSET_MAX = (1 << 63) - 1 - ((1 << 31) - 1)  # a segment holds as many offsets more
ACTIONS = {"errno": ACT_ERRNO, "short": ACT_SHORT, "kill": ACT_KILL, "sleep": ACT_SLEEP}
LEFTOVERS = (".deleted", ".cleaned", ".tmp")
SWAP = ".swap"


cdef log_t* new_log(context_t* context, log_dir_t* log_dir, bytes directory) except NULL:
    """An empty log; its only reference is the caller's."""
    cdef log_t* l
    if len(directory) > DIRECTORY_BYTES_MAX:
        raise ValueError(f"the directory name has {len(directory)} bytes, at most {DIRECTORY_BYTES_MAX} are supported")
    l = <log_t*>calloc(1, sizeof(log_t))
    if l == NULL:
        raise MemoryError()
    l.context = context
    l.work.owner = l
    l.refs = 1
    l.log_dir = log_dir
    strcpy(l.directory, directory)
    pthread_mutex_init(&l.append_mutex, NULL)
    pthread_mutex_init(&l.flush_mutex, NULL)
    sequence_init(&l.producers)
    epochs_init(&l.epochs)
    return l


def list_segments(str directory) -> tuple:
    """The base offsets of the segments in a partition's directory, and of those that are still to be put in place
    (.swap), both ascending; what a crash left half done is removed. Where a .cleaned was being written, Kafka may not
    have decided on a .swap after it (one segment that became several): it goes as well."""
    bases, swaps, others, cleaned = [], [], [], None
    for name in os.listdir(directory):
        stem, suffix = os.path.splitext(name)
        base = stem.partition(".")[0]
        named = len(base) == 20 and base.isascii() and base.isdigit() and int(base) <= OFFSET_MAX
        if suffix == ".cleaned" and named:
            cleaned = int(base) if cleaned is None else min(cleaned, int(base))
        if suffix in LEFTOVERS:
            os.unlink(os.path.join(directory, name))
        elif suffix == SWAP and named:
            (swaps if stem == f"{base}.log" else others).append(int(base))
        elif suffix == ".log" and named and stem == base:
            bases.append(int(stem))
    if swaps or others:
        undone = {base for base in swaps if cleaned is not None and base >= cleaned}
        swaps = sorted({*swaps} - undone)
        for base in undone.union(others).difference(swaps):
            for kind in (".log", ".index", ".timeindex", ".txnindex"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, f"{base:020}{kind}{SWAP}"))
    return sorted(bases), swaps


def read_metadata(str directory) -> bytes:
    """The topic id in partition.metadata; empty if the file is missing or says none."""
    try:
        with open(os.path.join(directory, "partition.metadata")) as f:
            for line in f:
                key, _, value = line.partition(":")
                if key.strip() == "topic_id":
                    return base64.urlsafe_b64decode(value.strip() + "==")
    except (FileNotFoundError, ValueError):
        pass
    return b""


cdef str recovered(const recovery_t* r, int64_t end):
    """What start-up did to a log that ends at offset `end`, in a line; empty if nothing."""
    told = []
    if r.high_watermark > end and not r.cut_bytes:
        told.append(f"offsets {end} to {r.high_watermark - 1} are lost: they were not on disk yet")
    if r.cut_bytes:
        name = f"{r.cut_base:020}.log"
        kind = "a torn tail" if not r.aside else "a damaged tail"
        told.append(
            f"cut {r.cut_bytes} bytes of {kind} at position {r.cut_position} of {name}: the log ends at offset {end}")
        if r.aside > 0:
            told.append(f"they are kept in {name}.{r.cut_position}.damaged")
        elif r.aside < 0:
            told.append("they could not be kept in a file")
    if r.rebuilt:
        told.append(f"rebuilt {r.rebuilt} indexes")
    return ", ".join(told)


cdef refuse(Partition p, const recovery_t* r):
    """Say why a log cannot be used as it is."""
    if r.fault == FAULT_HEAD:
        raise MissingFiles(KAFKA_STORAGE_ERROR, f"the first segment is missing from {p.directory}: the log began at "
                           f"offset {r.fault_end}, its first file begins at {r.fault_base}")
    if r.fault == FAULT_TAIL:
        raise MissingFiles(KAFKA_STORAGE_ERROR, f"the last segment is missing from {p.directory}, or its end is: "
                           f"there were records up to offset {r.fault_base}, the log ends at {r.fault_end}")
    what = "a segment is missing" if r.fault == FAULT_GAP else "two segments overlap"
    raise LogError(KAFKA_STORAGE_ERROR, f"{p.directory}: {what}: one ends at offset {r.fault_end}, the next begins at "
                   f"{r.fault_base}; the partition stays offline")


cdef class Broker:
    """One broker's context: its partitions, and the background flusher of each log dir."""

    def __cinit__(self, *, int64_t write_behind_bytes=8 << 20, int64_t flush_idle_ms=200, int32_t open_files_max=0):
        self.context = context_new(write_behind_bytes, flush_idle_ms, log_dir_close_idle)
        if self.context == NULL:
            raise MemoryError()
        self.context.fs.budget.most = open_files_max
        self.table = {}
        self.lock = threading.Lock()
        self.flushers = {}
        self.pid = os.getpid()

    def _run_flusher(self, bytes log_dir) -> None:
        cdef log_dir_t* found = context_log_dir(self.context, log_dir)
        with nogil:
            flusher_run(self.context, found)

    def _close_log(self, Partition p) -> tuple:
        cdef int status
        with nogil:
            status = log_close(p.state.log)
        return p, status

    def close_idle_files(self) -> int:
        """Close the files of sealed segments that nobody read from since the last call; how many were."""
        cdef Partition p
        cdef int closed = 0
        for p in self.partitions():
            with nogil:
                closed += log_close_idle(p.state.log, IDLE_SEALED)
        return closed

    @property
    def open_files(self) -> int:
        return load_i32(&self.context.fs.budget.open)

    @property
    def open_files_max(self) -> int:
        return self.context.fs.budget.most

    def close(self, *, bint clean=True) -> None:
        """Stop the flushers; clean: every partition is durable first, with its snapshot and indexes. OSError,
        LogError."""
        cdef Partition p
        cdef int status
        failed = None
        if self.closed or self.pid != os.getpid():
            return               # a forked child has none of the threads, and the files are the parent's
        if clean:
            # Each waits for syncs of its own, which the file system does together.
            with ThreadPoolExecutor(CLOSING_THREADS, "pybroker-close") as threads:
                for p, status in threads.map(self._close_log, [p for p in self.partitions() if not p.offline]):
                    if status != 0 and failed is None:
                        failed = (status, p)
        with nogil:
            context_stop(self.context)
        with self.lock:
            self.closed = True   # from here on no flusher begins
        for thread in self.flushers.values():
            thread.join()
        self.table.clear()
        if failed is not None:
            (<Partition>failed[1]).check(failed[0], "close")

    def __dealloc__(self):
        # Every handle holds the broker, so that the last log is gone before the context goes.
        if self.context != NULL and self.closed:
            with nogil:
                context_free(self.context)

    def partitions(self) -> list:
        """A handle to every partition."""
        return [p for p in list(self.table.values()) if p is not None]

    def get(self, str topic, int partition):
        """The handle of a partition, or None."""
        return self.table.get((topic, partition))

    cdef log_dir_t* log_dir(self, str path) except NULL:
        """What belongs to a log dir. Its flusher begins with the first asking."""
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

    def log_dir_error(self, str log_dir) -> int:
        """The errno for which a log dir is offline; 0 while it is in use."""
        return load_i32(&self.log_dir(log_dir).failed)

    def fail_log_dir(self, str log_dir) -> None:
        """Take a log dir offline."""
        log_dir_trust(self.log_dir(log_dir), -EIO)

    def read_errors(self, str log_dir) -> int:
        """How many reads of a log dir failed."""
        return load_i64(&self.log_dir(log_dir).unread)

    def unread(self, str log_dir) -> list:
        """(partition, errno) of each whose reads began to fail since the last call."""
        cdef Partition p
        cdef log_dir_t* where = self.log_dir(log_dir)
        cdef list found = []
        for p in self.partitions():
            if p.state.log.log_dir == where and load_i32(&p.state.log.unread) and not p.state.log.unread_told:
                p.state.log.unread_told = 1
                found.append((p, load_i32(&p.state.log.unread)))
        return found

    def lost_file(self, str log_dir):
        """A partition of a log dir whose active file was removed beneath it, which takes the log dir offline; or
        None."""
        cdef Partition p
        cdef log_dir_t* where = self.log_dir(log_dir)
        cdef list held = self.partitions()
        cdef log_t** logs = <log_t**>malloc(sizeof(log_t*) * (len(held) + 1))
        cdef int64_t n = 0, found
        if logs == NULL:
            raise MemoryError()
        for p in held:
            if p.state.log.log_dir == where:
                held[n] = p
                logs[n] = p.state.log
                n += 1
        with nogil:
            found = logs_lost(logs, n)
        free(logs)
        return held[found] if found >= 0 else None

    def take_suspects(self) -> list:
        """Where reads met what is no batch since the last call: (partition, base offset of the segment)."""
        cdef Partition p
        cdef int64_t base
        found = []
        if load_i32(&self.context.suspects):
            store_i32(&self.context.suspects, 0)
            for p in self.partitions():
                base = load_i64(&p.state.log.suspect) - 1
                if base >= 0:
                    store_i64(&p.state.log.suspect, 0)
                    found.append((p, base))
        return found

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

    def arm(self, str point, str action, int64_t value=0, *, int64_t after=0, int32_t times=1, str under="") -> None:
        """Make a failpoint of FAILPOINTS fire: errno, short, kill or sleep; see the wall."""
        if point not in FAILPOINTS or action not in ACTIONS:
            raise ValueError(f"no failpoint {point!r} with action {action!r}: points are {', '.join(FAILPOINTS[1:])}")
        vfs_arm(self.context.fs, FAILPOINTS.index(point), ACTIONS[action], value, after, times, under.encode())

    @property
    def sleeping(self) -> int:
        return load_i32(&self.context.fs.dozing)

    def stop_cleaning(self) -> None:
        """Rounds of compaction end where they are, and no new one begins."""
        store_i32(&self.context.no_cleaning, 1)

    def disarm(self) -> None:
        """No failpoint fires any more, and who sleeps in one wakes."""
        vfs_disarm(self.context.fs)

    def sync_times(self) -> dict:
        """How long each flush of a file took."""
        return histogram_dict(&self.context.fs.syncs)

    def open(self, str log_dir, str topic, int partition, *, bytes topic_id, config, int64_t recovery_point=0,
             int64_t log_start_offset=0, int64_t high_watermark=-1, bint clean=False, int32_t epoch_max=-1,
             bint compacted=False,
             int64_t written=0, bint given_up=False) -> Partition:
        """Open or create log_dir/topic-partition; recovers what lies past the recovery point unless clean."""
        cdef Partition p = Partition()
        cdef recovery_t r
        cdef log_t* log
        directory = os.path.join(log_dir, f"{topic}-{partition}")
        with self.lock:
            if (topic, partition) in self.table:
                raise LogError(KAFKA_STORAGE_ERROR, f"{topic}-{partition} is open already")
            self.table[topic, partition] = None  # taken, until it is open or failed
        try:
            p.topic = topic
            p.partition = partition
            p.directory = directory
            p.topic_id = self._claim(directory, topic_id)
            log = new_log(self.context, self.log_dir(os.path.dirname(directory)), os.fsencode(directory))
            p.state = self._new_state(topic, partition, p.topic_id, log)
            p.owner = self
            p.recovery = ""
            read_settings(p.state.log, config)
            r.recovery_point = recovery_point
            r.log_start = log_start_offset
            r.high_watermark = high_watermark
            r.written = written
            r.given_up = given_up
            r.epoch_max = epoch_max
            r.clean = clean
            r.gaps = compacted or peek_i64(&p.state.log.settings.cleanup_policy) & CLEANUP_COMPACT
            self._recover(p, &r)
            if budget_is_scarce(&self.context.fs.budget):
                with nogil:
                    log_close_idle(p.state.log, IDLE_NOW)  # the first who needs it opens it again
            idle_add(p.state.log)
            self.table[topic, partition] = p
        except BaseException:
            del self.table[topic, partition]
            raise
        return p

    cdef partition_t* _new_state(self, str topic, int partition, bytes topic_id, log_t* log) except NULL:
        """The partition's state, which takes over the hold on the log."""
        cdef bytes name = topic.encode()
        cdef partition_t* state
        if len(name) > TOPIC_BYTES_MAX or len(topic_id) != 16:
            log_drop(log)
            raise ValueError(f"a topic name has at most {TOPIC_BYTES_MAX} bytes and a topic id 16")
        state = partition_new(log)
        if state == NULL:
            log_drop(log)
            raise MemoryError()
        strcpy(state.topic, name)
        state.topic_length = len(name)
        memcpy(state.topic_id, <const char*>topic_id, 16)
        state.index = partition
        return state

    cdef _claim(self, str directory, bytes topic_id):
        """Make the directory and its metadata, or check that an existing one belongs to this topic id.

        Neither is made durable here: who opens the partition after a power cut makes them again."""
        cdef bytes name = os.fsencode(directory)
        cdef const char* c_name = name
        cdef const char* c_path
        cdef const char* c_text
        cdef size_t n
        cdef int status = 0
        if not os.path.isdir(directory):
            with nogil:
                status = vfs_mkdir(self.context.fs, P_PARTITION_CREATE, c_name)
            raise_status(status, directory)
        known = read_metadata(directory)
        if known and topic_id != bytes(16) and known != topic_id:
            raise LogError(
                INCONSISTENT_TOPIC_ID, f"{directory} belongs to topic id {known.hex()}, not to {topic_id.hex()}")
        if not known:
            encoded = base64.urlsafe_b64encode(topic_id).rstrip(b"=")
            text = b"version: 0\ntopic_id: " + encoded
            path = os.fsencode(os.path.join(directory, "partition.metadata"))
            c_path = path
            c_text = text
            n = len(text)
            with nogil:
                status = vfs_replace(self.context.fs, P_METADATA_WRITE, c_path, c_text, n, False)
            raise_status(status, directory)
        return known or topic_id

    cdef _finish_swap(self, Partition p, int64_t base, list bases):
        """Do what a crash left of the replacement of segments by a cleaned one."""
        cdef int64_t[::1] listed = array.array("q", [*bases, base])
        cdef int64_t n = len(bases)
        cdef int status
        with nogil:
            status = replace_finish(p.state.log, base, &listed[0], n)
        p.check(status, "open")

    cdef _recover(self, Partition p, recovery_t* r):
        cdef log_t* l = p.state.log
        cdef int64_t* c_bases
        cdef int64_t n
        cdef int status
        cdef bytes epochs = os.fsencode(os.path.join(p.directory, "leader-epoch-checkpoint"))
        cdef const char* c_epochs = epochs
        bases, swaps = list_segments(p.directory)
        for base in swaps:
            self._finish_swap(p, base, bases)
            bases = list_segments(p.directory)[0]
        n = len(bases)
        r.scanned_bytes = r.cut_bytes = 0
        r.rebuilt = r.fault = r.aside = 0
        c_bases = <int64_t*>malloc(sizeof(int64_t) * (n + 1))
        if c_bases == NULL:
            raise MemoryError()
        for i in range(n):
            c_bases[i] = bases[i]
        with nogil:
            status = epochs_load(&l.epochs, self.context.fs, c_epochs)  # a bad file is rebuilt from the batches scanned
            status = log_recover(l, c_bases, n, r)
        free(c_bases)
        if r.fault:
            refuse(p, r)
        p.check(status, "open")
        if l.epochs.count:
            p.state.leader_epoch = l.epochs.items[l.epochs.count - 1].epoch
        p.recovery = recovered(r, p.log_end_offset)
        log_wake_flusher(l)

    def delete(self, Partition partition not None) -> None:
        """Unpublish, rename the directory to -delete, remove it in the background. OSError; the partition is gone then
        too.

        Its name is free again once this returns. LogError(3) if it was deleted before."""
        cdef Partition p = partition
        cdef log_t* l = p.state.log
        cdef const char* c_path
        cdef const char* c_to
        cdef int64_t delay = peek_i64(&l.settings.file_delete_delay_ms)
        cdef int status
        key = (p.topic, p.partition)
        with self.lock:
            if self.table.get(key) is not p:
                raise LogError(UNKNOWN_TOPIC_OR_PARTITION, f"{p.topic}-{p.partition} was deleted already")
            self.table[key] = None  # taken, until the directory has another name
        suffix = f"-{p.partition}.{uuid.uuid4().hex}-delete"
        to = os.fsencode(os.path.join(os.path.dirname(p.directory), p.topic[: 255 - len(suffix)] + suffix))
        path = os.fsencode(p.directory)
        c_path = path
        c_to = to
        with nogil:
            log_lock_files(l)
            pthread_mutex_lock(&l.append_mutex)
            store_i32(&l.deleted, 1)  # no append comes any more, so that none waits for the disk
            pthread_mutex_unlock(&l.append_mutex)
            status = log_trust(l, vfs_rename(self.context.fs, P_PARTITION_RENAME, c_path, c_to))
            pthread_mutex_unlock(&l.flush_mutex)
            partition_tell(p.state)
            if status == 0:
                backlog_discard(&l.log_dir.backlog, c_to, True, delay)
        del self.table[key]
        raise_status(status, p.directory)
