# What one network thread knows: its sockets, its turn, what others left for it to do.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.chain cimport chain_append, chain_t
from pybroker.core.base.counters cimport api_t, histogram_t
from pybroker.core.base.tls cimport tls_scratch_t
from pybroker.core.partition.registry cimport registry_t
from pybroker.core.plane.conn cimport conn_t, inbox_t
from pybroker.core.plane.fetch_find cimport fetcher_t
from pybroker.core.plane.fetch_session cimport sessions_t
from pybroker.core.plane.mailbox cimport mailbox_t
from pybroker.core.plane.memory_pool cimport pool_t
from pybroker.core.plane.nodes cimport NODE_TEXT_MAX, nodes_t
from pybroker.core.plane.produce cimport turn_t
from pybroker.core.plane.quota_bucket cimport quota_bucket_t
from pybroker.core.plane.timer cimport timers_t
from pybroker.core.storage.context cimport context_t

cdef enum:
    EVENTS_MAX = 256
    ARENA_BYTES = 1 << 20        # read into in one turn; the caches hold it
    READ_BYTES = 256 << 10       # of one connection at a time
    FRAME_BYTES_MIN = 8          # api key, version, correlation id: less is no request
    LISTENERS_MAX = 63           # a bit each of an int64_t

cdef struct plane_t:             # what all reactors of a broker share
    context_t* context
    registry_t* registry
    sessions_t sessions
    nodes_t* nodes               # where the leaders of other partitions are; NULL: nobody said yet
    mailbox_t mailbox
    pool_t pool                  # what clients' connections hold,
    pool_t replica_pool          # and those to leaders, which no client's memory holds up
    int64_t holder_ms            # that a request which was let through may take while memory is short
    int32_t requests_max         # queued.max.requests: that wait in the mailbox
    int64_t frame_bytes_max      # socket.request.max.bytes
    int64_t fetch_bytes_max      # fetch.max.bytes
    int32_t rack_length          # of broker.rack, where consumers may fetch from followers; -1: from leaders only
    uint8_t rack[<int>NODE_TEXT_MAX]
    int32_t replica_listener     # that other brokers come by, whose Fetch is a follower's; -1 none
    int64_t idle_ms              # connections.max.idle.ms
    int32_t finishing            # answer what runs, read nothing more, close what is quiet,
    int64_t stall_ms             # and whose peer takes nothing for so long
    int32_t stopping
    int32_t diverted             # Python executes Produce and Fetch too: a test's faults are there
    int64_t cut                  # connections with an id up to this one are to be closed,
    int64_t closed               # and those of these listeners, a bit each;
    int64_t closing              # those of these, once they are owed nothing
    int64_t rules                # the number of the rules that say who may do what
    int32_t spared               # the listener whose connections are not closed for being too many; -1 none
    int64_t quotas               # the number of the quotas that hold now; 0: there are none
    quota_bucket_t* leader_throttle    # of what followers fetch here, and of what is copied here, of throttled
    quota_bucket_t* follower_throttle  # partitions; the Plane's, NULL: no limit

cdef struct reactor_t:
    plane_t* plane
    int32_t poll
    inbox_t inbox
    int32_t is_left              # something is in it for the next turn
    chain_t listed               # all connections, the one that was silent for longest first
    chain_t ready                # those that have something to do, in this turn or the next
    chain_t large                # those with large answers, until it is their turn to be sent a piece
    chain_t waiting              # the line: for memory, or for a place in the mailbox
    chain_t muted                # connections that wait until they may do more,
    int64_t unmute_ms            # and when to look at them again
    int64_t quotas               # that they wait for
    int64_t relieved_ms          # when it last looked at who has to go
    chain_t due                  # operations to look at in this turn
    timers_t timers
    int32_t connections          # how many, for whoever asks
    int64_t now_ms
    int64_t swept_ms
    int32_t too_many             # connections that are to be closed: those that are silent for longest
    int32_t diverted             # what the plane said in the last turn
    int64_t cut
    int64_t closed
    int64_t closing
    int64_t arena_used
    int64_t began_ns             # this turn
    int64_t ended_ns             # the last one
    int64_t talker               # the only connection that the last turn served; 0: there was none, or several
    int32_t brisk                # 1: it has the turns to itself, and what came next came soon; below 0: turns to rest
    int64_t busy_ns              # from here on what is counted: peeked at by anybody
    api_t produces
    api_t fetches
    int64_t others               # requests of other APIs, all Python's
    int64_t bytes_in             # of all connections
    int64_t bytes_out
    int64_t parked               # fetches that wait, as the last turn left them
    histogram_t turns            # how long each took
    turn_t turn
    fetcher_t fetch
    tls_scratch_t* scratch       # of connections with TLS; NULL: there was none yet
    uint8_t arena[<int>ARENA_BYTES]


cdef inline void make_ready(reactor_t* r, conn_t* c) noexcept nogil:
    """The connection has something to do in this turn."""
    chain_append(&r.ready, &c.ready, c)
