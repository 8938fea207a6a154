"""A transactional id at its coordinator: its states, and what each request makes of them.

    Empty ──a partition is added──> Ongoing ──commit──> PrepareCommit ──all markers written──> CompleteCommit
                                       └──abort, timeout, fence──> PrepareAbort ──all markers──> CompleteAbort
    Complete* ──a partition is added──> Ongoing          Empty, Complete* ──InitProducerId──> Empty
    Empty, Complete* ──not used for transactional.id.expiration.ms──> Dead

Nothing here uses a clock, a socket or a log. A function gets the stored state and a request, and returns the next
state, which counts once its record is committed; it raises KafkaError for a request that changes nothing. Sources:
Kafka's TransactionCoordinator and TransactionMetadata (3.9, 4.1), KIP-98, KIP-360, KIP-890.

The epoch of a decision in version 2 (KIP-890), of a timeout and of a fence is one higher than that of the client. A
client is given epochs up to EPOCH_LAST, so that there is always one left to fence it with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

EPOCH_MAX: Final = 32767
EPOCH_LAST: Final = EPOCH_MAX - 1
"""The last epoch that is given to a client; after it the producer id changes."""
CLASSIC, EPOCH_PER_TRANSACTION = 0, 2
"""Client versions of a transaction: the classic protocol, and KIP-890's with a new epoch for each transaction."""


class TxnState(IntEnum):
    """The states, with their numbers in records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name in DescribeTransactions: PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))


DECIDED: Final = frozenset({TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT})
"""The decision is in the log, and markers are being written."""
IDLE: Final = frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT})
STORED: Final = DECIDED | IDLE | {TxnState.ONGOING}
"""The states that records have."""


class ProducerIdAndEpoch(NamedTuple):
    """A producer id with its epoch."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """The state of one transactional id, as its latest record has it; times in ms since 1970, -1 for none."""

    id: str
    producer: ProducerIdAndEpoch
    timeout_ms: int
    state: TxnState
    updated_ms: int
    started_ms: int = -1
    partitions: frozenset[TopicPartition] = frozenset()
    last: ProducerIdAndEpoch | None = None  # before the client asked for `producer`: it may have missed the answer
    next_id: int = -1  # the producer id after the decided transaction, if the epochs of the present one are used up
    client_version: int = CLASSIC

    @property
    def commits(self) -> bool:
        """True if the transaction is decided, and committed."""
        return self.state in (TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT)

    @property
    def given(self) -> ProducerIdAndEpoch:
        """The producer id and epoch that the client goes on with."""
        return self.producer if self.next_id < 0 else ProducerIdAndEpoch(self.next_id, 0)


class Transition(NamedTuple):
    """The next state, and the error code to answer once it is stored."""

    to: Transaction
    error: int = errors.NONE


class Init(NamedTuple):
    """An InitProducerId; `expected` is the client's own id and epoch (KIP-360), None if it has none."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None


def _fenced(tx: Transaction, by: ProducerIdAndEpoch) -> KafkaError:
    words = f"producer {by.id} in epoch {by.epoch} was fenced: the epoch is {tx.producer.epoch} now"
    return KafkaError(errors.PRODUCER_FENCED, words)


def _concurrent() -> KafkaError:
    return KafkaError(errors.CONCURRENT_TRANSACTIONS, "the transactional id is busy with an earlier request: retry")


def _other_id(by: ProducerIdAndEpoch) -> KafkaError:
    words = f"the transactional id is unknown, or has another producer id than {by.id}"
    return KafkaError(errors.INVALID_PRODUCER_ID_MAPPING, words)


def _no_such_state(tx: Transaction, wish: str) -> KafkaError:
    return KafkaError(errors.INVALID_TXN_STATE, f"cannot {wish} a transaction in the state {tx.state.label}")


# -- InitProducerId --------------------------------------------------------------------------------------------------


def needs_producer_id(tx: Transaction | None, asked: Init) -> bool:
    """True if `init_producer` will use a new producer id: for a new transactional id, or when the epochs are used up.
    """
    if tx is None:
        return True
    exhausted = tx.producer.epoch >= EPOCH_LAST and tx.state in IDLE
    return exhausted and asked.expected in (None, tx.producer)


