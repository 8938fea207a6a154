"""Requests of transactional producers: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn; and DescribeTransactions and
ListTransactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from pybroker import errors
from pybroker.clock import wall_ms
from pybroker.decisions.caller import Call
from pybroker.decisions.image import INTERNAL_TOPICS, OFFSETS_TOPIC
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.decisions.transaction import CLASSIC, EPOCH_PER_TRANSACTION, ProducerIdAndEpoch, Transaction, TxnState
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.transactions.coordinator import TransactionCoordinator

FENCED_VERSION = 2
"""The first version of these APIs whose clients know PRODUCER_FENCED; older ones get INVALID_PRODUCER_EPOCH."""
BATCHED_VERSION = 4
"""The first version of AddPartitionsToTxn that brokers send, for several transactions."""
EPOCH_VERSION = 5
"""The first version of EndTxn whose clients get an epoch for each transaction (KIP-890)."""


def for_version(code: int, version: int) -> int:
    """The error code for clients of a version of AddPartitionsToTxn, AddOffsetsToTxn or EndTxn."""
    if code == errors.PRODUCER_FENCED and version < FENCED_VERSION:
        return errors.INVALID_PRODUCER_EPOCH
    return code


class AddPartitionsToTxn:
    def __init__(self, transactions: TransactionCoordinator, metadata: MetadataCache) -> None:
        self._transactions = transactions
        self._metadata = metadata

    async def __call__(
        self, request: m.AddPartitionsToTxnRequest, call: Call
    ) -> m.AddPartitionsToTxnResponse:
        if call.version >= BATCHED_VERSION:
            return await self.batched(request)
        by = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        keys = _keys(request.v3_and_below_topics)
        codes = self._refused(keys, of_client=True)
        if not codes:
            try:
                await self._transactions.add_partitions(request.v3_and_below_transactional_id, by, keys)
            except KafkaError as problem:
                codes = dict.fromkeys(keys, for_version(problem.code, call.version))
        return added(request, codes)

    async def batched(self, request: m.AddPartitionsToTxnRequest) -> m.AddPartitionsToTxnResponse:
        """Handle a request of a broker."""
        results = await asyncio.gather(*map(self._transaction, request.transactions))
        return m.AddPartitionsToTxnResponse(results_by_transaction=list(results))

    async def _transaction(
        self, asked: m.AddPartitionsToTxnRequest.Transactions
    ) -> m.AddPartitionsToTxnResponse.ResultsByTransaction:
        by, keys = ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch), _keys(asked.topics)
        codes: Mapping[TopicPartition, int]
        try:
            if asked.verify_only:
                codes = self._transactions.verify(asked.transactional_id, by, keys)
            else:
                codes = self._refused(keys, of_client=False)
                if not codes:
                    name = asked.transactional_id
                    await self._transactions.add_partitions(name, by, keys, EPOCH_PER_TRANSACTION)
        except KafkaError as problem:
            codes = dict.fromkeys(keys, problem.code)
        return _result(asked, codes, errors.NONE)

    def _refused(self, keys: Collection[TopicPartition], *, of_client: bool) -> Mapping[TopicPartition, int]:
        """The error codes of a request with partitions that cannot be added: then none is added."""
        image, wrong = self._metadata.image, {}
        for key in keys:
            if of_client and key.topic in INTERNAL_TOPICS:
                wrong[key] = errors.TOPIC_AUTHORIZATION_FAILED
            elif image.partition(*key) is None:
                wrong[key] = errors.UNKNOWN_TOPIC_OR_PARTITION
        return dict.fromkeys(keys, errors.OPERATION_NOT_ATTEMPTED) | wrong if wrong else {}


AddedTopics = Iterable[m.AddPartitionsToTxnRequest.V3AndBelowTopics | m.AddPartitionsToTxnRequest.Transactions.Topics]


def _keys(topics: AddedTopics) -> list[TopicPartition]:
    return list(dict.fromkeys(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions))


def added(
    request: m.AddPartitionsToTxnRequest, codes: Mapping[TopicPartition, int], otherwise: int = errors.NONE
) -> m.AddPartitionsToTxnResponse:
    """The response to a client, with a code for each partition; `otherwise` for those without one."""
    kind = m.AddPartitionsToTxnResponse.ResultsByTopicV3AndBelow
    return m.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            kind(
                name=topic.name,
                results_by_partition=[
                    kind.ResultsByPartition(
                        partition_index=index,
                        partition_error_code=codes.get(TopicPartition(topic.name, index), otherwise),
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


def _result(
    asked: m.AddPartitionsToTxnRequest.Transactions, codes: Mapping[TopicPartition, int], otherwise: int
) -> m.AddPartitionsToTxnResponse.ResultsByTransaction:
    kind = m.AddPartitionsToTxnResponse.ResultsByTransaction
    return kind(
        transactional_id=asked.transactional_id,
        topic_results=[
            kind.TopicResults(
                name=topic.name,
                results_by_partition=[
                    kind.TopicResults.ResultsByPartition(
                        partition_index=index,
                        partition_error_code=codes.get(TopicPartition(topic.name, index), otherwise),
                    )
                    for index in topic.partitions
                ],
            )
            for topic in asked.topics
        ],
    )


def add_partitions_failed(
    request: m.AddPartitionsToTxnRequest, code: int, message: str
) -> m.AddPartitionsToTxnResponse:
    """Return the error at the top level, which clients' versions do not have, and for each partition."""
    answer = added(request, {}, code)
    answer.error_code = code
    answer.results_by_transaction = [_result(each, {}, code) for each in request.transactions]
    return answer


