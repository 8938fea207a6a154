"""The record batch, magic 2 (KIP-98), in which records are checked, stamped, stored and sent.

    offset  field                 remarks
    0       base_offset i64       0 from a producer; the leader stamps it
    8       batch_length i32      bytes after this field
    12      leader_epoch i32      -1 from a producer; the leader stamps it
    16      magic i8              2
    17      crc u32               CRC-32C from attributes to the end; stamping the fields above does not change it.
    21      attributes i16        bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon
    23      last_offset_delta i32 unchanged by compaction, unlike count
    27      base_timestamp i64    record timestamps are relative to it.
    35      max_timestamp i64     with LogAppendTime every record's timestamp
    43      producer_id i64       -1 none
    51      producer_epoch i16    -1 none
    53      base_sequence i32     -1 none; the last is base + last_offset_delta, modulo 2^31
    57      count i32             0 in a batch that compaction emptied
    61      the records, as they are or compressed as one block

The CRC does not cover bytes 0-16: a reader of stamped batches must check the continuity of offsets itself.
"""

from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from pybroker.core.base.cursor cimport store_be32, store_be64

cdef enum:
    AT_BASE_OFFSET = 0
    AT_BATCH_LENGTH = AT_BASE_OFFSET + 8
    AT_LEADER_EPOCH = AT_BATCH_LENGTH + 4
    AT_MAGIC = AT_LEADER_EPOCH + 4
    AT_CRC = AT_MAGIC + 1
    AT_ATTRIBUTES = AT_CRC + 4
    AT_LAST_OFFSET_DELTA = AT_ATTRIBUTES + 2
    AT_BASE_TIMESTAMP = AT_LAST_OFFSET_DELTA + 4
    AT_MAX_TIMESTAMP = AT_BASE_TIMESTAMP + 8
    AT_PRODUCER_ID = AT_MAX_TIMESTAMP + 8
    AT_PRODUCER_EPOCH = AT_PRODUCER_ID + 8
    AT_BASE_SEQUENCE = AT_PRODUCER_EPOCH + 2
    AT_COUNT = AT_BASE_SEQUENCE + 4
    HEADER_BYTES = AT_COUNT + 4

cdef enum:
    LENGTH_BYTES = AT_LEADER_EPOCH  # the bytes that batch_length does not count
    MAGIC_END = AT_CRC  # the bytes up to here give the batch's size and format

cdef enum:
    MAGIC = 2

cdef enum:
    CODEC_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40

cdef enum:
    CODEC_NONE = 0
    CODEC_GZIP = 1
    CODEC_SNAPPY = 2
    CODEC_LZ4 = 3
    CODEC_ZSTD = 4

cdef struct batch_t:
    # A parsed header, in host order; `at` borrows the parsed bytes.
    const uint8_t* at
    int64_t size  # the whole batch: LENGTH_BYTES + batch_length
    int64_t base_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int32_t leader_epoch
    uint32_t crc
    int32_t last_offset_delta
    int32_t base_sequence
    int32_t count
    int16_t producer_epoch
    int16_t attributes
    int fault  # the check that refused the batch, for batch_fault
    int32_t fault_record  # the index of the refused record

# -- reading ----------------------------------------------------------------------------------------------------------
# Functions return OK, SHORT (the bytes end before the batch does: a torn tail, or more to come) or a Kafka code.

# Check length, magic and counts. At most HEADER_BYTES are read: n may count bytes that are not at `p`.
# `out.size` is right after OK, and after SHORT of at least MAGIC_END bytes.
# OK, SHORT, CORRUPT_MESSAGE, UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD.
cdef int batch_parse(const uint8_t* p, size_t n, batch_t* out) noexcept nogil

# Check as batch_parse, and the CRC; a batch above size_max bytes (0: no limit) is refused before the CRC is computed.
# From a client: also Kafka's other checks of a produced header, in Kafka's order, and that the batch fills all n bytes;
# never SHORT then. Also returns MESSAGE_TOO_LARGE; for a client INVALID_TIMESTAMP.
cdef int batch_check(const uint8_t* p, size_t n, int64_t size_max, bint client, batch_t* out) noexcept nogil

# Return INVALID_RECORD for a batch whose record `index` cannot be read; with `index` == count: bytes follow the last.
cdef int batch_refuse_record(batch_t* b, int64_t index) noexcept nogil

# The error sentence, with numbers, for the last result of batch_parse or batch_check in b. Needs the GIL.
cdef str batch_fault(const batch_t* b)

# -- stamping ---------------------------------------------------------------------------------------------------------
# `header` has room for HEADER_BYTES; the records are not copied: header and records are written by one pwritev.

cdef inline void batch_stamp(
    const batch_t* b, int64_t base_offset, int32_t leader_epoch, uint8_t* header
) noexcept nogil:
    memcpy(header, b.at, HEADER_BYTES)
    store_be64(header + AT_BASE_OFFSET, base_offset)
    store_be32(header + AT_LEADER_EPOCH, leader_epoch)

# Stamp as batch_stamp, and set LogAppendTime: attributes, max_timestamp and the CRC change.
cdef void batch_stamp_time(
    const batch_t* b, int64_t base_offset, int32_t leader_epoch, int64_t now_ms, uint8_t* header
) noexcept nogil

# -- derived ----------------------------------------------------------------------------------------------------------

cdef inline const uint8_t* batch_payload(const batch_t* b) noexcept nogil:
    return b.at + HEADER_BYTES


cdef inline int64_t batch_payload_size(const batch_t* b) noexcept nogil:
    return b.size - HEADER_BYTES


cdef inline int64_t batch_last_offset(const batch_t* b) noexcept nogil:
    return b.base_offset + b.last_offset_delta


cdef inline int batch_codec(const batch_t* b) noexcept nogil:
    return b.attributes & CODEC_MASK


cdef inline int64_t batch_timestamp(const batch_t* b) noexcept nogil:
    """The largest timestamp of its records; -1 for a batch that compaction emptied."""
    return b.max_timestamp if b.count else -1


cdef inline int32_t batch_last_sequence(const batch_t* b) noexcept nogil:
    """The last sequence of the batch, -1 if it has none. Sequences run from 0 to 2^31 - 1, then from 0 again."""
    if b.base_sequence < 0:
        return -1
    return <int32_t>((<int64_t>b.base_sequence + b.last_offset_delta) & INT32_MAX)


# -- the handle that Python sees --------------------------------------------------------------------------------------

cdef class BatchHeader:
    cdef batch_t b  # its `at` is NULL: the bytes may be gone

cdef BatchHeader batch_header(const batch_t* b)
