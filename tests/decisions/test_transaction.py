"""The states of a transactional id, and the answers to InitProducerId, AddPartitionsToTxn and EndTxn: each row of the
tables that were measured on Kafka 3.9.1 and 4.1.1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from pybroker import errors
from pybroker.decisions import transaction as t
from pybroker.decisions.transaction import (
    EPOCH_LAST,
    EPOCH_MAX,
    Init,
    Transaction,
    Transition,
)
from pybroker.decisions.transaction import (
    ProducerIdAndEpoch as Producer,
)
from pybroker.decisions.transaction import (
    TxnState as State,
)
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
START, NOW = 1_000, 5_000
ME = Producer(7, 4)
FRESH = 99
CONCURRENT, FENCED, MAPPING, STATE = (
    errors.CONCURRENT_TRANSACTIONS, errors.PRODUCER_FENCED, errors.INVALID_PRODUCER_ID_MAPPING,
    errors.INVALID_TXN_STATE,
)  # fmt: skip


def tx(state: State, producer: Producer = ME, last: Producer | None = None) -> Transaction:
    keys = frozenset([T0]) if state in t.DECIDED or state is State.ONGOING else frozenset[TopicPartition]()
    return Transaction("tx", producer, 60_000, state, START, started_ms=START, partitions=keys, last=last)


def refused(work: Callable[[], object]) -> int:
    """The code of the error that the work raises."""
    with pytest.raises(KafkaError) as problem:
        work()
    return problem.value.code


def init(at: Transaction | None, expected: Producer | None = None) -> Transition:
    return t.init_producer(at, Init("tx", 30_000, expected), NOW, FRESH)


# -- InitProducerId --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expected", [None, Producer(3, 9)])
def test_a_new_transactional_id_begins_with_epoch_0(expected: Producer | None) -> None:
    """A new transactional id gets a new producer id, even if the client brings one from another life."""
    assert t.needs_producer_id(None, Init("tx", 30_000, expected))
    made = init(None, expected)
    assert made == Transition(Transaction("tx", Producer(FRESH, 0), 30_000, State.EMPTY, NOW))


@pytest.mark.parametrize("state", sorted(t.IDLE))
def test_a_client_without_an_epoch_fences_the_one_before(state: State) -> None:
    to, error = init(tx(state))
    assert (to.producer, to.last, to.state, error) == (Producer(7, 5), None, State.EMPTY, 0)
    assert (to.timeout_ms, to.updated_ms, to.started_ms, to.partitions) == (30_000, NOW, -1, frozenset())


@pytest.mark.parametrize("state", sorted(t.IDLE))
def test_a_client_raises_its_own_epoch(state: State) -> None:
    """A client that brings its epoch gets the next one (KIP-360); if it missed the answer, it gets the same again, as
    often as it asks. Any other epoch is fenced."""
    to = init(tx(state), ME).to
    assert (to.producer, to.last) == (Producer(7, 5), ME)
    for _ in range(3):
        to = init(to, ME).to
        assert (to.producer, to.last) == (Producer(7, 5), ME)
    assert refused(lambda: init(to, Producer(7, 3))) == FENCED
    assert refused(lambda: init(to, Producer(7, 6))) == FENCED
    assert refused(lambda: init(to, Producer(8, 5))) == FENCED


@pytest.mark.parametrize("state", sorted(t.IDLE))
@pytest.mark.parametrize("epoch", [EPOCH_LAST, EPOCH_MAX])
def test_the_last_epoch_is_followed_by_a_new_id(state: State, epoch: int) -> None:
    """Fault 19: 32766 is the last epoch that a client gets. Then comes a new id, and a client that missed that answer
    gets the same new id, every time; Kafka gives it once."""
    at = tx(state, Producer(7, epoch))
    assert t.needs_producer_id(at, Init("tx", 30_000))
    to = init(at).to
    assert (to.producer, to.last) == (Producer(FRESH, 0), None)
    to = init(at, at.producer).to
    for _ in range(3):
        assert (to.producer, to.last) == (Producer(FRESH, 0), at.producer)
        asked = Init("tx", 30_000, at.producer)
        assert not t.needs_producer_id(to, asked)
        to = t.init_producer(to, asked, NOW).to


def test_a_missed_answer_with_the_last_epoch_is_given_again() -> None:
    """A client that missed the answer with epoch 32766 gets it again; Kafka answers UNKNOWN_SERVER_ERROR."""
    to = init(tx(State.EMPTY, Producer(7, EPOCH_LAST - 1)), Producer(7, EPOCH_LAST - 1)).to
    asked = Init("tx", 30_000, Producer(7, EPOCH_LAST - 1))
    assert to.producer == Producer(7, EPOCH_LAST) and not t.needs_producer_id(to, asked)
    assert t.init_producer(to, asked, NOW).to.producer == Producer(7, EPOCH_LAST)


@pytest.mark.parametrize("state", sorted(t.DECIDED))
@pytest.mark.parametrize("expected", [None, ME, Producer(7, 3)])
def test_a_decided_transaction_is_waited_for(state: State, expected: Producer | None) -> None:
    assert refused(lambda: init(tx(state), expected)) == CONCURRENT


@pytest.mark.parametrize("expected", [None, ME])
def test_an_open_transaction_is_aborted_under_an_epoch_that_nobody_gets(expected: Producer | None) -> None:
    """InitProducerId aborts an open transaction with the next epoch, and answers CONCURRENT_TRANSACTIONS; the client
    gets the epoch after that."""
    to, error = init(tx(State.ONGOING), expected)
    assert (to.state, to.producer, to.last, error) == (State.PREPARE_ABORT, Producer(7, 5), None, CONCURRENT)
    assert (to.partitions, to.started_ms, to.updated_ms) == (frozenset([T0]), START, NOW)
    assert init(t.complete(to, NOW)).to.producer == Producer(7, 6)


@pytest.mark.parametrize("expected", [Producer(7, 3), Producer(7, 5), Producer(6, 4)])
def test_a_fenced_producer_ends_no_transaction(expected: Producer) -> None:
    """A producer with another epoch does not end the transaction of the present one; Kafka checks only its id."""
    assert refused(lambda: init(tx(State.ONGOING), expected)) == FENCED


def test_a_fence_at_the_last_epoch_takes_the_one_that_is_left() -> None:
    """Faults 9 and 19: an open transaction at epoch 32766 is aborted with 32767; then comes a new id. A late EndTxn of
    either kind is fenced, and the id is not stuck."""
    old = Producer(7, EPOCH_LAST)
    to = init(tx(State.ONGOING, old)).to
    assert to.producer == Producer(7, EPOCH_MAX)
    done = t.complete(to, NOW)
    for commit in (True, False):
        for by in (old, done.producer):
            assert refused(partial(t.end_with_epoch, done, by, commit, NOW, pending=False)) == FENCED
        assert refused(partial(t.end, done, old, commit, NOW, pending=False)) == FENCED
    assert init(done).to.producer == Producer(FRESH, 0)


# -- AddPartitionsToTxn ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(t.IDLE))
def test_a_transaction_begins_with_its_first_partition(state: State) -> None:
    to = t.add(tx(state), ME, [T0], NOW, pending=False)
    assert to is not None
    assert (to.state, to.partitions, to.started_ms, to.updated_ms) == (State.ONGOING, frozenset([T0]), NOW, NOW)


def test_more_partitions_are_added_to_it() -> None:
    """Partitions that were added before change nothing; others are added, and the start stays."""
    at = tx(State.ONGOING)
    assert t.add(at, ME, [T0], NOW, pending=False) is None
    to = t.add(at, ME, [T0, T1], NOW, pending=False)
    assert to is not None and (to.partitions, to.started_ms) == (frozenset([T0, T1]), START)


@pytest.mark.parametrize(
    ("state", "by", "pending", "code"),
    [
        (State.EMPTY, Producer(8, 4), False, MAPPING),
        (State.EMPTY, Producer(7, 3), False, FENCED),
        (State.EMPTY, Producer(7, 5), False, FENCED),
        (State.EMPTY, Producer(7, 5), True, FENCED),
        (State.EMPTY, ME, True, CONCURRENT),
        (State.PREPARE_COMMIT, ME, False, CONCURRENT),
        (State.PREPARE_ABORT, ME, False, CONCURRENT),
    ],
)
def test_partitions_that_are_not_added(state: State, by: Producer, pending: bool, code: int) -> None:
    assert refused(lambda: t.add(tx(state), by, [T0], NOW, pending=pending)) == code


def test_a_newer_client_waits_for_a_pending_change_before_its_epoch_is_judged() -> None:
    """With an epoch for each transaction, the pending change may be to the epoch that the client has already."""
    at = tx(State.EMPTY)
    assert refused(lambda: t.add(at, Producer(7, 5), [T0], NOW, pending=True, version=2)) == CONCURRENT
    to = t.add(at, ME, [T0], NOW, pending=False, version=2)
    assert to is not None and to.client_version == 2


def test_an_unknown_id_has_no_transaction() -> None:
    assert refused(lambda: t.add(None, ME, [T0], NOW, pending=False)) == MAPPING
    assert refused(lambda: t.end(None, ME, True, NOW, pending=False)) == MAPPING
    assert refused(lambda: t.end_with_epoch(None, ME, True, NOW, pending=False)) == MAPPING
    assert refused(lambda: t.verify(None, ME, [T0])) == MAPPING


def test_partitions_are_verified() -> None:
    """A partition of the open transaction is verified, any other gets TRANSACTION_ABORTABLE."""
    assert t.verify(tx(State.ONGOING), ME, [T0, T1]) == {T0: 0, T1: errors.TRANSACTION_ABORTABLE}
    assert t.verify(tx(State.EMPTY), ME, [T0]) == {T0: errors.TRANSACTION_ABORTABLE}
    assert refused(lambda: t.verify(tx(State.PREPARE_ABORT), ME, [T0])) == CONCURRENT
    assert refused(lambda: t.verify(tx(State.ONGOING), Producer(8, 4), [T0])) == MAPPING
    assert refused(lambda: t.verify(tx(State.ONGOING), Producer(7, 3), [T0])) == FENCED


# -- EndTxn ----------------------------------------------------------------------------------------------------------

REPEAT = 0
CLASSIC = {
    State.EMPTY: (STATE, STATE),
    State.ONGOING: (State.PREPARE_COMMIT, State.PREPARE_ABORT),
    State.PREPARE_COMMIT: (CONCURRENT, STATE),
    State.PREPARE_ABORT: (STATE, CONCURRENT),
    State.COMPLETE_COMMIT: (REPEAT, STATE),
    State.COMPLETE_ABORT: (STATE, REPEAT),
}
"""The outcome of (commit, abort) in each state."""


@pytest.mark.parametrize("state", sorted(CLASSIC))
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_ended(state: State, commit: bool) -> None:
    wanted = CLASSIC[state][not commit]

    def work() -> Transaction | None:
        return t.end(tx(state), ME, commit, NOW, pending=False)

    if isinstance(wanted, State):
        to = work()
        assert to == replace(tx(state), state=wanted, updated_ms=NOW)
    elif wanted == REPEAT:
        assert work() is None
    else:
        assert refused(work) == wanted


def test_an_end_that_is_refused() -> None:
    """Fault 7: the commit of a transaction that the coordinator has timed out is fenced, before and after the abort is
    complete. Another id, another epoch and a pending change are refused as in AddPartitionsToTxn."""
    at = tx(State.ONGOING)
    aborted = t.fence(at, NOW)
    for now in (aborted, t.complete(aborted, NOW)):
        assert refused(partial(t.end, now, ME, True, NOW, pending=False)) == FENCED
    assert refused(lambda: t.end(at, Producer(8, 4), True, NOW, pending=False)) == MAPPING
    assert refused(lambda: t.end(at, Producer(7, 5), True, NOW, pending=False)) == FENCED
    assert refused(lambda: t.end(at, ME, True, NOW, pending=True)) == CONCURRENT


BUMPS = -1
NEWER = {  # state: abort again, abort, commit again, commit
    State.EMPTY: (FENCED, BUMPS, FENCED, STATE),
    State.COMPLETE_ABORT: (REPEAT, BUMPS, FENCED, STATE),
    State.COMPLETE_COMMIT: (STATE, BUMPS, REPEAT, STATE),
    State.PREPARE_ABORT: (CONCURRENT, FENCED, FENCED, FENCED),
    State.PREPARE_COMMIT: (STATE, FENCED, CONCURRENT, FENCED),
    State.ONGOING: (FENCED, BUMPS, FENCED, BUMPS),
}
"""The outcome with an epoch for each transaction, for a repetition under the epoch before, and under the present one.
A commit after the coordinator's abort is fenced (fault 8), where Kafka 4.1 answers INVALID_TXN_STATE."""


