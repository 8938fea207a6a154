"""A producer's transactions (KIP-98, KIP-360), in the classic protocol, which all Kafka's releases since 0.11 speak.

    UNKNOWN --InitProducerId--> READY --begin--> OPEN --commit, abort--> ENDING --EndTxn--> READY
                                                   '--a record fails--> FAILED --abort--> ENDING
    each state --another producer has the transactional id, or the coordinator has aborted--> FENCED

A partition is added to the transaction (AddPartitionsToTxn) before its first batch is sent. After a record whose batch
was sent and not acknowledged, the epoch is raised when the transaction is aborted, as its sequences have a gap.

The program's thread begins and ends transactions; the loop's thread sends batches and adds partitions.
"""

import enum
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final

from pybroker import errors
from pybroker.client.net.find_coordinator import CoordinatorClient
from pybroker.client.net.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata, by_topic
from pybroker.client.net.loop import Timer
from pybroker.client.net.metadata import TRANSACTION
from pybroker.client.net.network import NetworkClient
from pybroker.client.net.promise import Promise
from pybroker.client.net.requests import RequestOptions
from pybroker.client.producing.accumulator import Queue
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.protocol.message import Message, R, Request

TRANSACTIONAL: Final = 0x10
"""The attribute of a batch that is part of a transaction."""
PRODUCE_VERSION_MAX: Final = 11  # later ones add partitions implicitly, and so do later ones of the next three
ADD_VERSION_MAX: Final = 3
END_VERSION_MAX: Final = 4
COMMIT_VERSION_MAX: Final = 4

AGAIN_S: Final = 0.02
"""The pause before the next attempt, while the markers of the transaction before are written."""

_FENCED: Final = frozenset({errors.PRODUCER_FENCED, errors.INVALID_PRODUCER_EPOCH})
_FATAL: Final = _FENCED | {
    errors.INVALID_TXN_STATE,
    errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    errors.CLUSTER_AUTHORIZATION_FAILED,
    errors.UNSUPPORTED_VERSION,
}
"""Errors of a coordinator after which the producer cannot go on."""


class TransactionStage(enum.Enum):
    """The state of a producer's transactions, with the words for it in errors."""

    UNKNOWN = "init_transactions() has not succeeded yet"
    READY = "no transaction is open"
    OPEN = "a transaction is open"
    FAILED = "the transaction has failed, and has to be aborted"
    COMMITTING = "the transaction is being committed"
    ABORTING = "the transaction is being aborted"
    FENCED = "this producer cannot go on"


