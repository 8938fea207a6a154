# A generator of load: requests over several connections, sent and counted without the GIL.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.tls cimport tls_scratch_t, tls_t

cdef enum:
    STEPS_BITS = 6                          # of a histogram: each power of two in 64 steps, 1.6 % apart
    STEPS = 1 << STEPS_BITS
    BUCKETS = (63 - STEPS_BITS + 1) * STEPS

cdef struct lane_t:                         # one connection
    int32_t fd
    tls_t* tls                              # NULL: its bytes are not encrypted
    int32_t partition_count
    int32_t next_partition
    int32_t waiting                         # requests that were sent and not answered
    int32_t oldest                          # of `sent_ns`, a ring of depth entries
    int32_t dead
    int64_t left                            # bytes of the last frame that the socket did not take
    int32_t burst                           # frames that are sent at once; so many copies stand in `frame`
    int64_t frame_bytes
    uint8_t* frame
    int32_t* partitions                     # the partitions that its frames go to, one after the other
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
    int32_t error_at                        # of an answer, behind its size
    int32_t records_at                      # of an answer to Fetch: the length of its records; 0: these are Produce
    int32_t index_at                        # of a frame: the partition
    int32_t offset_at                       # of a Fetch: the offset that it asks for
    int64_t batch_records                   # of a Produce
    int64_t batch_bytes
    int64_t issued_bytes
    int64_t stop                            # somebody else wants it to end
    tally_t tally
    int64_t buckets[BUCKETS]
