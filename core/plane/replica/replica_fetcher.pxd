# The state of a connection to a leader, over which partitions are fetched.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.base.chain cimport chain_t, link_t
from pybroker.core.partition.partition cimport partition_t
from pybroker.core.plane.connection.conn cimport conn_t, inbox_t
from pybroker.core.plane.requests.wire cimport text_t
from pybroker.core.storage.background.group_commit cimport sync_t

cdef enum fetched_state_t:
    ADDED                        # by Python; the reactor has not taken it yet
    FETCHED                      # in the requests
    OUT                          # not in the requests, until Python adds it again

cdef enum:
    CLIENT_ID_MAX = 255

cdef struct fetched_t:           # a partition that is fetched
    link_t told                  # in its fetcher's
    link_t listed                # in its fetcher's `listed`, and then in `forgotten`
    link_t changed               # in its fetcher's
    link_t flushed               # in the inbox's
    sync_t sync                  # before a request reports the log end; its log is NULL: none is running
    replica_fetcher_t* fetcher   # held during the sync
    int32_t refs
    int32_t gone                 # Python removed it: nothing more is appended
    int32_t state
    int32_t leader_epoch
    int64_t id                   # the id for Python
    partition_t* partition       # held
    int32_t is_asked             # a request named it: responses may have data for it,
    int32_t asked_in             # from the response to this request on, the last one that named it
    int64_t begin                # continue at this offset if the log ends before it
    int64_t asked_end            # last reported to the leader: the log end,
    int64_t asked_start          # and the log start
    int64_t told_start           # the leader's log start that was last reported to Python
    int64_t leader_end           # the leader's high watermark

cdef struct replica_fetcher_t:
    int32_t refs                 # the connection's, and Python's
    conn_t* conn                 # the reactor's
    inbox_t* inbox               # of that reactor, whose lock guards these:
    link_t told                  # in the inbox
    chain_t orders               # partitions that Python added or removed
    int32_t is_ending            # Python closes it
    int32_t is_over              # its connection is closed

    int32_t replica_id           # our broker id
    int64_t broker_epoch
    int32_t client_id_length
    uint8_t client_id[<int>CLIENT_ID_MAX]
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t response_bytes_max
    int32_t partition_bytes_max
    int64_t answer_ms_max        # a leader that does not answer for longer is given up

    chain_t listed               # of FETCHED partitions: all,
    chain_t changed              # and those whose state the leader's session does not know
    chain_t forgotten            # OUT, but still in the leader's session
    int32_t nameless             # number of those listed without a topic id
    int16_t version              # of the requests
    int32_t session_id           # of the leader's session; 0 none
    int32_t session_epoch
    int32_t correlation          # of the last request
    int32_t awaiting             # number of responses
    int32_t asked_full           # the last request was not part of a session
    int32_t has_new              # there are partitions that no request named yet
    int32_t keeps_none           # the leader has no room for a session of ours
    int32_t is_skipping          # the next response belongs to a session that has ended
    int32_t flushing             # partitions whose log is being synced: nothing is sent or received meanwhile,
    int64_t flushing_ns          # since then
    int64_t asked_ms             # when the last request was sent
    int64_t looked_ms            # when all partitions were last checked for another log start
    fetched_t** table            # the listed ones, by topic and index; open addressing
    int32_t table_size           # a power of two, or 0
    int32_t is_table_stale
    int64_t requests             # counters, for other threads
    int64_t bytes_in

cdef replica_fetcher_t* replica_fetcher_new() noexcept nogil
cdef void replica_fetcher_drop(replica_fetcher_t* f) noexcept nogil
cdef fetched_t* replica_fetcher_add(
    replica_fetcher_t* f, partition_t* p, int32_t leader_epoch, int64_t begin, int64_t leader_end, int64_t id
) noexcept nogil
cdef void replica_fetcher_take_away(replica_fetcher_t* f, fetched_t* q, bint wait) noexcept nogil
cdef void replica_fetcher_close(replica_fetcher_t* f) noexcept nogil
cdef bint replica_fetcher_take_orders(replica_fetcher_t* f) noexcept nogil
cdef void replica_fetcher_let_go(replica_fetcher_t* f, fetched_t* q) noexcept nogil
cdef void replica_fetcher_forget_session(replica_fetcher_t* f) noexcept nogil
cdef void replica_fetcher_forget_all(replica_fetcher_t* f) noexcept nogil
cdef fetched_t* replica_fetcher_find(replica_fetcher_t* f, const text_t* topic, int32_t index) noexcept nogil
cdef void replica_fetcher_flush(replica_fetcher_t* f, fetched_t* q, int64_t end) noexcept nogil
cdef void replica_fetcher_flushed(fetched_t* q) noexcept nogil
cdef void replica_fetcher_end(replica_fetcher_t* f) noexcept nogil
cdef void fetched_drop(fetched_t* q) noexcept nogil
