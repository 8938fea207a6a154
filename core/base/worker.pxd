# A thread that runs tasks one after the other, for threads that must not wait for the disk.
from libc.stdint cimport int32_t

from pybroker.core.base.pthread cimport pthread_cond_t, pthread_mutex_t, pthread_t

ctypedef void (*task_fn)(task_t* t) noexcept nogil

cdef struct task_t:          # embedded as the first field of the task's data
    task_t* next
    task_fn run              # called by the thread, which does not touch the task afterwards

cdef struct worker_t:
    int nice                 # of the thread; above 0: it yields the processor to others
    pthread_mutex_t lock
    pthread_cond_t wake
    pthread_t thread
    int32_t started          # set with the first task
    int32_t stopping
    task_t* first
    task_t* last

cdef void worker_init(worker_t* w) noexcept nogil
cdef bint worker_put(worker_t* w, task_t* t) noexcept nogil
cdef void worker_stop(worker_t* w) noexcept nogil
cdef void worker_destroy(worker_t* w) noexcept nogil
