"""Records into columns, in Arrow's layout: each batch is appended to growing blocks, without Python objects.

A column of bytes is three blocks: `offsets`, one i32 before the first row and one for each row, into `data`, and
`validity`, one bit a row, 0 for null. Headers are such a list for each row: `header_offsets` into two columns of bytes,
keys and values. Offsets have 32 bits; decoding stops before a batch that might exceed 2 GiB (DECODE_FULL).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.cursor cimport cursor_t
from pybroker.core.batch.batch cimport batch_t
from pybroker.core.batch.block cimport block_t

cdef enum:
    WANT_OFFSET = 1
    WANT_TIMESTAMP = 2
    WANT_TIMESTAMP_TYPE = 4
    WANT_KEY = 8
    WANT_VALUE = 16
    WANT_HEADERS = 32

cdef enum:
    DECODE_FULL = -10010  # a status: the next batch might not fit, take the rows first

cdef struct binary_t:
    block_t offsets
    block_t data
    block_t validity
    int64_t nulls

cdef struct columns_t:
    int32_t wants
    int64_t timestamp_scale  # 1 for milliseconds, 1000 for microseconds
    int64_t rows
    int64_t headers  # of all rows
    block_t offset
    block_t timestamp
    block_t timestamp_type
    binary_t key
    binary_t value
    block_t header_offsets
    binary_t header_key
    binary_t header_value

cdef struct run_t:
    # The records of one batch, uncompressed, while they are read.
    batch_t b
    cursor_t r
    int64_t index  # records read
    int64_t last_delta  # offset delta of the last record read, -1 before the first
    const uint8_t* raw  # the whole batch while its CRC check is pending; else NULL

cdef inline void run_init(run_t* run, const batch_t* b, const uint8_t* plain, int64_t n) noexcept nogil:
    run.b = b[0]
    run.r.at = plain
    run.r.end = plain + n
    run.index = 0
    run.last_delta = -1

cdef void columns_init(columns_t* c) noexcept nogil

cdef void columns_free(columns_t* c) noexcept nogil

# Prepare the blocks for handing out: lists without rows have their first offset, too. 0 or -ENOMEM.
cdef int columns_seal(columns_t* c) noexcept nogil

# Add the records of a run with offsets from `start` to below `end`, at most `most`; the next call continues the run.
# OK; the batch is finished if run.index == run.b.count, or if `end` was reached. Otherwise nothing was added:
# DECODE_FULL, INVALID_RECORD, -ENOMEM, or the result of the CRC check.
cdef int decode_records(columns_t* c, run_t* run, int64_t start, int64_t end, int64_t most) noexcept nogil

# Remove the rows added since `before`, a copy of the columns at that time.
cdef void columns_forget(columns_t* c, const columns_t* before) noexcept nogil
