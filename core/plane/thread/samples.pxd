# Requests that are traced: of each kind at most one at a time in a reactor, and one an interval (plane_t.sample_ns).
#
#     Produce: executed .. GATHERED .. appended .. WAITS, if it does .. DONE .. sent .. in the ring
#     Fetch:   executed, for the last time .. DONE .. sent .. in the ring
#
# The reactor puts samples into its ring, the event loop's thread takes them; no lock. A full ring drops new samples.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.base.counters cimport KINDS
from pybroker.core.partition.partition cimport TOPIC_BYTES_MAX
from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.connection.operation cimport operation_t
from pybroker.core.plane.requests.fetch_wire cimport fetch_t
from pybroker.core.plane.requests.produce cimport turn_t

cdef enum:
    RING = 256                   # samples of a reactor that wait for Python
    SAMPLED_ID_BYTES = 256       # of a client id; a longer one is cut

cdef enum sample_state_t:
    FREE
    GATHERED                     # a Produce whose batches are appended at the end of the turn
    WAITS                        # a Produce that waits for replicas or the disk
    DONE                         # its response is complete, but not all sent

cdef struct sample_t:
    int32_t state
    int32_t kind
    int32_t first                # GATHERED: the first of its orders in the turn's,
    int32_t orders               # and how many there are
    int64_t conn                 # the id of its connection
    int64_t begin                # positions of its response in the output of the connection: its start,
    int64_t end                  # and its end, once it is DONE
    int64_t read_ns              # the turn that read it began; monotonic
    int64_t queue_ns             # the stages: see stages_t
    int64_t local_ns
    int64_t remote_ns
    int64_t send_ns
    int64_t done_ns
    int64_t request_bytes        # without the size
    int32_t version
    int32_t correlation
    int32_t partitions           # of the request; of an incremental Fetch: those in the session that it looked at
    int32_t topics
    int32_t errors               # partitions with an error
    int32_t error                # the code of the first of them
    int32_t client_id_length     # -1: null
    int32_t topic_length         # of the first topic
    uint8_t client_id[<int>SAMPLED_ID_BYTES]
    char topic[<int>TOPIC_BYTES_MAX + 1]

cdef struct samples_t:
    int64_t put                  # samples that the reactor has put into the ring,
    int64_t taken                # and how many of them Python has taken
    int32_t active               # kinds whose sample is not FREE
    int64_t began_ns[<int>KINDS] # when the last sample of each kind began
    sample_t current[<int>KINDS]
    sample_t ring[<int>RING]

cdef void sample_produce(
    samples_t* s, const turn_t* t, conn_t* c, const uint8_t* frame, int64_t n, int64_t begin,
    int64_t read_ns) noexcept nogil
cdef void sample_appended(samples_t* s, const turn_t* t) noexcept nogil
cdef void sample_replicated(samples_t* s, const operation_t* op, int64_t now_ns) noexcept nogil
cdef sample_t* sample_fetch(
    samples_t* s, int kind, const fetch_t* q, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil
cdef void samples_sent(samples_t* s, const conn_t* c, int64_t now_ns) noexcept nogil
cdef void samples_forget(samples_t* s, int64_t conn) noexcept nogil


cdef inline bint sample_is_due(const samples_t* s, int kind, int64_t interval_ns, int64_t now_ns) noexcept nogil:
    """True if the next request of a kind is sampled; interval_ns: 0: none is."""
    if interval_ns == 0 or s.current[kind].state != FREE:
        return False
    return now_ns - s.began_ns[kind] >= interval_ns
