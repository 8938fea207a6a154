"""What mechanisms of SASL have in common, and PLAIN (RFC 4616), which needs nothing else."""

import hmac
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

PLAIN_BYTES_MAX = 4096


class BadCredentials(Exception):
    """Somebody is not who they say; the message is for the other end, and holds nothing that opens a door."""

    def __init__(self, message: str, reason: str | None = None) -> None:
        """`reason`: what the log is told, where that is more."""
        super().__init__(message)
        self.reason = reason or message


class NotYet(Exception):
    """What a client said can be judged once something has been read: then it is to be judged again. A second time it
    is what the message says."""

    def __init__(self, read: Callable[[], "Future[None]"], message: str, nothing_known: bool) -> None:
        """`read` has it read. `nothing_known`: nobody can be judged before, so that nobody should be told no."""
        super().__init__(message)
        self.read = read
        self.nothing_known = nothing_known


class ServerMechanism(Protocol):
    """A broker's side of one exchange; `user` is None until somebody has proven to be that user, until `expires_ms` of
    the wall clock, None for good; `by_token` by what somebody else, who has logged in, has handed on."""

    mechanism: str
    user: str | None
    expires_ms: int | None
    by_token: bool
    claimed: str
    """The name that the client has given, whoever it is: for the log. Empty where it gave none."""

    def step(self, token: bytes) -> bytes:
        """The answer to one message of the client. Raises BadCredentials, NotYet."""


class ClientMechanism(Protocol):
    """A client's side of one exchange; `done` once nothing more is to come."""

    mechanism: str
    done: bool

    def start(self) -> bytes:
        """The first message."""

    def step(self, token: bytes) -> bytes | None:
        """What to answer to a message of the server; None for nothing more. Raises BadCredentials."""


class PlainServer:
    """PLAIN; `look_up` has the password of a user, None where there is none."""

    mechanism = "PLAIN"
    by_token = False

    def __init__(self, look_up: Callable[[str], str | None]) -> None:
        self.user: str | None = None
        self.expires_ms: int | None = None
        self.claimed = ""
        self._look_up = look_up

    def step(self, token: bytes) -> bytes:
        """Nothing, for who has said the right password. Raises BadCredentials, in Kafka's words."""
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
    """PLAIN, as a client says it."""

    mechanism = "PLAIN"

    def __init__(self, user: str, password: str) -> None:
        self.done = False
        self._token = f"\0{user}\0{password}".encode()

    def start(self) -> bytes:
        """All there is to be said."""
        return self._token

    def step(self, token: bytes) -> bytes | None:
        """The server has nothing to say but yes."""
        self.done = True
        return None