def init_producer(tx: Transaction | None, asked: Init, now_ms: int, fresh_id: int = -1) -> Transition:
    """Give the client a new epoch, which fences earlier ones. `tx` is None for a new transactional id; `fresh_id` is a
    new producer id if `needs_producer_id`. Raises PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.

    An open transaction is aborted first: the client gets CONCURRENT_TRANSACTIONS until that is done. The epoch of that
    abort is given to no client."""
    expected, timeout_ms = asked.expected, asked.timeout_ms
    if tx is None:
        producer = ProducerIdAndEpoch(fresh_id, 0)
        return Transition(Transaction(asked.transactional_id, producer, timeout_ms, TxnState.EMPTY, now_ms))
    if expected is not None and expected.id != tx.producer.id and expected != tx.last:
        raise _fenced(tx, expected)
    if tx.state in DECIDED:
        raise _concurrent()
    if tx.state is TxnState.ONGOING:
        if expected is not None and expected != tx.producer:  # it must not end the transaction of the present epoch
            raise _fenced(tx, expected)
        return Transition(fence(tx, now_ms), errors.CONCURRENT_TRANSACTIONS)
    producer, last = tx.producer, tx.last
    if expected is None or expected == tx.producer:
        last = expected
        rotates = producer.epoch >= EPOCH_LAST
        producer = ProducerIdAndEpoch(fresh_id, 0) if rotates else producer._replace(epoch=producer.epoch + 1)
    elif expected != last or producer.epoch > EPOCH_LAST:  # otherwise it missed the answer, and gets it again
        raise _fenced(tx, expected)
    to = replace(
        tx, producer=producer, last=last, timeout_ms=timeout_ms, state=TxnState.EMPTY, updated_ms=now_ms, started_ms=-1,
        partitions=frozenset(),
    )  # fmt: skip
    return Transition(to)


def fence(tx: Transaction, now_ms: int) -> Transaction:
    """The abort of an open transaction under a higher epoch, which its producer does not have."""
    producer = ProducerIdAndEpoch(tx.producer.id, min(tx.producer.epoch + 1, EPOCH_MAX))
    return replace(tx, producer=producer, last=None, state=TxnState.PREPARE_ABORT, updated_ms=now_ms)


# -- AddPartitionsToTxn, AddOffsetsToTxn -----------------------------------------------------------------------------


def add(
    tx: Transaction | None, by: ProducerIdAndEpoch, keys: Collection[TopicPartition], now_ms: int, *, pending: bool,
    version: int = CLASSIC,
) -> Transaction | None:  # fmt: skip
    """Add partitions to the transaction, which begins with the first; None if all were added before. `pending`: a
    change is being stored. Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS."""
    if pending and version != CLASSIC:  # the pending change may be to the id that the client was given already
        raise _concurrent()
    tx = _of(tx, by)
    if pending or tx.state in DECIDED:
        raise _concurrent()
    is_open = tx.state is TxnState.ONGOING
    if is_open and tx.partitions.issuperset(keys):
        return None
    partitions = tx.partitions.union(keys) if is_open else frozenset(keys)
    return replace(
        tx, state=TxnState.ONGOING, partitions=partitions, started_ms=tx.started_ms if is_open else now_ms,
        updated_ms=now_ms, client_version=version,
    )  # fmt: skip


def verify(
    tx: Transaction | None, by: ProducerIdAndEpoch, keys: Collection[TopicPartition]
) -> Mapping[TopicPartition, int]:
    """The error code of each partition: TRANSACTION_ABORTABLE unless it was added. A change that is being stored does
    not matter. Raises as `add`."""
    tx = _of(tx, by)
    if tx.state in DECIDED:
        raise _concurrent()
    return {key: errors.NONE if key in tx.partitions else errors.TRANSACTION_ABORTABLE for key in keys}


def _of(tx: Transaction | None, by: ProducerIdAndEpoch) -> Transaction:
    """The transaction, if this is its producer. Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED."""
    if tx is None or tx.producer.id != by.id:
        raise _other_id(by)
    if tx.producer.epoch != by.epoch:
        raise _fenced(tx, by)
    return tx


# -- EndTxn ----------------------------------------------------------------------------------------------------------


