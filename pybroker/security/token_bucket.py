"""Kafka's token bucket (KIP-599): what comes in bursts, and is to be so much a second in the long run."""

from typing import Final

BURST_S: Final = 11
"""controller.quota.window.num, of a second each: what may come at once who did nothing before."""
THROTTLE_MS_MAX: Final = (1 << 31) - 1


class TokenBucket:
    """`rate` tokens a second come, up to the burst; what is done may cost more than there are, and then the next waits.

    Times are handed in, in milliseconds of one clock."""

    def __init__(self, rate: float, now_ms: int) -> None:
        self.rate = rate
        self._tokens = rate * BURST_S
        self._filled_ms = now_ms

    def set_rate(self, rate: float, now_ms: int) -> None:
        """What is there stays, as far as the burst of that rate goes."""
        self._fill(now_ms)
        self.rate = rate
        self._tokens = min(self._tokens, rate * BURST_S)

    def _fill(self, now_ms: int) -> None:
        came = max(0, now_ms - self._filled_ms) * self.rate / 1000
        self._tokens = min(self._tokens + came, self.rate * BURST_S)
        self._filled_ms = max(now_ms, self._filled_ms)

    def is_exceeded(self, now_ms: int) -> bool:
        """Must the next wait?"""
        self._fill(now_ms)
        return self._tokens < 0

    def is_full(self, now_ms: int) -> bool:
        self._fill(now_ms)
        return self._tokens >= self.rate * BURST_S

    def record(self, cost: float, now_ms: int) -> None:
        """Something is done; or with a negative cost it was not done after all."""
        self._fill(now_ms)
        self._tokens = min(self._tokens - cost, self.rate * BURST_S)

    def throttle_ms(self, now_ms: int) -> int:
        """How long the next waits; 0: it need not."""
        if not self.is_exceeded(now_ms):
            return 0
        if self.rate <= 0:
            return BURST_S * 1000
        return min(THROTTLE_MS_MAX, round(-self._tokens * 1000 / self.rate))
