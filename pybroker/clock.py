"""The clocks: wall time for timestamps, which may jump; boot time for sessions, which includes suspend; monotonic time,
which does not, for timeouts."""

import time


def wall_ms() -> int:
    """Milliseconds since 1970 (wall time)."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds of time.monotonic(), the clock that core uses too."""
    return time.monotonic_ns() // 1_000_000


def boot_ms() -> int:
    """Milliseconds since the host was booted."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
