# Counters and histograms of core: plain numbers, each written by its owner and read by any thread.
#
# `tally` and `histogram_add` are for a counter with one writer (a reactor's own, or one under a log's append mutex): a
# load and a store, no locked instruction. Counters that several threads write take `add_i64` or `histogram_share`.
#
# A histogram is log-linear: each value below 4 has its own bucket, and every doubling above has four of equal width,
# so a bucket is at most a quarter as wide as its values. The last one has all larger values.
from libc.stdint cimport int32_t, int64_t, uint64_t

from pybroker.core.base.atomic cimport add_i64, peek_i64, poke_i64

cdef enum:
    LINEAR_BITS = 2              # four buckets a doubling
    LINEAR = 4                   # 1 << LINEAR_BITS
    BUCKETS = 120                # up to 2^31 microseconds, over half an hour

cdef extern from *:
    int __builtin_clzll(unsigned long long n) nogil

cdef struct histogram_t:         # of durations in microseconds
    int64_t sum_us
    int64_t counts[<int>BUCKETS]

cdef struct traffic_t:           # of one log, since it was opened
    int64_t batches_in           # appended, with their records and bytes; under the append mutex
    int64_t records_in
    int64_t bytes_in
    int64_t bytes_out            # sent to clients; by any thread
    int64_t replication_bytes_in # copied from the leader as stored; under the append mutex
    int64_t replication_bytes_out # sent to followers; by any thread

cdef struct api_t:               # requests of one API that a reactor saw
    int64_t requests
    int64_t declined             # left to Python
    int64_t errors               # partitions answered with an error
    int64_t bytes_in             # of the frames it executed
    int64_t bytes_out            # of their responses
    int64_t in_turn              # executed in this turn, not yet in `times`
    histogram_t times            # from the turn that read a request to the end of the turn that answered it

cdef enum kind_t:                # of requests whose stages are timed apart
    OF_PRODUCE
    OF_CONSUMER                  # a consumer's Fetch
    OF_FOLLOWER                  # a follower's Fetch
    OF_PYTHON                    # executed in Python: only `send` is timed in core
    KINDS

cdef struct stages_t:            # where the requests of a kind spend their time
    histogram_t queue            # from the turn that read a request to its execution
    histogram_t local            # its execution; a Produce's: the appends of its turn
    histogram_t remote           # its wait for replicas, the disk or records; 0 without a wait
    histogram_t send             # from its completed response to the kernel's having all of it
    int64_t sent_in_turn         # responses sent in the turn that completed them, not in `send` yet


cdef inline void tally(int64_t* counter, int64_t n) noexcept nogil:
    poke_i64(counter, peek_i64(counter) + n)


cdef inline int32_t histogram_bucket(int64_t us) noexcept nogil:
    cdef int32_t shift
    if us < LINEAR:
        return <int32_t>us if us > 0 else 0
    shift = 63 - LINEAR_BITS - __builtin_clzll(<uint64_t>us)
    shift = shift * LINEAR + <int32_t>(us >> shift)
    return shift if shift < BUCKETS else BUCKETS - 1


cdef inline void histogram_add(histogram_t* h, int64_t us, int64_t n) noexcept nogil:
    """Record n durations of `us`; for one writer."""
    if n > 0:
        tally(&h.sum_us, us * n)
        tally(&h.counts[histogram_bucket(us)], n)


cdef inline void histogram_share(histogram_t* h, int64_t us) noexcept nogil:
    """Record one duration; for any number of writers."""
    add_i64(&h.sum_us, us)
    add_i64(&h.counts[histogram_bucket(us)], 1)


cdef object histogram_dict(const histogram_t* h)
cdef object api_dict(const api_t* a)
cdef object stages_dict(const stages_t* s)
cdef object traffic_dict(const traffic_t* t)
