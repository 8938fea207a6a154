"""The clocks: the wall's for timestamps, which jumps; the one since boot for sessions, which also counts sleep; the
monotonic one, which does not, for all that is waited for here."""

import time


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds as time.monotonic() has them, and core."""
    return time.monotonic_ns() // 1_000_000


def boot_ms() -> int:
    """Milliseconds since the host was started."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
