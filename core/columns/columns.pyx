"""Columns: records of many batches, and of many partitions, in arrays that NumPy and Arrow read in place.

    batches = PartitionBatches(fetched, start_offset=40)
    columns = Columns(["offset", "value"], decompress=...)
    while not batches.finished:
        columns.read(batches, tag=("topic", 0))
    batch = columns.take()

Decoding does not take the GIL, except for one call of `decompress` for a batch.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t

from pybroker.core.base.cursor cimport OK
from pybroker.core.batch.block cimport block_free, block_take
from pybroker.core.columns.decode cimport (
    DECODE_FULL, WANT_HEADERS, WANT_KEY, WANT_OFFSET, WANT_TIMESTAMP, WANT_TIMESTAMP_TYPE, WANT_VALUE, binary_t,
    columns_forget, columns_free, columns_init, columns_seal, columns_t, decode_records,
)
from pybroker.core.columns.partition_batches cimport (
    BATCHES_END, BATCHES_PACKED, PartitionBatches, batches_advance, batches_next, batches_t,
)

WANTS = {
    "offset": WANT_OFFSET,
    "timestamp": WANT_TIMESTAMP,
    "timestamp_type": WANT_TIMESTAMP_TYPE,
    "key": WANT_KEY,
    "value": WANT_VALUE,
    "headers": WANT_HEADERS,
}
COLUMNS = tuple(WANTS)


cdef class Binary:
    """A column of nullable bytes: Arrow's binary layout with 32-bit offsets."""

    cdef readonly Py_ssize_t length
    cdef readonly Py_ssize_t nulls
    cdef readonly object offsets
    cdef readonly object data
    cdef readonly object validity  # None: no nulls


cdef class Headers:
    """A list of (key, value) for each row: `offsets`, one int32 more than rows, into two columns of bytes."""

    cdef readonly object offsets
    cdef readonly Binary key
    cdef readonly Binary value


cdef class ColumnBatch:
    """The rows returned by Columns.take(); a column that was not requested is None."""

    cdef readonly Py_ssize_t rows
    cdef readonly list runs  # (tag, rows): the batches of the rows, in order
    cdef readonly object offset  # int64
    cdef readonly object timestamp  # int64
    cdef readonly str timestamp_unit
    cdef readonly object timestamp_type  # int8
    cdef readonly Binary key
    cdef readonly Binary value
    cdef readonly Headers headers

    def __len__(self) -> int:
        return self.rows


cdef Binary _binary(binary_t* column, int64_t rows):
    cdef Binary taken = Binary.__new__(Binary)
    taken.length = rows
    taken.nulls = column.nulls
    taken.offsets = block_take(&column.offsets)
    taken.data = block_take(&column.data)
    validity = block_take(&column.validity)
    taken.validity = validity if column.nulls else None
    column.nulls = 0
    return taken


cdef int64_t _nbytes(const columns_t* c) noexcept nogil:
    return c.key.data.size + c.value.data.size + c.header_key.data.size + c.header_value.data.size


cdef int _fill(columns_t* c, batches_t* f, int64_t most, int64_t bytes_enough) noexcept nogil:
    """Read until there are `most` rows or enough bytes, the batches end, the columns are full or Python has to
    decompress."""
    cdef int64_t start = c.rows, wanted
    cdef int status
    while True:
        if not f.running:
            if _nbytes(c) >= bytes_enough:
                return OK
            status = batches_next(f)
            if status != OK:
                return status
        wanted = most - (c.rows - start)
        if wanted == 0:
            return OK
        status = decode_records(c, &f.run, f.next_offset, f.end_offset, wanted)
        if status != OK:
            return status
        batches_advance(f, c.rows - start == most)