@pytest.mark.parametrize("state", sorted(NEWER))
@pytest.mark.parametrize(
    ("case", "commit", "again"), [(0, False, True), (1, False, False), (2, True, True), (3, True, False)]
)
def test_a_transaction_of_a_newer_client_is_ended(state: State, case: int, commit: bool, again: bool) -> None:
    wanted, by = NEWER[state][case], Producer(7, 3) if again else ME

    def work() -> Transaction | None:
        return t.end_with_epoch(tx(state), by, commit, NOW, pending=False)

    if wanted == BUMPS:
        to = work()
        assert to is not None and to.state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
        assert (to.producer, to.given, to.last) == (Producer(7, 5), Producer(7, 5), ME)
        assert to.started_ms == (START if state is State.ONGOING else NOW)
    elif wanted == REPEAT:
        assert work() is None
    else:
        assert refused(work) == wanted


def test_the_id_changes_with_the_end_of_a_transaction_at_the_last_epoch() -> None:
    """Fault 19: EndTxn at epoch 32766 promises a new id, and writes its markers with 32767. A repetition gets the same
    answer each time, before and after the completion."""
    old = Producer(7, EPOCH_LAST)
    at = tx(State.ONGOING, old)
    assert t.needs_next_id(at, old)
    to = t.end_with_epoch(at, old, True, NOW, pending=False, fresh_id=FRESH)
    assert to is not None and (to.producer, to.given) == (Producer(7, EPOCH_MAX), Producer(FRESH, 0))
    assert refused(lambda: t.end_with_epoch(to, old, True, NOW, pending=False)) == CONCURRENT
    done = t.complete(to, NOW)
    assert (done.producer, done.last, done.next_id) == (Producer(FRESH, 0), old, -1)
    for _ in range(3):
        assert t.end_with_epoch(done, old, True, NOW, pending=False) is None
    assert refused(lambda: t.end_with_epoch(done, old, False, NOW, pending=False)) == STATE
    assert init(done).to.producer == Producer(FRESH, 1)


