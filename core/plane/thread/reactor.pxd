# The state of one network thread: its connections, its turn, its inbox.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.chain cimport chain_append, chain_t
from pybroker.core.base.counters cimport KINDS, api_t, histogram_t, stages_t
from pybroker.core.base.tls cimport tls_scratch_t
from pybroker.core.partition.registry cimport registry_t
from pybroker.core.plane.connection.conn cimport conn_t, inbox_t
from pybroker.core.plane.connection.mailbox cimport mailbox_t
from pybroker.core.plane.connection.timer cimport timers_t
from pybroker.core.plane.limits.memory_pool cimport pool_t
from pybroker.core.plane.limits.quota_bucket cimport quota_bucket_t
from pybroker.core.plane.requests.fetch_find cimport fetcher_t
from pybroker.core.plane.requests.fetch_session cimport sessions_t
from pybroker.core.plane.requests.nodes cimport NODE_TEXT_MAX, nodes_t
from pybroker.core.plane.requests.produce cimport turn_t
from pybroker.core.plane.thread.samples cimport samples_t
from pybroker.core.storage.log.context cimport context_t

cdef enum:
    EVENTS_MAX = 256
    ARENA_BYTES = 1 << 20        # for the reads of one turn; fits into the caches
    READ_BYTES = 256 << 10       # per read of one connection
    LISTENERS_MAX = 63           # one bit each of an int64_t

cdef struct plane_t:             # what all reactors of a broker share
    context_t* context
    registry_t* registry
    sessions_t sessions
    nodes_t* nodes               # the addresses of leaders of other partitions; NULL: not set yet
    mailbox_t mailbox
    pool_t pool                  # memory of clients' connections,
    pool_t replica_pool          # and of those to leaders, which clients' memory does not hold up
    int64_t holder_ms            # the time that a request with a loan may take while memory is short
    int32_t requests_max         # queued.max.requests: the limit of requests in the mailbox
    int64_t frame_bytes_max      # socket.request.max.bytes
    int64_t fetch_bytes_max      # fetch.max.bytes
    int32_t rack_length          # of broker.rack, if consumers may fetch from followers; -1: from leaders only
    uint8_t rack[<int>NODE_TEXT_MAX]
    int32_t replica_listener     # the listener for other brokers, where a Fetch is a follower's; -1 none
    int64_t idle_ms              # connections.max.idle.ms
    int32_t finishing            # answer running requests, read nothing more, close idle connections,
    int64_t stall_ms             # and those whose peer reads nothing for so long
    int32_t stopping
    int32_t diverted             # Python executes Produce and Fetch, too: tests inject faults there
    int64_t cut                  # close connections with an id up to this one,
    int64_t closed               # and those of these listeners, one bit each;
    int64_t closing              # close those of these after their responses are sent
    int64_t rules                # the number of the authorization rules in force
    int32_t spared               # its connections are not closed when there are too many; -1 none
    int64_t quotas               # the number of the quotas in force; 0: there are none
    int64_t sample_ns            # tracing: the interval at which each reactor samples requests of a kind; 0: never
    histogram_t queued           # from the mailbox to the execution in Python; by the event loop's thread
    quota_bucket_t* leader_throttle    # for throttled partitions: what followers fetch here, and what is copied here;
    quota_bucket_t* follower_throttle  # owned by the Plane; NULL: no limit

cdef struct pace_t:              # of turns
    int64_t began_ns             # this turn
    int64_t ready_ns             # all is executed in it: its responses are sent now
    int64_t ended_ns             # the last one
    int64_t talker               # the only connection that the last turn served; 0: none, or several
    int32_t brisk  # 1: it is the only active one, and its requests come quickly; below 0: turns without a busy wait

cdef struct looks_t:             # the times of checks that are not made in each turn
    int64_t swept_ms             # of idle connections
    int64_t relieved_ms          # of connections to close for memory
    int64_t unmute_ms            # when to check muted connections again,
    int64_t quotas               # and the number of the quotas that they were muted by

cdef struct heeded_t:            # the plane's instructions in the last turn: see plane_t
    int32_t diverted
    int64_t cut
    int64_t closed
    int64_t closing

cdef struct books_t:             # counters: read by any thread
    int64_t busy_ns
    api_t produces
    api_t fetches
    int64_t others               # requests of other APIs, all executed in Python
    int64_t bytes_in             # of all connections
    int64_t bytes_out
    int64_t parked               # fetches that wait, at the end of the last turn
    histogram_t turns            # the duration of each
    stages_t stages[<int>KINDS]

cdef struct reactor_t:
    plane_t* plane
    int32_t poll
    int32_t is_left              # the inbox has something for the next turn
    inbox_t inbox
    chain_t listed               # all connections, the longest idle first
    chain_t ready                # those with something to do, in this turn or the next
    chain_t large                # those with large output, until their next piece is sent
    chain_t waiting              # connections that wait for memory, or for a place in the mailbox
    chain_t muted                # muted connections
    chain_t due                  # operations to handle in this turn
    timers_t timers
    int64_t now_ms
    int64_t arena_used
    pace_t pace
    looks_t looks
    heeded_t heeded
    int32_t connections          # number of connections, for other threads
    int32_t too_many             # number of connections to close: the longest idle ones
    books_t books
    samples_t samples
    turn_t turn
    fetcher_t fetch
    tls_scratch_t* scratch       # for connections with TLS; NULL: none yet
    uint8_t arena[<int>ARENA_BYTES]


cdef inline void make_ready(reactor_t* r, conn_t* c) noexcept nogil:
    """Mark that the connection has something to do in this turn."""
    chain_append(&r.ready, &c.ready, c)
