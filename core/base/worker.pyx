"""Threads for callers that must not wait for the disk: a queue of tasks, run one after the other in order."""

from pybroker.core.base.pthread cimport (
    pthread_cond_destroy, pthread_cond_init, pthread_cond_signal, pthread_cond_wait, pthread_create, pthread_join,
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)
from pybroker.core.base.scheduling cimport schedule_as_others


cdef void worker_init(worker_t* w) noexcept nogil:
    """Initialize; all other fields are already zero."""
    pthread_mutex_init(&w.lock, NULL)
    pthread_cond_init(&w.wake, NULL)


cdef bint worker_put(worker_t* w, task_t* t) noexcept nogil:
    """Queue a task; False, and nothing happens, if the thread is stopped or could not be started."""
    cdef bint taken
    pthread_mutex_lock(&w.lock)
    if not w.started and not w.stopping:
        w.started = pthread_create(&w.thread, NULL, work, w) == 0
    taken = w.started and not w.stopping
    if taken:
        t.next = NULL
        if w.last != NULL:
            w.last.next = t
        else:
            w.first = t
        w.last = t
        pthread_cond_signal(&w.wake)
    pthread_mutex_unlock(&w.lock)
    return taken


cdef void worker_stop(worker_t* w) noexcept nogil:
    """Take no more tasks, and end the thread once all queued ones have run."""
    pthread_mutex_lock(&w.lock)
    w.stopping = 1
    pthread_cond_signal(&w.wake)
    pthread_mutex_unlock(&w.lock)
    if w.started:
        pthread_join(w.thread, NULL)
        w.started = 0


cdef void worker_destroy(worker_t* w) noexcept nogil:
    pthread_cond_destroy(&w.wake)
    pthread_mutex_destroy(&w.lock)


cdef void* work(void* worker) noexcept nogil:
    """Run all queued tasks, again and again: the thread's function."""
    cdef worker_t* w = <worker_t*>worker
    cdef task_t* t
    cdef task_t* after
    schedule_as_others(w.nice)  # a fetcher thread may start it, whose SCHED_BATCH it inherits
    while True:
        pthread_mutex_lock(&w.lock)
        while w.first == NULL and not w.stopping:
            pthread_cond_wait(&w.wake, &w.lock)
        t = w.first
        w.first = w.last = NULL
        pthread_mutex_unlock(&w.lock)
        if t == NULL:
            return NULL
        while t != NULL:
            after = t.next
            t.run(t)
            t = after
