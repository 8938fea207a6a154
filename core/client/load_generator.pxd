# A load generator: requests over several connections, sent and counted without the GIL.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.tls cimport tls_scratch_t, tls_t

cdef enum:
    STEPS_BITS = 6                          # of a histogram: each power of two in 64 steps, 1.6 % apart
    STEPS = 1 << STEPS_BITS
    BUCKETS = (63 - STEPS_BITS + 1) * STEPS

cdef struct lane_t:                         # a connection
    int32_t fd
    tls_t* tls                              # NULL: not encrypted
    int32_t partition_count
    int32_t next_partition
    int32_t waiting                         # requests sent, not answered yet
    int32_t oldest                          # index into `sent_ns`, a ring of depth entries
    int32_t dead
    int64_t left                            # unsent bytes of the last frames
    int32_t burst                           # frames sent at once; `frame` has so many copies
    int64_t frame_bytes
    uint8_t* frame
    int32_t* partitions                     # the partitions of its frames, in turn
    const uint8_t* rest
    int64_t* sent_ns
    uint8_t* input
    int64_t input_capacity
    int64_t input_used

cdef struct tally_t:
    int64_t requests                        # answered
    int64_t records
    int64_t bytes                           # of batches: sent by Produce, received by Fetch
    int64_t errors
    int64_t last_error
    int64_t elapsed_ns

cdef struct generator_t:
    lane_t* lanes
    tls_scratch_t* scratch                  # of connections with TLS
    int32_t lane_count
    int32_t depth
    int32_t error_at                        # in a response, after its size
    int32_t records_at                      # in a Fetch response: the length of its records; 0: Produce
    int32_t index_at                        # in a frame: the partition
    int32_t offset_at                       # in a Fetch: the fetch offset
    int64_t batch_records                   # of a Produce
    int64_t batch_bytes
    int64_t issued_bytes
    int64_t stop                            # set by another thread to end the run
    tally_t tally
    int64_t buckets[BUCKETS]
