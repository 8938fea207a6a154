"""InitProducerId: returns a new id for each idempotent producer (KIP-98)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m


class InitProducerId:
    def __init__(self, draw: Callable[[], Awaitable[int]]) -> None:
        """`draw` returns an id that was never used before."""
        self._draw = draw

    async def __call__(self, request: m.InitProducerIdRequest, call: Call) -> m.InitProducerIdResponse:
        if request.transactional_id == "":
            raise KafkaError(errors.INVALID_REQUEST, "a transactional id cannot be empty")
        if request.transactional_id is not None:
            raise KafkaError(errors.UNSUPPORTED_VERSION, "this broker does not support transactions yet")
        return m.InitProducerIdResponse(producer_id=await self._draw(), producer_epoch=0)


def failed(request: m.InitProducerIdRequest, code: int, message: str) -> m.InitProducerIdResponse:
    return m.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
