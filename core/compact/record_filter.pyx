"""The records that compaction retains: the last one of each key, and tombstones that readers may still need.

A round first reads the offset of each key's last record, batch by batch from the part that was never compacted, into
the offset map; then it filters every batch up to there. A record is retained

    if it lies past the part that was read, or no later record of its key was read; and
    if it has a value, or is a tombstone whose time is not over.

A tombstone's time begins when a round first retains it: the batch gets the delete horizon, now + delete.retention.ms,
as its base timestamp, and bit 6 of its attributes is set (KIP-534). After the horizon the next round removes the
batch's tombstones. Batches keep base offset, last offset delta, leader epoch and producer fields. An empty batch is
removed, unless it is its producer's last one or keep_empty is set: then the header is kept with count 0. Records
without a key are removed.

Transactions (transaction_trace.pyx): records of aborted ones are removed, whatever their keys, and their keys are not
read. A marker has no key for the map. Once no batch of its transaction is left it gets a delete horizon as well, and
goes after it. A producer that is known by markers only keeps the one with its epoch, at least as a header.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT32_MAX, INT64_MAX, int8_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from pybroker.core.base.crc32c cimport crc32c
from pybroker.core.base.cursor cimport (
    OK, cursor_init, cursor_left, cursor_t, read_i8, read_varint, read_varlong, store_be16, store_be32, store_be64,
    varlong_size, write_i8, write_span, write_varlong, writer_init, writer_t,
)
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE, MESSAGE_TOO_LARGE
from pybroker.core.batch.batch cimport (
    AT_ATTRIBUTES, AT_BASE_TIMESTAMP, AT_BATCH_LENGTH, AT_COUNT, AT_CRC, AT_MAX_TIMESTAMP, CODEC_MASK, CONTROL,
    DELETE_HORIZON, HEADER_BYTES, LENGTH_BYTES, LOG_APPEND_TIME, batch_codec, batch_last_offset, batch_payload,
    batch_payload_size, batch_t, batch_timestamp,
)
from pybroker.core.batch.record cimport record_next, record_t, record_timestamp
from pybroker.core.compact.offset_map cimport offset_map_free, offset_map_last, offset_map_put
from pybroker.core.compact.transaction_trace cimport trace_batch, trace_free, trace_is_aborted, trace_marker
from pybroker.core.storage.producers.producer_state cimport producer_t, sequence_find, sequence_free

cdef enum:
    BUFFER_MIN = 64 << 10
    NEVER = -1


cdef class Codec:
    """Compression and decompression by Python, called with the GIL, once for a batch."""

    def __init__(self, decompress, compress) -> None:
        self.decompress = decompress
        self.compress = compress


cdef int buffer_reserve(buffer_t* b, int64_t n) noexcept nogil:
    """Make sure that n more bytes fit."""
    cdef int64_t capacity = max(b.capacity, <int64_t>BUFFER_MIN)
    cdef uint8_t* at
    if b.length + n <= b.capacity:
        return 0
    while capacity < b.length + n:
        capacity *= 2
    at = <uint8_t*>realloc(b.at, <size_t>capacity)
    if at == NULL:
        return -ENOMEM
    b.at = at
    b.capacity = capacity
    return 0


cdef int buffer_add(buffer_t* b, const uint8_t* p, int64_t n) noexcept nogil:
    cdef int status = buffer_reserve(b, n)
    if status == 0 and n:
        memcpy(b.at + b.length, p, <size_t>n)
        b.length += n
    return status


cdef void filter_free(filter_t* s) noexcept nogil:
    offset_map_free(&s.keys)
    sequence_free(&s.producers)
    trace_free(&s.trace)
    free(s.plain.at)
    free(s.kept.at)
    free(s.shifted.at)
    free(s.packed.at)
    free(s.made.at)


# -- Python's codecs ---------------------------------------------------------------------------------------------------

cdef int through_python(Codec c, object how, int codec, const uint8_t* p, int64_t n, buffer_t* out):
    cdef const uint8_t[::1] made = how(codec, (<const char*>p)[:n])
    out.length = 0
    return buffer_add(out, &made[0] if made.shape[0] else NULL, made.shape[0])


cdef int transcode(filter_t* s, bint pack, int codec, const uint8_t* p, int64_t n, buffer_t* out) noexcept with gil:
    cdef Codec c = <Codec>s.codec
    try:
        return through_python(c, c.compress if pack else c.decompress, codec, p, n, out)
    except BaseException as problem:
        c.failure = problem
        return FAILED_IN_PYTHON


cdef int open_records(filter_t* s, const batch_t* b, cursor_t* out) noexcept nogil:
    """Open the records of a batch, decompressed if needed."""
    cdef int status = 0
    if batch_codec(b):
        status = transcode(s, False, batch_codec(b), batch_payload(b), batch_payload_size(b), &s.plain)
        cursor_init(out, s.plain.at, <size_t>s.plain.length)
    else:
        cursor_init(out, batch_payload(b), <size_t>batch_payload_size(b))
    return status


# -- reading keys ------------------------------------------------------------------------------------------------------

cdef int filter_learn(filter_t* s, const batch_t* b) noexcept nogil:
    """Add the offsets of a batch's keys to the map; batches are given in order.

    MAP_FULL if the map is full: the round then ends at keys_end. CORRUPT_MESSAGE if the records do not parse."""
    cdef cursor_t r
    cdef record_t record
    cdef int64_t offset
    cdef int32_t _
    cdef int status = 0
    if b.count and not b.attributes & CONTROL and not trace_is_aborted(&s.trace, b):
        status = open_records(s, b, &r)
        for _ in range(b.count):
            if status != 0:
                break
            if record_next(&r, &record) != OK:
                return CORRUPT_MESSAGE
            offset = b.base_offset + record.offset_delta
            if record.key.at != NULL and offset >= s.keys_from:
                status = offset_map_put(&s.keys, record.key.at, record.key.size, offset)
                if status == 0:
                    s.keys_end = offset + 1
    if status == 0:
        s.keys_end = batch_last_offset(b) + 1
    return status


# -- filtering ---------------------------------------------------------------------------------------------------------

cdef bint stays(const filter_t* s, const batch_t* b, const record_t* record) noexcept nogil:
    cdef int64_t offset = b.base_offset + record.offset_delta
    if offset >= s.keys_end:
        return True
    if record.key.at == NULL or offset_map_last(&s.keys, record.key.at, record.key.size) > offset:
        return False
    if record.value.at != NULL or not b.attributes & DELETE_HORIZON:
        return True
    return s.now_ms < b.base_timestamp


cdef struct count_t:
    int32_t kept
    int32_t tombstones           # among them
    int64_t max_timestamp        # of them


cdef int keep_records(filter_t* s, const batch_t* b, cursor_t* r, count_t* out) noexcept nogil:
    """Copy the retained records to s.kept, run by run; nothing is copied until a record was removed."""
    cdef const uint8_t* start = r.at
    cdef const uint8_t* run = r.at   # the first retained byte that is not copied yet
    cdef const uint8_t* at
    cdef record_t record
    cdef int32_t _
    cdef int status = 0
    s.kept.length = 0
    out.kept = out.tombstones = 0
    out.max_timestamp = -1
    for _ in range(b.count):
        at = r.at
        if status == 0 and record_next(r, &record) != OK:
            status = CORRUPT_MESSAGE
        if status != 0:
            return status
        if stays(s, b, &record):
            out.kept += 1
            out.tombstones += record.value.at == NULL
            out.max_timestamp = max(out.max_timestamp, record_timestamp(b, &record))
        else:
            status = buffer_add(&s.kept, run, at - run)
            run = r.at
    if cursor_left(r):
        return CORRUPT_MESSAGE
    return buffer_add(&s.kept, run, r.at - run) if run != start else status


cdef int shift_records(filter_t* s, const uint8_t* p, int64_t n, int32_t count, uint64_t back) noexcept nogil:
    """Rewrite records to s.shifted, each timestamp delta raised by `back`, for a base timestamp that is lower by
    that."""
    cdef cursor_t r, end
    cdef writer_t w
    cdef int64_t delta = 0, size
    cdef int32_t length = 0, _
    cdef int8_t attributes = 0
    cdef int status
    s.shifted.length = 0
    status = buffer_reserve(&s.shifted, n + <int64_t>count * 16)  # the two varints grow by less than that
    if status != 0:
        return status
    writer_init(&w, s.shifted.at, <size_t>s.shifted.capacity)
    cursor_init(&r, p, <size_t>n)
    for _ in range(count):
        if read_varint(&r, &length) != OK:
            return CORRUPT_MESSAGE
        cursor_init(&end, r.at + length, 0)
        if read_i8(&r, &attributes) != OK or read_varlong(&r, &delta) != OK:
            return CORRUPT_MESSAGE
        delta = <int64_t>(<uint64_t>delta + back)
        size = end.at - r.at
        write_varlong(&w, 1 + varlong_size(delta) + size)
        write_i8(&w, attributes)
        write_varlong(&w, delta)
        if write_span(&w, r.at, <size_t>size) != OK:
            return CORRUPT_MESSAGE
        r.at = end.at
    s.shifted.length = w.at - s.shifted.at
    return 0


cdef bint is_producers_last(const filter_t* s, const batch_t* b) noexcept nogil:
    """True if this is its producer's last batch, which its next sequence number follows; or a marker with the epoch of
    a producer that is known by markers only."""
    cdef const producer_t* p = sequence_find(&s.producers, b.producer_id) if b.producer_id >= 0 else NULL
    if p == NULL:
        return False
    if p.count == 0:
        return b.attributes & CONTROL and b.producer_epoch == p.epoch
    return p.window[p.newest].last_offset == batch_last_offset(b)


cdef int make(
    filter_t* s, const batch_t* b, const batch_t* header, const uint8_t* p, int64_t n, filtered_t* out) noexcept nogil:
    """Make a batch of these records with b's header, except for attributes, timestamps and count from `header`."""
    cdef int status
    cdef uint8_t* h
    if n > INT32_MAX - <int64_t>HEADER_BYTES:
        return MESSAGE_TOO_LARGE
    s.made.length = 0
    status = buffer_reserve(&s.made, HEADER_BYTES + n)
    if status != 0:
        return status
    h = s.made.at
    memcpy(h, b.at, HEADER_BYTES)
    if n:
        memcpy(h + HEADER_BYTES, p, <size_t>n)
    out.at = h
    out.size = HEADER_BYTES + n
    out.timestamp = batch_timestamp(header)
    store_be32(h + AT_BATCH_LENGTH, <int32_t>(out.size - <int64_t>LENGTH_BYTES))
    store_be16(h + AT_ATTRIBUTES, header.attributes)
    store_be64(h + AT_BASE_TIMESTAMP, header.base_timestamp)
    store_be64(h + AT_MAX_TIMESTAMP, header.max_timestamp)
    store_be32(h + AT_COUNT, header.count)
    store_be32(h + AT_CRC, <int32_t>crc32c(h + AT_ATTRIBUTES, <size_t>(out.size - <int64_t>AT_ATTRIBUTES), 0))
    return 0


