# The memory that requests and responses may hold, over all connections of a broker, and the share of each address.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.atomic cimport add_i64, cas_i32, load_i64, store_i32
from pybroker.core.base.pthread cimport pthread_mutex_t

cdef enum:
    KEY_BYTES = 9                # a family, and an IPv4 address or the network part of an IPv6 address
    BUCKETS = 1024
    RESERVE_PART = 8             # this part of the limit may be lent beyond it
    BIG = -1                     # a loan of any size; only one at a time

cdef struct address_t:           # all connections of one address
    address_t* next              # in its bucket
    int32_t connections          # guarded by the pool's lock
    int32_t bucket
    int64_t held                 # bytes
    uint8_t key[KEY_BYTES]

cdef struct pool_t:
    int64_t limit                # bytes: queued.max.request.bytes
    int64_t held
    int64_t lent                 # of the reserve, and for fair shares
    int32_t big                  # a request that does not fit into the reserve holds a loan
    int64_t addresses            # addresses that hold something
    int64_t claimed_ms           # when an address last claimed its fair share beyond the reserve
    pthread_mutex_t lock         # guards the buckets
    address_t* buckets[BUCKETS]

cdef void pool_init(pool_t* p, int64_t limit) noexcept nogil
cdef void pool_destroy(pool_t* p) noexcept nogil
cdef address_t* pool_join(pool_t* p, int fd) noexcept nogil
cdef void pool_leave(pool_t* p, address_t* a) noexcept nogil


cdef inline bint pool_full(pool_t* p) noexcept nogil:
    return load_i64(&p.held) >= p.limit


cdef inline void pool_hold(pool_t* p, address_t* a, int64_t n) noexcept nogil:
    """Add n bytes to what a connection of the address holds, or with n < 0 subtract them."""
    cdef int64_t now = add_i64(&a.held, n)
    add_i64(&p.held, n)
    if now == n and n > 0:
        add_i64(&p.addresses, 1)
    elif now == 0 and n < 0:
        add_i64(&p.addresses, -1)


cdef inline int64_t pool_share(pool_t* p) noexcept nogil:
    """The fair share of one more address: what each may hold if all hold the same."""
    return p.limit // (load_i64(&p.addresses) + 1)


cdef inline int64_t pool_lend(pool_t* p, int64_t n, bint fair) noexcept nogil:
    """Lend n bytes beyond the limit: if they fit into the reserve; if they are within the fair share of their address,
    for which other connections are closed; or as the one big loan. Return what pool_repay takes back; 0: refused."""
    if add_i64(&p.lent, n) <= (p.limit if fair else p.limit // RESERVE_PART):
        return n
    add_i64(&p.lent, -n)
    return BIG if cas_i32(&p.big, 0, 1) else 0


cdef inline void pool_repay(pool_t* p, int64_t loan) noexcept nogil:
    if loan == BIG:
        store_i32(&p.big, 0)
    else:
        add_i64(&p.lent, -loan)
