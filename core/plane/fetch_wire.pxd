# A Fetch request, parsed; what was found for it; and the answer's bytes.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.base.cursor cimport cursor_t
from pybroker.core.partition.partition cimport BOUND_HIGH_WATERMARK, BOUND_LOG_END, partition_t, read_t
from pybroker.core.partition.registry cimport registry_t
from pybroker.core.plane.conn cimport conn_t
from pybroker.core.plane.fetch_session cimport session_t, tracked_t
from pybroker.core.plane.nodes cimport leaders_t
from pybroker.core.plane.wire cimport text_t

cdef enum:
    WANTED_MAX = 16384           # partitions of one fetch; one with more goes to Python
    FETCH_VERSION_MIN = 4
    FETCH_VERSION_ZSTD = 10
    FETCH_VERSION_IDS = 13
    FETCH_VERSION_MAX = 18

cdef struct wanted_t:            # one partition of a fetch
    partition_t* partition
    tracked_t* tracked           # of its session; NULL where there is none
    int64_t offset
    int32_t most
    int32_t leader_epoch         # that the client knows; -1 none
    int32_t last_epoch           # of the last record that it has; -1 where it does not say
    int64_t log_start            # of a follower; -1 where it does not say
    int32_t error                # a Kafka code that the answer tells
    int32_t diverges             # the follower's log has what ours has not: of this epoch, from this offset on
    int32_t diverging_epoch
    int64_t diverging_end
    int32_t leader               # with NOT_LEADER_OR_FOLLOWER: who leads, in which epoch; -1 unknown
    int32_t led_epoch
    read_t read                  # what was found, held
    int32_t copied               # the answer has its bytes, and not the range of a file

cdef struct request_part_t:              # bytes of the request
    const uint8_t* at
    const uint8_t* end

cdef struct fetch_t:             # a fetch under way; a reactor has one and uses it again and again
    int16_t version
    int32_t correlation
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t max_bytes
    int32_t isolation
    int32_t session_id           # of the request
    int32_t session_epoch
    int32_t topics               # how many the request names, and how many it forgets
    int32_t forgotten
    int32_t foreign              # well formed, but Python must look at it
    int32_t replica              # the broker that follows; -1: a consumer fetches
    int64_t replica_epoch        # of that broker's present life; -1 where it does not say
    text_t rack                  # that the client says it is in; empty: it does not
    request_part_t frame
    const uint8_t* wait_at       # where max_wait_ms stands
    const uint8_t* session_at    # where the session's id and epoch stand; NULL below version 7
    request_part_t body                  # the topics that it names
    request_part_t forgotten_body        # and those that it forgets
    int64_t found_bytes
    int64_t throttle_ms          # that the answer tells
    int64_t throttled_left       # bytes of throttled replication that it may have
    int64_t withheld_ms          # until more of that may be; 0: nothing was withheld
    leaders_t leaders            # that the answer names
    int32_t opens                # files that the reactor opened for it
    int32_t count
    int32_t capacity
    wanted_t* wanted

cdef bint fetch_read(fetch_t* f, registry_t* reg, cursor_t* r, int16_t version) noexcept nogil
cdef wanted_t* fetch_add(fetch_t* f) noexcept nogil
cdef void fetch_forget(const fetch_t* f, session_t* s) noexcept nogil
cdef int fetch_answer(fetch_t* f, conn_t* c, int error, int32_t session_id) noexcept nogil
cdef uint8_t* fetch_without_session(const fetch_t* f, session_t* s, int64_t* n) noexcept nogil


cdef inline int fetch_bound(const fetch_t* f) noexcept nogil:
    """How far who fetches sees."""
    return BOUND_LOG_END if f.replica >= 0 else BOUND_HIGH_WATERMARK + f.isolation
