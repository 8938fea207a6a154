"""The arithmetic of quotas: Kafka's window, and a pace for clients that have used it up.

    rate      the sum of all samples over the time since the oldest began, which is 10 windows at least
    throttle  (rate - limit) / limit x that time: after so long without an event the rate is the limit again
    a sample  ends with the first event a window or more after its start; it is dropped 11 windows after its last event

    free ──the rate is above the limit──> held ──no event for a window after the throttle time──> free

(Rate and SampledStat in Kafka's org.apache.kafka.common.metrics.stats; but here the time of missing windows has no
fraction, and reading a rate does not reset it.) The window alone forgets a burst of ten windows all at once, and lets
the next one pass: a client that is always busy would have 1.1 times its rate, or a fifth of it, over any ten seconds.
So a held client pays for each event by the time that it takes at the limit.

A bucket that is not paced is never held: only the window counts, as for Kafka's rates of connections (KIP-612), where
refused clients come back when they like. For creations and deletions in a cluster Kafka uses a token bucket instead
(KIP-599): see pybroker/security/token_bucket.py.

A bucket with a burst is always held, and has no window. It is for replication (KIP-73): Kafka's window lets ten seconds
of bytes pass at full speed, and then nothing until they are paid for, and clients beside them notice both.

Below the limit an event costs one atomic add: `spare` is what may be added to the newest sample. It stays valid, as the
other samples only leave.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

from pybroker.core.base.atomic cimport add_i32, add_i64, load_i64, poke_i64, store_i64
from pybroker.core.base.clock cimport monotonic_ms
from pybroker.core.base.pthread cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)

cdef enum:
    EXPIRE_MS = (QUOTA_WINDOWS + 1) * QUOTA_WINDOW_MS
    NOTHING_MS = EXPIRE_MS       # between two events if the limit is 0
    SLACK_MS = 200               # a held client may come so much later than its throttle time without a loss
    DEBT_MS_MAX = 60000          # the most that a held client has to pay for, in all
    HELD_SHARE = 4               # of what the limit allows in a second, that a held client gets at once


cdef void set_limit(quota_bucket_t* b, double limit) noexcept nogil:
    b.limit = limit
    b.paid_ms = 0
    store_i64(&b.held_until_ms, 0)
    store_i64(&b.spare, -1)
    store_i64(&b.window_max, <int64_t>min(limit * QUOTA_WINDOWS * QUOTA_WINDOW_MS / 1000, 4e18))


cdef quota_bucket_t* bucket_new(double limit, int64_t throttle_ms_max, bint is_paced, int32_t burst_ms) noexcept nogil:
    """A bucket with one reference; NULL without memory."""
    cdef quota_bucket_t* b = <quota_bucket_t*>calloc(1, sizeof(quota_bucket_t))
    if b == NULL:
        return NULL
    pthread_mutex_init(&b.lock, NULL)
    b.refs = 1
    b.last_ms = monotonic_ms()
    set_limit(b, limit)
    b.throttle_ms_max = throttle_ms_max
    b.is_paced = is_paced
    b.burst_ms = burst_ms
    return b


cdef void bucket_hold(quota_bucket_t* b) noexcept nogil:
    add_i32(&b.refs, 1)


cdef void bucket_drop(quota_bucket_t* b) noexcept nogil:
    if b != NULL and add_i32(&b.refs, -1) == 0:
        pthread_mutex_destroy(&b.lock)
        free(b)


cdef void bucket_set_limit(quota_bucket_t* b, double limit) noexcept nogil:
    """Change the limit; usage recorded so far is kept."""
    pthread_mutex_lock(&b.lock)
    if limit != b.limit:
        set_limit(b, limit)
    pthread_mutex_unlock(&b.lock)


cdef inline bint is_held(const quota_bucket_t* b, int64_t now_ms) noexcept nogil:
    return b.burst_ms > 0 or b.is_paced and now_ms <= load_i64(&b.held_until_ms)


cdef void begin_sample(quota_bucket_t* b, int32_t i, int64_t now_ms) noexcept nogil:
    b.samples[i].start_ms = b.samples[i].last_ms = now_ms
    b.samples[i].value = 0


cdef void roll(quota_bucket_t* b, int64_t n, int64_t now_ms) noexcept nogil:
    """Begin a sample with an event of n, which was already added to the sample before."""
    cdef quota_sample_t* before = &b.samples[b.newest]
    if b.count > 0:
        before.last_ms = load_i64(&b.last_ms)
        before.value = load_i64(&b.current) - n
        add_i64(&b.current, -before.value)
        b.newest = (b.newest + 1) % QUOTA_SAMPLES
    b.count = min(b.count + 1, <int32_t>QUOTA_SAMPLES)
    begin_sample(b, b.newest, now_ms)
    store_i64(&b.rolls_ms, now_ms + QUOTA_WINDOW_MS)


cdef double look(quota_bucket_t* b, int64_t now_ms, bint held, int64_t* total) noexcept nogil:
    """The ms until the rate is the limit again, and the total usage. Under the lock."""
    cdef int64_t before = 0, oldest_ms = now_ms, elapsed_ms
    cdef int32_t i
    total[0] = 0
    for i in range(b.count):
        if now_ms - (load_i64(&b.last_ms) if i == b.newest else b.samples[i].last_ms) >= EXPIRE_MS:
            continue
        oldest_ms = min(oldest_ms, b.samples[i].start_ms)
        if i == b.newest:
            total[0] = load_i64(&b.current)
        else:
            before += b.samples[i].value
    total[0] += before
    store_i64(&b.spare, -1 if held else load_i64(&b.window_max) - before)
    if b.limit <= 0:
        return NOTHING_MS if total[0] > 0 else 0
    if b.burst_ms > 0:
        return 0
    elapsed_ms = max(now_ms - oldest_ms, <int64_t>(QUOTA_WINDOWS * QUOTA_WINDOW_MS))
    return <double>total[0] * 1000 / b.limit - elapsed_ms


cdef double pay(quota_bucket_t* b, int64_t n, int64_t now_ms, bint held, double wait_ms) noexcept nogil:
    """Pay for an event of n; how many ms to wait in all: for the rate and, if the client is held, for the event's
    price."""
    cdef double price_ms = <double>n * 1000 / b.limit if b.limit > 0 else 0.0
    if held:
        b.paid_ms = max(b.paid_ms, <double>(now_ms - (0 if b.burst_ms > 0 else SLACK_MS))) + price_ms
        wait_ms = max(wait_ms, b.paid_ms - now_ms)
    price_ms = min(max(price_ms, <double>DEBT_MS_MAX), <double>b.throttle_ms_max)
    b.paid_ms = min(max(b.paid_ms, now_ms + wait_ms), now_ms + price_ms)
    return wait_ms


cdef int64_t told(quota_bucket_t* b, double wait_ms) noexcept nogil:
    return <int64_t>min(max(wait_ms, 0.0) + 0.5, <double>b.throttle_ms_max)


cdef int64_t count(quota_bucket_t* b, int64_t n, int64_t now_ms, bint* refused) noexcept nogil:
    """Record an event of n that was already added; if it is refused, subtract it again."""
    cdef int64_t total = 0, throttle_ms
    cdef bint held
    cdef double wait_ms
    pthread_mutex_lock(&b.lock)
    if b.count == 0 or now_ms >= b.samples[b.newest].start_ms + QUOTA_WINDOW_MS:
        roll(b, n, now_ms)
    poke_i64(&b.last_ms, now_ms)
    held = is_held(b, now_ms)
    wait_ms = look(b, now_ms, held, &total)
    # An event larger than the limit of the whole time is allowed when nothing else was recorded; else it never would
    # be.
    if refused != NULL and total > n and told(b, b.paid_ms - now_ms if held else wait_ms) > 0:
        refused[0] = True
        add_i64(&b.current, -n)
        b.paid_ms = b.paid_ms if held else now_ms
        wait_ms = b.paid_ms - now_ms if held else wait_ms
    else:
        wait_ms = pay(b, n, now_ms, held, wait_ms)
    throttle_ms = told(b, wait_ms)
    if throttle_ms > 0:
        store_i64(&b.held_until_ms, max(b.held_until_ms, now_ms + throttle_ms + QUOTA_WINDOW_MS))
        store_i64(&b.spare, -1)
        add_i64(&b.throttled, 1)
        add_i64(&b.throttled_ms, throttle_ms)
    pthread_mutex_unlock(&b.lock)
    return throttle_ms


cdef inline bint has_room(const quota_bucket_t* b, int64_t current, int64_t now_ms) noexcept nogil:
    return current <= load_i64(&b.spare) and now_ms < load_i64(&b.rolls_ms)


cdef int64_t bucket_record(quota_bucket_t* b, int64_t n, int64_t now_ms) noexcept nogil:
    if has_room(b, add_i64(&b.current, n), now_ms):
        poke_i64(&b.last_ms, now_ms)
        return 0
    return count(b, n, now_ms, NULL)


cdef int64_t bucket_take(quota_bucket_t* b, int64_t n, int64_t now_ms, bint* refused) noexcept nogil:
    refused[0] = False
    if has_room(b, add_i64(&b.current, n), now_ms):
        poke_i64(&b.last_ms, now_ms)
        return 0
    return count(b, n, now_ms, refused)


cdef int64_t bucket_wait(quota_bucket_t* b, int64_t now_ms) noexcept nogil:
    """A check counts as an attempt of a held client; otherwise a small excess would remain for ten windows. With a
    burst nothing remains, and without a throttle lately nothing is locked: each fetch of a follower asks."""
    cdef bint refused = False
    if b.burst_ms > 0 and now_ms > load_i64(&b.held_until_ms):
        return 0
    cdef int64_t wait_ms = bucket_take(b, 0, now_ms, &refused)
    return wait_ms if refused else 0


cdef int64_t bucket_throttle(quota_bucket_t* b, int64_t now_ms) noexcept nogil:
    cdef int64_t throttle_ms = 0, total = 0
    cdef double wait_ms
    cdef bint held
    if has_room(b, load_i64(&b.current), now_ms):
        return 0
    pthread_mutex_lock(&b.lock)
    if b.count > 0:
        held = is_held(b, now_ms)
        wait_ms = look(b, now_ms, held, &total)
        throttle_ms = told(b, max(wait_ms, b.paid_ms - now_ms) if held else wait_ms)
    pthread_mutex_unlock(&b.lock)
    return throttle_ms


cdef int64_t bucket_most(const quota_bucket_t* b, int64_t now_ms) noexcept nogil:
    if b.burst_ms > 0:
        return load_i64(&b.window_max) // (QUOTA_WINDOWS * QUOTA_WINDOW_MS) * b.burst_ms
    if is_held(b, now_ms):
        return load_i64(&b.window_max) // (QUOTA_WINDOWS * HELD_SHARE)
    return load_i64(&b.window_max)
