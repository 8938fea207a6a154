# A connection to a leader, over which partitions are copied: what this end of it knows.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.base.chain cimport chain_t, link_t
from pybroker.core.partition.partition cimport partition_t
from pybroker.core.plane.conn cimport conn_t, inbox_t
from pybroker.core.plane.wire cimport text_t
from pybroker.core.storage.group_commit cimport sync_t

cdef enum fetched_state_t:
    ADDED                        # by Python; its reactor has not looked yet
    FETCHED                      # it is in the requests
    OUT                          # it is not, until Python adds it again

cdef enum:
    CLIENT_ID_MAX = 255

cdef struct fetched_t:           # a partition that is copied
    link_t told                  # in its fetcher's
    link_t listed                # in its fetcher's `listed`, and then in `forgotten`
    link_t changed               # in its fetcher's
    link_t flushed               # in the inbox's
    sync_t sync                  # before a request tells how far the log is; its log is NULL: none is under way
    replica_fetcher_t* fetcher   # held while one is
    int32_t refs
    int32_t gone                 # Python took it away: nothing more is appended
    int32_t state
    int32_t leader_epoch
    int64_t id                   # that Python knows it by
    partition_t* partition       # held
    int32_t is_asked             # a request named it: answers may bring something for it,
    int32_t asked_in             # from the one to this request on, which named it last
    int64_t begin                # where it goes on, if the log ends before that
    int64_t asked_end            # what the leader was told last: where the log ended,
    int64_t asked_start          # and where it began
    int64_t told_start           # what Python was told of the leader's log start
    int64_t leader_end           # the leader's high watermark

cdef struct replica_fetcher_t:
    int32_t refs                 # its connection's, and Python's
    conn_t* conn                 # its reactor's
    inbox_t* inbox               # of that reactor, whose lock guards these:
    link_t told                  # there
    chain_t orders               # partitions that Python added or took away
    int32_t is_ending            # Python ends it
    int32_t is_over              # its connection is gone

    int32_t replica_id           # who we are
    int64_t broker_epoch
    int32_t client_id_length
    uint8_t client_id[<int>CLIENT_ID_MAX]
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t response_bytes_max
    int32_t partition_bytes_max
    int64_t answer_ms_max        # a leader that is silent for longer is given up

    chain_t listed               # of FETCHED partitions: all,
    chain_t changed              # and those of which the leader's session does not know how far they are
    chain_t forgotten            # OUT, and still in the leader's session
    int32_t nameless             # of those listed: that have no topic id
    int16_t version              # of the requests
    int32_t session_id           # that the leader keeps; 0 none
    int32_t session_epoch
    int32_t correlation          # of the last request
    int32_t awaiting             # how many answers
    int32_t asked_full           # the last request was none of a session
    int32_t has_new              # partitions that no request named yet
    int32_t keeps_none           # the leader has no room for a session of ours
    int32_t is_skipping          # the next answer is of a session that is over
    int32_t flushing             # partitions whose log is on its way to the disk: nothing is asked or taken meanwhile,
    int64_t flushing_ms          # which began then
    int64_t asked_ms             # when it was sent
    int64_t looked_ms            # when all partitions were last looked at for another log start
    fetched_t** table            # those listed, by topic and index; open addressing
    int32_t table_size           # a power of two, or 0
    int32_t is_table_stale
    int64_t requests             # counted, for whoever asks
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
