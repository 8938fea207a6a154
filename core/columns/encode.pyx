"""Columns into batches: rows go to the open batch of their partition, full batches are sealed, without the GIL.

    encoder = Encoder(partitions=4, batch_size=1 << 20)
    batches = encoder.add(values, keys=keys, timestamps=now_ms, partitions=partitions_of(keys, 4))
    batches += encoder.finish()  # what is not full

The GIL is needed only for one call of `compress` for each batch, after the rows are added.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport ENOMEM
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from pybroker.core.base.cursor cimport BAD, OK
from pybroker.core.base.status cimport raise_status
from pybroker.core.batch.batch cimport CODEC_MASK, HEADER_BYTES
from pybroker.core.batch.block cimport Block, block_free, block_init, block_room, block_t, block_take, copy
from pybroker.core.batch.builder cimport (
    builder_add, builder_init, builder_seal, builder_t, builder_undo, entry_body, field_bytes, new_record_t, put_field,
    put_zigzag, zigzag_size,
)
from pybroker.core.batch.murmur2 cimport murmur2_partition
from pybroker.core.columns.source cimport (
    SOURCE_NULL, SOURCE_SPANS, ByteColumn, HeaderColumn, field_t, source_bytes, source_get, source_t,
)

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void* p) noexcept nogil

cdef enum:
    NO_PARTITION = -1
    NOWHERE = -10030   # a status: the row names a partition that does not exist
    NO_KEY = 1         # the length -1, zigzag
    RECORD_BYTES = 12  # a record's approximate size beside key and value
    AHEAD_BYTES = 4096 # prefetched from the values, also across a page boundary

cdef struct rows_t:
    # The columns to add, of the same length. NULL: the value beside it is used for every row.
    source_t values
    source_t keys
    source_t* lists          # of headers; NULL: no headers
    source_t header_keys
    source_t header_values
    const uint8_t* timestamps  # int64
    int64_t timestamp
    const uint8_t* partitions  # int32

cdef struct done_t:
    int32_t partition
    builder_t builder

cdef struct encoder_t:
    builder_t* open          # one for NO_PARTITION, then one a partition
    int32_t partitions
    int64_t batch_size
    int32_t records_max
    block_t done             # done_t, in the order in which they became full
    int64_t sealed           # how many of them are sealed


# -- rows -------------------------------------------------------------------------------------------------------------

cdef int _measure_headers(const rows_t* r, int64_t first, new_record_t* e) noexcept nogil:
    """Measure the entry's headers, the first of which is number `first`."""
    cdef field_t key, value
    cdef int64_t i
    for i in range(first, first + e.header_count):
        if source_get(&r.header_keys, i, &key) != OK or key.size < 0 or source_get(&r.header_values, i, &value) != OK:
            return BAD
        e.header_bytes += field_bytes(key.size) + field_bytes(value.size)
    return OK


cdef int _put_headers(const rows_t* r, int64_t first, const new_record_t* e, uint8_t* at) noexcept nogil:
    """Write the entry's headers. BAD, and no more is written, if they are larger than measured: they were changed."""
    cdef field_t key, value
    cdef int64_t i, left = e.header_bytes
    for i in range(first, first + e.header_count):
        if source_get(&r.header_keys, i, &key) != OK or source_get(&r.header_values, i, &value) != OK:
            return BAD
        left -= field_bytes(key.size) + field_bytes(value.size)
        if left < 0:
            return BAD
        at = put_field(put_field(at, key.at, key.size), value.at, value.size)
    return OK if left == 0 else BAD


cdef inline int _read(const rows_t* r, int64_t row, new_record_t* e, int64_t* first_header) noexcept nogil:
    """Read a row as an entry, with its headers measured; BAD if its columns are inconsistent."""
    cdef field_t field
    if source_get(&r.values, row, &field) != OK:
        return BAD
    e.value, e.value_size = field.at, field.size
    if source_get(&r.keys, row, &field) != OK:
        return BAD
    e.key, e.key_size = field.at, field.size
    e.timestamp = r.timestamp
    if r.timestamps != NULL:
        memcpy(&e.timestamp, r.timestamps + row * 8, 8)
    e.header_count = e.header_bytes = 0
    if r.lists == NULL:
        return OK
    if source_get(r.lists, row, &field) != OK:
        return BAD
    if field.size <= 0:
        return OK
    e.header_count = field.size
    first_header[0] = field.at - r.lists.data
    return _measure_headers(r, first_header[0], e)


