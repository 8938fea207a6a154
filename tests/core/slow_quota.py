"""Quotas in plain Python: a list of samples, as in Kafka, and the pace of a client that had to wait."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_MS, SAMPLES = 1000, 11
SLACK_MS = 200
DEBT_MS_MAX = 60_000


@dataclass
class Sample:
    start: int
    last: int
    value: int = 0


class SlowBucket:
    """A model of QuotaBucket; samples and rate follow SampledStat and Rate of Kafka 3.9."""

    def __init__(self, limit: float, most_ms: int, paced: bool = True, burst_ms: int = 0) -> None:
        self.paced = paced
        self.burst_ms = burst_ms
        self.limit = limit
        self.most_ms = most_ms
        self.samples: list[Sample] = []  # oldest first
        self.held_until = -1
        self.paid = 0.0  # time until which past use is paid for, at the limit

    def _rate(self, now: int) -> tuple[int, int]:
        """Return (the sum of the samples, the ms that they cover)."""
        counted = [sample for sample in self.samples if now - sample.last < SAMPLES * WINDOW_MS]
        elapsed = now - min((sample.start for sample in counted), default=now)
        return sum(sample.value for sample in counted), max(elapsed, (SAMPLES - 1) * WINDOW_MS)

    def _over(self, now: int) -> float:
        """The ms until the rate is back at the limit."""
        if self.burst_ms:
            return 0
        total, elapsed_ms = self._rate(now)
        return total * 1000 / self.limit - elapsed_ms

    def _is_held(self, now: int) -> bool:
        return self.burst_ms > 0 or now <= self.held_until

    def throttle(self, now: int) -> int:
        if not self.samples:
            return 0
        wait = self._over(now)
        if self._is_held(now):
            wait = max(wait, self.paid - now)
        return self._told(wait)

    def _told(self, wait: float) -> int:
        return min(self.most_ms, int(max(0, wait) + 0.5))

    def _record(self, n: int, now: int, may_refuse: bool) -> tuple[int, bool]:
        if not self.samples or now - self.samples[-1].start >= WINDOW_MS:
            self.samples.append(Sample(now, now))
            del self.samples[: -(SAMPLES + 1)]
        newest = self.samples[-1]
        newest.value += n
        newest.last = now
        held = self._is_held(now)
        wait = self._over(now)
        total, _ = self._rate(now)
        refused = may_refuse and total > n and self._told(self.paid - now if held else wait) > 0
        if refused:
            newest.value -= n
            wait = self.paid - now if held else wait
            self.paid = self.paid if held else now
        else:
            if held:
                self.paid = max(self.paid, now - (0 if self.burst_ms else SLACK_MS)) + n * 1000 / self.limit
                wait = max(wait, self.paid - now)
            debt = min(max(n * 1000 / self.limit, DEBT_MS_MAX), self.most_ms)
            self.paid = min(max(self.paid, now + wait), now + debt)
        throttle_ms = self._told(wait)
        if throttle_ms > 0:
            self.held_until = max(self.held_until, now + throttle_ms + WINDOW_MS) if self.paced else -1
        return throttle_ms, refused

    def record(self, n: int, now: int) -> int:
        return self._record(n, now, False)[0]

    def take(self, n: int, now: int) -> tuple[int, bool]:
        return self._record(n, now, True)

    def wait(self, now: int) -> int:
        """The ms that a client must wait, measured by recording 0."""
        wait, refused = self._record(0, now, True)
        return wait if refused else 0
