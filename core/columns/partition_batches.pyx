"""The batches of one partition, from a Fetch response or a segment, as the source of columns and objects.

Batches before the requested offset are skipped by their headers. Control batches are left out. With a list of aborted
transactions only committed records are read, as in Kafka's consumer (KIP-98): a transaction of the list begins at its
first offset, and its producer's transactional batches are left out until the producer's ABORT marker.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport ENOMEM
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

from pybroker.core.base.cursor cimport OK, SHORT, load_be16, load_be64
from pybroker.core.base.error_codes cimport (
    CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE,
)
from pybroker.core.base.mapping cimport FileMap, map_guard
from pybroker.core.base.status cimport raise_status
from pybroker.core.batch.batch cimport (
    AT_MAGIC, CODEC_LZ4, CODEC_NONE, CODEC_ZSTD, CONTROL, MAGIC_END, TRANSACTIONAL, batch_check, batch_codec,
    batch_fault, batch_last_offset, batch_parse, batch_payload, batch_payload_size, batch_t,
)
from pybroker.core.batch.block cimport block_free, block_t
from pybroker.core.batch.lz4 cimport lz4_frame
from pybroker.core.batch.record cimport record_next, record_t
from pybroker.core.batch.succession cimport batch_is_contradicted, batch_may_follow
from pybroker.core.batch.zstd cimport zstd_frames, zstd_library
from pybroker.core.columns.decode cimport run_init

cdef enum:
    MARKER_KEY_BYTES = 4  # version i16, type i16
    MARKER_ABORT = 0


# -- transactions -----------------------------------------------------------------------------------------------------

cdef transaction_t* _producer(const batches_t* f, int64_t producer_id) noexcept nogil:
    """Find a producer with aborted transactions; NULL if it has none."""
    cdef int32_t low = 0, high = f.producer_count, middle
    while low < high:
        middle = (low + high) // 2
        if f.producers[middle].producer_id < producer_id:
            low = middle + 1
        else:
            high = middle
    if low < f.producer_count and f.producers[low].producer_id == producer_id:
        return &f.producers[low]
    return NULL


cdef void _begin_aborts(batches_t* f, int64_t last_offset) noexcept nogil:
    """Begin the aborted transactions with first offsets up to `last_offset`."""
    while f.abort_next < f.abort_count and f.aborts[f.abort_next].first_offset <= last_offset:
        f.producers[f.aborts[f.abort_next].producer].aborting = 1
        f.abort_next += 1


cdef bint _is_aborted(batches_t* f, const batch_t* b) noexcept nogil:
    cdef transaction_t* producer
    if not b.attributes & TRANSACTIONAL:
        return False
    producer = _producer(f, b.producer_id)
    return producer != NULL and producer.aborting


cdef void _end_abort(batches_t* f) noexcept nogil:
    """End the producer's aborted transaction, if the opened control batch in `run` is an ABORT marker."""
    cdef record_t record
    cdef transaction_t* producer = _producer(f, f.run.b.producer_id)
    if producer == NULL or record_next(&f.run.r, &record) != OK or record.key.size < MARKER_KEY_BYTES:
        return
    if load_be16(record.key.at + 2) == MARKER_ABORT:
        producer.aborting = 0


# -- batches ----------------------------------------------------------------------------------------------------------

cdef void _pass_batch(batches_t* f, const batch_t* b) noexcept nogil:
    f.at += b.size
    if f.reached >= 0:
        f.reached = batch_last_offset(b) + 1
    f.next_offset = min(max(f.next_offset, batch_last_offset(b) + 1), f.end_offset)


cdef void batches_advance(batches_t* f, bint more) noexcept nogil:
    if f.run.index < f.run.b.count:
        f.next_offset = f.run.b.base_offset + f.run.last_delta + 1 if more else f.end_offset
    if f.run.index == f.run.b.count or not more:
        f.running = False
        _pass_batch(f, &f.run.b)


cdef bint _is_wanted(batches_t* f, const batch_t* b) noexcept nogil:
    """True if the batch has requested records, or a marker. Begins aborted transactions on the way."""
    if f.abort_count:
        _begin_aborts(f, batch_last_offset(b))
        if b.attributes & CONTROL:
            return True
        if _is_aborted(f, b):
            return False
    if b.attributes & CONTROL or (b.count == 0 and batch_payload_size(b) == 0):
        return False
    return batch_last_offset(b) >= f.next_offset


cdef bint _is_reserved(const batches_t* f) noexcept nogil:
    """True if there are zeros where a batch would have its base offset, length, leader epoch and magic."""
    return f.end - f.at >= MAGIC_END and load_be64(f.at) == 0 and load_be64(f.at + 8) == 0 and f.at[AT_MAGIC] == 0


cdef int _place(batches_t* f, const batch_t* b) noexcept nogil:
    """Check whether the parsed batch may come next in its segment: OK, CORRUPT_MESSAGE, or BATCHES_END if more bytes
    are needed to decide. The first batch here is not postponed again; nor is any if no more bytes will be available."""
    cdef int status = 0 if batch_may_follow(b, f.reached, f.next_base) else 1
    if status == 0:
        status = batch_is_contradicted(b, f.reached, f.next_base, f.at + b.size, f.end - f.at - b.size)
    if status == SHORT:
        return BATCHES_END if f.at > f.begin and not f.alone else OK
    return CORRUPT_MESSAGE if status else OK


