"""The records of __transaction_state: one for each transactional id, in the formats that Kafka writes and reads.

    key    version i16 (0), transactional id
    value  version i16 (0, 1), then the state; null: the id has expired

Version 0 is written for clients of the classic protocol, so that Kafka 3.9 can read it. Version 1 is written for those
with an epoch for each transaction (KIP-890). It also has, as tagged fields, the producer id before or after a change of
the id: Kafka has these fields, but neither writes nor reads them.
"""

from __future__ import annotations

from typing import NamedTuple

from pybroker import errors
from pybroker.decisions.transaction import CLASSIC, EPOCH_LAST, STORED, ProducerIdAndEpoch, Transaction, TxnState
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.state_log.log import Pair

KEY_VERSION = 0
CLASSIC_VALUE, FLEXIBLE_VALUE = 0, 1
VERSION_BYTES = 2


class TransactionRecord(NamedTuple):
    """A record from the log; None: the transactional id has expired."""

    id: str
    transaction: Transaction | None


def record(tx: Transaction) -> Pair:
    """The record of a transactional id's state."""
    version = CLASSIC_VALUE if tx.client_version == CLASSIC else FLEXIBLE_VALUE
    topics: dict[str, list[int]] = {}
    for key in sorted(tx.partitions):
        topics.setdefault(key.topic, []).append(key.partition)
    kind = m.TransactionLogValue.TransactionPartitions
    rotated = tx.last is not None and tx.last.id != tx.producer.id
    value = m.TransactionLogValue(
        producer_id=tx.producer.id,
        producer_epoch=tx.producer.epoch,
        transaction_timeout_ms=tx.timeout_ms,
        transaction_status=tx.state,
        transaction_partitions=None
        if tx.state is TxnState.EMPTY
        else [kind(topic=topic, partition_ids=indexes) for topic, indexes in topics.items()],
        transaction_last_update_timestamp_ms=tx.updated_ms,
        transaction_start_timestamp_ms=tx.started_ms,
        previous_producer_id=tx.last.id if tx.last is not None and rotated else -1,
        next_producer_id=tx.next_id,
        client_transaction_version=tx.client_version,
    )
    return tombstone(tx.id)[0], version.to_bytes(VERSION_BYTES, "big") + codec.encode(value, version)


def tombstone(transactional_id: str) -> Pair:
    """The record that removes a transactional id."""
    key = m.TransactionLogKey(transactional_id=transactional_id)
    return KEY_VERSION.to_bytes(VERSION_BYTES, "big") + codec.encode(key, KEY_VERSION), None


def parse(key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    """The parsed record; None for a key version that is not used here. Raises KafkaError for a record that cannot be
    read: its transactional id must not be taken for one without a state."""
    if key is None or len(key) < VERSION_BYTES:
        raise KafkaError(errors.CORRUPT_MESSAGE, "a record of __transaction_state has no key")
    if int.from_bytes(key[:VERSION_BYTES], "big", signed=True) != KEY_VERSION:
        return None
    name, _ = codec.decode(m.TransactionLogKey, KEY_VERSION, key, VERSION_BYTES)
    if value is None:
        return TransactionRecord(name.transactional_id, None)
    version = int.from_bytes(value[:VERSION_BYTES], "big", signed=True)
    if version not in (CLASSIC_VALUE, FLEXIBLE_VALUE) or len(value) < VERSION_BYTES:
        known = f"versions {CLASSIC_VALUE} and {FLEXIBLE_VALUE} are known: was it written by a newer broker?"
        problem = f"the state of transactional id {name.transactional_id!r:.100} has version {version}; {known}"
        raise KafkaError(errors.UNSUPPORTED_VERSION, problem)
    body, _ = codec.decode(m.TransactionLogValue, version, value, VERSION_BYTES)
    return TransactionRecord(name.transactional_id, _transaction(name.transactional_id, body))


def _transaction(transactional_id: str, body: m.TransactionLogValue) -> Transaction:
    if body.transaction_status not in STORED:
        problem = f"the state of transactional id {transactional_id!r:.100} is {body.transaction_status}, not 0 to 5"
        raise KafkaError(errors.CORRUPT_MESSAGE, problem)
    return Transaction(
        id=transactional_id,
        producer=ProducerIdAndEpoch(body.producer_id, body.producer_epoch),
        timeout_ms=body.transaction_timeout_ms,
        state=TxnState(body.transaction_status),
        updated_ms=body.transaction_last_update_timestamp_ms,
        started_ms=body.transaction_start_timestamp_ms,
        partitions=frozenset(
            TopicPartition(topic.topic, index)
            for topic in body.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        last=None if body.previous_producer_id < 0 else ProducerIdAndEpoch(body.previous_producer_id, EPOCH_LAST),
        next_id=body.next_producer_id,
        client_version=body.client_transaction_version,
    )
