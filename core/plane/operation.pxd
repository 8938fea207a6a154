# Requests whose answers wait, while their connection goes on.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.plane.conn cimport conn_t, operation_t
from pybroker.core.plane.timer cimport timers_t

cdef enum:
    NEVER = 0x7FFFFFFFFFFFFFFF   # a deadline

cdef operation_t* operation_new(conn_t* c, int32_t awaited_count) noexcept nogil
cdef void operation_list(operation_t* op, int64_t begin) noexcept nogil
cdef void operation_leave_session(operation_t* op) noexcept nogil
cdef void operation_unwatch(operation_t* op) noexcept nogil
cdef int operation_keep_frame(operation_t* op, const uint8_t* frame, int64_t n) noexcept nogil
cdef void operation_tell(operation_t* op) noexcept nogil
cdef void operation_look(operation_t* op) noexcept nogil
cdef void operation_answered(operation_t* op, int64_t n) noexcept nogil
cdef void operation_end(timers_t* timers, operation_t* op) noexcept nogil
cdef void operations_end(timers_t* timers, conn_t* c) noexcept nogil
