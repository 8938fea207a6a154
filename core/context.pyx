"""The broker's context: its file calls, its pins, the work for its flusher, and the files that wait to be removed."""

from libc.errno cimport ENOMEM
from libc.stdint cimport int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport strcmp, strdup

from pybroker.core.atomic cimport store_i32
from pybroker.core.clock cimport monotonic_ms
from pybroker.core.quiesce cimport (
    collect, pthread_cond_t, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
    quiesce_destroy, quiesce_init,
)
from pybroker.core.syncer cimport syncer_free, syncer_new, syncer_stop, syncer_t
from pybroker.core.vfs cimport P_SEGMENT_UNLINK, vfs_new, vfs_t, vfs_unlink

cdef extern from *:
    """
    #include <dirent.h>
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
    int pthread_cond_signal(pthread_cond_t*) nogil
    int pthread_cond_destroy(pthread_cond_t*) nogil
    ctypedef struct DIR:
        pass
    cdef struct dirent:
        char d_name[256]
    DIR* opendir(const char*) nogil
    dirent* readdir(DIR*) nogil
    int closedir(DIR*) nogil

cdef extern from "<unistd.h>" nogil:
    int rmdir(const char* path)


cdef context_t* context_new(int64_t write_behind_bytes, int64_t idle_ms) noexcept nogil:
    cdef context_t* c = <context_t*>calloc(1, sizeof(context_t))
    if c == NULL:
        return NULL
    c.fs = vfs_new()
    if c.fs == NULL:
        free(c)
        return NULL
    quiesce_init(&c.quiesce)
    pthread_mutex_init(&c.lock, NULL)
    cond_init_monotonic(&c.wake)
    c.write_behind_bytes = write_behind_bytes
    c.idle_ms = idle_ms
    return c


cdef void context_free(context_t* c) noexcept nogil:
    """The flusher has stopped and nobody holds a log; what still waits to be removed is left to the next start."""
    cdef trash_t* t
    cdef syncer_t* s
    quiesce_destroy(&c.quiesce)
    while c.syncers != NULL:
        s = c.syncers
        c.syncers = s.next
        syncer_free(s)
    while c.trash != NULL:
        t = c.trash
        c.trash = t.next
        free(t.path)
        free(t)
    pthread_cond_destroy(&c.wake)
    pthread_mutex_destroy(&c.lock)
    free(c.fs)
    free(c)


cdef bint context_queue(context_t* c, work_t* w) noexcept nogil:
    """Hand work to the flusher; False if it waits there already. The flusher holds what it was handed until it is done."""
    cdef bint added = False
    pthread_mutex_lock(&c.lock)
    if not w.queued and not c.stopping:
        w.queued = 1
        w.next = NULL
        if c.last != NULL:
            c.last.next = w
        else:
            c.first = w
        c.last = w
        added = True
        pthread_cond_signal(&c.wake)
    pthread_mutex_unlock(&c.lock)
    return added


cdef work_t* context_next(context_t* c) noexcept nogil:
    """Take the next work, waiting idle_ms for it; NULL if none came."""
    cdef work_t* w
    pthread_mutex_lock(&c.lock)
    if c.first == NULL and not c.stopping:
        cond_wait_ms(&c.wake, &c.lock, c.idle_ms)
    w = c.first
    if w != NULL:
        c.first = w.next
        if c.first == NULL:
            c.last = NULL
        w.queued = 0
    pthread_mutex_unlock(&c.lock)
    return w


cdef void context_stop(context_t* c) noexcept nogil:
    cdef syncer_t* s
    pthread_mutex_lock(&c.lock)
    store_i32(&c.stopping, 1)    # the flusher looks at it without the lock
    s = c.syncers
    pthread_cond_signal(&c.wake)
    pthread_mutex_unlock(&c.lock)
    while s != NULL:
        syncer_stop(s)
        s = s.next


cdef syncer_t* context_syncer(context_t* c, const char* log_dir) noexcept nogil:
    """The syncer of a log dir, made at the first asking; NULL without memory."""
    cdef syncer_t* s
    pthread_mutex_lock(&c.lock)
    s = c.syncers
    while s != NULL and strcmp(s.directory, log_dir) != 0:
        s = s.next
    if s == NULL:
        s = syncer_new(log_dir)
        if s != NULL:
            s.next = c.syncers
            c.syncers = s
    pthread_mutex_unlock(&c.lock)
    return s


cdef int context_discard(context_t* c, const char* path, bint directory, int64_t delay_ms) noexcept nogil:
    """Remove a file, or a directory of files, after a delay. Where memory is short it is removed at the next start."""
    cdef trash_t* t = <trash_t*>malloc(sizeof(trash_t))
    if t == NULL:
        return -ENOMEM
    t.path = strdup(path)
    if t.path == NULL:
        free(t)
        return -ENOMEM
    t.directory = directory
    t.due_ms = monotonic_ms() + delay_ms
    pthread_mutex_lock(&c.lock)
    t.next = c.trash
    c.trash = t
    pthread_cond_signal(&c.wake)
    pthread_mutex_unlock(&c.lock)
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


cdef void context_empty_trash(context_t* c, int64_t now_ms) noexcept nogil:
    """Remove what is due. Called by the flusher alone, with no lock held over a file call."""
    cdef trash_t* due = NULL
    cdef trash_t* t
    cdef trash_t** link = &c.trash
    pthread_mutex_lock(&c.lock)
    while link[0] != NULL:
        t = link[0]
        if t.due_ms <= now_ms:
            link[0] = t.next
            t.next = due
            due = t
        else:
            link = &t.next
    pthread_mutex_unlock(&c.lock)
    while due != NULL:
        t = due
        due = t.next
        if t.directory:
            remove_directory(c.fs, t.path)
        else:
            vfs_unlink(c.fs, P_SEGMENT_UNLINK, t.path)
        free(t.path)
        free(t)
    collect(&c.quiesce)
