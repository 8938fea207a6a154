"""Transactions as coordinators and partitions know them (KIP-664): listed, described, and aborted by hand."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.client import arguments
from pybroker.client.admin.base import only, raise_for
from pybroker.client.admin.coordinators import MOVED, CoordinatorOutcome, CoordinatorsAdmin
from pybroker.client.net.connection import BrokerConnection
from pybroker.client.net.metadata import RETRY_BACKOFF_S, TRANSACTION, Node
from pybroker.clock import wall_ms
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

TIMEOUT_MS_MAX: Final = 900_000
"""The default of transaction.max.timeout.ms: no transaction is open for longer, unless it hangs."""
_FENCE_TIMEOUT_MS: Final = 60_000


class TransactionListing(NamedTuple):
    """A transactional id in a list, with its producer id and state."""

    id: str
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """A transactional id as its coordinator knows it; `start_ms` is None while no transaction is open."""

    id: str
    state: str
    coordinator: Node
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


class PartitionProducer(NamedTuple):
    """A producer as a partition's leader knows it; `transaction_start` is the first offset of its open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_ms: int
    coordinator_epoch: int
    transaction_start: int | None


class HangingTransaction(NamedTuple):
    """An open transaction of a partition that no coordinator will end; consumers with read_committed wait for it."""

    partition: TopicPartition
    producer: PartitionProducer
    transactional_id: str | None
    """The id of the producer; None if no coordinator knows one."""


