"""The calls of a producer that begin and end transactions."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Self

from pybroker import errors
from pybroker.client import arguments
from pybroker.client.net.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from pybroker.client.net.network import NetworkClient
from pybroker.client.producing.accumulator import Accumulator
from pybroker.client.producing.transactions import TransactionManager, TransactionStage
from pybroker.errors import KafkaError
from pybroker.logs import unfailing
from pybroker.model import TopicPartition

_log = unfailing(__name__)

Partition = TopicPartition | tuple[str, int]
GroupOffsets = Mapping[Partition, int | OffsetAndMetadata]


class TransactionalCalls:
    """The part of `Producer` that needs transactional_id.

    The calls block; they are for one thread at a time. Each raises KafkaError: INVALID_TXN_STATE for a call out of
    order, PRODUCER_FENCED or INVALID_PRODUCER_EPOCH once another producer has the transactional id, and
    REQUEST_TIMED_OUT, or the last retriable error, after `timeout_s` (max_block_ms if it is None)."""

    _network: NetworkClient
    _accumulator: Accumulator
    _transactions: TransactionManager | None
    _block_s: float

    def _check_thread(self, name: str) -> None:
        raise NotImplementedError

    def init_transactions(self, timeout_s: float | None = None) -> None:
        """Get the producer id, and end what an earlier producer of this transactional id has left open.

        Without this call the first `begin_transaction` does it."""
        transactions = _ready(self, "init_transactions")
        transactions.init(_deadline_s(self, timeout_s))

    def begin_transaction(self) -> None:
        """Begin a transaction: records sent from now on are part of it."""
        transactions = _ready(self, "begin_transaction")
        if transactions.stage is TransactionStage.UNKNOWN:
            transactions.init(_deadline_s(self, None))
        transactions.begin()

    def commit_transaction(self, timeout_s: float | None = None) -> None:
        """Send all records of the transaction, wait for their acknowledgements, and commit it.

        KafkaError of the first record that failed: then only `abort_transaction` is possible. After REQUEST_TIMED_OUT
        the outcome is unknown, and the call may be repeated."""
        _end(self, commit=True, timeout_s=timeout_s)

    def abort_transaction(self, timeout_s: float | None = None) -> None:
        """Abort the transaction; records that are not sent yet fail with TRANSACTION_ABORTABLE."""
        _end(self, commit=False, timeout_s=timeout_s)

    def send_offsets_to_transaction(
        self, offsets: GroupOffsets, group: ConsumerGroupMetadata | str, timeout_s: float | None = None
    ) -> None:
        """Commit offsets of a consumer group with the transaction: they count if it is committed.

        `group` is `Consumer.group_metadata()`, with which the coordinator refuses a consumer that has lost its
        partitions, or the id of the group. KafkaError of such a refusal (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID,
        FENCED_INSTANCE_ID): the transaction has to be aborted."""
        transactions = _ready(self, "send_offsets_to_transaction")
        member = ConsumerGroupMetadata(arguments.name(group, "a group")) if isinstance(group, str) else group
        if not isinstance(member, ConsumerGroupMetadata) or not member.group_id:
            raise TypeError(f"a group is Consumer.group_metadata(), or a name, not {group!r}")
        checked = {
            TopicPartition(*tp): (at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)).checked()
            for tp, at in offsets.items()
        }
        transactions.send_offsets(checked, member, _deadline_s(self, timeout_s))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Self]:
        """Begin a transaction, and commit it at the end of the `with`; abort it if an exception leaves the `with`.

        A commit that fails is aborted where that is possible, and its error is raised."""
        self.begin_transaction()
        try:
            yield self
            self.commit_transaction()
        except BaseException:
            abort_after_failure(self)
            raise


def abort_after_failure(producer: TransactionalCalls, timeout_s: float | None = None) -> None:
    """Abort what can be aborted; a failure of that is logged, as an exception before it is raised, or the producer
    ends."""
    transactions = producer._transactions
    if transactions is None or transactions.stage not in (TransactionStage.OPEN, TransactionStage.FAILED):
        return
    try:
        producer.abort_transaction(timeout_s)
    except KafkaError as error:
        _log.warning("the transaction of %r was not aborted: %s", transactions.transactional_id, error)


def _ready(producer: TransactionalCalls, name: str) -> TransactionManager:
    producer._network.check_usable()
    producer._check_thread(name)
    if producer._transactions is None:
        raise KafkaError(errors.INVALID_TXN_STATE, f"{name}() needs a producer with transactional_id")
    return producer._transactions


def _deadline_s(producer: TransactionalCalls, timeout_s: float | None) -> float:
    left_s = arguments.seconds(timeout_s)
    return time.monotonic() + (producer._block_s if left_s is None else left_s)


def _end(producer: TransactionalCalls, *, commit: bool, timeout_s: float | None) -> None:
    transactions = _ready(producer, "commit_transaction" if commit else "abort_transaction")
    left_s = arguments.seconds(timeout_s)
    deadline_s = None if left_s is None else time.monotonic() + left_s
    transactions.begin_end(commit)
    if not producer._accumulator.flush(left_s):
        raise KafkaError(errors.REQUEST_TIMED_OUT, f"not every record has its outcome within {timeout_s:g} s")
    transactions.end(commit, _deadline_s(producer, None) if deadline_s is None else deadline_s)
