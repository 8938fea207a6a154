"""Batches built from records, one by one or all at once; then sealed, and stamped by the sender before each send."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport ENOMEM
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

from pybroker.core.base.crc32c cimport crc32c, crc32c_join
from pybroker.core.base.cursor cimport store_be16, store_be32, store_be64
from pybroker.core.base.error_codes cimport MESSAGE_TOO_LARGE
from pybroker.core.base.status cimport raise_status
from pybroker.core.batch.batch cimport (
    AT_ATTRIBUTES, AT_BASE_OFFSET, AT_BASE_SEQUENCE, AT_BASE_TIMESTAMP, AT_BATCH_LENGTH, AT_COUNT, AT_CRC,
    AT_LAST_OFFSET_DELTA, AT_LEADER_EPOCH, AT_MAGIC, AT_MAX_TIMESTAMP, AT_PRODUCER_EPOCH, AT_PRODUCER_ID, CODEC_MASK,
    HEADER_BYTES, LENGTH_BYTES, MAGIC,
)
from pybroker.core.batch.block cimport block_fit, block_free, block_init, block_room, block_t, block_trim
from pybroker.core.batch.lz4_compress cimport Lz4Compressor

cdef extern from "Python.h":
    enum:
        PyBUF_READ


# -- sealing ----------------------------------------------------------------------------------------------------------

cdef void _seal_crc(block_t* batch, uint32_t records) noexcept nogil:
    """Set the batch's CRC; `records` is the CRC of its records."""
    cdef uint32_t header = crc32c(batch.data + AT_ATTRIBUTES, HEADER_BYTES - AT_ATTRIBUTES, 0)
    store_be32(batch.data + AT_CRC, <int32_t>crc32c_join(header, records, <uint32_t>(batch.size - HEADER_BYTES)))


cdef void _write_header(const builder_t* b, block_t* batch, int16_t attributes, uint32_t records) noexcept nogil:
    """Write a producer's header: offset 0, no leader epoch, no producer; `records` is the CRC of the records."""
    cdef uint8_t* p = batch.data
    store_be64(p + AT_BASE_OFFSET, 0)
    store_be32(p + AT_BATCH_LENGTH, <int32_t>(batch.size - LENGTH_BYTES))
    store_be32(p + AT_LEADER_EPOCH, -1)
    p[AT_MAGIC] = MAGIC
    store_be16(p + AT_ATTRIBUTES, attributes)
    store_be32(p + AT_LAST_OFFSET_DELTA, b.count - 1)
    store_be64(p + AT_BASE_TIMESTAMP, b.base_timestamp)
    store_be64(p + AT_MAX_TIMESTAMP, b.max_timestamp)
    memset(p + AT_PRODUCER_ID, 0xFF, AT_COUNT - AT_PRODUCER_ID)
    store_be32(p + AT_COUNT, b.count)
    _seal_crc(batch, records)


cdef int _lz4_compressed(Lz4Compressor compressor, const uint8_t* p, int64_t n, block_t* out) noexcept nogil:
    if block_room(out, HEADER_BYTES + compressor.frame_bytes_max(n)) != 0:
        return -ENOMEM
    out.size = HEADER_BYTES
    if compressor.add_frame(p, n, out) != 0:
        return -ENOMEM
    block_trim(out)
    return 0


cdef int _check_size(int64_t packed) except -1:
    if packed > INT32_MAX - HEADER_BYTES:
        raise_status(MESSAGE_TOO_LARGE, f"a batch cannot hold {packed} bytes of records")
    return 0


cdef int _compressed(builder_t* b, object compress, block_t* out) except -1:
    """Fill a block with room for the header, and the compressed records."""
    cdef const uint8_t* records = b.block.data + HEADER_BYTES
    cdef int64_t size = b.block.size - HEADER_BYTES
    cdef Py_buffer packed
    cdef int status
    if type(compress) is Lz4Compressor:
        with nogil:
            status = _lz4_compressed(<Lz4Compressor>compress, records, size, out)
        if status != 0:
            raise MemoryError
        _check_size(out.size - HEADER_BYTES)
        return 0
    view = PyMemoryView_FromMemory(<char*>records, size, PyBUF_READ)
    try:
        made = compress(view)
    finally:
        view.release()
    PyObject_GetBuffer(made, &packed, PyBUF_SIMPLE)
    try:
        _check_size(packed.len)
        if block_room(out, HEADER_BYTES + packed.len) != 0:
            raise MemoryError
        memcpy(out.data + HEADER_BYTES, packed.buf, <size_t>packed.len)
        out.size = HEADER_BYTES + packed.len
    finally:
        PyBuffer_Release(&packed)
    return 0


cdef SealedBatch builder_seal(builder_t* b, int16_t attributes, object compress, object tag):
    cdef SealedBatch sealed = SealedBatch.__new__(SealedBatch)
    cdef block_t* batch = &sealed.b
    if bool(attributes & CODEC_MASK) != (compress is not None):
        raise ValueError(f"codec {attributes & CODEC_MASK} with compress={compress!r}: one needs the other")
    block_init(batch, 0)
    if compress is not None:
        _compressed(b, compress, batch)
        block_free(&b.block)
    else:
        block_fit(&b.block)
        batch[0] = b.block
        block_init(&b.block, 0)
    sealed.count = b.count
    sealed.tag = tag
    with nogil:
        sealed.records_crc = crc32c(batch.data + HEADER_BYTES, batch.size - HEADER_BYTES, 0)
        _write_header(b, batch, attributes, sealed.records_crc)
    builder_init(b, 0)
    return sealed


