"""An idempotent producer whose batches are numbered, so that a test can send any of them again."""

from __future__ import annotations

from tests.harness import BrokerProcess
from tests.wire import Produced, Wire, batch


class Sequenced:
    """Sends one record a batch to partition 0 of a topic; batch n has sequence n, and is expected at offset n."""

    def __init__(self, broker: BrokerProcess, topic: str, pad: int = 0) -> None:
        self.broker, self.topic, self.pad = broker, topic, pad
        with Wire(broker.port) as w:
            error, self.producer_id, self.epoch = w.init_producer_id()
        assert error == 0

    def value(self, n: int) -> bytes:
        return b"%d " % n + b"." * self.pad

    def batch(self, n: int) -> bytes:
        ids = {"producer_id": self.producer_id, "producer_epoch": self.epoch, "sequence": n}
        return batch([self.value(n)], **ids)

    def send(self, wire: Wire, n: int) -> Produced:
        return wire.produce(self.topic, self.batch(n))

    def send_range(self, start: int, end: int) -> None:
        """Send batches and check that each is acknowledged at the offset of its number."""
        with Wire(self.broker.port) as w:
            for n in range(start, end):
                assert self.send(w, n)[:2] == (0, n)

    def send_until_death(self, start: int, limit: int = 20_000) -> int:
        """Send until the broker's failpoint kills it; return the number of the first unacknowledged batch.

        The failpoint may be in the flusher, which works for many batches at once; hence the large limit.
        """
        with Wire(self.broker.port) as w:
            for n in range(start, start + limit):
                try:
                    assert self.send(w, n)[:2] == (0, n)
                except ConnectionError:
                    return n
        raise AssertionError(f"the broker lived through {limit} batches")

    def assert_stored(self, count: int, start: int = 0) -> None:
        """Check that the log holds exactly the batches from start to count, once each, at their offsets."""
        with Wire(self.broker.port) as w:
            found = w.fetch_all(self.topic, start)
        assert [(b.base_offset, b.base_sequence, b.count) for b in found] == [(n, n, 1) for n in range(start, count)]
        for b in found:
            assert self.value(b.base_offset) in b.data