cdef int _close(encoder_t* e, int32_t partition) noexcept nogil:
    """Move the open batch of a partition to the full ones."""
    cdef done_t done
    cdef builder_t* builder = &e.open[partition + 1]
    if block_room(&e.done, sizeof(done_t)) != 0:
        return -ENOMEM
    done.partition = partition
    done.builder = builder[0]
    memcpy(e.done.data + e.done.size, &done, sizeof(done_t))
    e.done.size += sizeof(done_t)
    builder_init(builder, builder.block.size)
    return OK


cdef int _add_values(encoder_t* e, const rows_t* r, int64_t* row, int64_t stop) noexcept nogil:
    """Add rows to the open batch until it is full or `stop` is reached. The rows have only a value, and a common
    timestamp: what they share is computed once."""
    cdef builder_t* b = &e.open[NO_PARTITION + 1]
    cdef int64_t delta = <int64_t>(<uint64_t>r.timestamp - <uint64_t>b.base_timestamp)
    cdef int64_t same = 3 + zigzag_size(delta), body, total   # attributes, no key, no headers
    cdef const uint8_t* end = r.values.data + r.values.data_size if r.values.kind != SOURCE_SPANS else NULL
    cdef field_t value
    cdef uint8_t* p
    while row[0] < stop and b.count < e.records_max:
        if source_get(&r.values, row[0], &value) != OK:
            return BAD
        prefetch(value.at + AHEAD_BYTES)
        body = same + zigzag_size(b.count) + field_bytes(value.size)
        total = zigzag_size(body) + body
        if b.block.size + total > e.batch_size or total > b.block.capacity - b.block.size:
            return OK            # it is full, or has to grow
        p = put_zigzag(b.block.data + b.block.size, body)
        p[0] = 0
        p = put_zigzag(put_zigzag(p + 1, delta), b.count)
        p[0] = NO_KEY
        p = put_zigzag(p + 1, value.size)
        if value.size > 0:
            copy(p, value.at, value.size, end - value.at if end != NULL else 0)
            p += value.size
        p[0] = 0
        b.block.size += total
        b.count += 1
        row[0] += 1
        b.max_timestamp = max(b.max_timestamp, r.timestamp)
    return OK


cdef int _add(encoder_t* e, const rows_t* r, int64_t* row, int64_t stop) noexcept nogil:
    """Add rows up to `stop`. With a status other than OK (BAD, NOWHERE, MESSAGE_TOO_LARGE, -ENOMEM) `row` is the
    invalid row."""
    cdef new_record_t entry
    cdef builder_t* builder
    cdef int64_t body, first_header = 0
    cdef int32_t partition = NO_PARTITION
    cdef uint8_t* headers = NULL
    cdef bint plain = r.keys.kind == SOURCE_NULL and r.lists == NULL and r.timestamps == NULL and r.partitions == NULL
    cdef int status = OK
    while row[0] < stop:
        if plain and e.open[NO_PARTITION + 1].count > 0:
            status = _add_values(e, r, row, stop)
            if status != OK or row[0] == stop:
                return status
        if r.partitions != NULL:
            memcpy(&partition, r.partitions + row[0] * 4, 4)
            if partition < NO_PARTITION or partition >= e.partitions:
                return NOWHERE
        if _read(r, row[0], &entry, &first_header) != OK:
            return BAD
        builder = &e.open[partition + 1]
        body = entry_body(builder, &entry)
        if builder.count and (
            builder.count >= e.records_max or builder.block.size + zigzag_size(body) + body > e.batch_size
        ):
            status = _close(e, partition)
            if status != OK:
                return status
            body = entry_body(builder, &entry)
        status = builder_add(builder, &entry, body, &headers)
        if status != OK:
            return status
        if entry.header_count and _put_headers(r, first_header, &entry, headers) != OK:
            builder_undo(builder, body)
            return BAD
        row[0] += 1
    return OK


