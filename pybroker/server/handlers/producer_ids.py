"""InitProducerId: a number of its own for each idempotent producer (KIP-98)."""

from collections.abc import Awaitable, Callable
from typing import Any

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m


class InitProducerId:
    def __init__(self, draw: Callable[[], Awaitable[int]]) -> None:
        """`draw` gives an id that no producer has had."""
        self._draw = draw

    async def __call__(self, request: Any, call: Call) -> Any:
        if request.transactional_id == "":
            raise KafkaError(errors.INVALID_REQUEST, "a transactional id cannot be empty")
        if request.transactional_id is not None:
            raise KafkaError(errors.UNSUPPORTED_VERSION, "this broker has no transactions")
        return m.InitProducerIdResponse(producer_id=await self._draw(), producer_epoch=0)


def failed(request: Any, code: int, message: str) -> Any:
    return m.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
