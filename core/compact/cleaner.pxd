# One round of compaction of a log.
from libc.stdint cimport int64_t

from pybroker.core.base.page_cache cimport passed_t
from pybroker.core.compact.record_filter cimport buffer_t, filter_t
from pybroker.core.storage.log.log cimport log_t
from pybroker.core.storage.segment.open_files cimport files_t
from pybroker.core.storage.segment.segment cimport segment_t

cdef enum:
    STOPPED = -100007            # a status: the broker is stopping

cdef struct input_t:            # the segment being read
    files_t* files               # held
    int64_t base_offset
    int64_t next_base
    int64_t size
    int64_t modified_ms
    int64_t expected             # the lowest offset that the next batch may have

cdef struct round_t:
    log_t* log
    filter_t filter
    input_t source
    buffer_t read
    int64_t read_from            # the position of the buffer in the source
    passed_t passed              # of the source
    bint cold                    # some of the round's input was not in the page cache
    segment_t* fresh             # the segment being written
    buffer_t written             # its end, not in the file yet
    bint differs                 # the segment differs from its sources
    bint indexed                 # one of its sources has a transaction index
    int64_t generation
    int64_t bytes_per_s          # 0: no limit
    int64_t started_ms
    int64_t moved_bytes          # read and written
    int64_t before_bytes         # of the replaced segments
    int64_t after_bytes

cdef int log_clean(round_t* c, int64_t bound, int64_t map_bytes) noexcept nogil
