"""How fast connections may come: Kafka's rates of creation, of a broker, a listener and an address (KIP-612).

    max.connection.creation.rate               over it, the listener accepts nobody for a while
    connection_creation_rate of /config/ips    over it, a connection is held unread for a while, and closed

A rate is counted in samples of a second each, of which eleven are kept: who was quiet may come with ten seconds' worth
at once. A wait is as long as brings the rate back to its limit, and one sample at most. The source is Kafka's Rate,
QuotaUtils and ConnectionQuotas.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Mapping

from pybroker import forks
from pybroker.security.principals import host_text

SAMPLES = 11
SAMPLE_SECONDS = 1.0
ADDRESSES_MAX = 10_000
"""So many addresses are counted; of those beyond, the one that was quiet for longest is forgotten."""
HELD_MAX = 1000
"""So many connections are held before they are closed; beyond, the oldest is closed at once."""


class Rate:
    """Events a second over the last samples; `now` is in seconds of one clock, and never goes back."""

    __slots__ = ("_samples", "last")

    def __init__(self) -> None:
        self._samples: deque[list[float]] = deque(maxlen=SAMPLES)  # [when it began, events]
        self.last = 0.0

    def record(self, now: float, limit: float) -> float:
        """Count one event; how many seconds bring the rate back to `limit` events a second, 0 if it is not over it."""
        samples = self._samples
        self.last = now
        while samples and now - samples[0][0] >= SAMPLES * SAMPLE_SECONDS:
            samples.popleft()
        if not samples or now - samples[-1][0] >= SAMPLE_SECONDS:
            samples.append([now, 0.0])
        samples[-1][1] += 1
        elapsed = self._elapsed(now)
        rate = sum(events for _, events in samples) / elapsed
        if rate <= limit:
            return 0.0
        return min((rate - limit) / limit * elapsed, SAMPLE_SECONDS) if limit > 0 else SAMPLE_SECONDS

    def _elapsed(self, now: float) -> float:
        """What the samples stand for: ten whole seconds at least, as if there had been silence before."""
        elapsed = now - self._samples[0][0]
        whole = int(elapsed / SAMPLE_SECONDS)
        return elapsed + max(0, SAMPLES - 1 - whole) * SAMPLE_SECONDS

    def take_back(self) -> None:
        """The event that was counted last is none."""
        self._samples[-1][1] -= 1


class AddressRates:
    """How fast each address may connect. Without a rate for it nothing is counted."""

    def __init__(self) -> None:
        self._default: float | None = None
        self._own: dict[str, float] = {}
        self._rates: dict[str, Rate] = {}

    def set_rate(self, ip: str | None, rate: float | None) -> None:
        """Connections a second from one address, or with None from each that has no rate of its own; `rate` None: any
        number. `ip` is numeric: names are looked up by who asks for a rate."""
        if ip is None:
            self._default = rate
            return
        address = host_text(ip)
        if rate is None:
            self._own.pop(address, None)
        else:
            self._own[address] = rate

    def set_rates(self, rates: Mapping[str | None, float]) -> None:
        """These are all the rates that there are, None for the default."""
        self._default, self._own = None, {}
        for ip, rate in rates.items():
            self.set_rate(ip, rate)

    def over(self, host: str, now: float) -> float:
        """A connection comes: 0 where it may; else it is to be closed after so many seconds, and counts for nothing."""
        if self._default is None and not self._own:
            return 0.0
        address = host_text(host)
        limit = self._own.get(address, self._default)
        if limit is None:
            return 0.0
        rate = self._rates.pop(address, None) or Rate()
        self._rates[address] = rate  # behind all others: the one in front was quiet for longest
        seconds = rate.record(now, limit)
        if seconds:
            rate.take_back()
        if len(self._rates) > ADDRESSES_MAX:
            del self._rates[next(iter(self._rates))]
        return seconds


class Held:
    """Sockets that nobody reads until they are closed: who connects too fast waits for that."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def add(self, sock: socket.socket, seconds: float) -> None:
        """Close it in so many seconds."""
        self._timers[sock] = self._loop.call_later(seconds, self._end, sock)
        if len(self._timers) > HELD_MAX:
            self._end(next(iter(self._timers)))

    def _end(self, sock: socket.socket) -> None:
        self._timers.pop(sock).cancel()
        forks.hang_up(sock)

    def close(self) -> None:
        """Close them all."""
        for sock in list(self._timers):
            self._end(sock)

    def forked(self) -> None:
        """In a forked child: the sockets are the parent's."""
        for sock in self._timers:
            sock.close()
