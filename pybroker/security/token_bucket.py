"""Kafka's token bucket (KIP-599): limits the average rate of operations that come in bursts.

All other rate limits are core's QuotaBucket, which uses Kafka's window. Here Kafka uses a token bucket, as one request
may cost hundreds of times the limit per second: in a window, the rate would stay above the limit until that sample
leaves it. A token bucket goes into debt for the request, and refills at the rate. It can also return the cost of an
operation that was not done, which a window cannot once another sample has begun.
"""

from typing import Final

BURST_S: Final = 11
"""Seconds of the rate that an idle client may use at once: Kafka's controller.quota.window.num."""
THROTTLE_MS_MAX: Final = (1 << 31) - 1


class TokenBucket:
    """Gains `rate` tokens a second, up to the burst. An operation may cost more than there are; then the next waits.

    The caller passes the time, in milliseconds of one clock."""

    def __init__(self, rate: float, now_ms: int) -> None:
        self.rate = rate
        self._tokens = rate * BURST_S
        self._filled_ms = now_ms

    def set_rate(self, rate: float, now_ms: int) -> None:
        """Change the rate; keep the tokens, up to the new rate's burst."""
        self._fill(now_ms)
        self.rate = rate
        self._tokens = min(self._tokens, rate * BURST_S)

    def _fill(self, now_ms: int) -> None:
        came = max(0, now_ms - self._filled_ms) * self.rate / 1000
        self._tokens = min(self._tokens + came, self.rate * BURST_S)
        self._filled_ms = max(now_ms, self._filled_ms)

    def is_exceeded(self, now_ms: int) -> bool:
        """True if the next operation must wait."""
        self._fill(now_ms)
        return self._tokens < 0

    def is_full(self, now_ms: int) -> bool:
        self._fill(now_ms)
        return self._tokens >= self.rate * BURST_S

    def record(self, cost: float, now_ms: int) -> None:
        """Take the cost of an operation, or with a negative cost return it."""
        self._fill(now_ms)
        self._tokens = min(self._tokens - cost, self.rate * BURST_S)

    def throttle_ms(self, now_ms: int) -> int:
        """Milliseconds that the next operation must wait; 0: none."""
        if not self.is_exceeded(now_ms):
            return 0
        if self.rate <= 0:
            return BURST_S * 1000
        return min(THROTTLE_MS_MAX, round(-self._tokens * 1000 / self.rate))