def test_a_newer_client_waits_for_a_pending_change() -> None:
    at = tx(State.ONGOING)
    assert refused(lambda: t.end_with_epoch(at, Producer(8, 1), True, NOW, pending=True)) == CONCURRENT
    assert refused(lambda: t.end_with_epoch(at, Producer(8, 1), True, NOW, pending=False)) == MAPPING
    assert refused(lambda: t.end_with_epoch(at, Producer(7, 5), True, NOW, pending=False)) == FENCED


# -- timeouts and expiry ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(t.STORED))
def test_only_an_open_transaction_times_out(state: State) -> None:
    """Fault 25: a transaction times out once it is older than its timeout; if the clock goes back, later."""
    at = tx(state)
    assert t.has_timed_out(at, START + 60_001) is (state is State.ONGOING)
    assert not t.has_timed_out(at, START + 60_000)
    assert not t.has_timed_out(at, START - 3_600_000)


@pytest.mark.parametrize("state", sorted(t.STORED))
def test_only_an_idle_transactional_id_expires(state: State) -> None:
    at = tx(state)
    assert t.has_expired(at, START + 100, 100) is (state in t.IDLE)
    assert not t.has_expired(at, START + 99, 100)


def test_the_labels_are_kafkas() -> None:
    assert [state.label for state in State] == [
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
        "PrepareEpochFence",
    ]  # fmt: skip
