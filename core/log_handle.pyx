"""Python's handle to a log: its watermarks, its files, and what removes records. Every call releases the GIL while it
touches files or locks."""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free

from pybroker.core.base.atomic cimport load_i32, load_i64, load_ptr, peek_i64
from pybroker.core.base.budget cimport budget_wait
from pybroker.core.base.counters cimport traffic_dict
from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.reclamation cimport pin, unpin
from pybroker.core.base.status cimport raise_status
from pybroker.core.settings cimport read_settings
from pybroker.core.storage.background.flusher cimport log_flush, log_write_epochs
from pybroker.core.storage.log.leader_epochs cimport epoch_t, epochs_at, epochs_copy, epochs_end
from pybroker.core.storage.log.log cimport (
    log_active, log_drop, log_durable, log_lock_files, log_offline, log_t, log_view, segments_t, view_t,
)
from pybroker.core.storage.log.offsets_for_times cimport segment_learn
from pybroker.core.storage.log.roll cimport log_roll
from pybroker.core.storage.log.slow_disk cimport slow_is
from pybroker.core.storage.producers.producer_state cimport (
    producer_t, sequence_copy, sequence_expire, sequence_free, sequence_t,
)
from pybroker.core.storage.removal.retention cimport log_retain, log_set_start
from pybroker.core.storage.removal.truncation cimport log_truncate
from pybroker.core.storage.segment.segment cimport segment_t

import os
from collections import namedtuple

from pybroker.core.base.status import LogError

Producer = namedtuple(
    "Producer", "producer_id epoch last_sequence last_timestamp_ms transaction_start_offset coordinator_epoch")


@cython.no_gc_clear
cdef class Log:
    """A handle to one log; `Partition` adds appends and reads."""

    def __dealloc__(self):
        if self.log != NULL:
            log_drop(self.log)

    cdef int check(self, int status, str doing) except -1:
        """Raise the error of a status, with this partition's name."""
        if status == 0:
            return 0
        if status == KAFKA_STORAGE_ERROR:
            raise LogError(status, f"{doing} {self.name}: the log is offline after a failed write")
        if status == UNKNOWN_TOPIC_OR_PARTITION:
            raise LogError(status, f"{doing} {self.name}: the partition was deleted")
        if status < 0:
            raise OSError(-status, os.strerror(-status), f"{doing} {self.directory}")
        raise LogError(status, f"{doing} {self.name}: error {status}")

    cdef bint waited(self) noexcept nogil:
        """Wait for a descriptor after an attempt found none; False on timeout."""
        return budget_wait(&self.log.context.fs.budget)

    cdef view_t view(self) noexcept:
        cdef view_t v
        log_view(self.log, &v)
        return v

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
        return load_i64(&self.log.recovery_point)

    @property
    def durable_offset(self) -> int:
        return log_durable(self.log)

    @property
    def offline(self) -> bool:
        return log_offline(self.log)

    @property
    def slow_reads(self) -> bool:
        return slow_is(&self.log.slow_reads)

    @property
    def slow_appends(self) -> bool:
        return slow_is(&self.log.slow_appends)

    @property
    def highest_producer_id(self) -> int:
        return self.log.producers.highest_id

    @property
    def size(self) -> int:
        cdef int64_t i, bytes_ = 0
        cdef int slot = pin(&self.log.context.reclaim)
        cdef segments_t* list_ = <segments_t*>load_ptr(<void**>&self.log.segments)
        for i in range(load_i64(&list_.count)):
            bytes_ += load_i64(&list_.items[i].segment.size)
        unpin(&self.log.context.reclaim, slot)
        return bytes_

    @property
    def traffic(self) -> dict:
        return traffic_dict(&self.log.traffic)

    @property
    def segment_count(self) -> int:
        cdef int slot = pin(&self.log.context.reclaim)
        cdef int64_t count = load_i64(&(<segments_t*>load_ptr(<void**>&self.log.segments)).count)
        unpin(&self.log.context.reclaim, slot)
        return count

    def end_offset_for_epoch(self, int32_t epoch):
        """(epoch, end offset): the largest known epoch <= epoch and where it ends; (-1, -1) if unknown (KIP-101)."""
        cdef int64_t end = -1
        cdef int32_t found = epochs_end(&self.log.epochs, epoch, self.view().log_end, &end)
        return found, end

    def epoch_at(self, int64_t offset) -> int:
        """The leader epoch that wrote `offset`; -1 if unknown."""
        return epochs_at(&self.log.epochs, offset)

    def epochs(self) -> list:
        """(epoch, start offset) of each leader epoch that the log holds."""
        cdef epoch_t* items = NULL
        cdef int32_t i, count = 0
        if epochs_copy(&self.log.epochs, &items, &count) != 0:
            raise MemoryError()
        out = [(items[i].epoch, items[i].start) for i in range(count)]
        free(items)
        return out

    def producers(self) -> list:
        """The active producers, in no order; see log_handle.pyi."""
        cdef log_t* l = self.log
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
                out.append(Producer(p.id, p.epoch, last, p.last_timestamp, p.txn_first_offset, p.coordinator_epoch))
        sequence_free(&copy)
        return out

    def expire_producers(self, int64_t now_ms) -> int:
        """Remove producers idle for producer.id.expiration.ms; their number."""
        cdef log_t* l = self.log
        cdef int gone
        with nogil:
            pthread_mutex_lock(&l.append_mutex)
            gone = sequence_expire(&l.producers, now_ms - peek_i64(&l.settings.producer_id_expiration_ms))
            pthread_mutex_unlock(&l.append_mutex)
        return gone

    def segments(self) -> list:
        """(base offset, bytes, largest timestamp) of each segment, oldest first."""
        cdef log_t* l = self.log
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

    def set_log_start(self, int64_t offset) -> int:
        """Raise the log start offset for DeleteRecords (-1: to the high watermark); the new low watermark."""
        cdef int status
        with nogil:
            status = log_set_start(self.log, offset)
        if status == OFFSET_OUT_OF_RANGE:
            raise LogError(status, f"cannot delete records of {self.name} before {offset}: the high watermark is "
                           f"{self.high_watermark}")
        self.check(status, "delete records of")
        return self.log_start_offset

    def truncate(self, int64_t offset) -> None:
        """Truncate the log to `offset`."""
        cdef int status
        with nogil:
            status = log_truncate(self.log, offset, NULL, NULL)
        self.check(status, "truncate")

    def configure(self, config) -> None:
        """Set new topic configs; the next append follows them."""
        read_settings(self.log, config)

    def enforce_retention(self, int64_t now_ms) -> int:
        """Roll by age, and delete whole segments by retention.ms, retention.bytes and log start offset; the number
        deleted."""
        cdef int64_t deleted = 0
        cdef int status
        with nogil:
            status = log_retain(self.log, now_ms, &deleted)
        self.check(status, "enforce retention of")
        return deleted

    def roll(self) -> None:
        """Start a new segment, unless the active one is empty."""
        cdef log_t* l = self.log
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
        """Make the log durable; return the new recovery point."""
        cdef int status
        with nogil:
            status = log_flush(self.log)
        self.check(status, "flush")
        return self.recovery_point

    def write_checkpoints(self) -> None:
        """Make leader-epoch-checkpoint durable if it changed."""
        cdef log_t* l = self.log
        cdef int status
        with nogil:
            log_lock_files(l)
            status = log_write_epochs(l)
            pthread_mutex_unlock(&l.flush_mutex)
        self.check(status, "checkpoint the leader epochs of")