cdef void as_it_is(const batch_t* b, filtered_t* out) noexcept nogil:
    out.at = b.at
    out.size = b.size
    out.timestamp = batch_timestamp(b)


cdef int make_empty(filter_t* s, const batch_t* b, filtered_t* out) noexcept nogil:
    cdef batch_t header = b[0]
    if b.count == 0:
        as_it_is(b, out)
        return 0
    header.attributes = b.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    header.base_timestamp = NEVER
    header.count = 0
    return make(s, b, &header, NULL, 0, out)


cdef int make_of_kept(
    filter_t* s, const batch_t* b, const cursor_t* records, const count_t* n, bint begins,
    filtered_t* out) noexcept nogil:
    """Make a batch of the retained records: all of `records` or, if some were removed, s.kept. `begins`: it gets a
    delete horizon."""
    cdef batch_t header = b[0]
    cdef const uint8_t* p = <const uint8_t*>s.kept.at if n.kept < b.count else records.at
    cdef int64_t size = s.kept.length if n.kept < b.count else <int64_t>cursor_left(records)
    cdef int status = 0
    if n.kept == b.count and not begins:
        as_it_is(b, out)
        return 0
    header.count = n.kept
    if not b.attributes & LOG_APPEND_TIME:
        header.max_timestamp = n.max_timestamp
    if begins:
        header.attributes |= DELETE_HORIZON
        header.base_timestamp = min(s.delete_retention_ms, INT64_MAX - s.now_ms) + s.now_ms
        status = shift_records(s, p, size, n.kept, <uint64_t>b.base_timestamp - <uint64_t>header.base_timestamp)
        p, size = s.shifted.at, s.shifted.length
    if status == 0 and batch_codec(b):
        status = transcode(s, True, batch_codec(b), p, size, &s.packed)
        p, size = s.packed.at, s.packed.length
    return status if status != 0 else make(s, b, &header, p, size, out)


