"""The slow plane: what core does with connections, in Python alone, for tests that compare core with it.

    broker = Broker(config, plane=slow_plane)

Every request goes to the handlers in Python, including Produce and Fetch.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from pybroker.config import BrokerConfig
from pybroker.decisions.caller import Caller, Rights
from pybroker.decisions.image import Image
from pybroker.replication.replicas import Replicas
from pybroker.security.tls import Stream
from pybroker.server.api.responder import Responder
from pybroker.server.network.bridge import pool_bytes
from pybroker.server.network.closed_connections import Closings
from pybroker.server.network.network_threads import NetworkThreads
from tests.oracle.connection import Connection
from tests.oracle.pool import Pool

NO_LISTENER = -1
RECEIVE_BYTES = 256 << 10
HOLDER_PATIENCE_SECONDS = 10.0
LOOK_SECONDS = 1.0
STALL_LOOK_SECONDS = 0.1
TOO_MANY = "max.connections is exceeded, and it was silent for longest"
STALLED = "the broker stops, and it did not read its answers"


class _Owner:
    """State that the connections of one listener share."""

    def __init__(self, plane: SlowPlane, responder: Responder, closings: Closings) -> None:
        self.loop = plane.loop
        self.responder = responder
        self.pool = plane.pool
        self.scratch = plane.scratch
        self.request_bytes_max = plane.request_bytes_max
        self.closing = False
        self.closings = closings
        self.connections: set[Connection] = set()

    def finish(self) -> None:
        """Let every connection close once its answers are sent."""
        self.closing = True
        for connection in list(self.connections):
            connection.finish()

    def cut(self, why: str) -> None:
        for connection in list(self.connections):
            connection.close(why, logging.INFO)


class SlowPlane:
    """Connections on the event loop's thread."""

    def __init__(self, pool: Pool, request_bytes_max: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.pool = pool
        self.scratch = memoryview(bytearray(RECEIVE_BYTES))
        self.request_bytes_max = request_bytes_max
        self._responder: Responder | None = None
        self._closings: Closings | None = None
        self._owners: dict[str, _Owner] = {}  # by listener name
        self._removed: list[_Owner] = []
        self._timer: asyncio.TimerHandle | None = None
        self._stalls: asyncio.TimerHandle | None = None

    def open(self, responder: Responder, closings: Closings) -> None:
        self._responder, self._closings = responder, closings
        self._look_at_holder()

    def adopt(
        self, sock: socket.socket | Stream, caller: Caller, forget: Callable[[Any], object], *, judged: bool = False
    ) -> Connection:
        assert self._responder is not None and self._closings is not None
        owner = self._owners.get(caller.listener)
        if owner is None:
            owner = self._owners[caller.listener] = _Owner(self, self._responder, self._closings)

        def gone(connection: Connection) -> None:
            owner.connections.discard(connection)
            forget(connection)

        connection = Connection(owner, sock, caller._replace(rights=Rights()) if judged else caller, gone)
        owner.connections.add(connection)
        return connection

    def judge_by(self, rules: int) -> None:
        """Do nothing: guards authorize every request before the handlers."""

    def count_by(self, number: int) -> None:
        """Do nothing: every request is counted around the handlers."""

    def show(self, image: Image) -> None:
        """Do nothing: the handlers take leaders from the image."""

    def add_listener(self, name: str) -> None:
        """Do nothing: a listener is known from its first connection."""

    def remove_listener(self, name: str) -> int:
        owner = self._owners.pop(name, None)
        if owner is None:
            return NO_LISTENER
        owner.finish()
        self._removed.append(owner)
        return len(self._removed) - 1

    def finish(self, stall_seconds: float) -> None:
        for owner in self._all:
            owner.finish()
        self._look_at_stalls(stall_seconds)

    def cut(self, listener: int | None = None) -> None:
        if listener != NO_LISTENER:
            for owner in self._all if listener is None else [self._removed[listener]]:
                owner.cut("it was asked for")

    def close_longest_silent(self, count: int, spared: str | None) -> int:
        there = [c for name, owner in self._owners.items() if name != spared for c in owner.connections]
        there.sort(key=lambda connection: connection.last_active)
        for connection in there[:count]:
            connection.close(TOO_MANY)
        return len(there[:count])

    def close(self) -> None:
        for timer in (self._timer, self._stalls):
            if timer is not None:
                timer.cancel()
        for owner in self._all:
            owner.cut("the broker stops")

    @property
    def _all(self) -> list[_Owner]:
        return [*self._owners.values(), *self._removed]

    def _look_at_holder(self) -> None:
        """Close a connection that holds the memory pool's last place without progress."""
        stuck = self.pool.overdue(self.loop.time(), HOLDER_PATIENCE_SECONDS)
        if isinstance(stuck, Connection):
            stuck.close("it was too slow with a request while memory is short")
        self._timer = self.loop.call_later(LOOK_SECONDS, self._look_at_holder)

    def _look_at_stalls(self, stall_seconds: float) -> None:
        """At a stop, close connections whose clients do not receive their answers."""
        for owner in self._all:
            for connection in list(owner.connections):
                if connection.stalls(stall_seconds):
                    connection.close(STALLED)
        self._stalls = self.loop.call_later(STALL_LOOK_SECONDS, self._look_at_stalls, stall_seconds)


def slow_plane(
    config: BrokerConfig, replicas: Replicas, threads: NetworkThreads, *, replica_listener: int, rack: str | None
) -> SlowPlane:
    """The plane of a broker that executes all requests in Python."""
    return SlowPlane(Pool(pool_bytes(config)), config["socket.request.max.bytes"])