cdef class SealedBatch(Block):
    """A batch ready to be sent; `tag` is the caller's, such as its partition."""

    def stamp(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence) -> None:
        """Set the producer and the sequence (-1: none), before each send; the CRC is recomputed.

        A concurrent reader of the batch may see a mixture of old and new values."""
        cdef uint8_t* p = self.b.data
        store_be64(p + AT_PRODUCER_ID, producer_id)
        store_be16(p + AT_PRODUCER_EPOCH, producer_epoch)
        store_be32(p + AT_BASE_SEQUENCE, base_sequence)
        with nogil:
            _seal_crc(&self.b, self.records_crc)


# -- one record at a time ---------------------------------------------------------------------------------------------

cdef inline int64_t _size(object data) except -2:
    return NULL_LENGTH if data is None else PyBytes_GET_SIZE(data)


cdef inline const uint8_t* _data(object data) noexcept:
    if data is None:
        return NULL
    return <const uint8_t*>PyBytes_AS_STRING(data)


cdef list _normal(object headers, int64_t* header_bytes):
    """Return headers as (utf-8 key, value) pairs of bytes, and their encoded size.

    Keys that were not UTF-8 when they were read are restored (surrogateescape)."""
    cdef list pairs = []
    cdef bytes key, value
    header_bytes[0] = 0
    for name, value in headers:
        key = (<str?>name).encode("utf-8", "surrogateescape")
        header_bytes[0] += field_bytes(_size(key)) + field_bytes(_size(value))
        pairs.append((key, value))
    return pairs


cdef class BatchBuilder:
    """A batch that grows record by record, up to batch_size bytes uncompressed; the first record always fits."""

    cdef builder_t builder
    cdef int64_t batch_size

    def __cinit__(self, *, int64_t batch_size=INT32_MAX, int64_t bytes_hint=0):
        self.batch_size = batch_size
        builder_init(&self.builder, bytes_hint)

    def __dealloc__(self):
        block_free(&self.builder.block)

    @property
    def count(self) -> int:
        """The number of records so far."""
        return self.builder.count

    @property
    def size(self) -> int:
        """The uncompressed size of the batch so far, including the header, in bytes."""
        return builder_size(&self.builder)

    def append(self, int64_t timestamp_ms, bytes key, bytes value, headers=None) -> bool:
        """Add a record with (str, bytes or None) headers; False, without adding it, if the batch is too full.

        Raises LogError(MESSAGE_TOO_LARGE) if no batch can hold it."""
        cdef new_record_t e
        cdef int64_t body
        cdef uint8_t* at = NULL
        cdef list pairs = None
        cdef int status
        e.timestamp = timestamp_ms
        e.key, e.key_size = _data(key), _size(key)
        e.value, e.value_size = _data(value), _size(value)
        e.header_count = e.header_bytes = 0
        if headers:
            pairs = _normal(headers, &e.header_bytes)
            e.header_count = len(pairs)
        body = entry_body(&self.builder, &e)
        if self.builder.count and self.builder.block.size + zigzag_size(body) + body > self.batch_size:
            return False
        status = builder_add(&self.builder, &e, body, &at)
        if status == -ENOMEM:
            raise MemoryError
        if status != 0:
            raise_status(status, f"a batch cannot hold {self.size + body} bytes of records")
        if pairs is not None:
            for name, content in pairs:
                at = put_field(at, _data(name), _size(name))
                at = put_field(at, _data(content), _size(content))
        return True

    def seal(self, *, int16_t attributes=0, compress=None, tag=None) -> SealedBatch:
        """Return the batch of the added records, ready to be sent; the builder is empty then, and may be used again.

        `attributes` name the codec that `compress` applies to the records. Raises ValueError without records."""
        if self.builder.count == 0:
            raise ValueError("a batch has at least one record")
        return builder_seal(&self.builder, attributes, compress, tag)


def build_batch(
    records,
    *,
    int64_t base_offset=0,
    int16_t attributes=0,
    int64_t producer_id=-1,
    int16_t producer_epoch=-1,
    int32_t base_sequence=-1,
    int32_t partition_leader_epoch=-1,
    compress=None,
):
    """Return one batch of (timestamp_ms, key, value, headers); `attributes` name the codec that `compress` applies.

    The first record's timestamp is the base. Raises LogError(MESSAGE_TOO_LARGE) past 2 GiB, ValueError without
    records."""
    cdef BatchBuilder builder = BatchBuilder()
    cdef SealedBatch batch
    for timestamp, key, value, headers in records:
        builder.append(timestamp, key, value, headers)
    packer = None if compress is None else lambda plain: compress(bytes(plain))
    batch = builder.seal(attributes=attributes, compress=packer)
    store_be64(batch.b.data + AT_BASE_OFFSET, base_offset)
    store_be32(batch.b.data + AT_LEADER_EPOCH, partition_leader_epoch)
    batch.stamp(producer_id, producer_epoch, base_sequence)
    return bytes(batch)
