"""Buckets of client quotas: counted in by Python and by the plane."""

class QuotaBucket:
    """What somebody has done lately of what a limit a second allows, by Kafka's window: ten seconds' worth is free.

    limit: a second, in bytes, or in nanoseconds of threads. throttle_ms_max: the longest wait. `now_ms` is of
    time.monotonic(). From any thread. ValueError for a limit or a wait that is negative or no number."""

    def __init__(self, limit: float, *, throttle_ms_max: int = 2147483647) -> None: ...
    def set_limit(self, limit: float) -> None:
        """What was done stays done."""
    def record(self, n: int, now_ms: int) -> int:
        """Count n; how long who did it has to wait, in ms, 0: not at all."""
    def take(self, n: int, now_ms: int) -> tuple[int, bool]:
        """(the same, whether n was not counted and must not be done): that is so where others were counted before."""
    def wait(self, now_ms: int) -> int:
        """How long somebody who has not begun has to wait before more is done, in ms, 0: not at all."""
    def throttle(self, now_ms: int) -> int:
        """How long somebody has to wait for what was counted."""
    def retire(self) -> None:
        """Connections of the plane that count here are Python's to look at again."""
    @property
    def retired(self) -> bool: ...
    @property
    def last_ms(self) -> int:
        """When something was counted last, or it was made."""
    def most(self, now_ms: int) -> int:
        """The most that is to be done at once: what the limit allows in ten seconds or, for who is held, in a quarter
        of one."""
    @property
    def throttled(self) -> tuple[int, int]:
        """How often somebody had to wait, and how many ms in all."""
