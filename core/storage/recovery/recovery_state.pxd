# The parameters and the results of opening a log at a start.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR

cdef enum:
    FAULT_GAP = 1            # a segment is missing
    FAULT_ORDER = 2          # two segments overlap
    FAULT_HEAD = 3           # the first segment is missing
    FAULT_TAIL = 4           # the last segment is missing, or ends before it did

cdef struct recovery_t:      # parameters first, then results
    int64_t recovery_point   # everything below is on disk and sound
    int64_t log_start
    int64_t high_watermark   # -1: the log's end
    int64_t written          # a log that ends below this offset has lost files
    bint given_up            # files missing at its start or end do not come back
    int32_t epoch_max        # no batch can have a larger leader epoch; -1 unknown
    bint gaps                # offsets may have gaps: the log was compacted once
    bint clean               # the last stop was clean: nothing is scanned
    int64_t scanned_bytes
    int64_t cut_bytes
    int64_t cut_base         # base offset of the segment that was cut
    int64_t cut_position     # where it was cut
    int32_t aside            # more than a torn batch was cut: 1 a copy was kept, -1 the copy failed
    int32_t rebuilt          # the number of rebuilt indexes
    int32_t fault
    int64_t fault_base       # base offset of the segment after the gap; FAULT_TAIL: where the log ended
    int64_t fault_end        # end of the segment before it; FAULT_HEAD: where the log began


cdef inline int recovery_fault(recovery_t* r, int what, int64_t end, int64_t base) noexcept nogil:
    """Note a fault; the log is not used then."""
    r.fault = what
    r.fault_end = end
    r.fault_base = base
    return KAFKA_STORAGE_ERROR
