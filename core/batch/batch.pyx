"""Record batches: parse, check, stamp, iterate, rebuild; the format is in batch.pxd."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from pybroker.core.base.crc32c cimport crc32c
from pybroker.core.base.cursor cimport OK, SHORT, load_be16, load_be32, load_be64, store_be16, store_be32, store_be64
from pybroker.core.base.error_codes cimport (
    CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE, UNSUPPORTED_FOR_MESSAGE_FORMAT,
)
from pybroker.core.base.status cimport raise_status

cdef enum:
    RECORD_BYTES_MIN = 7  # length, attributes, timestamp delta, offset delta, two null lengths, no headers

cdef enum:
    RELEASE_GIL_FROM = 64 * 1024  # the CRC of fewer bytes is done before another thread could take the GIL

# The reasons to refuse a batch: one for each sentence in FAULTS, in the same order.
cdef enum:
    FAULT_NONE
    FAULT_EMPTY
    FAULT_SHORT
    FAULT_LENGTH
    FAULT_MAGIC
    FAULT_TRAILING
    FAULT_BASE_OFFSET
    FAULT_TOO_LARGE
    FAULT_CRC
    FAULT_OFFSET
    FAULT_COUNT
    FAULT_COUNT_CLIENT
    FAULT_COUNT_BYTES
    FAULT_CONTROL
    FAULT_TIMESTAMP_TYPE
    FAULT_DELETE_HORIZON
    FAULT_CODEC
    FAULT_PRODUCER
    FAULT_NO_PRODUCER
    FAULT_RECORD
    FAULT_RECORDS_END

FAULTS = (
    "the batch is sound",
    "there is no batch",
    "the batch is cut short: {size} bytes declared",
    "a batch of {size} bytes is smaller than its header",
    "magic {magic} where 2 is supported",
    "bytes follow the batch of {size} bytes, where one batch is allowed",
    "a producer's base offset is 0, not {base_offset}",
    "the batch of {size} bytes is larger than the largest allowed",
    "the CRC-32C of the batch is not {crc:#010x} as its header says",
    "base offset {base_offset} is out of range",
    "{count} records with a last offset delta of {last_offset_delta}",
    "{count} records with a last offset delta of {last_offset_delta}, where a producer's deltas are 0, 1, 2 ...",
    "{count} records cannot come out of a batch of {size} bytes with codec {codec}",
    "clients may not write control batches",
    "the timestamp type LogAppendTime is not a producer's to set",
    "the delete horizon is not a producer's to set",
    "codec {codec} is unknown",
    "producer id {producer_id} with epoch {producer_epoch} and base sequence {base_sequence}",
    "a transactional batch without a producer id",
    "record {record} of {count} cannot be read",
    "bytes follow the last of {count} records",
)

# -- the checks, in Kafka's order -------------------------------------------------------------------------------------

cdef int _refuse(batch_t* b, int fault, int code) noexcept nogil:
    b.fault = fault
    return code


cdef int _frame(const uint8_t* p, size_t n, batch_t* out) noexcept nogil:
    """Check length and magic; fill the header if OK."""
    cdef int magic
    memset(out, 0, sizeof(batch_t))
    out.at = p
    if n < MAGIC_END:
        return _refuse(out, FAULT_SHORT, SHORT)
    out.size = <int64_t>LENGTH_BYTES + load_be32(p + AT_BATCH_LENGTH)
    magic = <int8_t>p[AT_MAGIC]
    if magic != MAGIC:
        # Message sets 0 and 1 have their magic at the same position; Kafka no longer writes them either (KIP-724).
        return _refuse(out, FAULT_MAGIC, UNSUPPORTED_FOR_MESSAGE_FORMAT if magic in (0, 1) else CORRUPT_MESSAGE)
    if out.size < HEADER_BYTES:
        return _refuse(out, FAULT_LENGTH, CORRUPT_MESSAGE)
    if <uint64_t>out.size > n:
        return _refuse(out, FAULT_SHORT, SHORT)
    out.base_offset = load_be64(p + AT_BASE_OFFSET)
    out.leader_epoch = load_be32(p + AT_LEADER_EPOCH)
    out.crc = <uint32_t>load_be32(p + AT_CRC)
    out.attributes = load_be16(p + AT_ATTRIBUTES)
    out.last_offset_delta = load_be32(p + AT_LAST_OFFSET_DELTA)
    out.base_timestamp = load_be64(p + AT_BASE_TIMESTAMP)
    out.max_timestamp = load_be64(p + AT_MAX_TIMESTAMP)
    out.producer_id = load_be64(p + AT_PRODUCER_ID)
    out.producer_epoch = load_be16(p + AT_PRODUCER_EPOCH)
    out.base_sequence = load_be32(p + AT_BASE_SEQUENCE)
    out.count = load_be32(p + AT_COUNT)
    return OK


cdef int _counts(batch_t* b) noexcept nogil:
    """Check every batch, also a compacted one: valid offsets, and no more records than offsets."""
    if b.base_offset < 0 or b.base_offset > INT64_MAX - INT32_MAX:
        return _refuse(b, FAULT_OFFSET, INVALID_RECORD)
    if b.last_offset_delta < 0 or b.count < 0 or b.count - 1 > b.last_offset_delta:
        return _refuse(b, FAULT_COUNT, INVALID_RECORD)
    return OK


cdef int64_t _expansion(int codec) noexcept nogil:
    """The most bytes that one compressed byte can expand to in this format."""
    if codec == CODEC_GZIP:
        return 1032  # a match of 258 bytes in two bits
    if codec == CODEC_SNAPPY:
        return 22  # 64 bytes in three
    if codec == CODEC_LZ4:
        return 255  # a byte of match length
    if codec == CODEC_ZSTD:
        return 32768  # a block of 128 KiB in four bytes
    return 1


cdef int _client(batch_t* b) noexcept nogil:
    """Check what Kafka requires of a produced batch with a right CRC, and that its bytes can hold its record count."""
    if b.count - 1 != b.last_offset_delta:  # so the count is at least 1
        return _refuse(b, FAULT_COUNT_CLIENT, INVALID_RECORD)
    if b.attributes & CONTROL:
        return _refuse(b, FAULT_CONTROL, INVALID_RECORD)
    if b.attributes & LOG_APPEND_TIME:
        return _refuse(b, FAULT_TIMESTAMP_TYPE, INVALID_TIMESTAMP)
    if b.attributes & DELETE_HORIZON:
        return _refuse(b, FAULT_DELETE_HORIZON, INVALID_RECORD)
    if batch_codec(b) > CODEC_ZSTD:
        return _refuse(b, FAULT_CODEC, INVALID_RECORD)
    if <int64_t>b.count * RECORD_BYTES_MIN > batch_payload_size(b) * _expansion(batch_codec(b)):
        return _refuse(b, FAULT_COUNT_BYTES, INVALID_RECORD)
    if b.producer_id < -1 or (b.producer_id >= 0 and (b.producer_epoch < 0 or b.base_sequence < 0)):
        return _refuse(b, FAULT_PRODUCER, INVALID_RECORD)
    if b.attributes & TRANSACTIONAL and b.producer_id < 0:
        return _refuse(b, FAULT_NO_PRODUCER, INVALID_RECORD)
    return OK


cdef int batch_refuse_record(batch_t* b, int64_t index) noexcept nogil:
    b.fault_record = <int32_t>index
    return _refuse(b, FAULT_RECORD if index < b.count else FAULT_RECORDS_END, INVALID_RECORD)


cdef int _crc(batch_t* b) noexcept nogil:
    if crc32c(b.at + AT_ATTRIBUTES, <size_t>(b.size - AT_ATTRIBUTES), 0) != b.crc:
        return _refuse(b, FAULT_CRC, CORRUPT_MESSAGE)
    return OK


cdef int batch_parse(const uint8_t* p, size_t n, batch_t* out) noexcept nogil:
    cdef int status = _frame(p, n, out)
    return status if status != OK else _counts(out)


cdef int batch_check(const uint8_t* p, size_t n, int64_t size_max, bint client, batch_t* out) noexcept nogil:
    cdef int status = _frame(p, n, out)
    if client:
        if n == 0:
            return _refuse(out, FAULT_EMPTY, INVALID_RECORD)
        if status == SHORT:
            return CORRUPT_MESSAGE
        if status == OK and <uint64_t>out.size < n:
            return _refuse(out, FAULT_TRAILING, INVALID_RECORD)
        if status == OK and out.base_offset != 0:
            return _refuse(out, FAULT_BASE_OFFSET, INVALID_RECORD)
    if status != OK:
        return status
    if size_max and out.size > size_max:
        return _refuse(out, FAULT_TOO_LARGE, MESSAGE_TOO_LARGE)
    status = _crc(out)
    if status == OK:
        status = _counts(out)
    if status == OK and client:
        status = _client(out)
    return status


cdef void batch_stamp_time(
    const batch_t* b, int64_t base_offset, int32_t leader_epoch, int64_t now_ms, uint8_t* header
) noexcept nogil:
    cdef uint32_t crc
    batch_stamp(b, base_offset, leader_epoch, header)
    store_be16(header + AT_ATTRIBUTES, b.attributes | LOG_APPEND_TIME)
    store_be64(header + AT_MAX_TIMESTAMP, now_ms)
    crc = crc32c(header + AT_ATTRIBUTES, HEADER_BYTES - AT_ATTRIBUTES, 0)
    crc = crc32c(batch_payload(b), <size_t>batch_payload_size(b), crc)
    store_be32(header + AT_CRC, <int32_t>crc)


cdef str batch_fault(const batch_t* b):
    return FAULTS[b.fault].format(
        size=b.size,
        magic=<int8_t>b.at[AT_MAGIC] if b.fault == FAULT_MAGIC else MAGIC,
        base_offset=b.base_offset,
        crc=b.crc,
        count=b.count,
        last_offset_delta=b.last_offset_delta,
        codec=batch_codec(b),
        producer_id=b.producer_id,
        producer_epoch=b.producer_epoch,
        base_sequence=b.base_sequence,
        record=b.fault_record,
    )


# -- for Python -------------------------------------------------------------------------------------------------------

cdef class BatchHeader:
    """The 61-byte header of a record batch, magic 2 (KIP-98)."""

    def __init__(self) -> None:
        raise TypeError("a BatchHeader comes from check_batch or iter_batches")

    @property
    def base_offset(self) -> int:
        return self.b.base_offset

    @property
    def batch_length(self) -> int:
        return self.b.size - LENGTH_BYTES

    @property
    def partition_leader_epoch(self) -> int:
        return self.b.leader_epoch

    @property
    def magic(self) -> int:
        return MAGIC

    @property
    def crc(self) -> int:
        return self.b.crc

    @property
    def attributes(self) -> int:
        return self.b.attributes

    @property
    def last_offset_delta(self) -> int:
        return self.b.last_offset_delta

    @property
    def base_timestamp(self) -> int:
        return self.b.base_timestamp

    @property
    def max_timestamp(self) -> int:
        return self.b.max_timestamp

    @property
    def producer_id(self) -> int:
        return self.b.producer_id

    @property
    def producer_epoch(self) -> int:
        return self.b.producer_epoch

    @property
    def base_sequence(self) -> int:
        return self.b.base_sequence

    @property
    def count(self) -> int:
        return self.b.count

    @property
    def size(self) -> int:
        return self.b.size

    @property
    def last_offset(self) -> int:
        return batch_last_offset(&self.b)

    @property
    def codec(self) -> int:
        return batch_codec(&self.b)

    @property
    def is_transactional(self) -> bool:
        return self.b.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.b.attributes & CONTROL != 0

    @property
    def is_log_append_time(self) -> bool:
        return self.b.attributes & LOG_APPEND_TIME != 0

    def __repr__(self) -> str:
        return (
            f"BatchHeader(base_offset={self.base_offset}, last_offset={self.last_offset}, count={self.count}, "
            f"size={self.size}, attributes={self.attributes:#x}, leader_epoch={self.partition_leader_epoch}, "
            f"producer={self.producer_id}/{self.producer_epoch}/{self.base_sequence})"
        )


cdef BatchHeader batch_header(const batch_t* b):
    cdef BatchHeader header = BatchHeader.__new__(BatchHeader)
    header.b = b[0]
    header.b.at = NULL
    return header


cdef int _look(const uint8_t* p, size_t n, bint check_crc, batch_t* out):
    """Call batch_check, or batch_parse without the CRC; release the GIL for the CRC of a large batch."""
    cdef int status
    if not check_crc:
        return batch_parse(p, n, out)
    if n < RELEASE_GIL_FROM:
        return batch_check(p, n, 0, False, out)
    with nogil:
        status = batch_check(p, n, 0, False, out)
    return status


cdef int _raise_fault(int status, const batch_t* b, object position, object length) except -1:
    return raise_status(
        CORRUPT_MESSAGE if status == SHORT else status, f"at byte {position} of {length}: {batch_fault(b)}"
    )


def check_batch(data, Py_ssize_t position=0):
    """Parse and check the batch at `position`: length, magic, CRC, counts.

    Raises LogError: CORRUPT_MESSAGE, UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD."""
    cdef Py_buffer view
    cdef batch_t b
    cdef int status
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= position <= view.len:
            raise IndexError(f"position {position} in {view.len} bytes")
        status = _look(<const uint8_t*>view.buf + position, <size_t>(view.len - position), True, &b)
        if status != OK:
            _raise_fault(status, &b, position, view.len)
        return batch_header(&b)
    finally:
        PyBuffer_Release(&view)


cdef class _Batches:
    """The iterator of iter_batches; it holds the buffer until it is freed."""

    cdef Py_buffer view
    cdef Py_ssize_t position
    cdef bint check_crc

    def __cinit__(self, data, bint check_crc):
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        self.position = 0
        self.check_crc = check_crc

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    def __iter__(self):
        return self

    def __next__(self):
        cdef batch_t b
        cdef Py_ssize_t position = self.position
        cdef const uint8_t* p = <const uint8_t*>self.view.buf + position
        cdef int status = _look(p, <size_t>(self.view.len - position), self.check_crc, &b)
        if status == SHORT:
            raise StopIteration
        if status != OK:
            _raise_fault(status, &b, position, self.view.len)
        self.position = position + b.size
        return position, batch_header(&b)


def iter_batches(data, *, bint check_crc=True):
    """Yield (position, header) of each whole batch in data; a partial last batch ends it. Raises LogError."""
    return _Batches(data, check_crc)


cdef bytes _batch_from(const uint8_t* header, const uint8_t* payload, size_t payload_size):
    """Return the bytes of a batch from a header and its records; length and CRC are recomputed."""
    cdef int64_t size = <int64_t>HEADER_BYTES + <int64_t>payload_size
    cdef bytes batch
    cdef uint8_t* p
    if payload_size > INT32_MAX - HEADER_BYTES:
        raise_status(MESSAGE_TOO_LARGE, f"a batch cannot hold {payload_size} bytes of records")
    batch = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    p = <uint8_t*>PyBytes_AS_STRING(batch)
    memcpy(p, header, HEADER_BYTES)
    if payload_size:
        memcpy(p + HEADER_BYTES, payload, payload_size)
    store_be32(p + AT_BATCH_LENGTH, <int32_t>(size - LENGTH_BYTES))
    store_be32(p + AT_CRC, <int32_t>crc32c(p + AT_ATTRIBUTES, <size_t>(size - AT_ATTRIBUTES), 0))
    return batch


def rebuild_batch(batch, payload, int16_t attributes, int64_t max_timestamp=-1):
    """Return the batch with its records section replaced by payload; length and CRC are recomputed.

    `attributes` replace the old ones; a `max_timestamp` of -1 keeps the old one. Raises LogError as check_batch, and
    MESSAGE_TOO_LARGE."""
    cdef Py_buffer old, new
    cdef batch_t b
    cdef int status
    cdef uint8_t[HEADER_BYTES] header
    PyObject_GetBuffer(batch, &old, PyBUF_SIMPLE)
    try:
        status = batch_parse(<const uint8_t*>old.buf, <size_t>old.len, &b)
        if status != OK:
            _raise_fault(status, &b, 0, old.len)
        memcpy(header, b.at, HEADER_BYTES)
    finally:
        PyBuffer_Release(&old)
    store_be16(header + AT_ATTRIBUTES, attributes)
    if max_timestamp != -1:
        store_be64(header + AT_MAX_TIMESTAMP, max_timestamp)
    PyObject_GetBuffer(payload, &new, PyBUF_SIMPLE)
    try:
        return _batch_from(header, <const uint8_t*>new.buf, <size_t>new.len)
    finally:
        PyBuffer_Release(&new)
