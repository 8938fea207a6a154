"""Group commit: where a topic asks for it, an acknowledgement waits until what it acknowledges is on disk.

One thread a log dir takes all that waits at once and makes each log durable; those that wait for the same log share one
fdatasync, and whatever was appended before it began is covered by it. Whoever waits is told in the order in which the
logs were done. A sync that fails takes the whole log dir offline: the kernel tells once and forgets.
"""

from libc.errno cimport EAGAIN
from libc.stdint cimport int64_t, uint8_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.stdio cimport snprintf

from pybroker.core.atomic cimport load_i32
from pybroker.core.flusher cimport log_sync
from pybroker.core.kafka cimport KAFKA_STORAGE_ERROR
from pybroker.core.log cimport log_drop, log_durable, log_hold, log_t
from pybroker.core.quiesce cimport (
    pthread_cond_t, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
)

cdef extern from "<pthread.h>" nogil:
    int pthread_create(uintptr_t* thread, void* how, void* (*run)(void*) noexcept nogil, void* what)
    int pthread_join(uintptr_t thread, void** result)
    int pthread_cond_init(pthread_cond_t* c, void* how)
    int pthread_cond_destroy(pthread_cond_t* c)
    int pthread_cond_signal(pthread_cond_t* c)
    int pthread_cond_wait(pthread_cond_t* c, pthread_mutex_t* m)


cdef syncer_t* syncer_new(const char* directory) noexcept nogil:
    """Of a log dir; its thread begins when it is first needed."""
    cdef syncer_t* s = <syncer_t*>calloc(1, sizeof(syncer_t))
    if s == NULL:
        return NULL
    pthread_mutex_init(&s.lock, NULL)
    pthread_cond_init(&s.wake, NULL)
    snprintf(s.directory, sizeof(s.directory), "%s", directory)
    return s


cdef void syncer_stop(syncer_t* s) noexcept nogil:
    """End the thread once nothing waits any more; what comes later fails at once."""
    cdef bint started
    pthread_mutex_lock(&s.lock)
    s.stopping = 1
    started = s.started
    s.started = 0
    pthread_cond_signal(&s.wake)
    pthread_mutex_unlock(&s.lock)
    if started:
        pthread_join(s.thread, NULL)


cdef void syncer_free(syncer_t* s) noexcept nogil:
    pthread_cond_destroy(&s.wake)
    pthread_mutex_destroy(&s.lock)
    free(s)


cdef sync_t* sync_new(void* log, int64_t end, synced_fn done, void* owner, uint8_t* answer) noexcept nogil:
    cdef sync_t* s = <sync_t*>calloc(1, sizeof(sync_t))
    if s == NULL:
        return NULL
    log_hold(<log_t*>log)
    s.log = log
    s.end = end
    s.done = done
    s.owner = owner
    s.answer = answer
    return s


cdef void sync_free(sync_t* s) noexcept nogil:
    log_drop(<log_t*>s.log)
    free(s)


cdef void finish(sync_t* s) noexcept nogil:
    if s.done != NULL:
        s.done(s)
    else:
        sync_free(s)


cdef void sync_put(sync_t* s) noexcept nogil:
    """Have the syncer of its log dir work at it; it is done, well or not, on another thread or already here."""
    cdef syncer_t* y = (<log_t*>s.log).syncer
    pthread_mutex_lock(&y.lock)
    if not y.started and not y.stopping:
        y.started = pthread_create(&y.thread, NULL, run, y) == 0
    if not y.started:
        pthread_mutex_unlock(&y.lock)
        s.status = -EAGAIN
        finish(s)
        return
    s.next = NULL
    if y.last != NULL:
        y.last.next = s
    else:
        y.first = s
    y.last = s
    pthread_cond_signal(&y.wake)
    pthread_mutex_unlock(&y.lock)


cdef void work(sync_t* s) noexcept nogil:
    """Make a log durable, unless somebody before did."""
    cdef log_t* l = <log_t*>s.log
    if load_i32(&l.syncer.failed) or load_i32(&l.offline):
        s.status = KAFKA_STORAGE_ERROR
    elif log_durable(l) < s.end:
        s.status = log_sync(l)


cdef void* run(void* syncer) noexcept nogil:
    """The thread: all that waits, again and again."""
    cdef syncer_t* y = <syncer_t*>syncer
    cdef sync_t* s
    cdef sync_t* after
    while True:
        pthread_mutex_lock(&y.lock)
        while y.first == NULL and not y.stopping:
            pthread_cond_wait(&y.wake, &y.lock)
        s = y.first
        y.first = y.last = NULL
        pthread_mutex_unlock(&y.lock)
        if s == NULL:
            return NULL
        while s != NULL:
            after = s.next
            work(s)
            finish(s)
            s = after
