"""Closes the files of idle segments; the next user opens them again by name.

Sealed segments are closed when they were not read for a while. If descriptors are scarce, a thread of each log dir goes
round its logs, and closes every segment that was not used since its last visit (CLOCK, F. Corbato, "A paging experiment
with the Multics system", 1968). It only tries locks and never waits for them: a log that is being flushed or appended
to is not idle.

Appended data in the page cache is written before its file is closed. The kernel reports a failed write to processes
that have the file open, and may have dropped the error by the time the file is opened again: a flush would then take
lost data for durable. The data must be written, not synced; a later flush still makes it durable.
"""

from libc.stdint cimport int64_t
from posix.unistd cimport usleep

from pybroker.core.base.atomic cimport cas_i32, load_i32, load_i64, load_ptr, store_i32, store_ptr, swap_ptr
from pybroker.core.base.budget cimport budget_excess
from pybroker.core.base.chain cimport chain_append, chain_remove
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock
from pybroker.core.base.reclamation cimport collect, pin, reclaim_t, retire, unpin
from pybroker.core.base.vfs cimport P_SEGMENT_SYNC, vfs_write_out
from pybroker.core.storage.log.log cimport log_dir_of, log_drop, log_offline, log_t, log_trust, segments_t
from pybroker.core.storage.log.log_dir cimport closing_t
from pybroker.core.storage.segment.open_files cimport files_drop, files_hold, files_t
from pybroker.core.storage.segment.segment cimport segment_t

cdef enum:
    COLLECT_AFTER = 64       # retired files, which are closed once no reader can be in them
    COLLECT_TURNS = 200      # while a thread waits for a descriptor, and a reader is in the way
    COLLECT_LOOK_US = 500


cdef bint close_unsealed(log_t* l, segment_t* s, files_t* f) noexcept nogil:
    """Write the file's pages, and close it if it was not used meanwhile. Under the flush mutex; f is held."""
    cdef int64_t size = load_i64(&s.size)
    cdef bint closes
    if not log_offline(l) and max(load_i64(&s.flushed), s.written) < size:
        if log_trust(l, vfs_write_out(s.fs, P_SEGMENT_SYNC, f.fd)) < 0:
            return False
        s.written = size
    if pthread_mutex_trylock(&l.append_mutex) != 0:
        return False
    closes = load_i64(&s.size) == size and not load_i32(&f.used) and <files_t*>load_ptr(<void**>&s.files) == f
    if closes:
        store_ptr(<void**>&s.files, NULL)
        retire(&l.context.reclaim, f, files_drop)
    pthread_mutex_unlock(&l.append_mutex)
    return closes


cdef bint close_one(log_t* l, int64_t i, idle_t which) noexcept nogil:
    """Close segment i if it is open and idle. Under the flush mutex: no segment is sealed, cut or unlisted
    meanwhile."""
    cdef int slot = pin(&l.context.reclaim)
    cdef segment_t* s = (<segments_t*>load_ptr(<void**>&l.segments)).items[i].segment
    cdef files_t* f = <files_t*>load_ptr(<void**>&s.files)
    cdef bint closed = False
    if f == NULL:
        unpin(&l.context.reclaim, slot)
        return False
    if load_i32(&f.used) and which != IDLE_NOW:
        store_i32(&f.used, 0)
        unpin(&l.context.reclaim, slot)
        return False
    if load_i32(&s.sealed):
        if not load_i32(&s.index_bad):
            retire(&l.context.reclaim, swap_ptr(<void**>&s.files, NULL), files_drop)
            closed = True
        unpin(&l.context.reclaim, slot)
        return closed
    files_hold(f)
    unpin(&l.context.reclaim, slot)  # a pin held while the disk writes would keep other closed files open
    if which != IDLE_SEALED:
        store_i32(&f.used, 0)
        closed = close_unsealed(l, s, f)
    files_drop(f)
    return closed


cdef int log_close_idle(log_t* l, idle_t which) noexcept nogil:
    """Close the files of segments that were not used since the last call. Return how many. Readers that hold them go
    on. A log that is being flushed is skipped."""
    cdef int64_t i, count
    cdef int slot, closed = 0
    if pthread_mutex_trylock(&l.flush_mutex) != 0:
        return 0
    slot = pin(&l.context.reclaim)
    count = load_i64(&(<segments_t*>load_ptr(<void**>&l.segments)).count)
    unpin(&l.context.reclaim, slot)
    for i in range(count):
        closed += close_one(l, i, which)
    pthread_mutex_unlock(&l.flush_mutex)
    return closed


cdef void idle_add(log_t* l) noexcept nogil:
    """Add an open log to the round that closes idle files."""
    cdef closing_t* c = &log_dir_of(l).closing
    pthread_mutex_lock(&c.lock)
    chain_append(&c.logs, &l.listed, l)
    pthread_mutex_unlock(&c.lock)


cdef void idle_remove(log_t* l) noexcept nogil:
    """Take an open log out of its log dir's round."""
    cdef closing_t* c = &log_dir_of(l).closing
    pthread_mutex_lock(&c.lock)
    chain_remove(&l.listed)
    pthread_mutex_unlock(&c.lock)


cdef bint hold_if_alive(log_t* l) noexcept nogil:
    cdef int refs = load_i32(&l.refs)
    while refs > 0:
        if cas_i32(&l.refs, refs, refs + 1):
            return True
        refs = load_i32(&l.refs)
    return False


cdef log_t* next_log(closing_t* c) noexcept nogil:
    """The log at the hand, held; NULL if it is about to be freed. The hand returns to it after all others."""
    cdef log_t* l = NULL
    pthread_mutex_lock(&c.lock)
    if c.logs.first != NULL:
        l = <log_t*>c.logs.first.owner
        chain_remove(&l.listed)
        chain_append(&c.logs, &l.listed, l)
        if not hold_if_alive(l):
            l = NULL
    pthread_mutex_unlock(&c.lock)
    return l


cdef void log_dir_close_idle(task_t* task) noexcept nogil:
    """Go round the logs of a log dir, at most twice, until enough files are closed."""
    cdef closing_t* c = <closing_t*>task
    cdef reclaim_t* q = NULL
    cdef log_t* l
    cdef int64_t visits, closed = 0, collected = 0, wanted
    store_i32(&c.asked, 0)       # first, so that a request from here on is not lost
    wanted = budget_excess(c.budget)
    pthread_mutex_lock(&c.lock)
    visits = 2 * c.logs.count
    pthread_mutex_unlock(&c.lock)
    while visits > 0 and closed < wanted and not load_i32(&c.stopping):
        visits -= 1
        l = next_log(c)
        if l == NULL:
            continue
        q = &l.context.reclaim
        closed += log_close_idle(l, IDLE_ALL)
        log_drop(l)
        if closed - collected >= COLLECT_AFTER:
            collect(q)
            collected = closed
    visits = 0
    while q != NULL and collect(q) > 0 and load_i32(&c.budget.waiting) > 0 and visits < COLLECT_TURNS:
        usleep(COLLECT_LOOK_US)
        visits += 1