class TransactionManager:
    """The transactions of one producer. `wake` makes the sender look again, from any thread."""

    def __init__(
        self, network: NetworkClient, transactional_id: str, timeout_ms: int, wake: Callable[[], object]
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id, self.epoch = -1, -1
        self.error: KafkaError | None = None
        """Why the present transaction cannot be committed, or why the producer cannot go on."""
        self.stage = TransactionStage.UNKNOWN
        self._network, self._timeout_ms, self._wake = network, timeout_ms, wake
        self._coordinator = CoordinatorClient(network, transactional_id, TRANSACTION)
        self._lock = threading.Lock()
        self._added: set[TopicPartition] = set()
        self._wanted: set[TopicPartition] = set()
        """Partitions of batches that wait until these are added."""
        self._asking: set[TopicPartition] = set()
        self._failures = 0
        self._timer: Timer | None = None
        self._groups: dict[str, CoordinatorClient] = {}
        self._has_offsets = False
        self._uncertain = False
        """A partition, or a group, may have been added: the answer was lost."""
        self._has_gap = False
        """A batch with a sequence was given up: the epoch has to be raised."""

    # -- the program's thread ------------------------------------------------------------------------------------------

    def init(self, deadline_s: float) -> None:
        """Get a producer id from the coordinator, which ends what an earlier producer of this id has left open."""
        self._check_fenced()
        if self.stage is not TransactionStage.UNKNOWN:
            raise self._wrong("init_transactions() is called once")
        self._renew(deadline_s)

    def begin(self) -> None:
        """Open a transaction. KafkaError(INVALID_TXN_STATE) while another one is open."""
        with self._lock:
            self._check_fenced()
            if self.stage is not TransactionStage.READY:
                raise self._wrong("a transaction cannot begin")
            self.stage = TransactionStage.OPEN

    def check_open(self) -> None:
        """Raise the KafkaError of a record that is sent outside of an open transaction."""
        if self.stage is TransactionStage.OPEN:
            return
        self._check_fenced()
        if self.stage is TransactionStage.FAILED and self.error is not None:
            raise KafkaError(self.error.code, f"{TransactionStage.FAILED.value}: {self.error.message}")
        raise self._wrong("records are sent within a transaction")

    def begin_end(self, commit: bool) -> None:
        """Take no more records. For a commit: raise the error of a failed record; an abort is the only way then."""
        with self._lock:
            self._check_fenced()
            if commit and self.stage is TransactionStage.FAILED:
                assert self.error is not None
                raise KafkaError(self.error.code, f"{TransactionStage.FAILED.value}: {self.error.message}")
            ending = TransactionStage.COMMITTING if commit else TransactionStage.ABORTING
            if self.stage not in (TransactionStage.OPEN, ending, *(() if commit else (TransactionStage.FAILED,))):
                raise self._wrong(f"no transaction can be {'committed' if commit else 'aborted'}")
            self.stage = ending
            if not commit and self.error is None:
                self.error = KafkaError(errors.TRANSACTION_ABORTABLE, "the transaction is aborted")
        self._wake()

    def end(self, commit: bool, deadline_s: float) -> None:
        """Have the coordinator end the transaction, all of whose records have their outcomes."""
        if commit and self.error is not None:
            self.stage = TransactionStage.FAILED
            raise KafkaError(self.error.code, f"{TransactionStage.FAILED.value}: {self.error.message}")
        if self._added or self._has_offsets or self._uncertain:
            self._end_at_coordinator(commit, deadline_s)
        if self._has_gap:
            self._renew(deadline_s)
        with self._lock:
            self._added, self._wanted = set(), set()
            self._has_offsets = self._uncertain = False
            self.error, self.stage = None, TransactionStage.READY

    def _end_at_coordinator(self, commit: bool, deadline_s: float) -> None:
        def request() -> Request[m.EndTxnResponse]:
            return m.EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                committed=commit,
            )

        what = f"the transaction of {self.transactional_id!r} was not {'committed' if commit else 'aborted'}"
        try:
            self._ask(request, END_VERSION_MAX, what, deadline_s)
        except KafkaError as error:
            if not commit and error.code == errors.INVALID_TXN_STATE and self._uncertain:
                self._has_gap = True  # nothing had been added
                return
            if error.code == errors.INVALID_PRODUCER_ID_MAPPING and not commit:
                self._has_gap = True  # the coordinator has forgotten the id: nothing is open
                return
            raise self._noted(error) from None

    def _renew(self, deadline_s: float) -> None:
        """Get a producer id, or the next epoch of the present one."""

        def request() -> Request[m.InitProducerIdResponse]:
            return m.InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
            )

        what = f"the coordinator gave no producer id for {self.transactional_id!r}"
        first = self.producer_id < 0
        try:
            answer = self._ask(request, None, what, deadline_s)
        except KafkaError as error:
            raise error if first and error.code not in _FENCED else self._noted(error) from None
        with self._lock:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self._has_gap = False
            if first:
                self.stage = TransactionStage.READY

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata, deadline_s: float
    ) -> None:
        """Commit offsets of a group with the open transaction (KIP-447)."""
        self.check_open()
        if not offsets:
            return
        self._uncertain = True
        what = f"the offsets of group {group.group_id!r} were not added to the transaction"

        def adding() -> Request[m.AddOffsetsToTxnResponse]:
            return m.AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group.group_id,
            )

        coordinator = self._groups.setdefault(group.group_id, CoordinatorClient(self._network, group.group_id))
        try:
            self._ask(adding, ADD_VERSION_MAX, what, deadline_s)
            self._has_offsets = True
            self._network.retried(
                lambda: self._committing(coordinator, offsets, group), what, deadline_s, again_s=AGAIN_S
            )
        except KafkaError as error:
            raise self._noted(error) from None

    def _committing(
        self,
        coordinator: CoordinatorClient,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
    ) -> Future[m.TxnOffsetCommitResponse]:
        request = m.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group.group_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=group.generation,
            member_id=group.member_id,
            group_instance_id=group.instance_id,
            topics=by_topic(offsets, m.TxnOffsetCommitRequest.Topics),
        )
        return self._sent(coordinator, request, COMMIT_VERSION_MAX, _refused_offset)

    def _ask(self, make: Callable[[], Request[R]], version_max: int | None, what: str, deadline_s: float) -> R:
        """The coordinator's answer to a request, retried until the deadline."""

        def once() -> Future[R]:
            return self._sent(self._coordinator, make(), version_max, partial(_refused, what))

        return self._network.retried(once, what, deadline_s, again_s=AGAIN_S)

    def _sent(
        self,
        coordinator: CoordinatorClient,
        request: Request[R],
        version_max: int | None,
        refused: Callable[[R], KafkaError | None],
    ) -> Future[R]:
        promise: Promise[R] = Promise("transaction")

        def answered(answer: R | None, error: KafkaError | None) -> None:
            if error is None:
                assert answer is not None
                error = refused(answer)
                if error is not None:
                    coordinator.moved(error.code)
            promise.settle(answer, error)

        how = RequestOptions(version_max=version_max)
        self._network.loop.call_surely(partial(coordinator.send, request, answered, how=how))
        return promise

    # -- the loop's thread ---------------------------------------------------------------------------------------------

    def may_send(self, queue: Queue) -> bool:
        """True if a batch of this queue may be sent; else the sender is woken when that changes."""
        if self.error is not None or self.producer_id < 0:
            return False
        if (queue.producer_id, queue.epoch) != (self.producer_id, self.epoch):
            queue.producer_id, queue.epoch, queue.next_sequence = self.producer_id, self.epoch, 0
        tp = TopicPartition(queue.topic, queue.partition)
        if tp in self._added:
            return True
        if tp not in self._asking:
            self._wanted.add(tp)
            if not self._asking and self._timer is None:  # all that this turn of the sender wants, in one request
                self._timer = self._network.loop.call_later(0.0, self._add)
        return False

    def fail(self, error: KafkaError, *, sequenced: bool = False) -> None:
        """Note a record that was given up: the transaction cannot be committed. `sequenced`: it may be stored."""
        if error.code in _FENCED:
            self._noted(error)
        with self._lock:
            self._has_gap |= sequenced
            if self.error is None:
                self.error = error
            if self.stage is TransactionStage.OPEN:
                self.stage = TransactionStage.FAILED

    def _add(self) -> None:
        """Add the wanted partitions to the transaction."""
        self._timer = None
        if not self._wanted or self.error is not None:
            self._wanted.clear()
            return
        self._asking, self._wanted = self._wanted, set()
        kind = m.AddPartitionsToTxnRequest.V3AndBelowTopics
        topics: dict[str, m.AddPartitionsToTxnRequest.V3AndBelowTopics] = {}
        for tp in self._asking:
            topics.setdefault(tp.topic, kind(name=tp.topic)).partitions.append(tp.partition)
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=list(topics.values()),
        )
        self._uncertain = True
        how = RequestOptions(version_max=ADD_VERSION_MAX)
        self._coordinator.send(request, partial(self._answered, self._added), how=how)

    def _answered(
        self, added: set[TopicPartition], answer: m.AddPartitionsToTxnResponse | None, error: KafkaError | None
    ) -> None:
        asked, self._asking = self._asking, set()
        if added is not self._added:  # of a transaction that has ended
            self._wake()
            return
        if error is None:
            assert answer is not None
            error = _refused_partition(answer)
        if error is None:
            self._failures = 0
            added |= asked
        elif error.retriable:
            self._coordinator.moved(error.code)
            self._failures += 1
            self._wanted |= asked
            at_once = error.code == errors.CONCURRENT_TRANSACTIONS
            pause_s = AGAIN_S if at_once else self._network.pauses.after(self._failures)
            self._timer = self._network.loop.call_later(pause_s, self._add)
        else:
            self.fail(self._noted(error))
        self._wake()

    # -- errors --------------------------------------------------------------------------------------------------------

    def _noted(self, error: KafkaError) -> KafkaError:
        """Note a coordinator's error, and return it, with words for what cannot be mended."""
        if error.code in _FENCED:
            words = (
                f"another producer has the transactional id {self.transactional_id!r}, or the transaction was open for"
                f" longer than transaction_timeout_ms of {self._timeout_ms} and was aborted: make a new producer"
            )
            error = KafkaError(error.code, f"{error.message}: {words}")
        with self._lock:
            if error.code in _FATAL:
                self.error, self.stage = error, TransactionStage.FENCED
            elif not error.retriable and error.code != errors.REQUEST_TIMED_OUT:
                self._has_gap |= error.code == errors.INVALID_PRODUCER_ID_MAPPING
                if self.stage in (TransactionStage.OPEN, TransactionStage.COMMITTING):
                    self.error, self.stage = error, TransactionStage.FAILED
        return error

    def _check_fenced(self) -> None:
        if self.stage is TransactionStage.FENCED and self.error is not None:
            raise KafkaError(self.error.code, self.error.message)

    def _wrong(self, words: str) -> KafkaError:
        return KafkaError(errors.INVALID_TXN_STATE, f"{words}, and {self.stage.value}")


def _refused(what: str, answer: Message) -> KafkaError | None:
    code = getattr(answer, "error_code", errors.NONE)
    return KafkaError(code, f"{what}: {errors.lookup(code).meaning}") if code else None


def _refused_partition(answer: m.AddPartitionsToTxnResponse) -> KafkaError | None:
    """The error of the first partition that was refused for its own sake."""
    refused = [
        (TopicPartition(topic.name, p.partition_index), p.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for p in topic.results_by_partition
        if p.partition_error_code
    ]
    refused.sort(key=lambda each: each[1] == errors.OPERATION_NOT_ATTEMPTED)
    for tp, code in refused:
        return KafkaError(code, f"{tp} was not added to the transaction: {errors.lookup(code).meaning}")
    return None


def _refused_offset(answer: m.TxnOffsetCommitResponse) -> KafkaError | None:
    for topic in answer.topics:
        for p in topic.partitions:
            if p.error_code:
                tp = TopicPartition(topic.name, p.partition_index)
                return KafkaError(p.error_code, f"the offset of {tp}: {errors.lookup(p.error_code).meaning}")
    return None
