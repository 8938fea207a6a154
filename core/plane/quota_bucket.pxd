# How much somebody has done lately, and how long who did too much has to wait: shared by all connections and reactors.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.pthread cimport pthread_mutex_t

cdef enum:
    QUOTA_WINDOW_MS = 1000       # quota.window.size.seconds
    QUOTA_WINDOWS = 10           # that a rate is of, at least: quota.window.num, less the one that is not over
    QUOTA_SAMPLES = 12           # and one that the monitored time overlaps

cdef struct quota_sample_t:      # of about a window: it ends with the first event after that
    int64_t start_ms
    int64_t last_ms              # of its last event
    int64_t value

cdef struct quota_bucket_t:
    int64_t current              # of the newest sample: anybody adds to it
    int64_t spare                # while it is not above this, and the sample not over, nobody has to wait
    int64_t rolls_ms             # when that sample is over
    int64_t last_ms              # of the last event
    int64_t window_max           # what all windows of the rate allow
    int64_t held_until_ms        # who comes until then pays for what it does
    int64_t throttled            # how often somebody had to wait,
    int64_t throttled_ms         # and how long in all
    int32_t refs
    int32_t retired              # others count elsewhere by now
    pthread_mutex_t lock         # guards all below
    double limit                 # a second
    double paid_ms               # up to when what was done is paid for
    int64_t throttle_ms_max
    int32_t count
    int32_t newest
    quota_sample_t samples[<int>QUOTA_SAMPLES]

cdef quota_bucket_t* bucket_new(double limit, int64_t throttle_ms_max) noexcept nogil
cdef void bucket_hold(quota_bucket_t* b) noexcept nogil
cdef void bucket_drop(quota_bucket_t* b) noexcept nogil
cdef void bucket_set_limit(quota_bucket_t* b, double limit) noexcept nogil

# Count n; how long who did it has to wait, in ms.
cdef int64_t bucket_record(quota_bucket_t* b, int64_t n, int64_t now_ms) noexcept nogil

# The same, but n is not counted, and not to be done, where `refused` is set: who did enough is to come later.
cdef int64_t bucket_take(quota_bucket_t* b, int64_t n, int64_t now_ms, bint* refused) noexcept nogil

# How long somebody who has not begun has to wait before anything more is done; 0: not at all. Nothing is counted.
cdef int64_t bucket_wait(quota_bucket_t* b, int64_t now_ms) noexcept nogil

# The most that is to be done at once.
cdef int64_t bucket_most(const quota_bucket_t* b, int64_t now_ms) noexcept nogil

# How long somebody who does nothing now has to wait for what was done.
cdef int64_t bucket_throttle(quota_bucket_t* b, int64_t now_ms) noexcept nogil