def end(
    tx: Transaction | None, by: ProducerIdAndEpoch, commit: bool, now_ms: int, *, pending: bool
) -> Transaction | None:
    """Decide a transaction in the classic protocol; None if it was decided so before, and completed. Raises as `add`,
    and INVALID_TXN_STATE."""
    tx = _of(tx, by)
    if pending:
        raise _concurrent()
    if tx.state is TxnState.ONGOING:
        return replace(tx, state=_prepared(commit), updated_ms=now_ms, client_version=CLASSIC)
    if tx.state is _prepared(commit):
        raise _concurrent()
    if tx.state is _completed(commit):
        return None
    raise _no_such_state(tx, "commit" if commit else "abort")


def needs_next_id(tx: Transaction | None, by: ProducerIdAndEpoch) -> bool:
    """True if `end_with_epoch` will use a new producer id."""
    return tx is not None and by == tx.producer and by.epoch >= EPOCH_LAST


def end_with_epoch(
    tx: Transaction | None, by: ProducerIdAndEpoch, commit: bool, now_ms: int, *, pending: bool, fresh_id: int = -1
) -> Transaction | None:
    """Decide a transaction and give its producer a new epoch (KIP-890), or the new id `fresh_id` if `needs_next_id`.
    None if it was decided so before, and completed: the client missed the answer. Raises as `end`.

    A transaction without partitions may be aborted: the client does not know whether a partition was added."""
    if pending:
        raise _concurrent()
    if tx is None:
        raise _other_id(by)
    if _misses_the_answer(tx, by):
        _check_decided_so(tx, by, commit)
        return None
    tx = _of(tx, by)
    if tx.state in DECIDED or tx.producer.epoch > EPOCH_LAST:
        raise _fenced(tx, by)
    is_open = tx.state is TxnState.ONGOING
    if commit and not is_open:
        raise _no_such_state(tx, "commit")
    return replace(
        tx, producer=by._replace(epoch=by.epoch + 1), last=by, next_id=fresh_id if by.epoch >= EPOCH_LAST else -1,
        state=_prepared(commit), updated_ms=now_ms, started_ms=tx.started_ms if is_open else now_ms,
        client_version=EPOCH_PER_TRANSACTION,
    )  # fmt: skip


def _misses_the_answer(tx: Transaction, by: ProducerIdAndEpoch) -> bool:
    """True if the producer has the epoch before the present one, also across a change of its id."""
    if by.id == tx.producer.id:
        return by.epoch == tx.producer.epoch - 1
    return by == tx.last and by.epoch == EPOCH_LAST and tx.producer.epoch == 0


def _check_decided_so(tx: Transaction, by: ProducerIdAndEpoch, commit: bool) -> None:
    """Check that the transaction was completed as the client asks again; otherwise raise the error. A commit that comes
    after the coordinator's own abort is fenced, as every request of that producer."""
    if tx.state is _prepared(commit):
        raise _concurrent()
    if tx.state is _completed(commit) and tx.producer.epoch <= EPOCH_LAST:
        return
    if not commit and tx.commits:
        raise _no_such_state(tx, "abort")
    raise _fenced(tx, by)


def _prepared(commit: bool) -> TxnState:
    return TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT


def _completed(commit: bool) -> TxnState:
    return TxnState.COMPLETE_COMMIT if commit else TxnState.COMPLETE_ABORT


# -- what the coordinator does by itself -----------------------------------------------------------------------------


def complete(tx: Transaction, now_ms: int) -> Transaction:
    """The end of a decided transaction, once all of its markers are written."""
    assert tx.state in DECIDED, tx
    last = tx.last if tx.next_id < 0 else ProducerIdAndEpoch(tx.producer.id, EPOCH_LAST)
    return replace(
        tx, producer=tx.given, last=last, next_id=-1, state=_completed(tx.commits), partitions=frozenset(),
        updated_ms=now_ms,
    )  # fmt: skip


def has_timed_out(tx: Transaction, now_ms: int) -> bool:
    """True for an open transaction that is older than its timeout."""
    return tx.state is TxnState.ONGOING and tx.started_ms + tx.timeout_ms < now_ms


def has_expired(tx: Transaction, now_ms: int, expiration_ms: int) -> bool:
    """True for a transactional id that was not used for so long."""
    return tx.state in IDLE and tx.updated_ms + expiration_ms <= now_ms
