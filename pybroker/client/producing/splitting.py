"""A batch that is too large for its topic, sent in parts; a record has the outcome of its part."""

from collections.abc import Callable

from pybroker.core import BatchBuilder, PartitionBatches, PendingBatch, SealedBatch, read_records
from pybroker.protocol.compression import decompress

PARTS = 4
"""The number of parts; parts that are still too large are cut again."""


class Split:
    """One batch and the outcomes of its parts."""

    def __init__(self, whole: PendingBatch) -> None:
        self.whole = whole
        self._first: dict[PendingBatch, int] = {}
        self._cut: list[PendingBatch] = []
        """Parts that were cut again; threads may still wait for their outcomes."""
        self.outcomes: list[tuple[int, int, int, Exception | None]] = []

    def cut(
        self, batch: PendingBatch, sealed: SealedBatch, codec: int, compress: Callable[[memoryview], bytes] | None
    ) -> list[PendingBatch]:
        """Cut the whole, or a part, into smaller parts with its creation time and attempts."""
        records = read_records(PartitionBatches(sealed), batch.topic, batch.partition, batch.count, decompress)
        size = sum(len(r.key or b"") + len(r.value or b"") for r in records)
        builder = BatchBuilder(batch_size=max(1, size // PARTS))
        made: list[PendingBatch] = []
        at = self._first.pop(batch, 0)
        if batch is not self.whole:
            self._cut.append(batch)

        def close() -> None:
            nonlocal at
            packed = builder.seal(attributes=codec, compress=compress)
            part = PendingBatch.of(batch.topic, batch.partition, packed, batch.created_s)
            part.attempts = batch.attempts
            if batch.sequence >= 0:
                part.producer_id, part.epoch = batch.producer_id, batch.epoch
                part.sequence = (batch.sequence + sum(p.count for p in made)) & 0x7FFFFFFF
                packed.stamp(part.producer_id, part.epoch, part.sequence)
            made.append(part)
            self._first[part] = at
            at += part.count

        for r in records:
            if not builder.append(r.timestamp_ms, r.key, r.value, r.headers):
                close()
                builder.append(r.timestamp_ms, r.key, r.value, r.headers)
        close()
        return made

    def end(self, part: PendingBatch, base_offset: int, time_ms: int, error: Exception | None) -> bool:
        """Note the outcome of a part; True if it was the last."""
        if part.end(base_offset, time_ms, error):
            self.outcomes.append((self._first.pop(part), base_offset, time_ms, error))
        if self._first:
            return False
        for cut in self._cut:
            cut.end(base_offset, time_ms, error)
        return True
