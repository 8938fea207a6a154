# The recent usage of a quota, and how long a client above it has to wait: shared by all connections and reactors.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.pthread cimport pthread_mutex_t

cdef enum:
    QUOTA_WINDOW_MS = 1000       # quota.window.size.seconds
    QUOTA_WINDOWS = 10           # that a rate spans, at least: quota.window.num, less the current one
    QUOTA_SAMPLES = 12           # and one more that the measured time overlaps

cdef struct quota_sample_t:      # of about one window: it ends with the first event after the window
    int64_t start_ms
    int64_t last_ms              # of its last event
    int64_t value

cdef struct quota_bucket_t:
    int64_t current              # usage in the newest sample: any thread adds to it
    int64_t spare                # while `current` is not above this, and the sample not over, there is no wait
    int64_t rolls_ms             # when that sample is over
    int64_t last_ms              # of the last event
    int64_t window_max           # what the limit allows in all windows of the rate
    int64_t held_until_ms        # a client that comes before this pays for each event
    int64_t throttled            # number of throttles,
    int64_t throttled_ms         # and their total time
    int32_t refs
    int32_t retired              # its users are counted in another bucket by now
    pthread_mutex_t lock         # guards all below
    double limit                 # a second
    double paid_ms               # up to when the usage is paid for
    int64_t throttle_ms_max
    int32_t is_paced             # a throttled client pays for each event; otherwise only the window counts
    int32_t burst_ms             # > 0: each event is paid for, and there is no window; the most at once, at the limit
    int32_t count
    int32_t newest
    quota_sample_t samples[<int>QUOTA_SAMPLES]

cdef quota_bucket_t* bucket_new(double limit, int64_t throttle_ms_max, bint is_paced, int32_t burst_ms) noexcept nogil
cdef void bucket_hold(quota_bucket_t* b) noexcept nogil
cdef void bucket_drop(quota_bucket_t* b) noexcept nogil
cdef void bucket_set_limit(quota_bucket_t* b, double limit) noexcept nogil

# Record n; how long the client has to wait, in ms.
cdef int64_t bucket_record(quota_bucket_t* b, int64_t n, int64_t now_ms) noexcept nogil

# The same, but with `refused` set n is not recorded, and must not be done: the client has to come back later.
cdef int64_t bucket_take(quota_bucket_t* b, int64_t n, int64_t now_ms, bint* refused) noexcept nogil

# How long a client that has not begun has to wait before anything more is done; 0: no wait. Nothing is recorded.
cdef int64_t bucket_wait(quota_bucket_t* b, int64_t now_ms) noexcept nogil

# The most to do at once.
cdef int64_t bucket_most(const quota_bucket_t* b, int64_t now_ms) noexcept nogil

# How long a client that does nothing now has to wait for recorded usage.
cdef int64_t bucket_throttle(quota_bucket_t* b, int64_t now_ms) noexcept nogil
