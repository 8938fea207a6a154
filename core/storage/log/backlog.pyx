"""The queue of one log dir's flusher. Any thread adds to it; only the flusher takes from it.

Each log dir has a backlog and a flusher of its own, so that a slow disk delays no flush on another one.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport strdup

from pybroker.core.base.atomic cimport cas_i32, store_i32
from pybroker.core.base.clock cimport monotonic_ms
from pybroker.core.base.files cimport DIR, closedir, dirent, opendir, readdir, rmdir
from pybroker.core.base.pthread cimport (
    pthread_cond_destroy, pthread_cond_signal, pthread_cond_t, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
)
from pybroker.core.base.vfs cimport P_SEGMENT_UNLINK, vfs_t, vfs_unlink

cdef extern from *:
    """
    #include <pthread.h>
    #include <time.h>
    static int cond_init_monotonic(pthread_cond_t *c) {
      pthread_condattr_t a;
      pthread_condattr_init(&a);
      pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
      return pthread_cond_init(c, &a);
    }
    static int cond_wait_ms(pthread_cond_t *c, pthread_mutex_t *m, int64_t ms) {
      struct timespec t;
      clock_gettime(CLOCK_MONOTONIC, &t);
      t.tv_sec += ms / 1000;
      t.tv_nsec += (ms % 1000) * 1000000;
      if (t.tv_nsec >= 1000000000) { t.tv_sec++; t.tv_nsec -= 1000000000; }
      return pthread_cond_timedwait(c, m, &t);
    }
    """
    int cond_init_monotonic(pthread_cond_t*) nogil
    int cond_wait_ms(pthread_cond_t*, pthread_mutex_t*, int64_t) nogil


cdef void backlog_init(backlog_t* b) noexcept nogil:
    """Initialise a backlog whose other fields are zero."""
    pthread_mutex_init(&b.lock, NULL)
    cond_init_monotonic(&b.wake)


cdef void backlog_destroy(backlog_t* b) noexcept nogil:
    """Free a backlog after its flusher has ended; paths not removed yet are left to the next start."""
    cdef trash_t* t
    while b.trash != NULL:
        t = b.trash
        b.trash = t.next
        free(t.path)
        free(t)
    pthread_cond_destroy(&b.wake)
    pthread_mutex_destroy(&b.lock)


cdef bint backlog_put(backlog_t* b, work_t* w) noexcept nogil:
    """Queue work for the flusher; False if it is queued already, here or, just before a move of its log, in another
    backlog. The flusher holds the log until the work is done."""
    cdef bint added = False
    pthread_mutex_lock(&b.lock)
    if not b.stopping and cas_i32(&w.queued, 0, 1):
        w.next = NULL
        if b.last != NULL:
            b.last.next = w
        else:
            b.first = w
        b.last = w
        added = True
        pthread_cond_signal(&b.wake)
    pthread_mutex_unlock(&b.lock)
    return added


cdef work_t* backlog_next(backlog_t* b, int64_t idle_ms) noexcept nogil:
    """Take the next work, waiting up to idle_ms for it; NULL if none came."""
    cdef work_t* w
    pthread_mutex_lock(&b.lock)
    if b.first == NULL and not b.stopping:
        cond_wait_ms(&b.wake, &b.lock, idle_ms)
    w = b.first
    if w != NULL:
        b.first = w.next
        if b.first == NULL:
            b.last = NULL
        store_i32(&w.queued, 0)  # last: another backlog may link it from now on
    pthread_mutex_unlock(&b.lock)
    return w


cdef void backlog_stop(backlog_t* b) noexcept nogil:
    """Refuse more work; the flusher ends once the queue is empty."""
    pthread_mutex_lock(&b.lock)
    store_i32(&b.stopping, 1)    # the flusher looks at it without the lock
    pthread_cond_signal(&b.wake)
    pthread_mutex_unlock(&b.lock)


cdef int backlog_discard(backlog_t* b, const char* path, bint directory, int64_t delay_ms) noexcept nogil:
    """Remove a file, or a directory of files, after a delay. Without memory, the next start removes it."""
    cdef trash_t* t = <trash_t*>malloc(sizeof(trash_t))
    if t == NULL:
        return -ENOMEM
    t.path = strdup(path)
    if t.path == NULL:
        free(t)
        return -ENOMEM
    t.directory = directory
    t.due_ms = monotonic_ms() + delay_ms
    pthread_mutex_lock(&b.lock)
    t.next = b.trash
    b.trash = t
    pthread_cond_signal(&b.wake)
    pthread_mutex_unlock(&b.lock)
    return 0


cdef void remove_directory(vfs_t* fs, const char* path) noexcept nogil:
    cdef char file[4096]
    cdef dirent* e
    cdef DIR* d = opendir(path)
    if d == NULL:
        return
    e = readdir(d)
    while e != NULL:
        if e.d_name[0] != c".":
            if snprintf(file, sizeof(file), "%s/%s", path, e.d_name) < <int>sizeof(file):
                vfs_unlink(fs, P_SEGMENT_UNLINK, file)
        e = readdir(d)
    closedir(d)
    rmdir(path)


cdef void backlog_empty_trash(backlog_t* b, vfs_t* fs, int64_t now_ms) noexcept nogil:
    """Remove the paths that are due. Called by the flusher alone; no lock is held during file calls."""
    cdef trash_t* due = NULL
    cdef trash_t* t
    cdef trash_t** link = &b.trash
    pthread_mutex_lock(&b.lock)
    while link[0] != NULL:
        t = link[0]
        if t.due_ms <= now_ms:
            link[0] = t.next
            t.next = due
            due = t
        else:
            link = &t.next
    pthread_mutex_unlock(&b.lock)
    while due != NULL:
        t = due
        due = t.next
        if t.directory:
            remove_directory(fs, t.path)
        else:
            vfs_unlink(fs, P_SEGMENT_UNLINK, t.path)
        free(t.path)
        free(t)
