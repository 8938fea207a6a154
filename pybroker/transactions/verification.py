"""Asks coordinators whether a partition is in an open transaction, before its first batch is appended (KIP-890).

One request at a time goes to each coordinator; what comes meanwhile goes with the next. Clients with an epoch for each
transaction have not added the partition before: for these it is added now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker import errors
from pybroker.decisions.transaction import ProducerIdAndEpoch
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.retries import keep_up

BATCH: Final = 1000
"""Transactions in one request."""
BUSY_S, BUSY_S_MAX = 0.02, 0.1
"""Pause, and longest time, of attempts to add a partition while the transaction before is being completed."""

Ask = Callable[[int, m.AddPartitionsToTxnRequest], Awaitable[m.AddPartitionsToTxnResponse]]
Codes = Mapping[TopicPartition, int]


@dataclass(eq=False, slots=True)
class _Asked:
    """The partitions of one transaction, for all that wait for them."""

    transactional_id: str
    by: ProducerIdAndEpoch
    adds: bool
    answer: asyncio.Future[Codes]
    keys: set[TopicPartition] = field(default_factory=set)


class Verification:
    """Verifies partitions of transactions with the coordinators of their transactional ids."""

    def __init__(self, locate: Callable[[str], Awaitable[int]], ask: Ask) -> None:
        """`locate` returns the broker that coordinates a transactional id; it raises COORDINATOR_NOT_AVAILABLE. `ask`
        sends a request to a broker, this one included; it raises OSError."""
        self._locate = locate
        self._ask = ask
        self._queues: dict[int, list[_Asked]] = {}
        self._sending: dict[int, asyncio.Task[None]] = {}

    async def check(
        self, transactional_id: str, by: ProducerIdAndEpoch, keys: Collection[TopicPartition], *, adds: bool
    ) -> Codes:
        """The error code of each partition. `adds`: add them to the transaction."""
        until_s = asyncio.get_running_loop().time() + BUSY_S_MAX
        while True:
            try:
                codes = await self._check(transactional_id, by, keys, adds)
            except KafkaError as problem:
                return dict.fromkeys(keys, problem.code)
            busy = adds and errors.CONCURRENT_TRANSACTIONS in codes.values()
            if not busy or asyncio.get_running_loop().time() >= until_s:
                return codes
            await asyncio.sleep(BUSY_S)

    async def _check(
        self, transactional_id: str, by: ProducerIdAndEpoch, keys: Collection[TopicPartition], adds: bool
    ) -> Codes:
        broker = await self._locate(transactional_id)
        loop = asyncio.get_running_loop()
        queue = self._queues.setdefault(broker, [])
        whole = (transactional_id, by, adds)
        asked = next((each for each in queue if (each.transactional_id, each.by, each.adds) == whole), None)
        if asked is None:
            asked = _Asked(transactional_id, by, adds, loop.create_future())
            queue.append(asked)
        asked.keys.update(keys)
        task = self._sending.get(broker)
        if task is None or task.done():
            work = keep_up(lambda: self._serve(broker), "verification of transactions")
            self._sending[broker] = loop.create_task(work)
        codes = await asyncio.shield(asked.answer)
        return {key: codes.get(key, errors.UNKNOWN_SERVER_ERROR) for key in keys}

    async def _serve(self, broker: int) -> None:
        """Send what waits for a coordinator until nothing does. A request has each transactional id once, as answers
        are matched by it."""
        queue = self._queues[broker]
        while queue:
            some: dict[str, _Asked] = {}
            for asked in queue[:BATCH]:
                some.setdefault(asked.transactional_id, asked)
            queue[:] = [each for each in queue if some.get(each.transactional_id) is not each]
            found: Mapping[str, Codes] = {}
            otherwise = errors.NETWORK_EXCEPTION
            try:
                response = await self._ask(broker, _request(some.values()))
                found, otherwise = _codes(response), response.error_code or errors.UNKNOWN_SERVER_ERROR
            except OSError:
                pass
            finally:
                for asked in some.values():
                    codes = dict.fromkeys(asked.keys, otherwise)
                    codes.update(found.get(asked.transactional_id, {}))
                    if not asked.answer.done():
                        asked.answer.set_result(codes)

    def close(self) -> None:
        """Stop asking; what waits gets NETWORK_EXCEPTION."""
        for task in self._sending.values():
            task.cancel()


def _request(some: Collection[_Asked]) -> m.AddPartitionsToTxnRequest:
    kind = m.AddPartitionsToTxnRequest.Transactions
    transactions = []
    for asked in some:
        topics: dict[str, list[int]] = {}
        for key in sorted(asked.keys):
            topics.setdefault(key.topic, []).append(key.partition)
        transactions.append(
            kind(
                transactional_id=asked.transactional_id,
                producer_id=asked.by.id,
                producer_epoch=asked.by.epoch,
                verify_only=not asked.adds,
                topics=[kind.Topics(name=name, partitions=found) for name, found in topics.items()],
            )
        )
    return m.AddPartitionsToTxnRequest(transactions=transactions)


def _codes(response: m.AddPartitionsToTxnResponse) -> Mapping[str, Codes]:
    """The codes by transactional id and partition."""
    return {
        result.transactional_id: {
            TopicPartition(topic.name, p.partition_index): p.partition_error_code
            for topic in result.topic_results
            for p in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }


RETRIED: Final = frozenset({
    errors.CONCURRENT_TRANSACTIONS, errors.COORDINATOR_LOAD_IN_PROGRESS, errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_COORDINATOR, errors.NETWORK_EXCEPTION, errors.UNKNOWN_SERVER_ERROR, errors.UNKNOWN_TOPIC_OR_PARTITION,
})  # fmt: skip
"""Errors after which the client sends its batch again."""


def refusal(code: int, *, knows_abortable: bool, adds: bool) -> int:
    """The error of the batch or of the offset commit whose partition was not verified, or not added. `knows_abortable`:
    the client knows TRANSACTION_ABORTABLE."""
    if adds and code == errors.CONCURRENT_TRANSACTIONS:
        return code
    if code == errors.PRODUCER_FENCED:
        return errors.INVALID_PRODUCER_EPOCH
    if code == errors.TRANSACTION_ABORTABLE and not knows_abortable:
        return errors.INVALID_TXN_STATE
    if code == errors.CLUSTER_AUTHORIZATION_FAILED:
        return errors.INVALID_TXN_STATE
    return errors.NOT_ENOUGH_REPLICAS if code in RETRIED else code
