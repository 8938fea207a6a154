"""Limits the number of connections, and closes some to make room, like Kafka's ConnectionQuotas (KIP-402).

    listener.name.<l>.max.connections    at the limit, the listener accepts no connection until one of its own ends.
    max.connections                      at the limit, only the inter-broker listener accepts, if it is not the only
                                         one; connections of other listeners are closed to make room.
    in a login or a TLS handshake        at most half of a listener's limit. To make room, a connection is closed that
                                         is older than LOGIN_GRACE_SECONDS. It is closed at once if its host holds
                                         more than half of these places and other hosts are connected.

Kafka does not limit logins: a client without a password could fill max.connections.
"""

import resource
from collections import Counter
from collections.abc import Callable, Sized
from math import inf
from typing import Protocol

from pybroker.core import QuotaBucket
from pybroker.server.network.connection_rates import AddressRates, connection_rate

UNLIMITED = 2**31 - 1
CONNECTIONS_SHARE = 4
"""A quarter of the file descriptors is reserved for connections, and not used by logs."""
LOGINS_SHARE = 2
"""Half of the connections may be of clients that have not logged in yet."""
LOGIN_GRACE_SECONDS = 1.0
CLOSING_SECONDS = 1.0
"""Seconds after which connections that were asked to close count as closed."""


class Quotas:
    """The connections of one broker: in total, of each listener, and from each host at all listeners."""

    def __init__(self) -> None:
        self.spared: str | None = None
        """The inter-broker listener, if it is not the only one."""
        self.connections_max = UNLIMITED
        self.creation_rate_max: float = UNLIMITED
        self.count = 0
        self.per_host: Counter[str] = Counter()
        self.per_listener: Counter[str] = Counter()
        self.addresses = AddressRates()
        self._spared_logins: Sized = ()
        self.close_longest_silent: Callable[[int], int] = lambda _: 0
        """Closes up to so many connections of listeners that are not spared; returns how many."""
        self._created = connection_rate(UNLIMITED)
        self._created_by: dict[str, QuotaBucket] = {}
        self._waiting: dict[Callable[[], object], None] = {}
        self._closing = 0
        self._closing_since = 0.0

    def spare(self, listener: str | None, logins: Sized) -> None:
        """Exempt the connections of this listener from max.connections; None: no listener. Its pending `logins` are not
        counted either, so that no other connection is closed for a client without a login."""
        self.spared, self._spared_logins = listener, logins

    def add(self, host: str, listener: str = "") -> None:
        self.count += 1
        self.per_host[host] += 1
        self.per_listener[listener] += 1

    def remove(self, host: str, listener: str = "") -> None:
        self.count -= 1
        self.per_host[host] -= 1
        if not self.per_host[host]:
            del self.per_host[host]
        self.per_listener[listener] -= 1
        self._closing = max(0, self._closing - 1)
        waiting, self._waiting = self._waiting, {}
        for resume in waiting:
            resume()

    def wait(self, resume: Callable[[], object]) -> None:
        """Call `resume` once when a connection has ended."""
        self._waiting[resume] = None

    # -- how many ----------------------------------------------------------------------------------------------------

    def full(self, listener: str, listener_max: int) -> str | None:
        """Return why the listener cannot accept a connection now, or None."""
        if self.per_listener[listener] >= listener_max:
            return f"max.connections of {listener} is reached"
        if listener != self.spared and self._weight >= self.connections_max:
            return "max.connections is reached"
        return None

    @property
    def _weight(self) -> int:
        """The number of connections that count for max.connections."""
        return self.count - len(self._spared_logins)

    def make_room(self, now: float) -> None:
        """Close connections above max.connections: the spared listener has accepted more, or the limit was lowered."""
        if now - self._closing_since > CLOSING_SECONDS:
            self._closing = 0
        excess = self._weight - self._closing - self.connections_max
        if excess > 0:
            self._closing_since = now
            self._closing += self.close_longest_silent(excess)

    def logins_max(self, listener_max: int) -> int:
        """The number of clients of one listener that may be in a login or handshake."""
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(listener_max, self.connections_max)
        if allowed >= 0:
            most = min(most, allowed // CONNECTIONS_SHARE)
        return max(1, most // LOGINS_SHARE)

    # -- how fast ----------------------------------------------------------------------------------------------------

    def created(self, listener: str, listener_rate_max: float, now: float) -> float:
        """Count an accepted connection; return the seconds for which the listener must accept no other."""
        if self.creation_rate_max >= UNLIMITED and listener_rate_max >= UNLIMITED:
            return 0.0
        rates = [(self._created_by.setdefault(listener, connection_rate(listener_rate_max)), listener_rate_max)]
        if listener != self.spared:
            rates.append((self._created, self.creation_rate_max))
        waits_ms = []
        for rate, limit in rates:
            rate.set_limit(limit)
            waits_ms.append(rate.record(1, int(now * 1000)))
        return max(waits_ms) / 1000


class PendingLogin(Protocol):
    """A connection in a login or a TLS handshake."""
    last_active: float
    """When the connection was accepted."""

    def close(self, reason: str | None) -> None: ...


class PendingLogins:
    """The connections of one listener in a login or handshake, by host, in order of arrival."""

    def __init__(self) -> None:
        self._by_host: dict[str, dict[PendingLogin, None]] = {}
        self._by_count: dict[int, dict[str, None]] = {}  # hosts by the number of their connections
        self._most = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, host: str, login: PendingLogin) -> None:
        there = self._by_host.setdefault(host, {})
        self._recount(host, len(there), len(there) + 1)
        there[login] = None

    def discard(self, host: str, login: object) -> None:
        """Remove a connection that has logged in or ended, if it is here."""
        there = self._by_host.get(host, {})
        if there.pop(login, self) is None:  # type: ignore[call-overload]
            self._recount(host, len(there) + 1, len(there))
            if not there:
                del self._by_host[host]

    def _recount(self, host: str, before: int, now: int) -> None:
        self._count += now - before
        if before:
            del self._by_count[before][host]
            if not self._by_count[before]:
                del self._by_count[before]
        if now:
            self._by_count.setdefault(now, {})[host] = None
        self._most = max(self._most, now) if self._by_count.get(self._most) else now

    def make_room(self, now: float, hosts: int = 1) -> float:
        """Close the oldest connection of the host that has most of them, and return 0. If it must not be closed yet,
        return the seconds until it may; infinity if there is none. `hosts` is the number of hosts connected to this
        broker: if there are others, a host with more than half of the places gets no grace period."""
        if not self._count:
            return inf
        host = next(iter(self._by_count[self._most]))
        longest = next(iter(self._by_host[host]))
        wait = longest.last_active + LOGIN_GRACE_SECONDS - now
        if wait > 0 and not (hosts > 1 and 2 * self._most > self._count):
            return wait
        self.discard(host, longest)  # closing it may have to wait for a handshake step
        longest.close("login took too long while other clients waited")
        return 0.0
