"""The caller of a request, its rights, login and throttle: everything besides the request's own fields."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from pybroker.model import HostPort

if TYPE_CHECKING:
    from pybroker.core import Counted

ANONYMOUS = "User:ANONYMOUS"


class Rights:
    """The operations on topics that a principal was found to be allowed, under the ACLs of version `rules`."""

    __slots__ = ("_found", "rules")

    def __init__(self) -> None:
        self._found: dict[bytes, int] = {}
        self.rules = 0

    def add(self, rules: int, topic_id: bytes, bits: int) -> None:
        """Add allowed operations on a topic; drop those found under another version of the ACLs."""
        if rules != self.rules:
            self._found.clear()
            self.rules = rules
        self._found[topic_id] = self._found.get(topic_id, 0) | bits

    def take(self) -> dict[bytes, int]:
        """Remove and return everything found since the last call."""
        found, self._found = self._found, {}
        return found


class LoginSession:
    """A login that expires, and the re-authentication that replaces it on the same connection (KIP-368)."""

    __slots__ = ("ends_s", "handshake", "mechanism", "renewed_s")

    def __init__(self, mechanism: str, ends_s: float) -> None:
        """`ends_s` is a time of the monotonic clock, infinity for none."""
        self.mechanism = mechanism
        self.ends_s = ends_s
        self.renewed_s = -math.inf
        """The time when the client last began to log in again."""
        self.handshake: object = None
        """The state of a re-authentication in progress."""

    def ends_ms(self) -> int:
        """The expiry for the data plane, in ms; 0 for none."""
        return 0 if math.isinf(self.ends_s) else max(1, int(self.ends_s * 1000))


class Throttle:
    """The effect of quotas on a connection after its next response."""

    __slots__ = ("_settled", "client", "is_kept", "mute_ms", "told")

    def __init__(self) -> None:
        self.mute_ms = 0
        """Milliseconds for which the connection is not read."""
        self.told: Counted | None = None
        """The quota counters to hand to the data plane (`Counted` in core); None: no change."""
        self.client: object = None
        """The counters that the connection used last, kept for the code that counts."""
        self.is_kept = False
        """True while the client must wait before the data plane gets its quotas."""
        self._settled: tuple[bool, bool] = (False, False)

    def is_settled(self, produce: bool) -> bool:
        """True once the connection has waited for quota debts that its client already had, or has none to wait for.
        With `produce`: debts of Produce requests."""
        return self._settled[produce]

    def settle(self, produce: bool) -> None:
        self._settled = (True, produce or self._settled[True])

    def take_mute(self) -> int:
        mute_ms, self.mute_ms = self.mute_ms, 0
        return mute_ms

    def take_told(self) -> Counted | None:
        told, self.told = self.told, None
        return told


class Caller(NamedTuple):
    """The client at the other end of a connection; `listener` is the name of the listener that it connected to."""

    host: str
    port: int
    listener: str
    principal: str = ANONYMOUS
    rights: Rights | None = None
    """The client's rights for the data plane; None if it checks none."""
    session: LoginSession | None = None
    """The client's login, if it expires."""
    by_token: bool = False
    """True if the client logged in with a delegation token."""
    throttle: Throttle | None = None
    """The throttle of the connection; None if it is never muted."""

    @property
    def address(self) -> str:
        return str(HostPort(self.host, self.port))


class Call(NamedTuple):
    """One request: its API version, client id and caller."""

    version: int
    client_id: str | None
    caller: Caller
    may_create: Callable[[str], bool] | None = None
    """True for a topic that this client may have created automatically; None if no authorizer is configured."""
    size: int = 0
    """Bytes of the request's frame."""
    fetched: Callable[[int], tuple[int, bool]] | None = None
    """For a Fetch under a quota: response bytes -> (throttle time in ms, True if the response must not be sent). Called
    once."""
    whole: tuple[int, int] | None = None
    """The number of elements of the whole request, and their total size, if this is a slice of it; otherwise None."""


class Disconnect(Exception):
    """Close the connection instead of answering; the text is the reason for the log."""
