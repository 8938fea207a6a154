"""Sequence rules in plain Python, with refused batches: the reference model for core's appends."""

from typing import NamedTuple

WINDOW = 5
SEQUENCES = 2**31
DUPLICATE = -100000
OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH = 45, 47


class Sent(NamedTuple):
    """The fields of a batch that the sequence rules use."""

    pid: int
    epoch: int
    first: int
    count: int


class SlowSequences:
    """The producers of one partition: the last batches of each, and its first refused batch."""

    def __init__(self) -> None:
        self.windows: dict[int, list[Sent]] = {}
        self.refused: dict[int, tuple[Sent, int]] = {}

    def next_of(self, pid: int) -> int:
        window = self.windows.get(pid)
        return (window[-1].first + window[-1].count) % SEQUENCES if window else 0

    def rule(self, sent: Sent) -> int:
        """Return 0, DUPLICATE or Kafka's error code, judged by the accepted batches alone."""
        window = self.windows.get(sent.pid)
        if window is None:
            return 0
        if sent.epoch < window[-1].epoch:
            return INVALID_PRODUCER_EPOCH
        if sent.epoch > window[-1].epoch:
            return OUT_OF_ORDER_SEQUENCE_NUMBER if sent.first else 0
        if sent in window:
            return DUPLICATE
        return 0 if sent.first == self.next_of(sent.pid) else OUT_OF_ORDER_SEQUENCE_NUMBER

    def _is_behind(self, sent: Sent, before: Sent) -> bool:
        """True if `sent` is after `before` in the same epoch; sequences wrap around, so after is half the circle."""
        return sent.epoch == before.epoch and 0 < (sent.first - before.first) % SEQUENCES <= SEQUENCES // 2

    def append(self, sent: Sent, failure: int = 0) -> int:
        """Return the status of a batch whose append would fail with `failure` (0: would succeed)."""
        status = self.rule(sent)
        if status in (DUPLICATE, INVALID_PRODUCER_EPOCH):
            return status
        before, error = self.refused.get(sent.pid, (None, 0))
        if before is not None and self.rule(before) != 0:
            before = None  # another batch is expected by now
        if before is not None and self._is_behind(sent, before):
            return error
        if status:
            return status
        if failure:
            if before is None or before.epoch <= sent.epoch:
                self.refused[sent.pid] = (sent, failure)
            return failure
        self.refused.pop(sent.pid, None)
        window = self.windows.setdefault(sent.pid, [])
        if window and window[-1].epoch != sent.epoch:
            window.clear()
        window.append(sent)
        del window[:-WINDOW]
        return 0
