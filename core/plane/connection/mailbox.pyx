"""The mailbox of a plane: a reactor leaves work here that only Python can do, and goes on.

An eventfd wakes the event loop, which takes all letters at once. It is written only if the mailbox was empty, so a
burst of requests costs one wake-up.
"""

from libc.errno cimport ENOMEM, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from posix.unistd cimport close, read, write

from pybroker.core.base.atomic cimport store_i32
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.base.epoll cimport EFD_CLOEXEC, EFD_NONBLOCK, eventfd
from pybroker.core.base.pthread cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)


cdef int mailbox_init(mailbox_t* m) noexcept nogil:
    m.first = m.last = NULL
    m.requests = 0
    pthread_mutex_init(&m.lock, NULL)
    m.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    return 0 if m.fd >= 0 else -errno


cdef void mailbox_destroy(mailbox_t* m) noexcept nogil:
    cdef letter_t* l = mailbox_take(m)
    cdef letter_t* after
    while l != NULL:
        after = l.next
        free(l)
        l = after
    if m.fd >= 0:
        close(m.fd)
    pthread_mutex_destroy(&m.lock)


cdef void ring(int fd) noexcept nogil:
    """Make an eventfd readable."""
    cdef uint64_t one = 1
    write(fd, &one, sizeof(one))


cdef void unring(int fd) noexcept nogil:
    cdef uint64_t count = 0
    read(fd, &count, sizeof(count))


cdef int mailbox_put(mailbox_t* m, int kind, int64_t id, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """Add a letter, with a copy of the frame."""
    cdef letter_t* l = <letter_t*>malloc(sizeof(letter_t) + n)
    cdef bint empty
    if l == NULL:
        return -ENOMEM
    l.next = NULL
    l.kind = kind
    l.conn = c
    l.id = id
    l.length = n
    l.put_ns = monotonic_ns() if kind == REQUEST else 0
    l.frame = <uint8_t*>(l + 1)
    if n > 0:
        memcpy(l.frame, frame, n)
    pthread_mutex_lock(&m.lock)
    empty = m.first == NULL
    if empty:
        m.first = l
    else:
        m.last.next = l
    m.last = l
    if kind == REQUEST:
        store_i32(&m.requests, m.requests + 1)
    pthread_mutex_unlock(&m.lock)
    if empty:
        ring(m.fd)
    return 0


cdef letter_t* mailbox_take(mailbox_t* m) noexcept nogil:
    """Take all letters, oldest first; the caller frees them."""
    cdef letter_t* l
    unring(m.fd)
    pthread_mutex_lock(&m.lock)
    l = m.first
    m.first = m.last = NULL
    store_i32(&m.requests, 0)
    pthread_mutex_unlock(&m.lock)
    return l


cdef void mailbox_return(mailbox_t* m, letter_t* letters) noexcept nogil:
    """Put letters that were taken, but not read, before those that came meanwhile."""
    cdef letter_t* l = letters
    cdef int32_t requests = l.kind == REQUEST
    while l.next != NULL:
        l = l.next
        requests += l.kind == REQUEST
    pthread_mutex_lock(&m.lock)
    l.next = m.first
    m.first = letters
    if m.last == NULL:
        m.last = l
    store_i32(&m.requests, m.requests + requests)
    pthread_mutex_unlock(&m.lock)
    ring(m.fd)
