"""The memory pool: received requests that are not answered yet, and responses that clients do not read.

While the pool is full, a request that has arrived completely is still executed from the socket: it costs no memory. A
connection that needs memory for the rest of its request waits in its reactor's line (`shortage`). From the line
requests go on beyond the limit: first those of the address that holds least, and of these the smallest; as many as fit
into the reserve, or one request of any size. So the pool holds at most the limit, the reserve and one request. An
exception is an address that holds less than its fair share: below twice the limit its requests go on, and connections
of addresses above their share are closed.

An address is an IPv4 address, or the first 64 bits of an IPv6 address, as one host may have all addresses of that
prefix.
"""

from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from pybroker.core.base.pthread cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)
from pybroker.core.base.socket cimport AF_INET, AF_INET6, getpeername, sockaddr, sockaddr_storage, socklen_t

cdef extern from "<netinet/in.h>" nogil:
    cdef struct sockaddr_in:
        unsigned int sin_addr    # four bytes
    cdef struct sockaddr_in6:
        unsigned long sin6_addr  # sixteen bytes, the network's first

cdef enum:
    MAPPED_AT = 12               # the position of a.b.c.d in ::ffff:a.b.c.d


cdef void pool_init(pool_t* p, int64_t limit) noexcept nogil:
    memset(p, 0, sizeof(pool_t))
    p.limit = limit
    pthread_mutex_init(&p.lock, NULL)


cdef void pool_destroy(pool_t* p) noexcept nogil:
    """Destroy the pool, after all connections have left."""
    pthread_mutex_destroy(&p.lock)


cdef void write_key(int fd, uint8_t* key) noexcept nogil:
    """Write the address of a socket's peer: its family and bytes; zeros if it has none (a socket pair)."""
    cdef sockaddr_storage room
    cdef socklen_t n = sizeof(room)
    cdef const uint8_t* at
    cdef const uint8_t* mapped = b"\0\0\0\0\0\0\0\0\0\0\xff\xff"
    memset(key, 0, KEY_BYTES)
    if getpeername(fd, <sockaddr*>&room, &n) != 0:
        return
    if (<sockaddr*>&room).sa_family == AF_INET:
        key[0] = 4
        memcpy(key + 1, &(<sockaddr_in*>&room).sin_addr, 4)
    elif (<sockaddr*>&room).sa_family == AF_INET6:
        at = <const uint8_t*>&(<sockaddr_in6*>&room).sin6_addr
        if memcmp(at, mapped, MAPPED_AT) == 0:
            key[0] = 4
            memcpy(key + 1, at + MAPPED_AT, 4)
        else:
            key[0] = 6
            memcpy(key + 1, at, KEY_BYTES - 1)


cdef address_t* pool_join(pool_t* p, int fd) noexcept nogil:
    """The address of a new connection's peer, until pool_leave; NULL without memory."""
    cdef uint8_t key[KEY_BYTES]
    cdef unsigned int hashed = 2166136261
    cdef address_t* a
    cdef int i
    write_key(fd, key)
    for i in range(KEY_BYTES):
        hashed = (hashed ^ key[i]) * <unsigned int>16777619
    i = <int>(hashed % BUCKETS)
    pthread_mutex_lock(&p.lock)
    a = p.buckets[i]
    while a != NULL and memcmp(a.key, key, KEY_BYTES) != 0:
        a = a.next
    if a == NULL:
        a = <address_t*>calloc(1, sizeof(address_t))
        if a != NULL:
            memcpy(a.key, key, KEY_BYTES)
            a.bucket = i
            a.next = p.buckets[i]
            p.buckets[i] = a
    if a != NULL:
        a.connections += 1
    pthread_mutex_unlock(&p.lock)
    return a


cdef void pool_leave(pool_t* p, address_t* a) noexcept nogil:
    """Remove a connection that ends, and holds nothing any more."""
    cdef address_t** at
    pthread_mutex_lock(&p.lock)
    a.connections -= 1
    if a.connections == 0:
        at = &p.buckets[a.bucket]
        while at[0] != a:
            at = &at[0].next
        at[0] = a.next
        free(a)
    pthread_mutex_unlock(&p.lock)
