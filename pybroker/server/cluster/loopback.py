"""The connection of a lone broker's controller to its own broker: requests are function calls, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pybroker.decisions.caller import Call, Caller
from pybroker.errors import KafkaError
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.message import Message, Request
from pybroker.server.api.dispatch import AnyHandler, Handler, done
from pybroker.server.api.handlers import control
from pybroker.server.api.handlers.control import Control

A = TypeVar("A", bound=Message)


class Loopback:
    """A connection that never fails (used by `controller/broker_channel.py` and `replication/controller_link.py`)."""

    def __init__(self, orders: Control, listener: str) -> None:
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._caller = Caller("localhost", 0, listener)
        self._handlers: dict[type, AnyHandler] = {
            m.LeaderAndIsrRequest: Handler(orders.leader_and_isr, control.leader_and_isr_failed),
            m.StopReplicaRequest: Handler(orders.stop_replica, control.stop_replica_failed),
            m.UpdateMetadataRequest: Handler(orders.update_metadata, control.update_metadata_failed),
            m.AlterPartitionRequest: Handler(orders.alter_partition, control.alter_partition_failed),
        }

    async def ask(
        self, message: Request[A], version: int, *, timeout_s: float = 0.0, tail: Callable[[], codec.Tail] | None = None
    ) -> A:
        """Return the response to a request; `timeout_s`, `tail` are ignored. Raises ConnectionError after `close`."""
        if self.closed.done():
            raise ConnectionError("the connection was closed")
        handler = self._handlers[type(message)]
        answer: A | None
        try:
            answer = await done(handler.by(message, Call(version, None, self._caller)))
        except KafkaError as problem:
            answer = handler.failed(message, problem.code, problem.message)
        assert answer is not None
        return answer

    def close(self) -> None:
        """Close the connection and set `closed`."""
        if not self.closed.done():
            self.closed.set_result("the connection was closed")
