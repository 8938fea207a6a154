"""How many connections a broker has, and who makes room when there are too many: Kafka's ConnectionQuotas (KIP-402).

    listener.name.<l>.max.connections    over it, the listener accepts nobody until one of its own ends
    max.connections                      over it, no listener does, but the one that brokers use among themselves, if
                                         there are others: for its connections those of other listeners are closed
    not logged in, in a TLS handshake    at most half of what a listener may have; one that is there for longer than
                                         LOGIN_GRACE_SECONDS is closed for the next, and at once where its host
                                         holds more than half of these places and others are connected, too

Kafka has no bound for logins: a stranger without a password could fill max.connections.
"""

import resource
from collections import Counter
from collections.abc import Callable, Sized
from math import inf
from typing import Protocol

from pybroker.server.connection_rates import AddressRates, Rate

UNLIMITED = 2**31 - 1
CONNECTIONS_SHARE = 4
"""One descriptor in so many is never taken by a log."""
LOGINS_SHARE = 2
"""One connection in so many may be of somebody who is not logged in yet."""
LOGIN_GRACE_SECONDS = 1.0
CLOSING_SECONDS = 1.0
"""What was asked to close has done it by then."""


class Quotas:
    """The connections of one broker, in all, of each listener and from each host: its listeners count together."""

    def __init__(self) -> None:
        self.spared: str | None = None
        """The listener that brokers use among themselves, where it is not the only one."""
        self.connections_max = UNLIMITED
        self.creation_rate_max: float = UNLIMITED
        self.count = 0
        self.per_host: Counter[str] = Counter()
        self.per_listener: Counter[str] = Counter()
        self.addresses = AddressRates()
        self._spared_logins: Sized = ()
        self.close_longest_silent: Callable[[int], int] = lambda _: 0
        """Asked to close so many connections of listeners that are not spared; how many will be."""
        self._created = Rate()
        self._created_by: dict[str, Rate] = {}
        self._waiting: dict[Callable[[], object], None] = {}
        self._closing = 0
        self._closing_since = 0.0

    def spare(self, listener: str | None, logins: Sized) -> None:
        """Close nobody of this listener, None: there is none. `logins`: who is there and not logged in yet; for a
        stranger nobody is closed, and nobody waits."""
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
        """Why the listener accepts nobody at present; None if it may."""
        if self.per_listener[listener] >= listener_max:
            return f"max.connections of {listener} is reached"
        if listener != self.spared and self._weight >= self.connections_max:
            return "max.connections is reached"
        return None

    @property
    def _weight(self) -> int:
        """The connections that max.connections is about."""
        return self.count - len(self._spared_logins)

    def make_room(self, now: float) -> None:
        """Have those closed that are too many: the spared listener has accepted more, or the limit is another one."""
        if now - self._closing_since > CLOSING_SECONDS:
            self._closing = 0
        excess = self._weight - self._closing - self.connections_max
        if excess > 0:
            self._closing_since = now
            self._closing += self.close_longest_silent(excess)

    def logins_max(self, listener_max: int) -> int:
        """How many at one listener may be not logged in yet."""
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(listener_max, self.connections_max)
        if allowed >= 0:
            most = min(most, allowed // CONNECTIONS_SHARE)
        return max(1, most // LOGINS_SHARE)

    # -- how fast ----------------------------------------------------------------------------------------------------

    def created(self, listener: str, listener_rate_max: float, now: float) -> float:
        """A connection was accepted: for how many seconds the listener accepts no other."""
        if self.creation_rate_max >= UNLIMITED and listener_rate_max >= UNLIMITED:
            return 0.0
        own = self._created_by.setdefault(listener, Rate()).record(now, listener_rate_max)
        if listener == self.spared:
            return own
        return max(own, self._created.record(now, self.creation_rate_max))


class Login(Protocol):
    """Somebody who is not logged in yet, or not done with a TLS handshake."""

    last_active: float
    """When it came."""

    def close(self, reason: str | None) -> None: ...


class PendingLogins:
    """Who is at one listener and not logged in yet, by host, in the order in which they came."""

    def __init__(self) -> None:
        self._by_host: dict[str, dict[Login, None]] = {}
        self._by_count: dict[int, dict[str, None]] = {}  # hosts by the number of their connections
        self._most = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, host: str, login: Login) -> None:
        there = self._by_host.setdefault(host, {})
        self._recount(host, len(there), len(there) + 1)
        there[login] = None

    def discard(self, host: str, login: object) -> None:
        """It is logged in, or gone. One that was never added is no error."""
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
        """Close the oldest connection of the host that has most of them, and return 0. If it may not be closed yet, the
        seconds until it may; infinity if there is none. `hosts` is the number of hosts connected to this broker: if
        there are others, a host with more than half of the places gets no grace, for its flood would keep them out."""
        if not self._count:
            return inf
        host = next(iter(self._by_count[self._most]))
        longest = next(iter(self._by_host[host]))
        wait = longest.last_active + LOGIN_GRACE_SECONDS - now
        if wait > 0 and not (hosts > 1 and 2 * self._most > self._count):
            return wait
        self.discard(host, longest)  # its end may have to wait for a step of a handshake
        longest.close("others wait to log in, and this one took too long")
        return 0.0
