"""Who asks: what decisions and handlers may know of a request beside its fields."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from pybroker.model import HostPort

ANONYMOUS = "User:ANONYMOUS"


class Rights:
    """What somebody may do with topics, as was found since it was taken last, by the rules of one number."""

    __slots__ = ("_found", "rules")

    def __init__(self) -> None:
        self._found: dict[bytes, int] = {}
        self.rules = 0

    def add(self, rules: int, topic_id: bytes, bits: int) -> None:
        """What was found by other rules is forgotten."""
        if rules != self.rules:
            self._found.clear()
            self.rules = rules
        self._found[topic_id] = self._found.get(topic_id, 0) | bits

    def take(self) -> dict[bytes, int]:
        """All of it; nothing is left."""
        found, self._found = self._found, {}
        return found


class Session:
    """The login of a connection's client that has an end, and the one that is to follow it on the same connection."""

    __slots__ = ("ends_s", "handshake", "mechanism", "renewed_s")

    def __init__(self, mechanism: str, ends_s: float) -> None:
        """`ends_s` is a time of the monotonic clock, infinity for none."""
        self.mechanism = mechanism
        self.ends_s = ends_s
        self.renewed_s = -math.inf
        """When the client began to log in again."""
        self.handshake: Any = None
        """What is said of it, while it is under way."""

    def ends_ms(self) -> int:
        """As the data plane has it; 0 for none."""
        return 0 if math.isinf(self.ends_s) else max(1, int(self.ends_s * 1000))


class Throttle:
    """What becomes of a connection after the answer that is being made for it: what its quotas ask for."""

    __slots__ = ("_settled", "client", "is_kept", "mute_ms", "told")

    def __init__(self) -> None:
        self.mute_ms = 0
        """How long nothing more of it is read."""
        self.told: Any = None
        """What the data plane is told of where it counts (`Counted` in core); None: nothing new."""
        self.client: Any = None
        """Where it counted last, for who counts."""
        self.is_kept = False
        """True while the data plane does not know the client's quotas yet, because the client has to wait first."""
        self._settled: tuple[bool, bool] = (False, False)

    def is_settled(self, produce: bool) -> bool:
        """True once the connection has waited for what its client owed when it came, or need not wait. With `produce`:
        for what it owed for a Produce."""
        return self._settled[produce]

    def settle(self, produce: bool) -> None:
        self._settled = (True, produce or self._settled[True])

    def take_mute(self) -> int:
        mute_ms, self.mute_ms = self.mute_ms, 0
        return mute_ms

    def take_told(self) -> Any:
        told, self.told = self.told, None
        return told


class Caller(NamedTuple):
    """The client at the other end of a connection; `listener` is the name of the one it came in by."""

    host: str
    port: int
    listener: str
    principal: str = ANONYMOUS
    rights: "Rights | None" = None
    """What the data plane is told of this client; None where it is told nothing."""
    session: "Session | None" = None
    """Of a client whose login has an end."""
    by_token: bool = False
    """It has logged in by a delegation token."""
    throttle: "Throttle | None" = None
    """Of its connection; None where nobody is muted."""

    @property
    def address(self) -> str:
        return str(HostPort(self.host, self.port))


class Call(NamedTuple):
    """One request: its API's version, the name that the client gives itself, and where it came from."""

    version: int
    client_id: str | None
    caller: Caller
    may_create: "Callable[[str], bool] | None" = None
    """Whether the client may have this topic made by asking for it; None where nobody is asked for rights."""
    size: int = 0
    """Bytes of its frame."""
    fetched: "Callable[[int], tuple[int, bool]] | None" = None
    """Of a Fetch that is counted: how many ms its client has to wait after an answer of so many bytes, and whether that
    is not to be given; asked once."""
    whole: tuple[int, int] | None = None
    """The elements of the whole request that this is a slice of, and the sum of their sizes; None if it is no slice."""


class Disconnect(Exception):
    """The connection must be closed instead of answered; the text says why, for the log."""
