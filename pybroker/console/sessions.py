"""BrowserSessions of browsers, and the pace at which passwords may be tried.

A cookie is ID.MAC, so a browser cannot make up a session, and has no secret of the cluster: those stay in this process.
Without a login a session is only the cookie; with one it is an entry here that ends, or is pushed out by newer ones.
"""

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from pybroker.console.clients import ViewerClients

SESSIONS_MAX: Final = 1000
IDLE_S_MAX: Final = 8 * 3600.0
FREE_ATTEMPTS: Final = 4
"""Failed logins from an address before the next ones have to wait."""
WAIT_S_MAX: Final = 60.0
ADDRESSES_MAX: Final = 10_000


class Viewer(NamedTuple):
    """A person at a browser: the clients with the person's rights, the session, and the token of its forms."""

    clients: ViewerClients
    session: str
    csrf: str
    user: str | None


class BrowserSessions:
    """The sessions of one console; `now_s` is a clock that only goes forward."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[str, ViewerClients, float]] = OrderedDict()

    def begin(self) -> str:
        """Return the cookie of a new session."""
        session = secrets.token_urlsafe(24)
        return f"{session}.{self._mac('session', session)}"

    def read(self, cookie: str | None) -> str | None:
        """Return the session of a cookie; None if this console did not make it."""
        session, _, mac = (cookie or "").partition(".")
        return session if session and hmac.compare_digest(mac, self._mac("session", session)) else None

    def csrf(self, session: str) -> str:
        """Return the token that forms of a session carry."""
        return self._mac("form", session)

    def log_in(self, session: str, user: str, clients: ViewerClients) -> None:
        """Remember the login of a session."""
        with self._lock:
            self._known[session] = (user, clients, self._now_s())
            over = [self._known.popitem(last=False) for _ in range(len(self._known) - SESSIONS_MAX)]
        for _, (_, old, _) in over:
            old.close()

    def find(self, session: str) -> tuple[str, ViewerClients] | None:
        """Return the user of a session and the user's clients; None without a login."""
        now_s = self._now_s()
        with self._lock:
            known = self._known.pop(session, None)
            if known is not None and now_s - known[2] < IDLE_S_MAX:
                self._known[session] = (known[0], known[1], now_s)
                return known[:2]
        if known is not None:
            known[1].close()
        return None

    def log_out(self, session: str) -> None:
        """Forget the user of a session."""
        with self._lock:
            known = self._known.pop(session, None)
        if known is not None:
            known[1].close()

    def _mac(self, purpose: str, session: str) -> str:
        return hmac.new(self._secret, f"{purpose}:{session}".encode(), hashlib.sha256).hexdigest()


class Attempts:
    """Failed logins by address: after a few of them the next has to wait, twice as long each time."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Return how long an address has to wait for its next attempt; 0 if it need not."""
        count, last_s = self._failed.get(address, (0, 0.0))
        if count < FREE_ATTEMPTS:
            return 0.0
        return max(0.0, last_s + min(2.0 ** (count - FREE_ATTEMPTS), WAIT_S_MAX) - self._now_s())

    def begin(self, address: str) -> None:
        """Count an attempt as failed until `succeeded`, so that parallel attempts count, too."""
        count, _ = self._failed.pop(address, (0, 0.0))
        self._failed[address] = (count + 1, self._now_s())
        if len(self._failed) > ADDRESSES_MAX:
            self._failed.popitem(last=False)

    def succeeded(self, address: str) -> None:
        self._failed.pop(address, None)