cdef int drop(filter_t* s, const batch_t* b, bint keep_empty, filtered_t* out) noexcept nogil:
    """Remove a batch, but for its header if that is needed."""
    if keep_empty or is_producers_last(s, b):
        return make_empty(s, b, out)
    out.size = 0
    return 0


cdef int filter_control(filter_t* s, const batch_t* b, bint keep_empty, filtered_t* out) noexcept nogil:
    """Filter a marker. Kafka keeps an empty control batch only as a header, without a horizon."""
    cdef cursor_t records
    cdef count_t n
    cdef bint may_go = trace_marker(&s.trace, b, &out.aborted)
    if may_go and (b.count == 0 or (b.attributes & DELETE_HORIZON and b.base_timestamp <= s.now_ms)):
        return drop(s, b, keep_empty, out)
    if not may_go or b.attributes & DELETE_HORIZON or batch_codec(b):
        as_it_is(b, out)
        return 0
    cursor_init(&records, batch_payload(b), <size_t>batch_payload_size(b))
    n.kept, n.tombstones, n.max_timestamp = b.count, 0, b.max_timestamp
    return make_of_kept(s, b, &records, &n, True, out)


cdef int filter_batch(filter_t* s, const batch_t* b, bint keep_empty, filtered_t* out) noexcept nogil:
    """Filter a batch; the result is valid until the next call. CORRUPT_MESSAGE if its records do not parse."""
    cdef cursor_t records, r
    cdef count_t n
    cdef int status
    out.aborted = NULL
    if b.attributes & CONTROL:
        return filter_control(s, b, keep_empty, out)
    status = trace_batch(&s.trace, b)
    if status < 0:
        return status
    if status > 0:
        s.records_dropped += b.count
        return drop(s, b, keep_empty, out)
    if b.base_offset >= s.keys_end:
        as_it_is(b, out)
        return 0
    memset(&n, 0, sizeof(n))
    if b.count:
        status = open_records(s, b, &records)
        r = records
        if status == 0:
            status = keep_records(s, b, &r, &n)
        if status != 0:
            return status
        s.records_dropped += b.count - n.kept
        if n.kept:
            return make_of_kept(s, b, &records, &n, n.tombstones > 0 and not b.attributes & DELETE_HORIZON, out)
    return drop(s, b, keep_empty, out)
