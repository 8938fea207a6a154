"""Access to core's nogil functions for tests, as Python cannot call cursors or the checks of a client's batch."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from posix.unistd cimport usleep

import threading

from pybroker.core.base cimport cursor as c, reclamation as q
from pybroker.core.base.atomic cimport peek_i64, poke_i64
from pybroker.core.batch cimport batch as b, validate as v
from pybroker.core.partition cimport append as a, partition as p
from pybroker.core.partition_handle cimport Partition
from pybroker.core.storage.producers cimport producer_state as s, refused_batches as f

OK, SHORT, BAD = c.OK, c.SHORT, c.BAD


cdef class Reader:
    """A cursor over a copy of data that ends where its allocation ends: AddressSanitizer sees a read past the end."""

    cdef c.cursor_t r
    cdef uint8_t* start

    def __cinit__(self, bytes data):
        self.start = <uint8_t*>malloc(<size_t>len(data))
        memcpy(self.start, <const char*>data, <size_t>len(data))
        c.cursor_init(&self.r, self.start, <size_t>len(data))

    def __dealloc__(self):
        free(self.start)

    @property
    def at(self):
        return self.r.at - self.start

    def read(self, str what):
        """(status, value); the value is None where the out-parameter was not touched."""
        cdef int8_t i8 = 0x55
        cdef int16_t i16 = 0x5555
        cdef int32_t i32 = 0x55555555
        cdef int64_t i64 = 0x5555555555555555
        cdef uint32_t u32 = 0x55555555
        cdef uint64_t u64 = 0x5555555555555555
        if what == "i8":
            return c.read_i8(&self.r, &i8), i8
        if what == "i16":
            return c.read_i16(&self.r, &i16), i16
        if what == "i32":
            return c.read_i32(&self.r, &i32), i32
        if what == "i64":
            return c.read_i64(&self.r, &i64), i64
        if what == "varint":
            return c.read_varint(&self.r, &i32), i32
        if what == "varlong":
            return c.read_varlong(&self.r, &i64), i64
        if what == "uvarint":
            return c.read_uvarint(&self.r, &u32), u32
        assert what == "uvarlong"
        return c.read_uvarlong(&self.r, &u64), u64

    def skip(self, int64_t n):
        return c.skip(&self.r, n)

    def span(self, int64_t n):
        cdef const uint8_t* p = NULL
        cdef int status = c.read_span(&self.r, n, &p)
        return status, None if p == NULL else (<const char*>p)[:n]


def write(str what, object value, size_t room):
    """(status, bytes written) with `room` bytes to write into."""
    cdef c.writer_t w
    cdef uint8_t* start = <uint8_t*>malloc(room)
    cdef int status
    c.writer_init(&w, start, room)
    try:
        if what == "i8":
            status = c.write_i8(&w, value)
        elif what == "i16":
            status = c.write_i16(&w, value)
        elif what == "i32":
            status = c.write_i32(&w, value)
        elif what == "i64":
            status = c.write_i64(&w, value)
        elif what == "varlong":
            status = c.write_varlong(&w, value)
            assert status != OK or w.at - start == c.varlong_size(value)
        elif what == "uvarlong":
            status = c.write_uvarlong(&w, value)
            assert status != OK or w.at - start == c.uvarlong_size(value)
        else:
            assert what == "span"
            status = c.write_span(&w, <const uint8_t*><const char*>value, <size_t>len(value))
        return status, (<char*>start)[:w.at - start]
    finally:
        free(start)


def check(bytes data, *, int64_t size_max=0, bint client=True):
    """(status, sentence) of batch_check, on a copy that ends where its allocation ends."""
    cdef b.batch_t batch
    cdef uint8_t* p = <uint8_t*>malloc(<size_t>len(data))
    cdef int status
    memcpy(p, <const char*>data, <size_t>len(data))
    status = b.batch_check(p, <size_t>len(data), size_max, client, &batch)
    sentence = b.batch_fault(&batch)
    free(p)
    return status, sentence


def stamp(bytes data, int64_t base_offset, int32_t leader_epoch, object now_ms=None):
    """The batch as the log writes it: a stamped header before the records."""
    cdef b.batch_t batch
    cdef uint8_t[b.HEADER_BYTES] header
    assert b.batch_parse(<const uint8_t*><const char*>data, <size_t>len(data), &batch) == OK
    if now_ms is None:
        b.batch_stamp(&batch, base_offset, leader_epoch, header)
    else:
        b.batch_stamp_time(&batch, base_offset, leader_epoch, now_ms, header)
    return (<char*>header)[:b.HEADER_BYTES] + data[b.HEADER_BYTES:]


def last_sequence(bytes data):
    cdef b.batch_t batch
    assert b.batch_parse(<const uint8_t*><const char*>data, <size_t>len(data), &batch) == OK
    return b.batch_last_sequence(&batch)


# -- faults that a sanitizer must find, or its silence proves nothing ------------------------------------------------

def step_too_far():
    """Read the byte after an allocation."""
    cdef uint8_t* p = <uint8_t*>malloc(7)
    try:
        return p[7]
    finally:
        free(p)


cdef int64_t[2] here
cdef int64_t raced = 0


def _race(int me):
    global raced
    with nogil:
        poke_i64(&here[me], 1)   # relaxed: the threads meet, but in no schedule is one access ordered before the other
        while peek_i64(&here[1 - me]) == 0:
            usleep(50)
        raced += 1


def race():
    """Write to one variable from two threads without synchronisation."""
    here[0] = here[1] = 0
    threads = [threading.Thread(target=_race, args=(me,)) for me in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def append_together(Partition partition, list batches, int64_t now_ms):
    """Append batches as one turn of a reactor does; return (status, base offset or -1, duplicate) of each."""
    cdef a.checked_t* ready = <a.checked_t*>calloc(len(batches), sizeof(a.checked_t))
    cdef a.checked_t* first = NULL
    cdef a.checked_t** link = &first
    cdef Py_ssize_t i
    cdef bytes data
    for i in range(len(batches)):
        data = batches[i]
        ready[i].status = a.partition_check(partition.state, <const uint8_t*><const char*>data, len(data), -1,
                                            a.FROM_CLIENT, a.ACKS_UNSAID, &ready[i])
        if ready[i].status == 0:
            link[0] = &ready[i]
            link = &ready[i].next
    if first != NULL:
        with nogil:
            a.partition_append_checked(partition.state, first, now_ms)
    went = [(ready[i].status, ready[i].out.base_offset, bool(ready[i].out.duplicate)) for i in range(len(batches))]
    free(ready)
    return went


def led_earlier(Partition partition, int64_t ms):
    """Move the time at which a leader began to lead into the past."""
    partition.state.opened_ms -= ms


cdef void told(p.watch_t* w) noexcept nogil:
    (<int32_t*>w.owner)[0] += 1


cdef class Watch:
    """A watcher of a partition that counts notifications of a bound beyond `above`."""

    cdef p.watch_t state
    cdef Partition partition
    cdef readonly int32_t told
    cdef readonly int64_t above

    def __cinit__(self, Partition partition, *, int bound, int64_t above):
        self.partition = partition
        self.above = above
        self.state.notify = told
        self.state.owner = &self.told
        p.partition_watch(partition.state, &self.state, bound, above)

    def __dealloc__(self):
        p.partition_unwatch(&self.state)


HIGH_WATERMARK, LAST_STABLE, LOG_END = p.BOUND_HIGH_WATERMARK, p.BOUND_LAST_STABLE, p.BOUND_LOG_END


def look_inside(bytes batch):
    """Check a client's batch; return the status and its decompressed size, -1 if the reactor leaves that to Python.
    The batch ends where its allocation ends."""
    cdef size_t n = <size_t>len(batch)
    cdef uint8_t* copy = <uint8_t*>malloc(n)
    cdef b.batch_t header
    cdef int status
    cdef int64_t made = -1
    memcpy(copy, <const char*>batch, n)
    status = v.batch_validate(copy, n, 0, True, &header)
    if status == OK and b.batch_codec(&header):
        made = v.batch_look_inside(&header)
    free(copy)
    return status, made


# -- quiesce -----------------------------------------------------------------------------------------------------------

PINS, PIN_BLOCKS = q.PINS, q.PIN_BLOCKS


cdef class Quiesce:
    """Pins and retired objects."""

    cdef q.reclaim_t state

    def __cinit__(self):
        q.reclaim_init(&self.state)

    def __dealloc__(self):
        q.reclaim_destroy(&self.state)

    def pin(self):
        cdef int slot
        with nogil:
            slot = q.pin(&self.state)
        return slot

    def unpin(self, int slot):
        q.unpin(&self.state, slot)

    def retire(self):
        q.retire(&self.state, malloc(8), free)

    def collect(self):
        return q.collect(&self.state)


cdef class Refused:
    """A table of refused batches, next to producers that have no accepted batch."""

    cdef f.refusals_t state
    cdef s.sequence_t producers

    def __cinit__(self):
        s.sequence_init(&self.producers)

    def __dealloc__(self):
        f.refusals_free(&self.state)

    @property
    def count(self):
        return self.state.count

    @property
    def capacity(self):
        return self.state.capacity

    def note(self, int64_t pid, int16_t epoch, int32_t first, int status, int64_t now_ms):
        f.refusals_note(&self.state, &self.producers, pid, epoch, first, status, now_ms)

    def find(self, int64_t pid, int16_t epoch, int32_t first, int64_t now_ms):
        return f.refusals_find(&self.state, &self.producers, pid, epoch, first, now_ms)

    def forget(self, int64_t pid):
        f.refusals_forget(&self.state, pid)
