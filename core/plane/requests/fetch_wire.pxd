# A decoded Fetch request, the records found for it, and its encoded response.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.base.cursor cimport cursor_t
from pybroker.core.partition.partition cimport BOUND_HIGH_WATERMARK, BOUND_LOG_END, partition_t, read_t
from pybroker.core.partition.registry cimport registry_t
from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.requests.fetch_session cimport session_t, tracked_t
from pybroker.core.plane.requests.nodes cimport leaders_t
from pybroker.core.plane.requests.verdict cimport verdict_t
from pybroker.core.plane.requests.wire cimport text_t
from pybroker.core.storage.segment.transaction_index cimport abort_list_t

cdef enum:
    WANTED_MAX = 16384           # partitions of one fetch; one with more goes to Python
    ABORTS_MAX = 65536           # aborted transactions in one response; one with more is made by Python

cdef struct wanted_t:            # one partition of a fetch
    partition_t* partition
    tracked_t* tracked           # in its session; NULL: no session
    int64_t offset
    int32_t most
    int32_t leader_epoch         # known to the client; -1 none
    int32_t last_epoch           # of the client's last record; -1 not given
    int64_t log_start            # of a follower; -1 not given
    int32_t error                # the error code of the response
    int32_t diverges             # the follower's log diverges from ours, where this epoch ends at this offset
    int32_t diverging_epoch
    int64_t diverging_end
    int32_t leader               # with NOT_LEADER_OR_FOLLOWER: the leader and its epoch; -1 unknown
    int32_t led_epoch
    read_t read                  # the records found, held
    int32_t copied               # its records are copied, not sent from the file
    int64_t aborts_from          # the aborted transactions among its records, in the fetch's list
    int64_t aborts_count

cdef struct request_part_t:              # a part of the request's bytes
    const uint8_t* at
    const uint8_t* end

cdef struct fetch_t:             # a fetch being executed; each reactor has one and reuses it
    int16_t version
    int32_t correlation
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t max_bytes
    int32_t isolation
    int32_t session_id           # of the request
    int32_t session_epoch
    int32_t topics               # number of topics that the request names, and that it forgets
    int32_t forgotten
    int32_t foreign              # well formed, but Python must handle it
    int32_t replica              # the follower's broker id; -1: a consumer
    int64_t replica_epoch        # the follower's broker epoch; -1 not given
    text_t rack                  # of the client; empty: not given
    request_part_t frame
    const uint8_t* wait_at       # the position of max_wait_ms
    const uint8_t* session_at    # the position of session id and epoch; NULL below version 7
    request_part_t body                  # the topics to fetch
    request_part_t forgotten_body        # and those to forget
    int64_t found_bytes
    int64_t throttle_ms          # of the response
    int64_t throttled_left       # bytes of throttled partitions that the response may still have
    int64_t withheld_ms          # ms until more of those is allowed; 0: nothing was withheld
    leaders_t leaders            # named in the response
    int32_t opens                # files that the reactor opened for it
    abort_list_t aborts          # of all its partitions
    int32_t count
    int32_t capacity
    wanted_t* wanted

cdef bint fetch_read(fetch_t* f, registry_t* reg, cursor_t* r, int16_t version) noexcept nogil
cdef wanted_t* fetch_add(fetch_t* f) noexcept nogil
cdef void fetch_forget(const fetch_t* f, session_t* s) noexcept nogil
cdef verdict_t fetch_answer(fetch_t* f, conn_t* c, int error, int32_t session_id) noexcept nogil
cdef uint8_t* fetch_without_session(const fetch_t* f, session_t* s, int64_t* n) noexcept nogil


cdef inline int fetch_bound(const fetch_t* f) noexcept nogil:
    """The bound up to which the fetching client or follower may read."""
    return BOUND_LOG_END if f.replica >= 0 else BOUND_HIGH_WATERMARK + f.isolation