cdef int _undo(const batch_t* b, block_t* out) noexcept nogil:
    """Decompress the records of a batch, lz4 or zstd."""
    cdef const uint8_t* p = batch_payload(b)
    cdef size_t n = <size_t>batch_payload_size(b)
    if batch_codec(b) == CODEC_LZ4:
        return lz4_frame(p, n, PLAIN_BYTES_MAX, False, out)
    return zstd_frames(p, n, PLAIN_BYTES_MAX, out)


cdef int batches_next(batches_t* f) noexcept nogil:
    cdef batch_t* b = &f.run.b
    cdef int status
    while f.next_offset < f.end_offset:
        status = batch_parse(f.at, <size_t>(f.end - f.at), b)
        if status == SHORT:
            break
        if status != OK and _is_reserved(f):
            f.zeros = True
            if f.reserved:
                break
            return CORRUPT_MESSAGE
        if status != OK:
            return status
        if f.reached >= 0:
            status = _place(f, b)
            if status == BATCHES_END:
                break
            f.misplaced = status != OK
            if f.misplaced:
                return status
        if b.base_offset >= f.end_offset:
            f.next_offset = f.end_offset
            break
        if f.check_crc and b.attributes & CONTROL:  # a flipped bit could hide a batch of records
            status = batch_check(f.at, <size_t>(f.end - f.at), 0, False, b)
            if status != OK:
                return status
        if not _is_wanted(f, b):
            _pass_batch(f, b)
            continue
        f.run.raw = f.at if f.check_crc and f.mapped and batch_codec(b) == CODEC_NONE else NULL
        if f.check_crc and f.run.raw == NULL:
            status = batch_check(f.at, <size_t>(f.end - f.at), 0, False, b)
            if status != OK:
                return status
        if batch_codec(b) == CODEC_NONE:
            if batches_open(f, batch_payload(b), batch_payload_size(b)) == OK:
                return OK
        elif batch_codec(b) == CODEC_LZ4 or (batch_codec(b) == CODEC_ZSTD and zstd_library() != NULL):
            f.scratch.size = 0
            status = _undo(b, &f.scratch)
            if status != OK:
                return status
            if batches_open(f, f.scratch.data, f.scratch.size) == OK:
                return OK
        elif batch_codec(b) > CODEC_ZSTD:
            return UNSUPPORTED_COMPRESSION_TYPE
        else:
            return BATCHES_PACKED
    f.finished = True
    return BATCHES_END


cdef int batches_open(batches_t* f, const uint8_t* plain, int64_t n) noexcept nogil:
    run_init(&f.run, &f.run.b, plain, n)
    if f.run.b.attributes & CONTROL:
        _end_abort(f)
        _pass_batch(f, &f.run.b)
        return BATCHES_END
    f.running = True
    return OK


cdef str _name_of(const batch_t* b):
    return "lz4" if batch_codec(b) == CODEC_LZ4 else "zstd"


# -- for Python -------------------------------------------------------------------------------------------------------

cdef int _set_aborts(batches_t* f, list aborted) except -1:
    """Set the aborted transactions, given as ordered (first_offset, producer_id); the caller frees them."""
    cdef int32_t i
    cdef dict places
    cdef list producers = sorted({producer_id for _, producer_id in aborted})
    places = {producer_id: place for place, producer_id in enumerate(producers)}
    f.producers = <transaction_t*>calloc(<size_t>len(producers), sizeof(transaction_t))
    f.aborts = <abort_t*>calloc(<size_t>len(aborted), sizeof(abort_t))
    if f.producers == NULL or f.aborts == NULL:
        raise MemoryError
    for i, producer_id in enumerate(producers):
        f.producers[i].producer_id = producer_id
    for i, (first_offset, producer_id) in enumerate(aborted):
        f.aborts[i].first_offset = first_offset
        f.aborts[i].producer = places[producer_id]
    f.producer_count = <int32_t>len(producers)
    f.abort_count = <int32_t>len(aborted)
    return 0