class AddOffsetsToTxn:
    def __init__(
        self, transactions: TransactionCoordinator, offsets_partition: Callable[[str], Awaitable[int]]
    ) -> None:
        """`offsets_partition` returns the partition of __consumer_offsets that a group is in. It raises
        COORDINATOR_NOT_AVAILABLE."""
        self._transactions = transactions
        self._offsets_partition = offsets_partition

    async def __call__(self, request: m.AddOffsetsToTxnRequest, call: Call) -> m.AddOffsetsToTxnResponse:
        by = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        key = TopicPartition(OFFSETS_TOPIC, await self._offsets_partition(request.group_id))
        try:
            await self._transactions.add_partitions(request.transactional_id, by, [key])
        except KafkaError as problem:
            return m.AddOffsetsToTxnResponse(error_code=for_version(problem.code, call.version))
        return m.AddOffsetsToTxnResponse()


def add_offsets_failed(request: m.AddOffsetsToTxnRequest, code: int, message: str) -> m.AddOffsetsToTxnResponse:
    return m.AddOffsetsToTxnResponse(error_code=code)


class EndTxn:
    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    async def __call__(self, request: m.EndTxnRequest, call: Call) -> m.EndTxnResponse:
        by = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        version = EPOCH_PER_TRANSACTION if call.version >= EPOCH_VERSION else CLASSIC
        try:
            given = await self._transactions.end_transaction(
                request.transactional_id, by, request.committed, version
            )
        except KafkaError as problem:
            return m.EndTxnResponse(error_code=for_version(problem.code, call.version))
        return m.EndTxnResponse(producer_id=given.id, producer_epoch=given.epoch)


def end_failed(request: m.EndTxnRequest, code: int, message: str) -> m.EndTxnResponse:
    return m.EndTxnResponse(error_code=code)


# -- queries ---------------------------------------------------------------------------------------------------------


class DescribeTransactions:
    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    def __call__(self, request: m.DescribeTransactionsRequest, call: Call) -> m.DescribeTransactionsResponse:
        return m.DescribeTransactionsResponse(
            transaction_states=[self._describe(name) for name in dict.fromkeys(request.transactional_ids)]
        )

    def _describe(self, name: str) -> m.DescribeTransactionsResponse.TransactionStates:
        kind = m.DescribeTransactionsResponse.TransactionStates
        try:
            tx = self._transactions.find(name)
        except KafkaError as problem:
            return kind(transactional_id=name, error_code=problem.code)
        if tx is None:
            return kind(transactional_id=name, error_code=errors.TRANSACTIONAL_ID_NOT_FOUND)
        topics: dict[str, list[int]] = {}
        for key in sorted(tx.partitions):
            topics.setdefault(key.topic, []).append(key.partition)
        return kind(
            transactional_id=name,
            transaction_state=tx.state.label,
            transaction_timeout_ms=tx.timeout_ms,
            transaction_start_time_ms=tx.started_ms,
            producer_id=tx.producer.id,
            producer_epoch=tx.producer.epoch,
            topics=[kind.Topics(topic=topic, partitions=found) for topic, found in topics.items()],
        )


def describe_failed(
    request: m.DescribeTransactionsRequest, code: int, message: str
) -> m.DescribeTransactionsResponse:
    kind = m.DescribeTransactionsResponse.TransactionStates
    return m.DescribeTransactionsResponse(
        transaction_states=[kind(transactional_id=name, error_code=code) for name in request.transactional_ids]
    )


STATES = {state.label: state for state in TxnState}


class ListTransactions:
    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    def __call__(self, request: m.ListTransactionsRequest, call: Call) -> m.ListTransactionsResponse:
        if self._transactions.loading():
            return m.ListTransactionsResponse(error_code=errors.COORDINATOR_LOAD_IN_PROGRESS)
        kind = m.ListTransactionsResponse.TransactionStates
        found = self._matching(request)
        return m.ListTransactionsResponse(
            unknown_state_filters=[name for name in request.state_filters if name not in STATES],
            transaction_states=[
                kind(transactional_id=tx.id, producer_id=tx.producer.id, transaction_state=tx.state.label)
                for tx in found
            ],
        )

    def _matching(self, request: m.ListTransactionsRequest) -> list[Transaction]:
        states = {STATES[name] for name in request.state_filters if name in STATES}
        ids = set(request.producer_id_filters)
        since_ms = wall_ms() - request.duration_filter if request.duration_filter >= 0 else None
        return [
            tx
            for tx in self._transactions.everything()
            if (not request.state_filters or tx.state in states)
            and (not ids or tx.producer.id in ids)
            and (since_ms is None or tx.started_ms <= since_ms)
        ]


def list_failed(request: m.ListTransactionsRequest, code: int, message: str) -> m.ListTransactionsResponse:
    return m.ListTransactionsResponse(error_code=code)
