"""Records of __transaction_state: bytes that equal Kafka's, and what cannot be read."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker import errors
from pybroker.decisions.transaction import (
    EPOCH_LAST,
    EPOCH_MAX,
    EPOCH_PER_TRANSACTION,
    Transaction,
)
from pybroker.decisions.transaction import (
    ProducerIdAndEpoch as Producer,
)
from pybroker.decisions.transaction import (
    TxnState as State,
)
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.state_log.placement import java_hash, partition_of
from pybroker.transactions import records
from pybroker.transactions.records import TransactionRecord

NOW_MS = 0x000001A21F144D97
EMPTY = Transaction("tx", Producer(0, 0), 60_000, State.EMPTY, NOW_MS)
ONGOING = Transaction(
    "tx", Producer(0, 0), 60_000, State.ONGOING, NOW_MS, started_ms=NOW_MS,
    partitions=frozenset([TopicPartition("t1", 0)]),
)  # fmt: skip


def value(tx: Transaction) -> str:
    data = records.record(tx)[1]
    assert data is not None
    return data.hex()


def test_states_are_written_as_kafka_writes_them() -> None:
    """Records in version 0 equal those of Kafka 3.9.1: Empty has null partitions, CompleteCommit an empty array."""
    assert records.record(EMPTY)[0] == b"\0\0" + struct.pack(">h", 2) + b"tx"
    assert value(EMPTY) == "0000" "0000000000000000" "0000" "0000ea60" "00" "ffffffff" "000001a21f144d97" + "f" * 16
    times = "000001a21f144d97" * 2
    one = "00000001" "00027431" "00000001" "00000000"
    assert value(ONGOING) == "0000" "0000000000000000" "0000" "0000ea60" "01" + one + times
    done = Transaction("tx", Producer(0, 0), 60_000, State.COMPLETE_COMMIT, NOW_MS, started_ms=NOW_MS)
    assert value(done) == "0000" "0000000000000000" "0000" "0000ea60" "04" "00000000" + times


def test_a_transaction_of_a_newer_client_is_written_as_kafka_4_writes_it() -> None:
    """A record in version 1 is flexible, and ends with one tag, the client's version, as that of Kafka 4.1.1 does."""
    tx = Transaction(
        "tx", Producer(0, 0), 60_000, State.ONGOING, NOW_MS, started_ms=NOW_MS,
        partitions=frozenset([TopicPartition("t1", 0)]), client_version=EPOCH_PER_TRANSACTION,
    )  # fmt: skip
    partitions = "02" "037431" "02" "00000000" "00"
    times = "000001a21f144d97" * 2
    assert value(tx) == "0001" "0000000000000000" "0000" "0000ea60" "01" + partitions + times + "01" "02" "02" "0002"


def test_a_tombstone_removes_a_transactional_id() -> None:
    assert records.parse(*records.tombstone("tx")) == TransactionRecord("tx", None)


def test_a_crash_between_the_decision_and_its_completion_does_not_lose_the_new_id() -> None:
    """Fault 19: a decision at the last epoch promised a new producer id to the client; the record has that id, and the
    id before, so that a repeated EndTxn gets the same answer from the next coordinator."""
    decided = Transaction(
        "tx", Producer(7, EPOCH_MAX), 60_000, State.PREPARE_COMMIT, NOW_MS, started_ms=NOW_MS, next_id=8,
        last=Producer(7, EPOCH_LAST), client_version=EPOCH_PER_TRANSACTION,
    )  # fmt: skip
    found = records.parse(*records.record(decided))
    assert found is not None and found.transaction is not None and found.transaction.next_id == 8
    done = Transaction(
        "tx", Producer(8, 0), 60_000, State.COMPLETE_COMMIT, NOW_MS, last=Producer(7, EPOCH_LAST),
        client_version=EPOCH_PER_TRANSACTION,
    )  # fmt: skip
    assert records.parse(*records.record(done)) == TransactionRecord("tx", done)


@given(
    st.text(max_size=9), st.integers(0, 2**63 - 1), st.integers(0, 32767), st.integers(1, 2**31 - 1),
    st.sampled_from(sorted(records.STORED - {State.EMPTY})), st.sampled_from([0, 2]),
    st.frozensets(st.builds(TopicPartition, st.text(max_size=5), st.integers(0, 2**31 - 1)), max_size=5),
)  # fmt: skip
def test_a_state_is_read_back_as_it_was_written(
    name: str, producer: int, epoch: int, timeout_ms: int, state: State, version: int,
    partitions: frozenset[TopicPartition],
) -> None:  # fmt: skip
    tx = Transaction(
        name, Producer(producer, epoch), timeout_ms, state, 5, started_ms=3, partitions=partitions,
        client_version=version,
    )  # fmt: skip
    assert records.parse(*records.record(tx)) == TransactionRecord(name, tx)


@pytest.mark.parametrize("version", [2, 9, 32767, -1])
def test_a_version_that_is_not_known_is_refused_by_name(version: int) -> None:
    """Fault 20: a value of another version is not guessed; the error has the transactional id and the version."""
    key, good = records.record(EMPTY)
    assert good is not None
    with pytest.raises(KafkaError, match=rf"transactional id 'tx' has version {version};") as refused:
        records.parse(key, struct.pack(">h", version) + good[2:])
    assert refused.value.code == errors.UNSUPPORTED_VERSION


def test_what_is_damaged_is_refused() -> None:
    """Fault 20: a value that is cut short, a state that is never written, and a record without a key are errors."""
    key, good = records.record(ONGOING)
    assert good is not None
    for cut in range(1, len(good)):
        with pytest.raises(KafkaError):
            records.parse(key, good[:cut])
    for state in (6, 7, 9, 0xFF):
        with pytest.raises(KafkaError, match="state of transactional id 'tx' is"):
            records.parse(key, good[:16] + bytes([state]) + good[17:])
    for nothing in (None, b"", b"\0"):
        with pytest.raises(KafkaError):
            records.parse(nothing, good)


def test_other_keys_are_passed_over() -> None:
    """A key of another version belongs to something that newer brokers store there."""
    assert records.parse(b"\0\1whatever", b"\0\0") is None


def test_any_transactional_id_has_a_partition() -> None:
    """Fault 45: an empty id, a long one, one whose hash is the least number, and one with half of a UTF-16 pair have
    partitions."""
    assert partition_of("", 50) == 0
    assert 0 <= partition_of("x" * 40_000, 50) < 50
    assert partition_of("polygenelubricants", 50) == 0
    assert java_hash("\ud83d") == 0xD83D
