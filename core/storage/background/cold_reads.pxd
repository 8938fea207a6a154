# Pages that are not in the page cache are read by a thread of the log dir, before a reactor sends them.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.worker cimport task_t
from pybroker.core.storage.log.log cimport log_t

cdef enum:
    COLD_MAX = 16                # partitions of one fetch that are read before it is answered

ctypedef void (*warmed_fn)(void* owner) noexcept nogil

cdef struct wish_t:
    log_t* log                   # held
    int64_t offset
    int64_t most

cdef struct cold_t:
    task_t task
    warmed_fn done               # called once all ranges are in the cache
    void* owner
    int32_t count
    wish_t wishes[<int>COLD_MAX]

cdef struct warm_t:              # a range that was found in the cache, and is not checked again
    const void* files            # compared only
    int64_t start
    int64_t end

cdef bint reader_is_open(log_t* l, int64_t offset) noexcept nogil
cdef bint reader_is_cold(log_t* l, int64_t offset, int64_t most, warm_t* warm) noexcept nogil
cdef cold_t* cold_new(warmed_fn done, void* owner) noexcept nogil
cdef void cold_wish(cold_t* c, log_t* l, int64_t offset, int64_t most) noexcept nogil
cdef bint cold_put(cold_t* c) noexcept nogil
