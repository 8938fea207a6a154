# The batches of one partition on their way into columns: position, current batch, aborted transactions.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.mapping cimport FileMap
from pybroker.core.batch.batch cimport batch_t
from pybroker.core.batch.block cimport block_t
from pybroker.core.columns.decode cimport run_t

cdef enum:
    PLAIN_BYTES_MAX = 100 << 20  # the limit of one decompressed batch

cdef enum:
    BATCHES_END = -10020      # a status: no complete batch is left, or none with a requested offset
    BATCHES_PACKED = -10021   # a status: the batch has a codec that only Python has

cdef struct transaction_t:
    int64_t producer_id
    int32_t aborting       # the current transaction at this position was aborted

cdef struct abort_t:
    int64_t first_offset
    int32_t producer       # index in producers

cdef struct batches_t:
    const uint8_t* at
    const uint8_t* end
    const uint8_t* begin
    int64_t reached        # the offset after the last batch of the segment; -1: not from a segment
    int64_t next_base      # of the next segment
    bint zeros             # there are zeros where a batch should begin
    bint misplaced         # the base offset of the batch in `run` is not possible here
    int64_t next_offset
    int64_t end_offset
    bint check_crc
    bint mapped            # the bytes are in a map, not in the cache: the CRC may be checked after reading
    bint reserved          # zeros where a batch would begin are the end
    bint alone             # the bytes that follow these will never be available
    bint running           # the batch in `run` is not finished
    bint finished
    run_t run
    block_t scratch        # the batch in `run`, decompressed from lz4
    transaction_t* producers  # by id
    int32_t producer_count
    abort_t* aborts        # by first offset; those before abort_next have begun
    int32_t abort_count
    int32_t abort_next

# Advance to the next batch that may have requested records, in `run`. OK, BATCHES_END, BATCHES_PACKED, -ENOMEM or an
# error code: then `run.b` is the batch, and the position stays before it.
cdef int batches_next(batches_t* f) noexcept nogil

# Open the decompressed records of the batch in `run`. OK, or BATCHES_END for a control batch, which is then finished.
cdef int batches_open(batches_t* f, const uint8_t* plain, int64_t n) noexcept nogil

# Continue after reading `run`: within the batch, after it, or at the end of the requested offsets.
cdef void batches_advance(batches_t* f, bint more) noexcept nogil

cdef class PartitionBatches:
    cdef batches_t f
    cdef Py_buffer view
    cdef Py_buffer plain   # the batch in `run` as decompressed by Python
    cdef FileMap map       # that has the batches; None: they are in memory
    cdef const uint8_t* before  # position, offset and `reached` at the start of a read of the map
    cdef int64_t before_offset
    cdef int64_t before_reached
    cdef bint is_stale
    cdef bint busy
    cdef void begin_read(self) noexcept
    cdef bint end_read(self) noexcept
    cdef int hold(self, object plain) except -1
    cdef void let_go(self) noexcept
    cdef object unpack(self, object decompress)
    cdef int refuse(self, int status) except -1