cdef class PartitionBatches:
    """Record batches of one partition to be read into Columns; it holds `data`.

    start_offset: records before it are left out; the first batch of a Fetch response may have some. end_offset: records
    from it on are left out; None is no end. aborted: (producer_id, first_offset) of aborted transactions, for
    read_committed; None is read_uncommitted. reserved: zeros where a batch would begin are the end: Kafka may reserve
    space in the file that it writes. reached: the offset after the part of a segment that was read before `data`, -1 if
    the batches are not from a segment. Base offsets are checked against it, and against next_base, the base offset of
    the next segment; None is no next segment. alone: the bytes after `data` will never be read with it, so a batch that
    only these could contradict is accepted.

    A FileMap is checked after each read: if the file was written meanwhile, the rows of that read are dropped, and
    reading ends.
    """

    def __cinit__(
        self, data, *, int64_t start_offset=0, end_offset=None, aborted=None, bint check_crc=True, bint reserved=False,
        int64_t reached=-1, next_base=None, bint alone=False
    ):
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        if isinstance(data, FileMap):
            if aborted:
                raise TypeError("transactions are read from memory, not from a map")
            self.map = data
            self.f.mapped = True
        self.f.at = <const uint8_t*>self.view.buf
        self.f.begin = self.f.at
        self.f.end = self.f.at + self.view.len
        self.f.reached = reached
        self.f.next_base = INT64_MAX if next_base is None else next_base
        self.f.check_crc = check_crc
        self.f.reserved = reserved
        self.f.alone = alone
        self.f.end_offset = INT64_MAX if end_offset is None else end_offset
        self.f.next_offset = min(start_offset, self.f.end_offset)
        if aborted:
            _set_aborts(&self.f, sorted([(first_offset, producer_id) for producer_id, first_offset in aborted]))

    def __dealloc__(self):
        self.let_go()
        block_free(&self.f.scratch)
        free(self.f.producers)
        free(self.f.aborts)
        PyBuffer_Release(&self.view)

    cdef object unpack(self, object decompress):
        """Decompress the batch in `run` by decompress(codec, packed, bytes_max); errors with a code become LogError."""
        codec = batch_codec(&self.f.run.b)
        if decompress is None:
            raise ValueError(f"codec {codec} needs decompress=")
        at = batch_payload(&self.f.run.b) - <const uint8_t*>self.view.buf
        packed = memoryview(<object>self.view.obj).cast("B")[at:at + batch_payload_size(&self.f.run.b)]
        try:
            return decompress(codec, packed, PLAIN_BYTES_MAX)
        except Exception as error:
            if not hasattr(error, "code"):
                raise
            raise_status(error.code, f"the batch at offset {self.f.run.b.base_offset}: {error}")

    cdef void begin_read(self) noexcept:
        """Begin a read, which end_read() confirms."""
        if self.map is not None:
            self.before, self.before_offset, self.before_reached = self.f.at, self.f.next_offset, self.f.reached
            map_guard()

    cdef bint end_read(self) noexcept:
        """True if the bytes read since begin_read() are the file's; else go back to the start of the read, and end
        there."""
        if self.map is None or not self.map.is_stale():
            return True
        self.f.at, self.f.next_offset, self.f.reached = self.before, self.before_offset, self.before_reached
        self.f.zeros = False
        self.f.running = False
        self.f.finished = self.is_stale = True
        return False

    cdef int refuse(self, int status) except -1:
        """Raise the error of a status other than OK and BATCHES_END, for the next batch."""
        cdef batch_t* b = &self.f.run.b
        if status == -ENOMEM:
            raise MemoryError
        if self.f.zeros:
            why = "zeros where a batch should begin"
        elif self.f.misplaced:
            why = f"its base offset {b.base_offset} cannot follow offset {self.f.reached - 1} here"
        elif status == INVALID_RECORD and self.f.running:
            why = f"the records do not parse as {b.count} records"
        elif status == UNSUPPORTED_COMPRESSION_TYPE:
            why = f"no codec has the number {batch_codec(b)}"
        elif b.fault:
            why = batch_fault(b)
        elif status == MESSAGE_TOO_LARGE:
            why = f"its {_name_of(b)} data holds more than {PLAIN_BYTES_MAX} bytes"
        else:
            why = f"its {_name_of(b)} data is malformed"
        offset = b.base_offset if status == INVALID_RECORD or not b.fault else self.f.next_offset
        if self.f.zeros or self.f.misplaced:
            offset = max(self.f.reached, self.f.next_offset)
        return raise_status(status, f"the batch at offset {offset}, byte {self.position}: {why}")

    cdef int hold(self, object plain) except -1:
        """Open the batch in `run`, decompressed as `plain`."""
        PyObject_GetBuffer(plain, &self.plain, PyBUF_SIMPLE)
        if batches_open(&self.f, <const uint8_t*>self.plain.buf, self.plain.len) != OK:
            self.let_go()
        return 0

    cdef void let_go(self) noexcept:
        PyBuffer_Release(&self.plain)  # no effect if nothing is held

    @property
    def stale(self) -> bool:
        """True if reading ended because the file was written during a read, truncated, or unreadable. There may be more
        from `position` and `next_offset` on, to be read from a copy."""
        return self.is_stale

    @property
    def finished(self) -> bool:
        """True if no complete batch is left, or none with a requested offset."""
        return self.f.finished

    @property
    def next_offset(self) -> int:
        """The next offset to fetch: after every batch that was read or skipped, at most `end_offset`."""
        return self.f.next_offset

    @property
    def reached(self) -> int:
        """The offset after the last batch passed; -1 if the batches are not from a segment."""
        return self.f.reached

    @property
    def zeros(self) -> bool:
        """True if reading ended at zeros where a batch would begin."""
        return self.f.zeros

    @property
    def position(self) -> int:
        """The byte position of the current or next batch."""
        return self.f.at - <const uint8_t*>self.view.buf
