"""A log dir, and its reaction to disk errors: it goes offline, with all of its logs, until the broker restarts.

The status of each call that changes files passes through `log_trust` or `log_dir_trust`. An error that means that the
disk failed, or that files were moved away, takes the log dir offline. A lack of space or of rights is noted for Python,
which refuses appends until it is over. A lack of memory or descriptors concerns the process, and passes by itself. A
failed read fails only its request, and is counted.
"""

from libc.errno cimport (
    EACCES, EBADMSG, EDQUOT, EILSEQ, EINVAL, EIO, ENODATA, ENODEV, ENOENT, ENOSPC, ENOTCONN, ENOTDIR, ENXIO, EPERM,
    EROFS, ESHUTDOWN, ESTALE,
)
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free

from pybroker.core.base.atomic cimport cas_i32, store_i32
from pybroker.core.base.budget cimport budget_t
from pybroker.core.base.pthread cimport pthread_mutex_destroy, pthread_mutex_init
from pybroker.core.base.worker cimport task_fn, worker_destroy, worker_init, worker_stop
from pybroker.core.storage.log.backlog cimport backlog_destroy, backlog_init

cdef extern from "<errno.h>" nogil:
    int EUCLEAN, EREMOTEIO

cdef enum:
    READER_NICE = 10             # its clients wait for the disk anyway; other threads must not wait for this one


cdef log_dir_t* log_dir_new(const char* path, budget_t* budget, task_fn close_idle) noexcept nogil:
    """Create a log dir. Its threads begin when they are first needed; `close_idle` is its closer's task."""
    cdef log_dir_t* d = <log_dir_t*>calloc(1, sizeof(log_dir_t))
    if d == NULL:
        return NULL
    worker_init(&d.syncer)
    worker_init(&d.reader)
    d.reader.nice = READER_NICE
    worker_init(&d.closer)
    d.closing.task.run = close_idle
    d.closing.budget = budget
    pthread_mutex_init(&d.closing.lock, NULL)
    backlog_init(&d.backlog)
    snprintf(d.path, sizeof(d.path), "%s", path)
    return d


cdef void log_dir_stop(log_dir_t* d) noexcept nogil:
    """Stop the threads once their queues are empty; later requests fail at once."""
    worker_stop(&d.syncer)
    worker_stop(&d.reader)
    store_i32(&d.closing.stopping, 1)
    worker_stop(&d.closer)


cdef void log_dir_free(log_dir_t* d) noexcept nogil:
    worker_destroy(&d.syncer)
    worker_destroy(&d.reader)
    worker_destroy(&d.closer)
    pthread_mutex_destroy(&d.closing.lock)
    backlog_destroy(&d.backlog)
    free(d)


cdef bint failed(int error) noexcept nogil:
    """True if an errno means that the disk failed, or is not there any more."""
    return error in (EIO, EROFS, ENODEV, ENXIO, ENOENT, ENOTDIR, ESTALE, EUCLEAN, EREMOTEIO, ENOTCONN, ESHUTDOWN)


cdef bint log_dir_unreadable(int error) noexcept nogil:
    """True if an errno of a read or sendfile means that the disk failed; no errno of a socket does."""
    return error in (EIO, EBADMSG, EILSEQ, EINVAL, ENODATA, ENODEV, ENOENT, ENOTDIR, ENXIO, EREMOTEIO, ESTALE, EUCLEAN)


cdef int log_dir_trust(log_dir_t* d, int status) noexcept nogil:
    """Return the status of a call that changes files of a log dir; take it offline if the disk failed."""
    if status < 0 and failed(-status):
        cas_i32(&d.failed, 0, -status)
    elif status < 0 and -status in (ENOSPC, EDQUOT, EACCES, EPERM):
        store_i32(&d.lack, -status)
    return status
