# The encoding of a follower's Fetch: its requests, and the responses of its leader.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.base.cursor cimport cursor_t
from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.replica.replica_fetcher cimport replica_fetcher_t
from pybroker.core.plane.requests.wire cimport text_t

cdef enum:
    NO_MORE = 1                  # a status: no more partitions in the response

cdef struct answer_t:            # a response being read
    cursor_t at
    int32_t by_id
    int32_t correlation
    int32_t session_id
    int16_t error
    int32_t topics_left
    int32_t partitions_left      # in this topic
    text_t topic

cdef struct brought_t:           # one partition of a response
    text_t topic                 # its name, or its id
    int32_t index
    int16_t error
    int64_t high_watermark
    int64_t log_start
    const uint8_t* records
    int32_t records_bytes
    int32_t diverges             # our log diverges from the leader's, where this epoch ends at this offset
    int32_t diverging_epoch
    int64_t diverging_end

cdef int replica_fetch_write(replica_fetcher_t* f, conn_t* c) noexcept nogil
cdef int replica_answer_open(answer_t* a, const uint8_t* frame, int64_t n, bint by_id) noexcept nogil
cdef int replica_answer_next(answer_t* a, brought_t* out) noexcept nogil
