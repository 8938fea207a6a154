"""The interface of the plane, which serves connections of clients after their login; a broker has one plane.

The broker's is the bridge to core (bridge.py). Tests compare core with a slow plane written in Python.
"""

import socket
from collections.abc import Callable
from typing import Any, Protocol

from pybroker.config import BrokerConfig
from pybroker.decisions.caller import Caller
from pybroker.decisions.image import Image
from pybroker.replication.replicas import Replicas
from pybroker.security.tls import Stream
from pybroker.server.api.responder import Responder
from pybroker.server.network.closed_connections import Closings
from pybroker.server.network.network_threads import NetworkThreads

Forget = Callable[[Any], object]
"""Called with a connection that has ended."""


class Peer(Protocol):
    """A live connection, as seen by its listener."""

    caller: Caller
    last_active: float
    """Time on the event loop's clock; infinity if the listener need not close the connection when it is idle."""

    def finish(self) -> None:
        """Close once responses are sent, as the listener closes."""

    def close(self, reason: str, level: int = ...) -> None:
        """Close the connection."""

    def forked(self) -> None:
        """Close this process's copy of the socket, in a forked child."""


class Plane(Protocol):
    """Owns sockets and executes their requests; all methods are called on the event loop's thread."""

    def open(self, responder: Responder, closings: Closings) -> None:
        """Begin to serve; `closings` logs connections that were closed."""

    def adopt(
        self, sock: socket.socket | Stream, caller: Caller, forget: Forget, *, judged: bool = False
    ) -> Peer:
        """Take over a socket; `forget` is called with the returned peer when its connection has ended. `judged`: the
        client's requests are authorized."""

    def judge_by(self, rules: int) -> None:
        """Drop cached rights: the ACLs have changed, and `rules` is their new version."""

    def count_by(self, number: int) -> None:
        """Drop cached quotas: they have changed, and `number` is their new version; 0 if there are none."""

    def show(self, image: Image) -> None:
        """Set the brokers' addresses for each listener, which error responses name as new leaders."""

    def add_listener(self, name: str) -> None:
        """Take connections of a new listener."""

    def remove_listener(self, name: str) -> int:
        """Close the connections of a removed listener once they have their responses; return its number, for `cut`."""

    def finish(self, stall_seconds: float) -> None:
        """Close each connection once it has received its responses, or has received nothing for `stall_seconds`."""

    def cut(self, listener: int | None = None) -> None:
        """Close every connection, or those of a removed listener; clients may reconnect at once."""

    def close_longest_silent(self, count: int, spared: str | None) -> int:
        """Close up to `count` connections, none of the listener `spared`; return how many are or will be closed."""

    def close(self) -> None:
        """Stop, and close all connections."""


class PlaneMaker(Protocol):
    """Creates the plane of a broker, before the broker opens its logs."""

    def __call__(
        self,
        config: BrokerConfig,
        replicas: Replicas,
        threads: NetworkThreads,
        *,
        replica_listener: int,
        rack: str | None,
    ) -> Plane:
        """`replica_listener`: the number of the listener that followers connect to; -1 without followers. `rack`: the
        broker's rack if consumers fetch from the replica in theirs; None if they fetch from leaders."""
