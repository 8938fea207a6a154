"""InitProducerId: returns a new id for each idempotent producer (KIP-98), or the id and the next epoch of a
transactional one (KIP-360)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.decisions.transaction import ProducerIdAndEpoch
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.transactions.coordinator import TransactionCoordinator

NONE = -1
"""A producer id or epoch of a client that has none."""
FENCED_VERSION = 4
"""The first version whose clients know PRODUCER_FENCED; older ones get INVALID_PRODUCER_EPOCH."""


class InitProducerId:
    def __init__(self, draw: Callable[[], Awaitable[int]], transactions: TransactionCoordinator) -> None:
        """`draw` returns an id that was never used before."""
        self._draw = draw
        self._transactions = transactions

    async def __call__(self, request: m.InitProducerIdRequest, call: Call) -> m.InitProducerIdResponse:
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        if (expected.id == NONE) is not (expected.epoch == NONE):
            words = f"the producer id is {expected.id}, the epoch {expected.epoch}: both are given, or neither"
            raise KafkaError(errors.INVALID_REQUEST, words)
        if request.transactional_id is None:
            return m.InitProducerIdResponse(producer_id=await self._draw(), producer_epoch=0)
        if request.transactional_id == "":
            raise KafkaError(errors.INVALID_REQUEST, "a transactional id cannot be empty")
        try:
            given = await self._transactions.init_producer(
                request.transactional_id, request.transaction_timeout_ms, None if expected.id == NONE else expected
            )
        except KafkaError as problem:
            if problem.code == errors.PRODUCER_FENCED and call.version < FENCED_VERSION:
                raise KafkaError(errors.INVALID_PRODUCER_EPOCH, problem.message) from None
            raise
        return m.InitProducerIdResponse(producer_id=given.id, producer_epoch=given.epoch)


def failed(request: m.InitProducerIdRequest, code: int, message: str) -> m.InitProducerIdResponse:
    return m.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
