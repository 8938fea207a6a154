# One partition's bytes on their way into columns: which batch is next, where in it, and what was aborted.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.mapping cimport FileMap
from pybroker.core.batch.batch cimport batch_t
from pybroker.core.batch.block cimport block_t
from pybroker.core.columns.decode cimport run_t

cdef enum:
    PLAIN_BYTES_MAX = 100 << 20  # what one batch may become when it is decompressed

cdef enum:
    BATCHES_END = -10020      # a status: no whole batch is left, or none with a wanted offset
    BATCHES_PACKED = -10021   # a status: the batch is compressed by a codec that Python has

cdef struct transaction_t:
    int64_t producer_id
    int32_t aborting       # its transaction at this place of the log was aborted

cdef struct abort_t:
    int64_t first_offset
    int32_t producer       # place in producers

cdef struct batches_t:
    const uint8_t* at
    const uint8_t* end
    const uint8_t* begin
    int64_t reached        # the offset behind the last batch of the segment; -1: of no segment
    int64_t next_base      # of the segment that follows
    bint zeros             # they are where a batch should begin
    bint misplaced         # the base offset of the batch in `run` cannot be here
    int64_t next_offset
    int64_t end_offset
    bint check_crc
    bint mapped            # they are in a map, and not in the cache: the CRC may be made later
    bint reserved          # zeros where a batch would begin are the end
    bint alone             # what follows these bytes will not be at hand either
    bint running           # `run` is a batch that is not done with
    bint finished
    run_t run
    block_t scratch        # what lz4 made of the batch in `run`
    transaction_t* producers  # by id
    int32_t producer_count
    abort_t* aborts        # by first offset, those before abort_next have begun
    int32_t abort_count
    int32_t abort_next

# Step to the next batch that may hold wanted records and leave it in `run`.
# OK, BATCHES_END, BATCHES_PACKED, -ENOMEM or a Kafka code: `run.b` then says which batch, and the batches stays before
# it.
cdef int batches_next(batches_t* f) noexcept nogil

# The records of the batch in `run`, uncompressed. OK, or BATCHES_END if it is a control batch, which is done with now.
cdef int batches_open(batches_t* f, const uint8_t* plain, int64_t n) noexcept nogil

# Where `run` was read to: on within the batch, or past it, or past everything that was wanted.
cdef void batches_advance(batches_t* f, bint more) noexcept nogil

cdef class PartitionBatches:
    cdef batches_t f
    cdef Py_buffer view
    cdef Py_buffer plain   # what Python decompressed the batch in `run` into
    cdef FileMap map       # that the batches are in; None where they are in memory
    cdef const uint8_t* before  # where a read of the map began, and at which offset
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
