"""Python's handle to a partition: appends, reads, look-ups and roles. Every call releases the GIL while it touches
files or locks."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EMFILE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from pybroker.core.base.atomic cimport load_i32, load_i64, peek_i64, poke_i64, store_i32
from pybroker.core.base.error_codes cimport (
    CORRUPT_MESSAGE, FENCED_LEADER_EPOCH, INVALID_PRODUCER_EPOCH, INVALID_REQUEST, INVALID_TXN_STATE,
    INVALID_UPDATE_VERSION, KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE,
    OUT_OF_ORDER_SEQUENCE_NUMBER, RECORD_LIST_TOO_LARGE, TRANSACTION_COORDINATOR_FENCED, UNKNOWN_LEADER_EPOCH,
)
from pybroker.core.batch.batch cimport TRANSACTIONAL, batch_check, batch_fault, batch_t
from pybroker.core.batch.validate cimport batch_validate
from pybroker.core.log_handle cimport Log
from pybroker.core.partition.append cimport (
    FROM_CLIENT, INTERNAL, appended_t, partition_append, partition_append_marker, partition_verify,
)
from pybroker.core.partition.append_replica cimport NOT_ASKED, partition_append_replica, replicated_t
from pybroker.core.partition.committed_read cimport partition_read_committed
from pybroker.core.partition.partition cimport (
    BOUND_HIGH_WATERMARK, BOUND_LOG_END, LARGEST, LEADER, follower_t, partition_drop, partition_find, partition_read,
    partition_role, partition_tell_all, read_t, role_t,
)
from pybroker.core.partition.roles cimport (
    partition_follow, partition_lead, partition_offline, partition_set_isr, partition_truncate,
)
from pybroker.core.partition.watermark cimport (
    is_under_min_isr, watermark_followers, watermark_is_certain, watermark_note_fetch, watermark_proven_ms,
)
from pybroker.core.slices cimport Slice
from pybroker.core.storage.log.log cimport log_hold, log_offline, log_t
from pybroker.core.storage.producers.producer_state cimport DUPLICATE
from pybroker.core.storage.segment.segment_search cimport NOT_FOUND
from pybroker.core.storage.segment.transaction_index cimport abort_list_t

import array
from collections import namedtuple

from pybroker.core.base.status import LogError

KINDS = ("offline", "follower", "leader")
Role = namedtuple("Role", "kind leader leader_epoch partition_epoch")
Follower = namedtuple("Follower", "broker in_isr broker_epoch log_end_offset caught_up_ms log_start_offset")


class Read:
    """The result of a read: a slice that begins with the batch that holds the offset and ends at a batch boundary."""

    __slots__ = (
        "aborted_transactions", "high_watermark", "last_stable_offset", "log_end_offset", "log_start_offset", "slice")


class Appended:
    """The result of an append."""

    __slots__ = ("base_offset", "duplicate", "last_offset", "log_append_time_ms", "log_start_offset")


cdef appended(const appended_t* done):
    """The result of an append, for Python."""
    out = Appended()
    out.base_offset = done.base_offset
    out.last_offset = done.last_offset
    out.log_append_time_ms = done.log_append_time_ms
    out.log_start_offset = done.log_start
    out.duplicate = done.duplicate
    return out


@cython.no_gc_clear
cdef class Partition(Log):
    """A handle to one partition: its log, and its role."""

    def __dealloc__(self):
        if self.state != NULL:
            partition_drop(self.state)

    @property
    def leader_epoch(self) -> int:
        return load_i64(&self.state.role.leader_epoch)

    @property
    def epoch_start(self) -> int:
        return peek_i64(&self.state.epoch_start)

    @property
    def is_end_certain(self) -> bool:
        return watermark_is_certain(self.state)

    @property
    def role(self) -> Role:
        cdef role_t role
        partition_role(self.state, &role)
        return Role(KINDS[role.kind], role.leader, role.leader_epoch, role.partition_epoch)

    def append(self, records, *, int64_t now_ms, int32_t leader_epoch=-1, bint internal=False, int32_t acks=-2,
               int64_t guard=0) -> Appended:
        """Check, stamp and append exactly one batch; LogError has the reason of a refusal."""
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
                        INTERNAL if internal else FROM_CLIENT, acks, guard, now_ms, &done)
                    if status == -EMFILE and not self.waited():
                        break
            if status != 0 and status != DUPLICATE:
                self.refuse(status, <const uint8_t*>buffer.buf, buffer.len, leader_epoch, internal)
        finally:
            PyBuffer_Release(&buffer)
        return appended(&done)

    def append_marker(self, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, bint commit, *,
                      int64_t now_ms) -> Appended:
        """Append the marker that ends a producer's transaction; see partition_handle.pyi."""
        cdef appended_t done
        cdef int status = -EMFILE
        if producer_id < 0 or producer_epoch < 0:
            raise LogError(
                INVALID_REQUEST, f"a marker for {self.name} has the producer {producer_id} and its epoch "
                f"{producer_epoch}: neither may be negative")
        with nogil:
            while status == -EMFILE:
                status = partition_append_marker(
                    self.state, producer_id, producer_epoch, coordinator_epoch, commit, now_ms, &done)
                if status == -EMFILE and not self.waited():
                    break
        if status == INVALID_PRODUCER_EPOCH or status == TRANSACTION_COORDINATOR_FENCED:
            raise LogError(
                status, f"append a marker to {self.name}: producer {producer_id} epoch {producer_epoch}, coordinator "
                f"epoch {coordinator_epoch}: a later epoch is known")
        if status == NOT_ENOUGH_REPLICAS:
            raise LogError(status, f"append a marker to {self.name}: too few replicas are in sync")
        self.settle(status, "append a marker to", -1, -1)
        return appended(&done)

    def verify(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence) -> int:
        """0 if a transaction of the producer is open here, else a guard; see partition_handle.pyi."""
        cdef int64_t guard
        with nogil:
            guard = partition_verify(self.state, producer_id, producer_epoch, base_sequence)
        if guard < 0:
            raise MemoryError()
        return guard

    cdef int refuse(self, int status, const uint8_t* data, size_t n, int32_t leader_epoch, bint internal) except -1:
        """Raise the error of a refused append, with its numbers."""
        cdef batch_t b
        cdef log_t* l = self.log
        if status == INVALID_PRODUCER_EPOCH or status == OUT_OF_ORDER_SEQUENCE_NUMBER:
            batch_check(data, n, 0, False, &b)
            raise LogError(
                status, f"append to {self.name}: producer {b.producer_id} epoch {b.producer_epoch} sequence "
                f"{b.base_sequence} does not follow what it wrote last")
        if status == RECORD_LIST_TOO_LARGE:
            raise LogError(
                status, f"append to {self.name}: {n} bytes, segment.bytes is {peek_i64(&l.settings.segment_bytes)}")
        if status == NOT_ENOUGH_REPLICAS:
            raise LogError(
                status, f"append to {self.name}: too few replicas are in sync, or were when a batch before this one "
                "was refused")
        if status == NOT_LEADER_OR_FOLLOWER and self.role.kind == KINDS[LEADER]:
            raise LogError(
                status, f"append to {self.name}: the broker's lease has lapsed, or had when a batch before this one "
                "was refused: another broker may lead")
        if status == INVALID_TXN_STATE:
            batch_check(data, n, 0, False, &b)
            kind = "a transactional batch" if b.attributes & TRANSACTIONAL else "a batch outside of transactions"
            raise LogError(
                status, f"append to {self.name}: {kind} of producer {b.producer_id} epoch {b.producer_epoch}, whose "
                "transaction here is " + ("not open" if b.attributes & TRANSACTIONAL else "open"))
        if status == FENCED_LEADER_EPOCH or status == UNKNOWN_LEADER_EPOCH or status == NOT_LEADER_OR_FOLLOWER:
            return self.settle(status, "append to", leader_epoch, -1)
        if status > 0 and batch_validate(data, n, peek_i64(&l.settings.max_message_bytes), not internal, &b) != 0:
            raise LogError(status, f"append to {self.name}: {batch_fault(&b)}")
        return self.check(status, "append to")

    cdef int settle(self, int status, str doing, int32_t leader_epoch, int32_t partition_epoch) except -1:
        """Raise the error of a status that may be about another role or epoch."""
        if status == FENCED_LEADER_EPOCH or status == UNKNOWN_LEADER_EPOCH:
            raise LogError(status, f"{doing} {self.name}: leader epoch {leader_epoch}, ours is {self.leader_epoch}")
        if status == INVALID_UPDATE_VERSION:
            raise LogError(
                status, f"{doing} {self.name}: partition epoch {partition_epoch}, ours is {self.role.partition_epoch}")
        if status == NOT_LEADER_OR_FOLLOWER:
            raise LogError(status, f"{doing} {self.name}: this replica is {self.role.kind}")
        return self.check(status, doing)

    def append_replica(self, records, *, int32_t leader_epoch=-1, int64_t high_watermark=0x7FFFFFFFFFFFFFFF,
                       int64_t now_ms=0, int64_t log_end=-1) -> int:
        """Append batches as a leader stamped them; the new log end offset."""
        cdef Py_buffer buffer
        cdef replicated_t sent
        cdef int status
        PyObject_GetBuffer(records, &buffer, PyBUF_SIMPLE)
        sent.data = <const uint8_t*>buffer.buf
        sent.n = buffer.len
        sent.leader_epoch = leader_epoch
        sent.offset = log_end
        sent.high_watermark = high_watermark
        sent.gone = NULL
        try:
            with nogil:
                status = partition_append_replica(self.state, &sent, now_ms)
        finally:
            PyBuffer_Release(&buffer)
        self.settle(0 if status == NOT_ASKED else status, "append to replica", leader_epoch, -1)
        return self.log_end_offset

    def read(self, int64_t offset, int64_t max_bytes, *, int isolation_level=0, bint to_log_end=False,
             bint minimum_one=True) -> Read:
        """The batches from `offset` up to max_bytes; see partition_handle.pyi."""
        cdef read_t r
        cdef abort_list_t aborts
        cdef int bound = BOUND_LOG_END if to_log_end else BOUND_HIGH_WATERMARK
        cdef int64_t i
        cdef int status = -EMFILE
        cdef Slice s
        memset(&aborts, 0, sizeof(aborts))
        with nogil:
            while status == -EMFILE:
                if isolation_level and not to_log_end:
                    status = partition_read_committed(
                        self.state, offset, max_bytes, minimum_one, True, &r, &aborts)
                else:
                    status = partition_read(self.state, offset, max_bytes, bound, minimum_one, &r)
                if status == -EMFILE and not self.waited():
                    break
        aborted = [(aborts.items[i].producer_id, aborts.items[i].first) for i in range(aborts.count)]
        free(aborts.items)
        if status == OFFSET_OUT_OF_RANGE:
            raise LogError(
                status, f"offset {offset} of {self.name} is outside {r.view.log_start} .. {r.view.log_end}")
        if status == KAFKA_STORAGE_ERROR and not log_offline(self.log):
            raise LogError(status, f"read {self.name}: the log is being cut, or a transaction index is built again")
        self.check(CORRUPT_MESSAGE if status == NOT_FOUND else status, "read")
        out = Read()
        out.slice = None
        out.aborted_transactions = aborted
        if r.found.files != NULL:
            s = Slice()
            s.found = r.found
            s.log = self.log
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

    def truncate(self, int64_t offset, *, int32_t leader_epoch=-1) -> None:
        """Truncate the log to `offset`, and wake requests that wait for later offsets; see partition_handle.pyi."""
        cdef int status
        with nogil:
            status = partition_truncate(self.state, offset, leader_epoch)
            partition_tell_all(self.state)
        self.settle(status, "truncate", leader_epoch, -1)

    # -- roles and followers -------------------------------------------------------------------------------------------

    def become_leader(
            self, int32_t leader_epoch, int32_t partition_epoch, *, followers=(), isr=None, adding=(),
            bint wait=True) -> None:
        """Become leader in this epoch, from the log end offset; see partition_handle.pyi."""
        cdef int32_t n = len(followers), i
        cdef follower_t* items = <follower_t*>malloc(sizeof(follower_t) * (n + 1))
        cdef int status
        if items == NULL:
            raise MemoryError()
        try:
            for i in range(n):
                items[i].broker = followers[i]
                items[i].in_isr = isr is None or followers[i] in isr
                items[i].adding = followers[i] in adding
            with nogil:
                status = partition_lead(self.state, leader_epoch, partition_epoch, items, n, wait)
        finally:
            free(items)
        self.settle(status, "lead", leader_epoch, partition_epoch)

    def become_follower(self, int32_t leader, int32_t leader_epoch, int32_t partition_epoch, *, bint wait=True) -> None:
        """Follow this broker from now on; see partition_handle.pyi."""
        cdef int status
        with nogil:
            status = partition_follow(self.state, leader, leader_epoch, partition_epoch, wait)
        self.settle(status, "follow in", leader_epoch, partition_epoch)

    def become_offline(self, int32_t leader_epoch, int32_t partition_epoch, *, int32_t leader=-1) -> None:
        """Neither lead nor follow from now on; see partition_handle.pyi."""
        cdef int status
        with nogil:
            status = partition_offline(self.state, leader, leader_epoch, partition_epoch)
        self.settle(status, "take offline", leader_epoch, partition_epoch)

    def set_isr(self, isr, int32_t leader_epoch, int32_t partition_epoch, *, int32_t in_sync=-1) -> None:
        """Set the maximal ISR; see partition_handle.pyi."""
        cdef int32_t[::1] ids = array.array("i", [*isr, -1])
        cdef int32_t n = <int32_t>len(ids) - 1
        cdef int status
        with nogil:
            status = partition_set_isr(self.state, leader_epoch, partition_epoch, &ids[0], n, in_sync)
        self.settle(status, "set the ISR of", leader_epoch, partition_epoch)

    @property
    def min_isr(self) -> int:
        """min.insync.replicas of its topic."""
        return peek_i64(&self.state.min_isr)

    @min_isr.setter
    def min_isr(self, int64_t replicas) -> None:
        poke_i64(&self.state.min_isr, replicas)

    @property
    def under_min_isr(self) -> bool:
        """True if fewer replicas are in sync than acks=all needs."""
        return is_under_min_isr(self.state)

    def throttle(self, *, bint leader, bint follower) -> None:
        """Set whether its replication is throttled; see partition_handle.pyi."""
        store_i32(&self.state.leader_throttled, leader)
        store_i32(&self.state.follower_throttled, follower)

    @property
    def leader_throttled(self) -> bool:
        return load_i32(&self.state.leader_throttled) != 0

    @property
    def follower_throttled(self) -> bool:
        return load_i32(&self.state.follower_throttled) != 0

    def note_fetch(self, int32_t broker, int64_t offset, *, int32_t leader_epoch=-1, int64_t broker_epoch=-1,
                   int64_t log_start=-1, int32_t session=0, int32_t session_epoch=0, int64_t now_ms) -> None:
        """Record a follower's fetch from `offset`; see partition_handle.pyi."""
        cdef int status
        with nogil:
            status = watermark_note_fetch(
                self.state, broker, broker_epoch, leader_epoch, offset, log_start, session, session_epoch, now_ms)
        if status == OFFSET_OUT_OF_RANGE:
            raise LogError(status, f"broker {broker} fetches {self.name} from {offset}, which is outside the log")
        self.settle(status, f"note a fetch of broker {broker} from", leader_epoch, -1)

    @property
    def proven_ms(self) -> int:
        """A time at which no other broker led in a later epoch, in ms of the monotonic clock; -1 if unknown."""
        return watermark_proven_ms(self.state)

    def tell_all(self) -> None:
        """Wake every watcher."""
        partition_tell_all(self.state)

    @property
    def followers(self) -> list:
        """The other replicas, as the leader knows them."""
        cdef follower_t* items = NULL
        cdef int32_t n = watermark_followers(self.state, &items)
        if n < 0:
            raise MemoryError()
        out = [
            Follower(items[i].broker, bool(items[i].in_isr), items[i].broker_epoch, items[i].log_end,
                     items[i].caught_up_ms, items[i].log_start)
            for i in range(n)
        ]
        free(items)
        return out
