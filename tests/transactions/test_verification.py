"""Partitions verified with the coordinators of their transactions: few requests, and an answer for each that waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker import errors
from pybroker.decisions.transaction import ProducerIdAndEpoch
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.transactions.verification import Verification, refusal
from tests.virtual import story

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ME = ProducerIdAndEpoch(1, 0)


class Coordinators:
    """Coordinators of all ids, that answer a second later."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.asked: list[tuple[int, list[Any]]] = []
        self.fails: Exception | None = None
        self.verification = Verification(self.locate, self.ask)

    async def locate(self, name: str) -> int:
        if name == "nobody's":
            raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE, "there is none")
        return len(name) % 2

    async def ask(self, broker: int, request: m.AddPartitionsToTxnRequest) -> m.AddPartitionsToTxnResponse:
        self.asked.append((broker, list(request.transactions)))
        await asyncio.sleep(1)
        if self.fails is not None:
            raise self.fails
        kind = m.AddPartitionsToTxnResponse.ResultsByTransaction
        return m.AddPartitionsToTxnResponse(
            results_by_transaction=[
                kind(
                    transactional_id=each.transactional_id,
                    topic_results=[
                        kind.TopicResults(
                            name=topic.name,
                            results_by_partition=[
                                kind.TopicResults.ResultsByPartition(
                                    partition_index=index,
                                    partition_error_code=self.codes.get(each.transactional_id, 0),
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in each.topics
                    ],
                )
                for each in reversed(request.transactions)
            ]
        )

    async def check(self, name: str, *keys: TopicPartition, by: ProducerIdAndEpoch = ME, adds: bool = False) -> Any:
        return await self.verification.check(name, by, keys, adds=adds)


@story
async def test_what_waits_goes_with_the_next_request() -> None:
    """One request at a time goes to a coordinator; transactions that come meanwhile share the next, and each gets its
    own codes."""
    them = Coordinators(b=errors.TRANSACTION_ABORTABLE)
    first = asyncio.create_task(them.check("a", T0))
    await asyncio.sleep(0.1)
    rest = [them.check("b", T0), them.check("c", T0), them.check("c", T1), them.check("dd", T0)]
    found = await asyncio.gather(first, *rest)
    assert found == [{T0: 0}, {T0: errors.TRANSACTION_ABORTABLE}, {T0: 0}, {T1: 0}, {T0: 0}]
    assert [(broker, [each.transactional_id for each in asked]) for broker, asked in them.asked] == [
        (1, ["a"]), (0, ["dd"]), (1, ["b", "c"])
    ]  # fmt: skip


@story
async def test_two_epochs_of_one_id_are_asked_about_one_after_the_other() -> None:
    """Answers name only the transactional id, so a request has each id once."""
    them = Coordinators()
    later = ProducerIdAndEpoch(1, 1)
    await asyncio.gather(them.check("a", T0), them.check("a", T0, by=later), them.check("a", T1, adds=True))
    assert [[(each.producer_epoch, each.verify_only) for each in asked] for _, asked in them.asked] == [
        [(0, True)], [(1, True)], [(0, False)]
    ]  # fmt: skip


@story
async def test_a_coordinator_that_does_not_answer() -> None:
    """A lost connection, and an id without a coordinator, are errors of the batch that the client sends again."""
    them = Coordinators()
    them.fails = ConnectionError("gone")
    assert await them.check("a", T0, T1) == dict.fromkeys((T0, T1), errors.NETWORK_EXCEPTION)
    assert await them.check("nobody's", T0) == {T0: errors.COORDINATOR_NOT_AVAILABLE}
    them.fails = None
    assert await them.check("a", T0) == {T0: 0}


@story
async def test_a_partition_is_added_again_while_the_transaction_before_ends() -> None:
    them = Coordinators(a=errors.CONCURRENT_TRANSACTIONS)
    assert await them.check("a", T0) == {T0: errors.CONCURRENT_TRANSACTIONS}
    assert len(them.asked) == 1
    assert await them.check("a", T0, adds=True) == {T0: errors.CONCURRENT_TRANSACTIONS}
    assert 2 <= len(them.asked) <= 7


@pytest.mark.parametrize(
    ("code", "old", "new"),
    [
        (errors.PRODUCER_FENCED, errors.INVALID_PRODUCER_EPOCH, errors.INVALID_PRODUCER_EPOCH),
        (errors.TRANSACTION_ABORTABLE, errors.INVALID_TXN_STATE, errors.TRANSACTION_ABORTABLE),
        (errors.CONCURRENT_TRANSACTIONS, errors.NOT_ENOUGH_REPLICAS, errors.CONCURRENT_TRANSACTIONS),
        (errors.COORDINATOR_LOAD_IN_PROGRESS, errors.NOT_ENOUGH_REPLICAS, errors.NOT_ENOUGH_REPLICAS),
        (errors.NOT_COORDINATOR, errors.NOT_ENOUGH_REPLICAS, errors.NOT_ENOUGH_REPLICAS),
        (errors.NETWORK_EXCEPTION, errors.NOT_ENOUGH_REPLICAS, errors.NOT_ENOUGH_REPLICAS),
        (errors.CLUSTER_AUTHORIZATION_FAILED, errors.INVALID_TXN_STATE, errors.INVALID_TXN_STATE),
        (errors.INVALID_PRODUCER_ID_MAPPING, errors.INVALID_PRODUCER_ID_MAPPING, errors.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_the_error_of_a_batch(code: int, old: int, new: int) -> None:
    """Fault 6: what may pass is an error that clients of any version send again at once."""
    assert refusal(code, knows_abortable=False, adds=False) == old
    assert refusal(code, knows_abortable=True, adds=True) == new
