"""Python's handles: `Partition`, and what its calls give. Every call lets go of the GIL while it touches files or
locks."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EMFILE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free

from pybroker.core.base.atomic cimport load_i32, load_i64, load_ptr, peek_i64
from pybroker.core.base.budget cimport budget_wait
from pybroker.core.base.counters cimport traffic_dict
from pybroker.core.base.error_codes cimport (
    CORRUPT_MESSAGE, FENCED_LEADER_EPOCH, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, KAFKA_STORAGE_ERROR,
    OFFSET_OUT_OF_RANGE, OUT_OF_ORDER_SEQUENCE_NUMBER, RECORD_LIST_TOO_LARGE, UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from pybroker.core.base.reclamation cimport pin, pthread_mutex_lock, pthread_mutex_unlock, unpin
from pybroker.core.base.status cimport raise_status
from pybroker.core.batch.batch cimport batch_check, batch_fault, batch_t
from pybroker.core.batch.validate cimport batch_validate
from pybroker.core.partition.append cimport (
    FROM_CLIENT, INTERNAL, appended_t, partition_append, partition_append_replica,
)
from pybroker.core.partition.partition cimport (
    BOUND_HIGH_WATERMARK, BOUND_LOG_END, LARGEST, partition_drop, partition_find, partition_lead, partition_read,
    read_t,
)
from pybroker.core.settings cimport read_settings
from pybroker.core.slices cimport Slice
from pybroker.core.storage.flusher cimport log_flush, log_write_epochs
from pybroker.core.storage.leader_epochs cimport epoch_t, epochs_at, epochs_copy, epochs_end
from pybroker.core.storage.log cimport (
    log_active, log_durable, log_hold, log_lock_files, log_offline, log_t, log_view, segments_t, view_t,
)
from pybroker.core.storage.offsets_for_times cimport segment_learn
from pybroker.core.storage.producer_state cimport (
    DUPLICATE, producer_t, sequence_copy, sequence_expire, sequence_free, sequence_t,
)
from pybroker.core.storage.retention cimport log_retain, log_set_start
from pybroker.core.storage.roll cimport log_roll
from pybroker.core.storage.segment cimport segment_t
from pybroker.core.storage.segment_search cimport NOT_FOUND
from pybroker.core.storage.slow_disk cimport slow_is
from pybroker.core.storage.truncation cimport log_truncate

import os

from pybroker.core.base.status import LogError


class Read:
    """What a read found: a slice that begins with the batch holding the offset and ends at a batch boundary."""

    __slots__ = ("high_watermark", "last_stable_offset", "log_end_offset", "log_start_offset", "slice")


class Appended:
    """Where an append went."""

    __slots__ = ("base_offset", "duplicate", "last_offset", "log_append_time_ms", "log_start_offset")


@cython.no_gc_clear
cdef class Partition:
    """A handle to one partition's log and watermarks. Every call releases the GIL while it touches files."""

    def __dealloc__(self):
        if self.state != NULL:
            partition_drop(self.state)

    cdef str name(self):
        return f"{self.topic}-{self.partition}"

    cdef int check(self, int status, str doing) except -1:
        """Raise what a status means, with this partition's name in the sentence."""
        if status == 0:
            return 0
        if status == KAFKA_STORAGE_ERROR:
            raise LogError(status, f"{doing} {self.name()}: the log is offline after a failed write")
        if status == UNKNOWN_TOPIC_OR_PARTITION:
            raise LogError(status, f"{doing} {self.name()}: the partition was deleted")
        if status < 0:
            raise OSError(-status, os.strerror(-status), f"{doing} {self.directory}")
        raise LogError(status, f"{doing} {self.name()}: error {status}")

    cdef bint waited(self) noexcept nogil:
        """Wait for a descriptor, where an attempt found none; False if there is none in time."""
        return budget_wait(&self.state.log.context.fs.budget)

    cdef view_t view(self) noexcept:
        cdef view_t v
        log_view(self.state.log, &v)
        return v

    @property
    def leader_epoch(self) -> int:
        return load_i32(&self.state.leader_epoch)

    @property
    def log_start_offset(self) -> int:
        return self.view().log_start

    @property
    def high_watermark(self) -> int:
        return self.view().high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.view().last_stable

    @property
    def log_end_offset(self) -> int:
        return self.view().log_end

    @property
    def recovery_point(self) -> int:
        return load_i64(&self.state.log.recovery_point)

    @property
    def durable_offset(self) -> int:
        return log_durable(self.state.log)

    @property
    def offline(self) -> bool:
        return log_offline(self.state.log)

    @property
    def slow_reads(self) -> bool:
        return slow_is(&self.state.log.slow_reads)

    @property
    def highest_producer_id(self) -> int:
        return self.state.log.producers.highest_id

    @property
    def size(self) -> int:
        return sum(bytes_ for _, bytes_, _ in self.segments())

    @property
    def traffic(self) -> dict:
        return traffic_dict(&self.state.log.traffic)

    @property
    def segment_count(self) -> int:
        cdef int slot = pin(&self.state.log.context.reclaim)
        cdef int64_t count = load_i64(&(<segments_t*>load_ptr(<void**>&self.state.log.segments)).count)
        unpin(&self.state.log.context.reclaim, slot)
        return count

    def append(self, records, *, int64_t now_ms, int32_t leader_epoch=-1, bint internal=False) -> Appended:
        """Check, stamp and append exactly one batch; LogError says why it was refused."""
        cdef Py_buffer buffer
        cdef appended_t done
        cdef int status
        PyObject_GetBuffer(records, &buffer, PyBUF_SIMPLE)
        try:
            with nogil:
                status = -EMFILE
                while status == -EMFILE:
                    status = partition_append(
                        self.state, <const uint8_t*>buffer.buf, buffer.len, leader_epoch,
                        INTERNAL if internal else FROM_CLIENT, now_ms, &done)
                    if status == -EMFILE and not self.waited():
                        break
            if status != 0 and status != DUPLICATE:
                self.refuse(status, <const uint8_t*>buffer.buf, buffer.len, leader_epoch, internal)
        finally:
            PyBuffer_Release(&buffer)
        out = Appended()
        out.base_offset = done.base_offset
        out.last_offset = done.last_offset
        out.log_append_time_ms = done.log_append_time_ms
        out.log_start_offset = done.log_start
        out.duplicate = done.duplicate
        return out

    cdef int refuse(self, int status, const uint8_t* data, size_t n, int32_t leader_epoch, bint internal) except -1:
        """Say what an append was refused for, with its numbers."""
        cdef batch_t b
        cdef log_t* l = self.state.log
        if status == INVALID_PRODUCER_EPOCH or status == OUT_OF_ORDER_SEQUENCE_NUMBER:
            batch_check(data, n, 0, False, &b)
            raise LogError(
                status, f"append to {self.name()}: producer {b.producer_id} epoch {b.producer_epoch} sequence "
                f"{b.base_sequence} does not follow what it wrote last")
        if status == FENCED_LEADER_EPOCH or status == UNKNOWN_LEADER_EPOCH:
            raise LogError(status, f"append to {self.name()}: leader epoch {leader_epoch}, ours is {self.leader_epoch}")
        if status == RECORD_LIST_TOO_LARGE:
            raise LogError(
                status, f"append to {self.name()}: {n} bytes, segment.bytes is {peek_i64(&l.settings.segment_bytes)}")
        if status == INVALID_TXN_STATE:
            raise LogError(status, f"append to {self.name()}: a transactional batch outside a transaction")
        if status > 0 and batch_validate(data, n, peek_i64(&l.settings.max_message_bytes), not internal, &b) != 0:
            raise LogError(status, f"append to {self.name()}: {batch_fault(&b)}")
        return self.check(status, "append to")

    def append_replica(self, records, *, int64_t now_ms=0) -> int:
        """Append batches as a leader stamped them; the new log end offset."""
        cdef Py_buffer buffer
        cdef int status
        PyObject_GetBuffer(records, &buffer, PyBUF_SIMPLE)
        try:
            with nogil:
                status = partition_append_replica(self.state, <const uint8_t*>buffer.buf, buffer.len, now_ms)
        finally:
            PyBuffer_Release(&buffer)
        self.check(status, "append to replica")
        return self.log_end_offset

    def read(self, int64_t offset, int64_t max_bytes, *, int isolation_level=0, bint to_log_end=False,
             bint minimum_one=True) -> Read:
        """The batches from `offset` up to max_bytes; see the wall."""
        cdef read_t r
        cdef int bound = BOUND_LOG_END if to_log_end else BOUND_HIGH_WATERMARK + (1 if isolation_level else 0)
        cdef int status
        cdef Slice s
        with nogil:
            status = partition_read(self.state, offset, max_bytes, bound, minimum_one, &r)
            while status == -EMFILE and self.waited():
                status = partition_read(self.state, offset, max_bytes, bound, minimum_one, &r)
        if status == OFFSET_OUT_OF_RANGE:
            raise LogError(
                status, f"offset {offset} of {self.name()} is outside {r.view.log_start} .. {r.view.log_end}")
        self.check(CORRUPT_MESSAGE if status == NOT_FOUND else status, "read")
        out = Read()
        out.slice = None
        if r.found.files != NULL:
            s = Slice()
            s.found = r.found
            s.log = self.state.log
            s.owner = self.owner
            log_hold(s.log)
            s.generation = r.generation
            out.slice = s
        out.high_watermark = r.view.high_watermark
        out.last_stable_offset = r.view.last_stable
        out.log_start_offset = r.view.log_start
        out.log_end_offset = r.view.log_end
        return out

    def offset_for_timestamp(self, int64_t timestamp_ms, *, int64_t bound):
        """(base offset, max timestamp, leader epoch) of the first batch that reaches timestamp_ms, or None."""
        cdef batch_t b
        cdef int status
        with nogil:
            status = partition_find(self.state, timestamp_ms, bound, &b)
            while status == -EMFILE and self.waited():
                status = partition_find(self.state, timestamp_ms, bound, &b)
        if status == NOT_FOUND:
            return None
        self.check(status, "look up a time in")
        return b.base_offset, b.max_timestamp, b.leader_epoch

    def max_timestamp(self):
        """(base offset, max timestamp, leader epoch) of the batch with the largest timestamp; None if there is none."""
        cdef batch_t b
        cdef int status
        with nogil:
            status = partition_find(self.state, LARGEST, -1, &b)
            while status == -EMFILE and self.waited():
                status = partition_find(self.state, LARGEST, -1, &b)
        if status == NOT_FOUND:
            return None
        self.check(status, "look up the largest time in")
        return b.base_offset, b.max_timestamp, b.leader_epoch

    def end_offset_for_epoch(self, int32_t epoch):
        """(epoch, end offset): the largest known epoch <= epoch and where it ends; (-1, -1) if unknown (KIP-101)."""
        cdef int64_t end = -1
        cdef int32_t found = epochs_end(&self.state.log.epochs, epoch, self.view().log_end, &end)
        return found, end

    def epoch_at(self, int64_t offset) -> int:
        """The leader epoch that wrote `offset`; -1 if unknown."""
        return epochs_at(&self.state.log.epochs, offset)

    def become_leader(self, int32_t leader_epoch, int32_t partition_epoch) -> None:
        """Lead under this epoch from the log's end on; LogError(74) if ours is newer."""
        cdef int status
        with nogil:
            status = partition_lead(self.state, leader_epoch, partition_epoch)
        if status == FENCED_LEADER_EPOCH:
            raise LogError(
                status, f"{self.name()}: leader epoch {leader_epoch} is older than ours, {self.leader_epoch}")
        self.check(status, "lead")

    def set_log_start(self, int64_t offset) -> int:
        """DeleteRecords: raise the log start (-1: to the high watermark); the new low watermark."""
        cdef int status
        with nogil:
            status = log_set_start(self.state.log, offset)
        if status == OFFSET_OUT_OF_RANGE:
            raise LogError(status, f"cannot delete records of {self.name()} before {offset}: the high watermark is "
                           f"{self.high_watermark}")
        self.check(status, "delete records of")
        return self.log_start_offset

    def truncate(self, int64_t offset) -> None:
        """Cut the log's end back to `offset`."""
        cdef int status
        with nogil:
            status = log_truncate(self.state.log, offset)
        self.check(status, "truncate")

    def configure(self, config) -> None:
        """Take new topic configs; the next append goes by them."""
        read_settings(self.state.log, config)

    def enforce_retention(self, int64_t now_ms) -> int:
        """Delete whole segments by log start, retention.ms and retention.bytes; how many."""
        cdef int64_t deleted = 0
        cdef int status
        with nogil:
            status = log_retain(self.state.log, now_ms, &deleted)
        self.check(status, "enforce retention of")
        return deleted

    def expire_producers(self, int64_t now_ms) -> int:
        """Forget producers silent for producer.id.expiration.ms; how many."""
        cdef log_t* l = self.state.log
        cdef int gone
        with nogil:
            pthread_mutex_lock(&l.append_mutex)
            gone = sequence_expire(&l.producers, now_ms - peek_i64(&l.settings.producer_id_expiration_ms))
            pthread_mutex_unlock(&l.append_mutex)
        return gone

    def producers(self) -> list:
        """(producer_id, epoch, last_sequence, last_timestamp_ms, current_txn_first_offset) of each active producer."""
        cdef log_t* l = self.state.log
        cdef sequence_t copy
        cdef producer_t* p
        cdef int32_t i
        cdef int status
        with nogil:
            status = sequence_copy(&l.producers, &l.append_mutex, &copy)
        raise_status(status, self.directory)
        out = []
        for i in range(copy.capacity):
            p = &copy.table[i]
            if p.id >= 0:
                last = p.window[p.newest].last_sequence if p.count else -1
                out.append((p.id, p.epoch, last, p.last_timestamp, p.txn_first_offset))
        sequence_free(&copy)
        return out

    def epochs(self) -> list:
        """(epoch, start offset) of each leader epoch that the log holds."""
        cdef epoch_t* items = NULL
        cdef int32_t i, count = 0
        if epochs_copy(&self.state.log.epochs, &items, &count) != 0:
            raise MemoryError()
        out = [(items[i].epoch, items[i].start) for i in range(count)]
        free(items)
        return out

    def segments(self) -> list:
        """(base offset, bytes, largest timestamp) of each segment, oldest first."""
        cdef log_t* l = self.state.log
        cdef segments_t* list_
        cdef segment_t* s
        cdef int64_t i
        cdef int slot
        with nogil:
            slot = pin(&l.context.reclaim)
            list_ = <segments_t*>load_ptr(<void**>&l.segments)
            for i in range(load_i64(&list_.count)):
                segment_learn(list_.items[i].segment)
        out = []
        for i in range(load_i64(&list_.count)):
            s = list_.items[i].segment
            out.append((s.base_offset, load_i64(&s.size), load_i64(&s.largest_timestamp)))
        unpin(&l.context.reclaim, slot)
        return out

    def roll(self) -> None:
        """Begin a new segment, unless the active one is empty."""
        cdef log_t* l = self.state.log
        cdef int status = 0
        with nogil:
            pthread_mutex_lock(&l.append_mutex)
            if load_i32(&l.deleted):
                status = UNKNOWN_TOPIC_OR_PARTITION
            elif log_active(l).size > 0:
                status = log_roll(l)
            pthread_mutex_unlock(&l.append_mutex)
        self.check(status, "roll")

    def flush(self) -> int:
        """Make the log durable; the new recovery point."""
        cdef int status
        with nogil:
            status = log_flush(self.state.log)
        self.check(status, "flush")
        return self.recovery_point

    def write_checkpoints(self) -> None:
        """Make leader-epoch-checkpoint durable if it changed."""
        cdef log_t* l = self.state.log
        cdef int status
        with nogil:
            log_lock_files(l)
            status = log_write_epochs(l)
            pthread_mutex_unlock(&l.flush_mutex)
        self.check(status, "checkpoint the leader epochs of")
