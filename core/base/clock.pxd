# The clocks. Monotonic: for durations and deadlines. Wall: for timestamps only, as it may jump. Boot: it also counts
# the time that the host was suspended; leases expire by it.
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
