"""Buckets of client quotas: Python and the plane both record usage in them."""

class QuotaBucket:
    """The recent usage of a quota with a limit per second; by Kafka's window, ten seconds' worth is free.

    limit: a second, in bytes, in nanoseconds of threads, or in connections. throttle_ms_max: the longest wait. paced: a
    throttled client pays for each event until it has been quiet; otherwise only the window counts. burst_ms: above 0,
    each event is paid for from the first on, nothing is free, and this much of the limit is the most at once. `now_ms`
    is always of one clock, such as time.monotonic(). Thread-safe. ValueError for a number that is negative or NaN.
    """

    def __init__(
        self, limit: float, *, throttle_ms_max: int = 2147483647, paced: bool = True, burst_ms: int = 0
    ) -> None: ...
    def set_limit(self, limit: float) -> None:
        """Change the limit; usage recorded so far is kept."""
    def record(self, n: int, now_ms: int) -> int:
        """Record n; the ms that the client has to wait, 0 for no wait."""
    def take(self, n: int, now_ms: int) -> tuple[int, bool]:
        """Record n unless earlier usage forbids it: (ms to wait, True if n was not recorded and must not be done)."""
    def wait(self, now_ms: int) -> int:
        """The ms that a client has to wait before it may begin, 0 for no wait."""
    def throttle(self, now_ms: int) -> int:
        """The ms that the client has to wait for recorded usage."""
    def retire(self) -> None:
        """Have Python look up the buckets of the connections that use this one again."""
    @property
    def retired(self) -> bool: ...
    @property
    def last_ms(self) -> int:
        """When usage was last recorded, or the bucket was created."""
    def most(self, now_ms: int) -> int:
        """The most to do at once: what the limit allows in ten seconds or, for a throttled client, in a quarter of
        one; or in the burst."""
    @property
    def throttled(self) -> tuple[int, int]:
        """(number of throttles, their ms in all)."""
