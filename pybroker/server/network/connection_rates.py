"""Limits the rates at which connections are created, for a broker, a listener and an address (KIP-612).

    max.connection.creation.rate               over it, the listener accepts no connection for a while
    connection_creation_rate of /config/ips    over it, a connection is held unread for a while, then closed

A rate is a QuotaBucket of core over Kafka's window: after a quiet time ten seconds' worth may come at once. A wait
lasts until the rate is back at its limit, at most a second. The source is Kafka's ConnectionQuotas.
"""

import asyncio
import socket
from collections.abc import Mapping
from typing import Final

from pybroker import fork_safety
from pybroker.core import QuotaBucket
from pybroker.security.principals import host_text

WAIT_MS_MAX: Final = 1000
ADDRESSES_MAX = 10_000
"""Addresses that are counted; beyond, the one that was quiet for longest is dropped."""
HELD_MAX = 1000
"""Connections that are held before they are closed; beyond, the oldest is closed at once."""


def connection_rate(limit: float) -> QuotaBucket:
    """A bucket for connections, with a limit of `limit` per second."""
    return QuotaBucket(limit, throttle_ms_max=WAIT_MS_MAX, paced=False)


class AddressRates:
    """The connection rates of addresses. Addresses without a limit are not counted."""

    def __init__(self) -> None:
        self._default: float | None = None
        self._own: dict[str, float] = {}
        self._rates: dict[str, QuotaBucket] = {}

    def set_rate(self, ip: str | None, rate: float | None) -> None:
        """Set the connections per second allowed from one address or, if `ip` is None, from each address without a rate
        of its own. `rate` None: no limit. `ip` is numeric."""
        if ip is None:
            self._default = rate
            return
        address = host_text(ip)
        if rate is None:
            self._own.pop(address, None)
        else:
            self._own[address] = rate

    def set_rates(self, rates: Mapping[str | None, float]) -> None:
        """Replace all rates; the key None is the default."""
        self._default, self._own = None, {}
        for ip, rate in rates.items():
            self.set_rate(ip, rate)

    def over(self, host: str, now: float) -> float:
        """Count a new connection. Return 0 if it is allowed, else the seconds after which to close it, uncounted."""
        if self._default is None and not self._own:
            return 0.0
        address = host_text(host)
        limit = self._own.get(address, self._default)
        if limit is None:
            return 0.0
        if limit <= 0:
            return WAIT_MS_MAX / 1000
        rate = self._rates.pop(address, None) or connection_rate(limit)
        self._rates[address] = rate  # last in order: the first was quiet for longest
        rate.set_limit(limit)
        wait_ms, refused = rate.take(1, int(now * 1000))
        if len(self._rates) > ADDRESSES_MAX:
            del self._rates[next(iter(self._rates))]
        return wait_ms / 1000 if refused else 0.0


class Held:
    """Sockets that are held unread and closed later, to slow down clients that connect too fast."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def add(self, sock: socket.socket, seconds: float) -> None:
        """Close the socket after this time."""
        self._timers[sock] = self._loop.call_later(seconds, self._end, sock)
        if len(self._timers) > HELD_MAX:
            self._end(next(iter(self._timers)))

    def _end(self, sock: socket.socket) -> None:
        self._timers.pop(sock).cancel()
        fork_safety.hang_up(sock)

    def close(self) -> None:
        """Close all sockets."""
        for sock in list(self._timers):
            self._end(sock)

    def forked(self) -> None:
        """Close this process's copies of the sockets, in a forked child."""
        for sock in self._timers:
            sock.close()
