"""Who asks: what decisions and handlers may know of a request beside its fields."""

from typing import NamedTuple

from pybroker.model import HostPort

ANONYMOUS = "User:ANONYMOUS"


class Caller(NamedTuple):
    """The client at the other end of a connection; `listener` is the name of the one it came in by."""

    host: str
    port: int
    listener: str
    principal: str = ANONYMOUS

    @property
    def address(self) -> str:
        return str(HostPort(self.host, self.port))


class Call(NamedTuple):
    """One request: its API's version, the name that the client gives itself, and where it came from."""

    version: int
    client_id: str | None
    caller: Caller


class Disconnect(Exception):
    """The connection must be closed instead of answered; the text says why, for the log."""