cdef class Columns:
    """Columns that grow with every read, in Arrow's layout.

    columns: some of COLUMNS; the others cost nothing. timestamp_unit: "ms" or "us". decompress(codec, packed,
    bytes_max): returns `packed` decompressed, at most bytes_max.
    """

    cdef columns_t c
    cdef object decompress
    cdef int64_t scratch_bytes  # the size that the last batches needed for decompression
    cdef list runs
    cdef bint busy

    def __cinit__(self, columns=COLUMNS, *, timestamp_unit="ms", decompress=None):
        columns_init(&self.c)
        for name in columns:
            if name not in WANTS:
                raise ValueError(f"there is no column {name!r}; there are {', '.join(COLUMNS)}")
            self.c.wants |= <int>WANTS[name]
        if timestamp_unit not in ("ms", "us"):
            raise ValueError(f"timestamp_unit is 'ms' or 'us', not {timestamp_unit!r}")
        self.c.timestamp_scale = 1000 if timestamp_unit == "us" else 1
        self.decompress = decompress
        self.runs = []

    def __dealloc__(self):
        columns_free(&self.c)

    def __len__(self) -> int:
        return self.c.rows

    @property
    def nbytes(self) -> int:
        """The bytes of keys, values and headers so far."""
        return _nbytes(&self.c)

    def read(self, PartitionBatches batches not None, *, max_records=None, max_bytes=None, tag=None) -> int:
        """Add the partition's next records, all that are left or max_records; the number added.

        It ends early, at the end of a batch, when nbytes has reached max_bytes, or before a column would exceed 2 GiB:
        `batches.finished` is then False, and take() makes room. `tag` is recorded with the rows. Raises LogError with
        the batch's offset; the rows before it are added.
        """
        cdef columns_t before = self.c
        cdef int64_t most = INT64_MAX if max_records is None else max_records
        if most < 0:
            raise ValueError(f"max_records is {max_records}")
        if self.busy or batches.busy:
            raise RuntimeError("Columns and PartitionBatches are used by one thread at a time")
        self.busy = batches.busy = True
        failure = None
        batches.begin_read()
        try:
            self._read(batches, most, INT64_MAX if max_bytes is None else max_bytes)
        except BaseException as error:
            failure = error
        if not batches.end_read():
            columns_forget(&self.c, &before)
            batches.let_go()
            if isinstance(failure, Exception):
                failure = None   # the error may come from bytes that differ from the file's
        self.busy = batches.busy = False
        if self.c.rows > before.rows:
            self.runs.append((tag, self.c.rows - before.rows))
        if failure is not None:
            raise failure
        return self.c.rows - before.rows

    cdef int _read(self, PartitionBatches batches, int64_t most, int64_t bytes_enough) except -1:
        cdef int64_t start = self.c.rows
        cdef int status = BATCHES_PACKED
        batches.f.scratch.hint = self.scratch_bytes
        while status == BATCHES_PACKED:
            if not batches.f.running:
                batches.let_go()
            with nogil:
                status = _fill(&self.c, &batches.f, most - (self.c.rows - start), bytes_enough)
            if status == BATCHES_PACKED:
                batches.let_go()
                batches.hold(batches.unpack(self.decompress))
        if not batches.f.running:
            batches.let_go()
            self.scratch_bytes = batches.f.scratch.capacity
            block_free(&batches.f.scratch)
        if status not in (OK, BATCHES_END, DECODE_FULL):
            batches.refuse(status)
        return 0

    def take(self) -> ColumnBatch:
        """Return the rows so far, and empty the columns."""
        cdef ColumnBatch taken = ColumnBatch.__new__(ColumnBatch)
        cdef int32_t wants = self.c.wants
        if self.busy:
            raise RuntimeError("Columns are used by one thread at a time")
        if columns_seal(&self.c) != 0:
            raise MemoryError
        taken.rows = self.c.rows
        taken.runs = self.runs
        taken.timestamp_unit = "us" if self.c.timestamp_scale == 1000 else "ms"
        self.runs = []
        if wants & WANT_OFFSET:
            taken.offset = block_take(&self.c.offset)
        if wants & WANT_TIMESTAMP:
            taken.timestamp = block_take(&self.c.timestamp)
        if wants & WANT_TIMESTAMP_TYPE:
            taken.timestamp_type = block_take(&self.c.timestamp_type)
        if wants & WANT_KEY:
            taken.key = _binary(&self.c.key, self.c.rows)
        if wants & WANT_VALUE:
            taken.value = _binary(&self.c.value, self.c.rows)
        if wants & WANT_HEADERS:
            taken.headers = Headers.__new__(Headers)
            taken.headers.offsets = block_take(&self.c.header_offsets)
            taken.headers.key = _binary(&self.c.header_key, self.c.headers)
            taken.headers.value = _binary(&self.c.header_value, self.c.headers)
        self.c.rows = 0
        self.c.headers = 0
        return taken
