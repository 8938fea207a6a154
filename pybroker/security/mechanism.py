"""The interfaces of SASL mechanisms, and PLAIN (RFC 4616)."""

import hmac
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

PLAIN_BYTES_MAX = 4096


class BadCredentials(Exception):
    """The authentication failed; the message is sent to the other end, and has no secrets in it."""

    def __init__(self, message: str, reason: str | None = None) -> None:
        """`reason`: the text for the log, if it has more than the message."""
        super().__init__(message)
        self.reason = reason or message


class NotYet(Exception):
    """A client's message can be judged only after keys are read; then judge it again. If this is raised again, the
    message is the reason of the failure."""

    def __init__(self, read: Callable[[], "Future[None]"], message: str, nothing_known: bool) -> None:
        """`read` starts reading the keys. `nothing_known`: there are no keys yet, so no client should be refused."""
        super().__init__(message)
        self.read = read
        self.nothing_known = nothing_known


class ServerMechanism(Protocol):
    """A broker's side of one exchange. `user` is set once the client has proven to be that user; the login ends at
    `expires_ms` of the wall clock, None: never; `by_token` is true for a login by delegation token."""

    mechanism: str
    user: str | None
    expires_ms: int | None
    by_token: bool
    claimed: str
    """The unverified name that the client gave, for the log; empty if it gave none."""

    def step(self, token: bytes) -> bytes:
        """The answer to one message of the client. Raises BadCredentials, NotYet."""


class ClientMechanism(Protocol):
    """A client's side of one exchange; `done` is set at its end."""

    mechanism: str
    done: bool

    def start(self) -> bytes:
        """The first message."""

    def step(self, token: bytes) -> bytes | None:
        """The answer to a message of the server; None at the end. Raises BadCredentials."""


class PlainServer:
    """A broker's side of PLAIN; `look_up` returns the password of a user, None if there is none."""

    mechanism = "PLAIN"
    by_token = False

    def __init__(self, look_up: Callable[[str], str | None]) -> None:
        self.user: str | None = None
        self.expires_ms: int | None = None
        self.claimed = ""
        self._look_up = look_up

    def step(self, token: bytes) -> bytes:
        """Return an empty answer to the right password. Raises BadCredentials, in Kafka's words."""
        try:
            parts = token.decode().split("\0") if len(token) <= PLAIN_BYTES_MAX else []
        except UnicodeDecodeError:
            parts = []
        if len(parts) != 3:
            raise BadCredentials("Authentication failed: Invalid SASL/PLAIN response")
        authzid, user, password = parts
        self.claimed = user
        if not user:
            raise BadCredentials("Authentication failed: username not specified")
        if not password:
            raise BadCredentials("Authentication failed: password not specified")
        held = self._look_up(user)
        right = hmac.compare_digest((password if held is None else held).encode(), password.encode())
        if held is None or not right:
            raise BadCredentials("Authentication failed: Invalid username or password")
        if authzid and authzid != user:
            raise BadCredentials(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.user = user
        return b""


class PlainClient:
    """A client's side of PLAIN."""

    mechanism = "PLAIN"

    def __init__(self, user: str, password: str) -> None:
        self.done = False
        self._token = f"\0{user}\0{password}".encode()

    def start(self) -> bytes:
        """The only message: user and password."""
        return self._token

    def step(self, token: bytes) -> bytes | None:
        """Accept the server's empty answer, which means success."""
        self.done = True
        return None
