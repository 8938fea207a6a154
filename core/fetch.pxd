# Fetch without Python: parse, find, answer with ranges of files, or park until records come.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.conn cimport conn_t
from pybroker.core.cursor cimport cursor_t
from pybroker.core.partition cimport notify_fn, partition_t, read_t
from pybroker.core.registry cimport registry_t

cdef enum:
    FETCH_PARTITIONS_MAX = 1024  # of one request; one with more goes to Python

cdef struct wanted_t:            # one partition of a request
    partition_t* partition
    int64_t offset
    int32_t most
    read_t read                  # what was found, held

cdef struct fetch_t:             # a parsed request; a reactor has one and uses it again and again
    int16_t version
    int32_t correlation
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t max_bytes
    int32_t isolation
    int32_t topics
    const uint8_t* body          # where the topics begin
    const uint8_t* end
    int64_t answer_bytes         # at most, without records
    int64_t found_bytes
    int32_t count
    wanted_t wanted[<int>FETCH_PARTITIONS_MAX]

cdef int fetch(
    fetch_t* f, registry_t* reg, conn_t* c, cursor_t* r, int16_t version, int64_t bytes_max, int64_t now_ms,
    notify_fn notify) noexcept nogil
