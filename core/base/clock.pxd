# The clocks. The monotonic one for durations and deadlines, the wall's for timestamps only: it jumps. The one since
# boot counts what a host slept, too: by it a lease lapses.
from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

cdef extern from "<time.h>" nogil:
    const int CLOCK_BOOTTIME


cdef inline int64_t boot_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_BOOTTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000


cdef inline int64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef inline int64_t monotonic_ms() noexcept nogil:
    return monotonic_ns() // 1000000


cdef inline int64_t wall_ms() noexcept nogil:
    """Milliseconds since the epoch."""
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000