class TransactionsAdmin(CoordinatorsAdmin):
    """Operations on transactions."""

    def transactions(
        self, *, states: Sequence[str] = (), producer_ids: Sequence[int] = (), open_for_ms: int | None = None
    ) -> list[TransactionListing]:
        """The transactional ids in any of these states and of any of these producers (none given: all), by id.

        `open_for_ms`: those whose transaction began that long ago; brokers before 3.8 list all."""
        states = arguments.names(states, "states")
        request = m.ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=[arguments.whole(each, "a producer id") for each in producer_ids],
            duration_filter=-1 if open_for_ms is None else arguments.whole(open_for_ms, "open_for_ms"),
        )
        self.cluster.metadata([])
        found: set[TransactionListing] = set()
        for node in self.cluster.nodes:
            answer = self._list(node, request)
            raise_for(answer.error_code, f"transactions of broker {node}")
            found.update(
                TransactionListing(t.transactional_id, t.producer_id, t.transaction_state)
                for t in answer.transaction_states
            )
        return sorted(found)

    def _list(self, node: int, request: m.ListTransactionsRequest) -> m.ListTransactionsResponse:
        """The answer of a broker once it has loaded its transactional ids, or its last one when the time is over."""
        deadline_s = time.monotonic() + self.timeout_s
        while True:
            answer = self.cluster.node(node).request(request)
            if answer.error_code not in MOVED or time.monotonic() > deadline_s:
                return answer
            time.sleep(RETRY_BACKOFF_S)

    def describe_transactions(self, ids: Iterable[str]) -> list[TransactionDescription]:
        """These transactional ids. KafkaError(TRANSACTIONAL_ID_NOT_FOUND) if one of them is not there."""

        def ask(
            coordinator: BrokerConnection, keys: Sequence[str]
        ) -> Iterable[tuple[str, int, str | None, m.DescribeTransactionsResponse.TransactionStates]]:
            request = m.DescribeTransactionsRequest(transactional_ids=list(keys))
            for told in coordinator.request(request).transaction_states:
                yield told.transactional_id, told.error_code, None, told

        found = []
        for key, outcome in self._ask_coordinators(arguments.names(ids, "ids"), ask, TRANSACTION).items():
            raise_for(outcome.code, f"transactional id {key}", outcome.message)
            told = outcome.answer
            assert told is not None
            start_ms = told.transaction_start_time_ms
            partitions = (TopicPartition(topic.topic, p) for topic in told.topics for p in topic.partitions)
            found.append(
                TransactionDescription(
                    key,
                    told.transaction_state,
                    outcome.coordinator,
                    told.producer_id,
                    told.producer_epoch,
                    told.transaction_timeout_ms,
                    start_ms if start_ms >= 0 and told.transaction_state != "Empty" else None,
                    tuple(sorted(partitions)),
                )
            )
        return found

    def describe_producers(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, list[PartitionProducer]]:
        """The producers that the leaders of these partitions know. KafkaError if one has no leader, or refuses."""
        found: dict[TopicPartition, list[PartitionProducer]] = {}
        for leader, its_own in self._by_leader([TopicPartition.of(tp) for tp in partitions]).items():
            grouped: dict[str, list[int]] = {}
            for topic, index in its_own:
                grouped.setdefault(topic, []).append(index)
            kind = m.DescribeProducersRequest.Topics
            topics = [kind(name=name, partition_indexes=indexes) for name, indexes in grouped.items()]
            for told in self.cluster.node(leader).request(m.DescribeProducersRequest(topics=topics)).topics:
                for p in told.partitions:
                    tp = TopicPartition(told.name, p.partition_index)
                    raise_for(p.error_code, f"partition {tp}", p.error_message)
                    found[tp] = [
                        PartitionProducer(
                            a.producer_id,
                            a.producer_epoch,
                            a.last_sequence,
                            a.last_timestamp,
                            a.coordinator_epoch,
                            a.current_txn_start_offset if a.current_txn_start_offset >= 0 else None,
                        )
                        for a in p.active_producers
                    ]
        return found

    def _by_leader(self, partitions: Sequence[TopicPartition]) -> Mapping[int, list[TopicPartition]]:
        known = {
            TopicPartition(topic.name, p.partition): p.leader
            for topic in self.cluster.metadata(sorted({tp.topic for tp in partitions}))
            for p in topic.partitions
        }
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            if tp not in known:
                raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp} does not exist")
            raise_for(errors.LEADER_NOT_AVAILABLE if known[tp] < 0 else errors.NONE, f"partition {tp}")
            by_leader.setdefault(known[tp], []).append(tp)
        return by_leader

    def hanging_transactions(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], *, open_for_ms: int = TIMEOUT_MS_MAX
    ) -> list[HangingTransaction]:
        """Open transactions of these partitions that wrote nothing for `open_for_ms`, and that no coordinator has.

        A transaction that its coordinator still has will end by itself, at the latest after its timeout."""
        oldest_ms = wall_ms() - arguments.whole(open_for_ms, "open_for_ms")
        late = [
            (tp, producer)
            for tp, producers in self.describe_producers(partitions).items()
            for producer in producers
            if producer.transaction_start is not None and producer.last_ms <= oldest_ms
        ]
        if not late:
            return []
        names = {t.producer_id: t.id for t in self.transactions(producer_ids=sorted({p.producer_id for _, p in late}))}
        known = {t.id: t for t in self.describe_transactions(sorted(set(names.values())))}
        found = []
        for tp, producer in late:
            owner = known.get(names.get(producer.producer_id, ""))
            if owner is None or owner.producer_id != producer.producer_id or tp not in owner.partitions:
                found.append(HangingTransaction(tp, producer, None if owner is None else owner.id))
        return found

    def abort_transaction(self, partition: TopicPartition | tuple[str, int], start: int) -> None:
        """Abort the open transaction of one partition that begins at offset `start`.

        For transactions that hang. One that does not is torn: its records in this partition are lost, and a commit by
        its producer succeeds all the same. KafkaError(INVALID_TXN_STATE) if no open transaction begins there."""
        tp = TopicPartition.of(partition)
        arguments.whole(start, "an offset")
        producers = [p for p in self.describe_producers([tp])[tp] if p.transaction_start == start]
        if not producers:
            raise KafkaError(errors.INVALID_TXN_STATE, f"no open transaction of {tp} begins at offset {start}")
        kind = m.WriteTxnMarkersRequest.Markers
        marker = kind(
            producer_id=producers[0].producer_id,
            producer_epoch=producers[0].producer_epoch,
            transaction_result=False,
            topics=[kind.Topics(name=tp.topic, partition_indexes=[tp.partition])],
            coordinator_epoch=max(0, producers[0].coordinator_epoch),
        )
        (leader,) = self._by_leader([tp])
        answer = self.cluster.node(leader).request(m.WriteTxnMarkersRequest(markers=[marker]))
        told = only([p for each in answer.markers for t in each.topics for p in t.partitions], f"partition {tp}")
        raise_for(told.error_code, f"partition {tp}")

    def fence_producers(self, ids: Iterable[str]) -> None:
        """Raise the epoch of these transactional ids: their open transactions are aborted, their producers refused."""

        def ask(coordinator: BrokerConnection, keys: Sequence[str]) -> Iterable[tuple[str, int, str | None, None]]:
            for key in keys:
                request = m.InitProducerIdRequest(
                    transactional_id=key,
                    transaction_timeout_ms=_FENCE_TIMEOUT_MS,
                    producer_id=-1,
                    producer_epoch=-1,
                )
                code = coordinator.request(request).error_code
                # while the open transaction is aborted, the producer is fenced already
                yield key, errors.NONE if code == errors.CONCURRENT_TRANSACTIONS else code, None, None

        outcomes: dict[str, CoordinatorOutcome[None]] = self._ask_coordinators(
            arguments.names(ids, "ids"), ask, TRANSACTION
        )
        for key, outcome in outcomes.items():
            raise_for(outcome.code, f"transactional id {key}", outcome.message)
