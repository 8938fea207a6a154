"""One partition of __transaction_state: its transactional ids, loaded from its log and written to it.

A change counts once its record is committed. Until then it is pending, and other requests for the id wait outside with
CONCURRENT_TRANSACTIONS, even after the request that began it has timed out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pybroker import core, errors
from pybroker.decisions.transaction import Transaction
from pybroker.errors import KafkaError
from pybroker.protocol.compression import open_batch
from pybroker.state_log.log import StateLog, read_batches
from pybroker.state_log.shards import CoordinatedPartition
from pybroker.state_log.writer import COORDINATOR_ERRORS, Write, Writer
from pybroker.transactions import records

CONTROL = 0x20
WRITE_ERRORS = COORDINATOR_ERRORS | {
    errors.REQUEST_TIMED_OUT: errors.COORDINATOR_NOT_AVAILABLE,
    errors.MESSAGE_TOO_LARGE: errors.UNKNOWN_SERVER_ERROR,
    errors.RECORD_LIST_TOO_LARGE: errors.UNKNOWN_SERVER_ERROR,
}
"""The error of a write -> the client's error; others are unchanged."""


@dataclass(slots=True)
class TransactionEntry:
    """One transactional id. `stored` is None before its first record is committed; `pending` while none is written."""

    stored: Transaction | None = None
    pending: Transaction | None = None


class TransactionShard(CoordinatedPartition):
    """The transactional ids of one partition, under one leader epoch."""

    def __init__(self, index: int, replica: StateLog, writer: Writer) -> None:
        super().__init__(index, replica, writer)
        self.entries: dict[str, TransactionEntry] = {}

    def store(self, entry: TransactionEntry, to: Transaction, after: Callable[[bool], None]) -> Write:
        """Write a change, which is pending until its outcome is known; then `after` is called, with True if it is
        stored. It is not called if the partition is resigned first."""
        assert entry.pending is None
        record = records.record(to)
        entry.pending = to

        def settled(in_log: bool) -> None:
            entry.pending = None
            if in_log:
                entry.stored = to
            elif entry.stored is None:
                del self.entries[to.id]
            after(in_log)

        return self.writer.write([record], settled)

    def forget(self, entries: Iterable[TransactionEntry], dead: Iterable[Transaction]) -> Write:
        """Write the tombstones of transactional ids, which are pending until the outcome is known."""
        found = list(zip(entries, dead, strict=True))
        for entry, to in found:
            assert entry.pending is None
            entry.pending = to

        def settled(in_log: bool) -> None:
            for entry, to in found:
                entry.pending = None
                if in_log:
                    del self.entries[to.id]

        return self.writer.write([records.tombstone(to.id) for _, to in found], settled)


async def stored(write: Write) -> None:
    """Wait until a change is stored. Raises the client's error if it is not, or not in time."""
    error = await write.answered()
    if error:
        raise KafkaError(WRITE_ERRORS.get(error, error), "the state of the transactional id was not stored in time")


def load(replica: StateLog, read_bytes: int) -> tuple[dict[str, Transaction], int]:
    """Read the transactional ids of a partition to the end of its log, including records not committed yet: only for
    its leader. Return them by id, and the offset up to which the log was read.

    A record that cannot be read ends it: without the ids behind it the partition must not be served. Runs on a thread.
    Raises KafkaError, core.LogError, OSError."""
    found: dict[str, Transaction] = {}

    def take(data: memoryview, header: core.BatchHeader) -> None:
        if header.attributes & CONTROL:
            return
        for offset, _, key, value, _ in core.walk_records(open_batch(data, header), header):
            try:
                record = records.parse(key, value)
            except KafkaError as problem:
                raise KafkaError(problem.code, f"the record at offset {offset}: {problem.message}") from None
            if record is not None and record.transaction is not None:
                found[record.id] = record.transaction
            elif record is not None:
                found.pop(record.id, None)

    end = read_batches(replica, read_bytes, take, pass_damage=False)
    return found, end
