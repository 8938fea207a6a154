"""Makes clients and brokers safe for `os.fork`: a child has a copy of their memory, but not their threads.

Waiting for such a thread would never end, and writes to a shared socket would mix with the parent's. So a client or
broker belongs to the process that created it: in a child its sockets are closed, which does not affect the parent, and
it refuses to work.
"""

import contextlib
import os
import socket
import weakref
from typing import Final, Protocol

from pybroker import errors
from pybroker.errors import KafkaError


class Inherited(Protocol):
    """An object that must be disabled in a forked child."""

    def forked(self) -> None:
        """Disable the object, before anything else runs in the child. Must take no lock: its owner may not exist."""


_made: Final["weakref.WeakSet[Inherited]"] = weakref.WeakSet()


def tell(made: Inherited) -> None:
    """Call the object's `forked` in every child that is forked from now on."""
    _made.add(made)


class Closable(Protocol):
    """A socket, or a stream over one."""

    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


def hang_up(sock: Closable) -> None:
    """Shut down and close a socket, even if a forked child has a copy: the peer sees the end, or listening stops."""
    with contextlib.suppress(OSError):  # the peer has disconnected
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def refusal(kind: str) -> KafkaError:
    """The error for using a parent's client in a forked child."""
    words = f"this {kind} was made before a fork and works in the parent process only: make one in the child"
    return KafkaError(errors.INVALID_REQUEST, words)


def _in_child() -> None:
    for made in list(_made):
        made.forked()


os.register_at_fork(after_in_child=_in_child)