cdef void _expect(encoder_t* e, const rows_t* r, int64_t row, int64_t rows) noexcept nogil:
    """Give new batches their expected size, if rows are spread evenly, as growing copies them."""
    cdef int64_t i, parts = max(1, e.partitions) if r.partitions != NULL else 1
    cdef int64_t bytes = source_bytes(&r.values, row, rows) + source_bytes(&r.keys, row, rows)
    bytes = HEADER_BYTES + (bytes + (rows - row) * RECORD_BYTES) // parts
    for i in range(1 if r.partitions == NULL else e.partitions + 1):
        if e.open[i].block.data == NULL:
            e.open[i].block.hint = min(bytes, e.batch_size)


# -- for Python -------------------------------------------------------------------------------------------------------

cdef int _hold(object data, Py_buffer* view, int64_t least, str what) except -1:
    PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    if view.len < least:
        raise ValueError(f"{what} of {view.len} bytes, where {least} are needed")
    return 0


cdef int _same_length(object column, int64_t rows, str what) except -1:
    if len(column) != rows:
        raise ValueError(f"{len(column)} {what} beside {rows} values")
    return 0


cdef class Encoder:
    """Batches of several partitions, filled from columns.

    batch_size: uncompressed bytes of a batch; only a single record that is larger exceeds it. records_max: records of a
    batch. attributes: the codec's number; `compress(plain)` applies it."""

    cdef encoder_t e
    cdef int16_t attributes
    cdef object compress
    cdef list batches  # sealed, not returned yet
    cdef bint busy

    def __cinit__(
        self, *, int32_t partitions=0, int64_t batch_size=1 << 20, int32_t records_max=INT32_MAX,
        int16_t attributes=0, compress=None,
    ):
        cdef int32_t i
        if partitions < 0 or batch_size < 1 or records_max < 1:
            raise ValueError(f"partitions={partitions}, batch_size={batch_size}, records_max={records_max}")
        self.e.open = <builder_t*>calloc(<size_t>partitions + 1, sizeof(builder_t))
        if self.e.open == NULL:
            raise MemoryError
        self.e.partitions = partitions
        self.e.batch_size = batch_size
        self.e.records_max = records_max
        for i in range(partitions + 1):
            builder_init(&self.e.open[i], 0)
        block_init(&self.e.done, 0)
        if bool(attributes & CODEC_MASK) != (compress is not None):
            raise ValueError(f"codec {attributes & CODEC_MASK} with compress={compress!r}: one needs the other")
        self.attributes = attributes
        self.compress = compress
        self.batches = []

    def __dealloc__(self):
        cdef int32_t i
        cdef int64_t n
        if self.e.open != NULL:
            for i in range(self.e.partitions + 1):
                block_free(&self.e.open[i].block)
        for n in range(self.e.done.size // <int64_t>sizeof(done_t)):
            block_free(&(<done_t*>self.e.done.data)[n].builder.block)
        block_free(&self.e.done)
        free(self.e.open)

    def add(
        self, ByteColumn values not None, *, ByteColumn keys=None, timestamps, HeaderColumn headers=None,
        partitions=None,
        int64_t start=0, stop=None, int64_t before=0,
    ) -> list:
        """Add the rows from `start` to `stop` (None: all); return the full batches, with the partition as tag.

        timestamps: milliseconds, one for all rows or an int64 each. partitions: an int32 each, as from partitions_of;
        None and -1 are no partition: these rows fill separate batches with tag -1. before: rows of the column in
        earlier calls, for errors. Raises ValueError for an invalid row, LogError(MESSAGE_TOO_LARGE) for one that fits
        no batch: the rows before it are added, and `finish()` returns them."""
        cdef rows_t r
        cdef Py_buffer times, places
        cdef int64_t row = start, rows = values.s.length
        cdef int64_t last = rows if stop is None else stop
        cdef int32_t named
        cdef int status
        memset(&times, 0, sizeof(Py_buffer))
        memset(&places, 0, sizeof(Py_buffer))
        if not 0 <= start <= last <= rows:
            raise ValueError(f"rows {start} to {last} of {rows}")
        r.values = values.s
        r.keys.kind = SOURCE_NULL
        if keys is not None:
            _same_length(keys, rows, "keys")
            r.keys = keys.s
        r.lists = NULL
        if headers is not None:
            _same_length(headers, rows, "lists of headers")
            r.lists, r.header_keys, r.header_values = &headers.lists, headers.keys.s, headers.values.s
        if self.busy:
            raise RuntimeError("an encoder is used by one thread at a time")
        self.busy = True
        try:
            r.timestamps = r.partitions = NULL
            r.timestamp = 0
            if isinstance(timestamps, int):
                r.timestamp = timestamps
            else:
                _hold(timestamps, &times, last * 8, "timestamps")
                r.timestamps = <const uint8_t*>times.buf
            if partitions is not None:
                _hold(partitions, &places, last * 4, "partitions")
                r.partitions = <const uint8_t*>places.buf
            with nogil:
                if start < last:
                    _expect(&self.e, &r, start, rows)
                status = _add(&self.e, &r, &row, last)
            if status == NOWHERE:
                memcpy(&named, r.partitions + row * 4, 4)
                raise ValueError(f"row {before + row}: partition {named}, and there are {self.e.partitions}")
            if status != OK:
                _refuse(status, before + row)
            return self._sealed()
        finally:
            PyBuffer_Release(&times)
            PyBuffer_Release(&places)
            self.busy = False

    def finish(self) -> list:
        """Return the batches that are not full, at most one for a partition."""
        cdef int32_t i
        if self.busy:
            raise RuntimeError("an encoder is used by one thread at a time")
        for i in range(self.e.partitions + 1):
            if self.e.open[i].count and _close(&self.e, i - 1) != OK:
                raise MemoryError
        return self._sealed()

    cdef list _sealed(self):
        """Seal and return the full batches. If `compress` raises, nothing is lost: the next call continues."""
        cdef int64_t n = self.e.done.size // <int64_t>sizeof(done_t)
        cdef done_t* done
        while self.e.sealed < n:
            done = <done_t*>self.e.done.data + self.e.sealed
            self.batches.append(builder_seal(&done.builder, self.attributes, self.compress, done.partition))
            self.e.sealed += 1
        self.e.done.size = self.e.sealed = 0
        batches, self.batches = self.batches, []
        return batches


cdef int _refuse(int status, int64_t row) except -1:
    if status == -ENOMEM:
        raise MemoryError
    if status == BAD:
        raise ValueError(f"row {row}: its offsets leave the data, or a header has no key")
    return raise_status(status, f"row {row}: a batch cannot hold a record of 2 GiB")


def partitions_of(ByteColumn keys not None, int32_t partitions, *, int64_t before=0) -> Block:
    """The partition of each key, out of `partitions`, as an int32 for each row; the same as in Java's producer. -1 for
    null.

    before: as in Encoder.add."""
    cdef block_t out
    cdef field_t key
    cdef int64_t row
    cdef int32_t* place
    cdef int status = OK
    if partitions < 1:
        raise ValueError(f"partitions={partitions}")
    block_init(&out, 0)
    if block_room(&out, keys.s.length * 4) != 0:
        raise MemoryError
    place = <int32_t*>out.data
    with nogil:
        for row in range(keys.s.length):
            status = source_get(&keys.s, row, &key)
            if status != OK:
                break
            place[row] = murmur2_partition(key.at, key.size, partitions) if key.size >= 0 else NO_PARTITION
    if status != OK:
        block_free(&out)
        _refuse(status, before + row)
    out.size = keys.s.length * 4
    return block_take(&out)
