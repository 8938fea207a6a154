# The mailbox from reactors to Python: requests that need it, and events.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.pthread cimport pthread_mutex_t
from pybroker.core.plane.connection.conn cimport chunk_t, conn_t

cdef enum letter_kind_t:
    REQUEST                  # execute this frame and reply in any case
    GONE  # the client of a request that is with Python has disconnected: its response will not be read
    CLOSED                   # a connection ended
    GROWN                    # a partition that Python watches grew, or was removed
    FETCHER                  # an event of a partition that is fetched from a leader
    JOINING                  # a follower outside the ISR of a partition that Python watches has caught up

cdef struct letter_t:
    letter_t* next
    conn_t* conn             # REQUEST, GONE: valid until the reply
    int64_t id               # of the connection, or of the partition
    int64_t length
    int64_t put_ns           # REQUEST: when it was put here
    int32_t kind
    uint8_t* frame           # after the struct

cdef struct mailbox_t:
    pthread_mutex_t lock
    letter_t* first
    letter_t* last
    int32_t requests             # number of REQUEST letters that wait
    int32_t fd               # an eventfd, readable while letters wait

cdef int mailbox_init(mailbox_t* m) noexcept nogil
cdef void mailbox_destroy(mailbox_t* m) noexcept nogil
cdef int mailbox_put(mailbox_t* m, int kind, int64_t id, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil
cdef letter_t* mailbox_take(mailbox_t* m) noexcept nogil
cdef void mailbox_return(mailbox_t* m, letter_t* letters) noexcept nogil
cdef void ring(int fd) noexcept nogil
cdef void unring(int fd) noexcept nogil
